"""Exceptions of a pipeline's stages, in the form in which they are sent between processes."""

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
from levada.base.exception_texts import report_of, summary_of, text_of
from levada.batch.classes import find, name_of
from levada.batch.instances import is_special

_KEPT = 16
_raised: collections.OrderedDict[int, BaseException] = collections.OrderedDict()
_numbers = itertools.count()
_token = secrets.token_hex(8)


def pack(exception: BaseException) -> tuple[str, str, str, bytes, str, str, int]:
    """Returns kind, message, traceback and the exception itself, as plain values or, within this process, as the
    object. If another stage had failed before and the exception only passed through this one, also returns that stage,
    process and item. Never raises."""
    try:
        return _packed(exception)
    except BaseException:  # raised by the exception's attributes, or for lack of memory
        return "SourceError", summary_of(exception), report_of(exception), b"", "", "", 0


def _packed(exception: BaseException) -> tuple[str, str, str, bytes, str, str, int]:
    number = next(_numbers)
    _raised[number] = exception
    while len(_raised) > _KEPT:
        _raised.popitem(last=False)
    message, text = summary_of(exception), report_of(exception)
    _forget_locals(exception)
    kind = type(exception).__name__ if isinstance(exception, errors.Error) else "SourceError"
    packed = exception.original if isinstance(exception, StageFailed) else b""
    if not packed:
        packed = _levada.pack_state([_process(), number, *_described(exception)])
    failed = exception if isinstance(exception, StageFailed) else exception.__cause__
    if isinstance(failed, StageFailed) and failed.stage:
        return kind, message, failed.traceback, packed, failed.stage, failed.process, failed.item
    return kind, message, text, packed, "", "", 0


def _forget_locals(exception: BaseException) -> None:
    """Clears the frames of the exception's traceback, because the exception may be kept for a long time."""
    waiting, seen = [exception], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            waiting.extend(led for led in (each.__cause__, each.__context__) if led is not None)


def _process() -> str:
    return f"{os.getpid()} {_token}"


def _described(exception: BaseException) -> tuple[str, list[Any], dict[str, Any], list[int]]:
    """Returns the class, the arguments and attributes that are plain values, and the positions of the arguments that
    _encode() has encoded. The class is "" if these do not recreate an exception with the same text, because values are
    missing on which the class relies."""
    arguments = list(_builtin_of(type(exception)).__reduce__(exception)[1])  # has more than the args of an OSError
    encoded = _encode(arguments)
    if not _is_plain(arguments):
        arguments = [text_of(exception)]
        encoded = _encode(arguments)
    attributes = {name: value for name, value in vars(exception).items() if _is_plain(value)}
    name = name_of(type(exception))
    return name if _looks_alike(exception, name, _decode(arguments, encoded), attributes) else "", arguments, attributes, encoded


def _looks_alike(exception: BaseException, name: str, arguments: list[Any], attributes: dict[str, Any]) -> bool:
    """Returns whether the recreated exception has the text of this one. Runs code of the class, which is safe only in
    the process that raised the exception."""
    try:
        made = _made_again(name, arguments, attributes)
        if made is None:
            return True
        texts = ["".join(traceback.format_exception_only(type(each), each)) for each in (made, exception)]
        return texts[0] == texts[1]
    except BaseException:
        return False


def _encode(arguments: list[Any]) -> list[int]:
    """Converts strings that have no UTF-8 encoding, such as some file names, to bytes, and returns their positions."""
    places = [at for at, value in enumerate(arguments) if isinstance(value, str) and not _is_plain(value)]
    for at in places:
        arguments[at] = arguments[at].encode("utf-8", "surrogatepass")
    return places


def _decode(arguments: list[Any], encoded: list[int]) -> list[Any]:
    """Reverses _encode()."""
    return [value.decode("utf-8", "surrogatepass") if at in encoded else value for at, value in enumerate(arguments)]


def _builtin_of(kind: type) -> Any:
    """Returns the built-in exception class that `kind` is or derives from."""
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
    """Returns the exception, whose cause is a StageFailed with the place of the failure, or only the StageFailed if the
    exception cannot be recreated. The bytes may come from another rank: nothing is unpickled or imported, and no code
    of the exception's class runs."""
    failed = StageFailed(text)
    failed.stage, failed.process, failed.item, failed.traceback = stage, process, item, trace
    if not packed:
        return _of_kind(kind, text) or failed
    failed.original = packed
    original = _original(packed)
    if original is None or isinstance(original, (StopIteration, StopAsyncIteration)):
        return failed  # a StopIteration would end a loop as if there were no more items
    try:
        if original.__cause__ is None and not isinstance(original, StageFailed):
            original.__cause__ = failed
    except Exception:  # raised by the exception's class
        return failed
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
        return _made_again(name, _decode(arguments, encoded), attributes)
    except Exception:
        return None


def _can_be_shown(builtin: Any, arguments: list[Any]) -> bool:
    """Returns whether Python can show this exception of a text safely. It trusts the positions: those outside of the text
    read other memory. For a SyntaxError, it reads the file that the exception names."""
    if issubclass(builtin, SyntaxError):
        return len(arguments) < 2
    if builtin is UnicodeError:
        return True
    *_, text, start, end, _ = arguments
    return bool(0 <= start <= end <= len(text))


def _made_again(name: str, arguments: list[Any], attributes: dict[str, Any]) -> BaseException | None:
    """Recreates an exception. Returns None unless it is an Exception whose class is imported here, because another
    process's SystemExit must not end this one."""
    found: Any = find(name)
    if found is None or not issubclass(found, Exception) or hasattr(found, "__del__"):
        return None
    builtin = _builtin_of(found)
    if issubclass(builtin, (SyntaxError, UnicodeError)) and not _can_be_shown(builtin, arguments):
        return None
    made: Exception = builtin.__new__(found, *arguments)
    builtin.__init__(made, *arguments)
    vars(made).update({key: value for key, value in attributes.items() if _may_have(found, key, value)})
    return made


def _may_have(cls: Any, name: str, value: Any) -> bool:
    """Returns whether an exception may have an attribute that another process names. The fields of Levada's exceptions
    are sent on, so their types must be right."""
    if name == "__notes__":
        return type(value) is list and all(type(note) is str for note in value)
    own = [base for base in cls.__mro__ if base.__module__ == errors.__name__ and name in vars(base)]
    return all(type(value) is type(vars(base)[name]) for base in own) and not is_special(cls, name)
