"""What a stage of a pipeline raises, on its way from one process to another."""

from __future__ import annotations

import collections
import itertools
import os
import pickle
import traceback
from typing import Any

from levada import _errors
from levada._errors import StageFailed

_KEPT = 16
_raised: collections.OrderedDict[int, BaseException] = collections.OrderedDict()
_numbers = itertools.count()


def pack(exception: BaseException) -> tuple[str, str, str, bytes, str, str, int]:
    """Kind, message, traceback and the exception itself, as it crosses, in this process the very object; and the stage,
    process and item where another stage had failed before and the exception only passed through."""
    number = next(_numbers)
    _raised[number] = exception
    while len(_raised) > _KEPT:
        _raised.popitem(last=False)
    message = "".join(traceback.format_exception_only(type(exception), exception)).strip()
    text = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
    _forget_locals(exception)
    kind = type(exception).__name__ if isinstance(exception, _errors.Error) else "SourceError"
    packed = pickle.dumps((os.getpid(), number, _pickled(exception)))
    told = exception if isinstance(exception, StageFailed) else exception.__cause__
    if isinstance(told, StageFailed) and told.stage:
        return kind, message, told.traceback, packed, told.stage, told.process, told.item
    return kind, message, text, packed, "", "", 0


def _forget_locals(exception: BaseException | None) -> None:
    """Lets go of what the functions held that it came through: it may be kept long after them."""
    while exception is not None:
        traceback.clear_frames(exception.__traceback__)
        exception = exception.__cause__ or exception.__context__


def _pickled(exception: BaseException) -> bytes:
    try:
        return pickle.dumps(exception)
    except Exception:
        return b""


def unpack(
    text: str, stage: str, process: str, item: int, trace: str, packed: bytes, kind: str = "SourceError"
) -> BaseException:
    """The exception, caused by a StageFailed that says where; that one alone where it cannot be made again."""
    failed = StageFailed(text)
    failed.stage, failed.process, failed.item, failed.traceback = stage, process, item, trace
    if not packed:
        return _of_kind(kind, text) or failed
    process_id, number, pickled = pickle.loads(packed)
    original: Any = None
    if process_id == os.getpid():
        original = _raised.pop(number, None)
    elif pickled:
        original = _unpickled(pickled)
    if original is None or isinstance(original, (StopIteration, StopAsyncIteration)):
        return failed  # which would end a loop as if there were no more items
    if original.__cause__ is None and not isinstance(original, StageFailed):
        original.__cause__ = failed
    assert isinstance(original, BaseException)
    return original


def _of_kind(kind: str, text: str) -> BaseException | None:
    """A failure of Levada's own, as its class."""
    cls = getattr(_errors, kind, None)
    return cls(text) if cls is not None and cls is not _errors.SourceError else None


def _unpickled(packed: bytes) -> BaseException | None:
    try:
        original = pickle.loads(packed)
    except Exception:
        return None
    return original if isinstance(original, BaseException) else None
