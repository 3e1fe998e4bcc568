"""Sequences of calls with which other systems carry a batch over torch.distributed. bench/README.md names the
files and revisions that make these calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

Batch = dict[str, Any]


class _Hole(NamedTuple):
    """The placeholder for a tensor."""

    shape: tuple[int, ...]
    dtype: Any


def scatter_object_list(batches: list[Batch] | None) -> Batch:
    """ms-swift's dispatcher: rank r gets batches[r] of rank 0, pickled."""
    received: list[Any] = [None]
    dist.scatter_object_list(received, batches, 0)
    batch: Batch = received[0]
    return batch


def schema_isend(batches: list[Batch] | None) -> Batch:
    """The proposed change to that dispatcher: scatter_object_list for the structures, then one isend for each tensor
    and rank."""
    structure = scatter_object_list(None if batches is None else [_with_holes(batch) for batch in batches])
    if batches is None:
        return _received(structure)
    kept: list[Any] = []
    sends: list[Any] = []
    for rank, batch in enumerate(batches[1:], 1):
        for tensor in filter(torch.is_tensor, batch.values()):
            kept.append(tensor.contiguous())
            sends.append(dist.isend(kept[-1], dst=rank))
    for send in sends:
        send.wait()
    return batches[0]


def _with_holes(batch: Batch) -> Batch:
    return {
        key: _Hole(tuple(value.shape), value.dtype) if torch.is_tensor(value) else value for key, value in batch.items()
    }


def _received(structure: Batch) -> Batch:
    batch: Batch = dict(structure)
    receives: list[Any] = []
    for key, value in structure.items():
        if isinstance(value, _Hole):
            batch[key] = torch.empty(value.shape, dtype=value.dtype)
            receives.append(dist.irecv(batch[key], src=0))
    for receive in receives:
        receive.wait()
    return batch


def broadcast_object_list(batch: Batch | None) -> Batch:
    """Broadcasts a whole batch, pickled."""
    objects = [batch]
    dist.broadcast_object_list(objects, src=0)
    received = objects[0]
    assert received is not None
    return received


def direct(batch: Batch | None, like: Batch) -> Batch:
    """Broadcasts each tensor, and nothing else, into memory whose shapes are known in advance (those of `like`)."""
    known = {key: torch.empty_like(value) if batch is None else batch[key] for key, value in like.items()}
    for tensor in known.values():
        dist.broadcast(tensor, src=0)
    return known


def direct_and_extras(batch: Batch | None, like: Batch) -> Batch:
    """Megatron-Bridge: as direct(); then broadcasts, as objects, whether there is more, and if so, the rest."""
    known = direct(batch, like)
    extras = None if batch is None else {key: value for key, value in batch.items() if key not in like}
    more: list[Any] = [bool(extras)]
    dist.broadcast_object_list(more, src=0)
    return known | broadcast_object_list(extras) if more[0] else known
