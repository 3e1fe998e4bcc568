"""Accesses the objects that a feed reads: torch's loaders, samplers and data sets, and similar ones."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any


def parts_of(source: Any) -> Iterator[Any]:
    """Yields the parts of a source that may have a set_epoch(): the source, and a DataLoader's dataset and samplers."""
    yield source
    for name in ("dataset", "sampler", "batch_sampler"):
        yield getattr(source, name, None)
    yield getattr(getattr(source, "batch_sampler", None), "sampler", None)


def set_epoch(source: Any, epoch: int) -> None:
    """Calls set_epoch() on the source and on each part of a DataLoader that has one, once each."""
    for part in {id(part): part for part in parts_of(source)}.values():
        set_part = getattr(part, "set_epoch", None)
        if set_part is not None:
            set_part(epoch)


def ends_short(source: Any) -> bool:
    """Returns whether the last batch of a DataLoader is known to have fewer rows than the others."""
    rows, batch = getattr(source, "sampler", None), getattr(source, "batch_size", None)
    if not isinstance(batch, int) or not isinstance(rows, Sized) or getattr(source, "drop_last", False):
        return False
    return len(rows) % batch != 0
