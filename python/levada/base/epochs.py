"""Passes an epoch to the objects that a source reads from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from levada.base.packages import is_of

_TORCH_DATA = "torch.utils.data"


def parts_of(source: Any) -> Iterator[Any]:
    """Yields the parts of a source that may have a set_epoch(): the source, and a DataLoader's dataset and samplers."""
    yield source
    for name in ("dataset", "sampler", "batch_sampler"):
        yield _part(source, name)
    yield _part(_part(source, "batch_sampler"), "sampler")


def _part(source: Any, name: str) -> Any:
    try:
        return getattr(source, name, None)
    except Exception:  # a property of a class that is no DataLoader
        return None


def set_epoch(source: Any, epoch: int) -> None:
    """Calls set_epoch() on the source and on each part of a DataLoader, as set_epoch_of() does."""
    set_epoch_of(parts_of(source), epoch)


def set_epoch_of(parts: Iterable[Any], epoch: int) -> None:
    """Calls set_epoch() on each of the parts that has one, once for each. If a torch Subset, ConcatDataset, StackDataset
    or ChainDataset has none, calls it on the data sets that it reads from."""
    pending, seen = list(parts), set()
    while pending:
        part = pending.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        of_part = getattr(part, "set_epoch", None)
        if callable(of_part):
            of_part(epoch)
        else:
            pending += _members_of(part)


def _members_of(dataset: Any) -> list[Any]:
    if is_of(dataset, _TORCH_DATA, "Subset"):
        return [dataset.dataset]
    if not any(is_of(dataset, _TORCH_DATA, name) for name in ("ConcatDataset", "StackDataset", "ChainDataset")):
        return []
    members = dataset.datasets
    if isinstance(members, Mapping):
        return list(members.values())
    return list(members) if isinstance(members, (list, tuple)) else []  # a ChainDataset may have an iterator
