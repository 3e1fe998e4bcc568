"""Reads files with URLs by fsspec: object stores, the web, memory."""

from __future__ import annotations

import datetime
import errno
import fnmatch
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from levada import _levada
from levada.base.errors import Error, InvalidArgument, SourceError, Unsupported
from levada.base.packages import import_for

__all__ = ["REMOTE"]

_TAGS = ("ETag", "etag", "generation", "md5Hash", "Content-MD5", "content_md5", "checksum", "blob_id")
"""Keys in a file system's info whose value changes with the content of a file. The first one present is used."""

_DIGEST = re.compile(r'"?[0-9a-fA-F]{32,}(-\d+)?"?')
"""A tag that is a digest, such as an MD5. Other tags may only tell versions of one file apart: web servers make them of a
file's size and time, which files that were unpacked together share."""

_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created", "Last-Modified")
"""Keys in a file system's info for the time of the last change."""


def shown_url(text: str) -> str:
    """Returns a URL, or a text that contains URLs, in a form that is safe to show: without user, password and query."""
    return _levada.printable(text.encode(errors="replace").decode())


class RemoteFile:
    """A file with the content that it had at construction. Any thread may use it, also in a forked process.

    `tag` identifies the content among all files; "" if the storage has nothing that does."""

    def __init__(self, url: str) -> None:
        self._url, self._shown = url, shown_url(url)
        fs, path = _filesystem(url)
        try:
            self.size, self.modified_ns, self._tag = _look(fs, path)
        except Exception as error:
            raise _fault(error) from None
        is_of_any_file = not self._tag or _DIGEST.fullmatch(self._tag)
        self.tag = self._tag if is_of_any_file else f"{self._tag} of {self._shown}"

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes [start, end), or fewer if the response was cut off. Raises SourceError if the file has
        changed, and OSError."""
        fs, path = _filesystem(self._url)
        try:
            if self._tag and hasattr(fs, "_call_s3"):
                return _read_s3(fs, path, start, end, self._tag)
            data: bytes = fs.cat_file(path, start=start, end=end)
            if len(data) > end - start:
                raise SourceError(f"{self._shown} cannot be read in parts, for its server sends all of it: copy the file")
            if _look(fs, path) != (self.size, self.modified_ns, self._tag):
                raise self._changed()
            return data
        except Exception as error:
            if _status(error) in (412, 416):  # it has another tag, or ends before `start`
                raise self._changed() from None
            if isinstance(_unwrapped(error), FileNotFoundError) and _status(error) < 500:
                raise self._changed("was removed") from None
            raise _fault(error) from None

    def _changed(self, how: str = "was written to") -> SourceError:
        return SourceError(f"{self._shown} {how} while it was being read: start again with a file that does not change")


def list_files(url: str) -> list[str]:
    """Returns the files and folders that match a pattern, with a slash after each folder. For any other URL, returns
    the files below that folder. A URL with brackets that is the name of a file is not a pattern."""
    fs, path = _filesystem(url)
    try:
        fs.invalidate_cache()
        if "[" in path and fs.isfile(path):
            return [url]
        if magic := re.search(r"[*?\[]", path):
            root = path.rfind("/", 0, magic.start())
            found = _complete(fs.glob, path, detail=True)
            if "/." not in path[root:]:  # as in glob(7), hidden files must be named explicitly
                found = {name: info for name, info in found.items() if "/." not in name[root:]}
            if "**" in path and "/_" not in path[root:]:  # does not enter unfinished output (_temporary), nor a program's notes
                found = {name: info for name, info in found.items() if "/_" not in name[root : name.rfind("/") + 1]}
            return [_url(url, path, name) + "/" * (info["type"] == "directory") for name, info in found.items()]
        return [_url(url, path, name) for name in _complete(fs.find, path) if name != path]
    except Exception as error:
        if isinstance(_unwrapped(error), FileNotFoundError):
            return []
        raise _fault(error) from None


def _complete(listing: Any, path: str, **options: Any) -> Any:
    """Lists all files, or raises. By default, fsspec omits folders that it cannot list."""
    try:
        return listing(path, on_error="raise", **options)
    except TypeError:  # this file system lists everything at once, and raises
        return listing(path, **options)


def _filesystem(url: str) -> tuple[Any, Any]:
    """Returns the file system of this process and thread, and the file's path in it."""
    shown = shown_url(url)
    fsspec = import_for(shown, "fsspec")
    try:
        return fsspec.core.url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        raise Unsupported(f"{shown} needs a package that is not installed: {error}") from None
    except ValueError as error:
        raise InvalidArgument(f"{shown} cannot be opened: {shown_url(str(error))}") from None
    except Exception as error:
        raise _fault(error) from None


