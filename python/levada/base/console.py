"""Lines on standard error."""

from __future__ import annotations

import contextlib
import sys


def write_line(text: str) -> None:
    """Writes `levada: TEXT`. Does nothing where standard error is closed, or there is none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"levada: {text}\n")
