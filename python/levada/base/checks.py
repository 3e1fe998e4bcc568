"""Checks of arguments."""

from __future__ import annotations

import numbers
from typing import Any

from levada.base.errors import InvalidArgument

_MAX_SECONDS = 1e8


def check_seconds(name: str, seconds: Any) -> None:
    """Raises InvalidArgument unless `seconds` is a timeout that every wait can take."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 < float(seconds) <= _MAX_SECONDS:
        raise InvalidArgument(f"{name} must be a number of seconds, positive and at most {_MAX_SECONDS:.0e}, got {seconds!r}")
