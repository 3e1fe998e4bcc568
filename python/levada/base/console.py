"""Lines on standard error."""

from __future__ import annotations

import contextlib
import sys

from levada.base.errors import printable_lines


def write_line(text: str) -> None:
    """Writes `levada: TEXT`, with characters escaped that a terminal would interpret. Does nothing if standard error is
    closed or does not exist."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"levada: {printable_lines(text)}\n")
