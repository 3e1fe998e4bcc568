"""Exceptions of a pipeline's stages, as they cross from one process to another."""

from __future__ import annotations

import builtins
import collections
import itertools
import os
import secrets
import traceback
from typing import Any

from levada import _levada
from levada.base import errors
from levada.base.errors import Error, StageFailed
from levada.base.exits import text_of
from levada.batch.classes import find, name_of

_KEPT = 16
_raised: collections.OrderedDict[int, BaseException] = collections.OrderedDict()
_numbers = itertools.count()
_token = secrets.token_hex(8)


def pack(exception: BaseException) -> tuple[str, str, str, bytes, str, str, int]:
    """Kind, message, traceback and the exception itself, as plain values or, in this process, the very object; and the
    stage, process and item where another stage had failed before and the exception only passed through."""
    number = next(_numbers)
    _raised[number] = exception
    while len(_raised) > _KEPT:
        _raised.popitem(last=False)
    message = "".join(traceback.format_exception_only(type(exception), exception)).strip()
    text = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
    _forget_locals(exception)
    kind = type(exception).__name__ if isinstance(exception, errors.Error) else "SourceError"
    packed = exception.original if isinstance(exception, StageFailed) else b""
    if not packed:
        packed = _levada.pack_state([_process(), number, *_described(exception)])
    failed = exception if isinstance(exception, StageFailed) else exception.__cause__
    if isinstance(failed, StageFailed) and failed.stage:
        return kind, message, failed.traceback, packed, failed.stage, failed.process, failed.item
    return kind, message, text, packed, "", "", 0


def _forget_locals(exception: BaseException | None) -> None:
    """Clears the frames of the exception's traceback, since it may be kept for a long time."""
    while exception is not None:
        traceback.clear_frames(exception.__traceback__)
        exception = exception.__cause__ or exception.__context__


def _process() -> str:
    return f"{os.getpid()} {_token}"


def _described(exception: BaseException) -> tuple[str, list[Any], dict[str, Any], list[int]]:
    """Returns the class, the arguments and attributes that are plain values, and which arguments _encode() has encoded."""
    arguments = list(_builtin_of(type(exception)).__reduce__(exception)[1])  # which has more than the args of an OSError
    encoded = _encode(arguments)
    if not _is_plain(arguments):
        arguments = [text_of(exception)]
        encoded = _encode(arguments)
    attributes = {name: value for name, value in vars(exception).items() if _is_plain(value)}
    return name_of(type(exception)), arguments, attributes, encoded


def _encode(arguments: list[Any]) -> list[int]:
    """Makes bytes of the strings that have no UTF-8, such as some names of files, and returns their places."""
    places = [at for at, value in enumerate(arguments) if isinstance(value, str) and not _is_plain(value)]
    for at in places:
        arguments[at] = arguments[at].encode("utf-8", "surrogatepass")
    return places


def _builtin_of(kind: type) -> Any:
    """Returns the built-in exception class that it is or derives from."""
    return next(cls for cls in kind.__mro__ if getattr(builtins, cls.__name__, None) is cls)


def _is_plain(value: Any) -> bool:
    try:
        _levada.pack_state(value)
    except (TypeError, Error):
        return False
    return True


def unpack(
    text: str, stage: str, process: str, item: int, trace: str, packed: bytes, kind: str = "SourceError"
) -> BaseException:
    """Returns the exception, caused by a StageFailed that says where; or only that one, if the exception cannot be created. The
    bytes may come from another rank: nothing is unpickled or imported, and no code of the exception's class runs."""
    failed = StageFailed(text)
    failed.stage, failed.process, failed.item, failed.traceback = stage, process, item, trace
    if not packed:
        return _of_kind(kind, text) or failed
    original = _original(packed)
    if original is None or isinstance(original, (StopIteration, StopAsyncIteration)):
        failed.original = packed
        return failed  # a StopIteration would end a loop as if there were no more items
    if original.__cause__ is None and not isinstance(original, StageFailed):
        original.__cause__ = failed
    return original


def _of_kind(kind: str, text: str) -> BaseException | None:
    """Returns a failure of Levada itself as an exception of its class."""
    cls = getattr(errors, kind, None)
    return cls(text) if cls is not None and cls is not errors.SourceError else None


def _original(packed: bytes) -> BaseException | None:
    try:
        process, number, name, arguments, attributes, encoded = _levada.unpack_state(packed)
        if process == _process():
            return _raised.pop(number, None)
        for at in encoded:
            arguments[at] = arguments[at].decode("utf-8", "surrogatepass")
        return _made_again(name, arguments, attributes)
    except Exception:
        return None


def _made_again(name: str, arguments: list[Any], attributes: dict[str, Any]) -> BaseException | None:
    """Returns None unless it is an Exception whose class is imported here: another process's SystemExit must not end this one."""
    found: Any = find(name)
    if found is None or not issubclass(found, Exception) or hasattr(found, "__del__"):
        return None
    builtin = _builtin_of(found)
    made: Exception = builtin.__new__(found, *arguments)
    builtin.__init__(made, *arguments)
    vars(made).update(attributes)
    return made