def _look(fs: Any, path: str) -> tuple[int, int, str]:
    """Returns the file's current size, the time of its last change, and a tag that changes with its content."""
    fs.invalidate_cache(path)
    info = fs.info(path)
    if info["type"] == "directory":
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if info["size"] is None:
        raise OSError(errno.EINVAL, "its server does not report its size: copy the file")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return info["size"], 0 if tag else next(_times(info), 0), tag


def _times(info: dict[str, Any]) -> Iterator[int]:
    import email.utils

    for key in _TIMES:
        value = info.get(key)
        try:
            if isinstance(value, str):
                value = email.utils.parsedate_to_datetime(value)
            if isinstance(value, datetime.datetime):
                value = value.timestamp()
            if value:
                yield int(value * 1e9)
        except (TypeError, ValueError):
            continue


def _read_s3(fs: Any, path: str, start: int, end: int, tag: str) -> bytes:
    """Reads a range of an object with one request, which fails if the object's content has changed."""

    async def read() -> bytes:
        bucket, key, _ = fs.split_path(path)
        options = {**fs.req_kw, "Range": f"bytes={start}-{end - 1}", "IfMatch": tag}
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **options)
        async with answer["Body"] as body:
            return await body.read()  # type: ignore[no-any-return]

    return import_for(path, "fsspec", "fsspec.asyn").sync(fs.loop, read)  # type: ignore[no-any-return]


def _url(like: str, path: str, name: str) -> str:
    """Returns the URL of the file that the file system calls `name`. `path`: the file system's name for the URL `like`.
    Some file systems' names begin with the URL's host or bucket, others after it."""
    if "://" in name:
        return name
    scheme, _, rest = like.rstrip("/").partition("://")
    host, slash, below = rest.partition("/")
    root = path[: len(path) - len(below)]
    if path == root + below and name.startswith(root):
        base, end = f"{scheme}://{host}{slash}", name[len(root) :]
        return base + end if base.endswith("/") or end.startswith("/") else f"{base}/{end}"
    end = name.lstrip("/")
    if not fnmatch.fnmatchcase(end.partition("/")[0], host):
        raise Unsupported(f"{shown_url(like)} matches files that its file system does not name by URLs: name each file itself")
    return f"{scheme}://{end}"


def _status(error: BaseException) -> int:
    """Returns the HTTP status of the error or of its cause, or 0 if there is none."""
    for each in (error, error.__cause__):
        answer = getattr(each, "response", None)
        known = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
        for value in (known, getattr(each, "status", None) or getattr(each, "code", None)):
            if isinstance(value, int):
                return value
    return 0


def _unwrapped(error: Exception) -> BaseException:
    """Returns the connection error that caused a FileNotFoundError, which fsspec's HTTP file system also raises if it
    cannot connect. Returns any other error unchanged."""
    import asyncio

    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None or _status(cause):
        return error
    is_connection = isinstance(cause, (ConnectionError, socket.gaierror, TimeoutError, asyncio.TimeoutError))
    return cause if is_connection or type(cause).__module__.startswith("aiohttp.") else error


def _fault(raised: Exception) -> Exception:
    """Returns an error whose errno determines whether the C++ core retries. Must be raised `from None`, because exceptions
    of packages may quote the URL with its password."""
    import asyncio

    error = _unwrapped(raised)
    if isinstance(error, Error):
        return error
    if isinstance(reason := getattr(error, "os_error", None), OSError):  # of aiohttp, which has not reached the server
        text = os.strerror(reason.errno) if reason.errno and reason.errno > 0 else reason.strerror
        return OSError(errno.EAGAIN, f"cannot connect to {getattr(error, 'host', '')}:{getattr(error, 'port', '')}: {text}")
    status, text = _status(error), shown_url(getattr(error, "strerror", None) or str(error)) or type(error).__name__
    number = error.errno or errno.EIO if isinstance(error, OSError) else errno.EIO
    if status in (408, 429) or status >= 500 or number in (errno.EBUSY, errno.ECONNREFUSED):
        number = errno.EAGAIN
    elif isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ == "NoCredentialsError":
        number, text = errno.EACCES, f"access is denied ({text}): use credentials that may read it"
    elif isinstance(error, FileNotFoundError) or status in (404, 410):
        number, text = errno.ENOENT, "there is no such file"
    elif isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        number, text = errno.ETIMEDOUT, "no answer came in time"
    elif isinstance(error, (TypeError, ValueError, NotImplementedError)):
        number = errno.EINVAL
    return OSError(number, text)


REMOTE = _levada.RemoteFiles(RemoteFile, list_files)
