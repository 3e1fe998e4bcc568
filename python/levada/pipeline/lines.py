"""Reads lines of text files as items, by byte range, so that each process reads only its own."""

from __future__ import annotations

import bisect
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from levada import _levada
from levada.base.errors import InvalidArgument, SourceError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


_BLOCK = 1 << 16
"""Bytes of lines to read at a time. The file's stamp is checked once per block."""
_SAMPLES, _SAMPLE = 64, 4096
"""Number of blocks of a file that its stamp covers, and bytes of each."""


class FileStamp(NamedTuple):
    """Identifies the content of a file."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    """Time of the last change. It also changes with permissions, owners and names; `sampled` then decides."""
    sampled: str
    """Digest of evenly spaced blocks."""


class ByteRange(NamedTuple):
    """The lines that begin in [begin, end) of a file."""

    path: str
    begin: int
    end: int
    stamp: FileStamp


class ByteRanges:
    """Files divided into ranges of `size` bytes, by index. Readers check that the files have not changed since this
    object was made."""

    def __init__(self, paths: Paths, size: int) -> None:
        if size < 1:
            raise InvalidArgument(f"range_bytes is {size}; it is at least 1")
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise InvalidArgument("there are no files to read lines of")
        self.paths = [os.fspath(path) for path in given]
        self.stamps = [_stamp_of_path(path) for path in self.paths]
        self.size = size
        self._ends = list(itertools.accumulate(-(-stamp.size // size) for stamp in self.stamps))
        described = repr([(stamp.size, stamp.sampled) for stamp in self.stamps])
        self.sampled = _levada.digest(described.encode())[:16]
        """A digest of the files' sizes and sampled blocks. Copies of the files have the same digest."""

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, at: int) -> ByteRange:
        if not 0 <= at < len(self):
            raise IndexError(at)
        file = bisect.bisect_right(self._ends, at)
        begin = (at - (self._ends[file - 1] if file else 0)) * self.size
        stamp = self.stamps[file]
        return ByteRange(self.paths[file], begin, min(begin + self.size, stamp.size), stamp)

    def content(self) -> str:
        """Returns a digest of how the files are divided, and of their sizes, times of change and sampled blocks. Raises
        SourceError if a file has changed since this object was made."""
        for path, stamp in zip(self.paths, self.stamps, strict=True):
            if (now := _stamp_of_path(path))[:4] != stamp[:4] or now.sampled != stamp.sampled:
                raise SourceError(_changed(path))
        described = [(stamp.size, stamp.modified_ns, stamp.sampled) for stamp in self.stamps]
        return _levada.digest(repr((self.size, described)).encode())


def _changed(path: str) -> str:
    return (
        f"{path} has changed since the pipeline was made, by which its lines are divided; leave files as they are while they "
        "are read, and make the pipeline again"
    )


def _stamp_of_path(path: str) -> FileStamp:
    try:
        with open_file(path) as file:
            return stamp_of(path, file)
    except OSError as error:
        raise SourceError(f"{path!r} cannot be read: {error.strerror or error}") from None


def stamp_of(path: str, file: BinaryIO) -> FileStamp:
    """Returns the stamp of an open file. Raises SourceError unless it is a regular file."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path} is not a regular file, so it has no lines that could be read in parts")
    sampled = _sampled_digest(file.fileno(), status.st_size)
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sampled)


def _sampled_digest(fd: int, size: int) -> str:
    last = max(size - _SAMPLE, 0)
    offsets = {last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}
    return _levada.digest(b"".join(os.pread(fd, _SAMPLE, offset) for offset in sorted(offsets)))


def _has_changed(path: str, file: BinaryIO, stamp: FileStamp, changed_ns: int) -> bool:
    """Returns whether the content has changed since `stamp`. `changed_ns`: the latest time of change at which it was
    known to be unchanged."""
    status = os.fstat(file.fileno())
    if (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) != stamp[:4]:
        return True
    return status.st_ctime_ns != changed_ns and stamp_of(path, file).sampled != stamp.sampled


def open_file(path: str) -> BinaryIO:
    """Opens a file without waiting for a named pipe's writer."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


class Lines:
    """The lines of a range as text, without line ends. Its state is a byte offset."""

    def __init__(self, range_: ByteRange) -> None:
        self._range = range_
        self._at: int | None = None

    def __iter__(self) -> Iterator[str]:
        path, begin, end, stamp = self._range
        with open_file(path) as file:
            if self._at is None:
                self._at = _first_line(file, begin)
            file.seek(self._at)
            changed_ns = stamp.changed_ns
            while self._at < end:
                lines = file.readlines(min(_BLOCK, end - self._at))
                if not lines or _has_changed(path, file, stamp, changed_ns):
                    raise SourceError(_changed(path))
                changed_ns = os.fstat(file.fileno()).st_ctime_ns
                for line in lines:
                    if self._at >= end:
                        return
                    text = _decoded(line.removesuffix(b"\n").removesuffix(b"\r"), path, self._at)
                    if self._at == 0:
                        text = text.removeprefix("\ufeff")  # byte order mark
                    self._at += len(line)
                    yield text

    def state_dict(self) -> int | None:
        return self._at

    def load_state_dict(self, state: int | None) -> None:
        self._at = state


def _decoded(line: bytes, path: str, at: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is not UTF-8 at byte {at + error.start + 1}: from_lines() reads text that is not compressed; convert the file, or "
            "leave it out"
        ) from None


def _first_line(file: BinaryIO, begin: int) -> int:
    """Returns the offset of the first line that begins at `begin` or later."""
    if begin == 0:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())
