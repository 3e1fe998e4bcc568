"""Formats exceptions as text. Code that reports an exception must not raise another one, but reading an exception's
text, notes, class or cause may raise any Exception or BaseException."""

from __future__ import annotations

import traceback
import types

_LONGEST = 1 << 15
"""Maximum number of characters in a text. The middle of a longer text is left out."""


def text_of(error: BaseException) -> str:
    """Returns str(error), or a placeholder if str() fails."""
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


def failure_text(error: BaseException | None) -> str:
    """Returns a text such as "ValueError: loss is NaN", or "" for None and for the GeneratorExit of a closed
    generator."""
    if error is None or issubclass(type(error), GeneratorExit):  # isinstance() may query the exception
        return ""
    text = text_of(error)
    return f"{_class_name(error)}: {text}" if text else _class_name(error)


def summary_of(error: BaseException) -> str:
    """Returns the last lines of a traceback: the class with its module, the text and the notes."""
    try:
        return _shortened("".join(traceback.format_exception_only(type(error), error)).strip())
    except BaseException:
        return _shortened(failure_text(error) or _class_name(error))


def report_of(error: BaseException) -> str:
    """Returns the traceback and the text as the interpreter prints them, with the exceptions that led to this one if
    their texts are available."""
    for with_causes in (True, False):
        try:
            return _shortened("".join(traceback.format_exception(type(error), error, _traceback(error), chain=with_causes)))
        except BaseException:
            continue
    return f"Traceback (most recent call last):\n{_frames(error)}{summary_of(error)}\n"


def _class_name(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))


def _traceback(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback, regardless of how the class defines the attribute."""
    trace: types.TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return trace


def _frames(error: BaseException) -> str:
    """Returns where the exception was raised. Does not read source files, because that may fail."""
    text = ""
    for frame, line in traceback.walk_tb(_traceback(error)):
        text += f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
    return text


def _shortened(text: str) -> str:
    half = _LONGEST // 2
    if len(text) <= _LONGEST:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out]\n{text[-half:]}"
