"""Moves the samples of a step from the ranks that read them to the micro-batches that contain them."""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

from levada import exchange
from levada._levada import Membership
from levada.dropin._packing_samples import KEYS, Sample
from levada.dropin._packing_schedules import Schedule
from levada.dropin._packing_step import Step

Batch = dict[str, Any]


@functools.cache
def _store() -> exchange.Store:
    """Returns the store of a step's samples while they are packed, which keeps its memory for the next step."""
    return exchange.Store(tensors="torch", name="sequence packing")


def deliver(
    job: Membership, step: Step, schedule: Schedule, samples: list[Sample] | None, timeout: float
) -> list[Batch]:
    """Moves the samples of a step to the ranks that need them, and packs this rank's micro-batches into new tensors.
    samples: those that this rank read, which are sent from their own memory; None if it did not read. Collective over
    the job. Raises InvalidArgument on all ranks; PeerLost, Timeout or EngineError if a rank is lost."""
    store, parcels = _store(), step.parcels()
    store.remove(store.ids)  # left over from a failed step
    try:
        if samples:
            begin = step.begins[step.data[job.rank]]
            for number, (keys, _) in enumerate(parcels):
                ids = [_id(number, begin + at) for at in range(len(samples))]
                fields = {key: [sample.fields[key] for sample in samples] for key in keys}
                store.store(exchange.SampleBatch(ids, fields), copy=False)
        wants = []
        for number, (_, ranks) in enumerate(parcels):
            members: list[list[int]] = [[] for _ in schedule]
            for rank in sorted(ranks):
                members[step.data[rank]].append(rank)
            for to, micros in zip(members, schedule, strict=True):
                wants.append(exchange.Destination(to, [_id(number, sample) for micro in micros for sample in micro]))
        exchange.redistribute(store, wants, KEYS, group=job, allow_absent=True, timeout=timeout)
        needed = [(number, keys) for number, (keys, ranks) in enumerate(parcels) if job.rank in ranks]
        return [_packed(store, step, micro, needed) for micro in schedule[step.data[job.rank]]]
    finally:
        store.remove(store.ids)


def _id(parcel: int, sample: int) -> str:
    """Returns the id of a sample for one set of ranks that needs some of its keys."""
    return f"{parcel}.{sample}"


def _packed(
    store: exchange.Store, step: Step, micro: list[int], needed: list[tuple[int, tuple[str, ...]]]
) -> Batch:
    torch = importlib.import_module("torch")
    fields: Batch = {}
    for parcel, keys in needed:
        samples = store.get([_id(parcel, sample) for sample in micro], keys)
        for key in keys:
            packed = samples[key]
            # Adjacent samples are returned as a view of the store's memory or of the read data.
            is_view = packed.data_ptr() == samples.item(key, 0).data_ptr()
            fields[key] = packed.clone() if is_view else packed
    padded, original = ([lengths[sample] for sample in micro] for lengths in (step.padded, step.original))
    int32 = functools.partial(torch.tensor, dtype=torch.int32)
    return {
        **{key: fields[key] for key in KEYS if key in fields},
        "cu_seqlens_padded": int32([0, *itertools.accumulate(padded)]),
        "max_seqlen": int32(max(padded)),
        "cu_seqlens": int32([0, *itertools.accumulate(original)]),
    }
