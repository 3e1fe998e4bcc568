"""Accesses the objects that a feed reads: torch's loaders, and similar ones."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any


def ends_short(source: Any) -> bool:
    """Returns whether the last batch of a DataLoader is known to have fewer rows than the others."""
    rows, batch = getattr(source, "sampler", None), getattr(source, "batch_size", None)
    if not isinstance(batch, int) or not isinstance(rows, Sized) or getattr(source, "drop_last", False):
        return False
    return len(rows) % batch != 0
