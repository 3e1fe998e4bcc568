"""Writes lines for people to standard error, or to the log of a program that has one."""

from __future__ import annotations

import contextlib
import logging
import sys

from levada.base.errors import printable_lines

_LOGGER = logging.getLogger("levada")


def write_line(text: str, level: int = logging.WARNING) -> None:
    """Logs the text with the logger "levada" if the program has set up logging. Otherwise, writes `levada: TEXT` to
    standard error. Escapes characters that a terminal would interpret, and leaves out the secrets of URLs. Does nothing
    if standard error is closed or missing."""
    text = printable_lines(text)
    if _LOGGER.hasHandlers():
        _LOGGER.log(level, "%s", text)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"levada: {text}\n")
