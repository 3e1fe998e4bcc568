"""Runs contestants that do the same work, in turn, round after round."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

SETTLE = 0.001
"""Seconds that rank 0 waits after the barrier until the other ranks wait for it."""


def nothing() -> None:
    """The preparation of most contestants."""


class Contestant(NamedTuple):
    carry: Callable[[], Any]
    """Timed, on every rank. Returns what this rank received."""
    prepare: Callable[[], object] = nothing
    """Not timed, on every rank. Makes rank 0's batch if each round takes a new one."""


class Times(NamedTuple):
    """Medians over the rounds, in microseconds since rank 0 had its batch, or since the ranks began together."""

    have_us: float
    """Until the last rank had its batch; no rank had begun to read."""
    read_us: float
    """Until the last rank had read every byte of its batch, each rank as soon as it had it."""


def measure(
    contestants: list[Contestant],
    rounds: int,
    warm_up: int,
    read: Callable[[Any], object],
    meet: Callable[[], object],
    *,
    together: bool = False,
) -> list[Times]:
    """Returns the contestants' times. Collective over all ranks of torch.distributed, which must be processes of one
    host, since they share a clock. Each contestant carries twice a round, once without reading: if ranks share cores, a
    rank that reads delays one that has nothing yet.

    meet: waits for all ranks, asleep. gloo's barrier would keep a thread of each waiting rank busy, and with it a core
    that the last rank needs.

    together: all ranks begin with data, and the largest time of any rank counts, each from its start; otherwise the
    other ranks already wait for rank 0 when it begins."""
    stamps: list[list[tuple[_Stamps, _Stamps]]] = [[] for _ in contestants]
    settle = 0 if together else SETTLE
    gc.disable()
    for number in range(warm_up + rounds):
        for turn in range(len(contestants)):
            at = (number + turn) % len(contestants)
            to_have = _time_one(contestants[at], meet, settle, read, before_reading=meet)
            to_read = _time_one(contestants[at], meet, settle, read)
            if number >= warm_up:
                stamps[at].append((to_have, to_read))
        gc.collect()
    gc.enable()
    return [_times(each, together) for each in stamps]


class _Stamps(NamedTuple):
    """The times of one rank, in nanoseconds."""

    begin: int
    have: int
    seen: int


def _time_one(
    contestant: Contestant,
    meet: Callable[[], object],
    settle: float,
    read: Callable[[Any], object],
    before_reading: Callable[[], object] = nothing,
) -> _Stamps:
    contestant.prepare()
    meet()
    if dist.get_rank() == 0 and settle:
        time.sleep(settle)
    begin = time.monotonic_ns()
    received = contestant.carry()
    have = time.monotonic_ns()
    before_reading()
    read(received)
    return _Stamps(begin, have, time.monotonic_ns())


def _times(stamps: list[tuple[_Stamps, _Stamps]], together: bool) -> Times:
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, stamps)
    have, seen = [], []
    for each in zip(*everybody, strict=True):
        to_have, to_read = zip(*each, strict=True)
        have.append(max(at.have - (at if together else to_have[0]).begin for at in to_have))
        seen.append(max(at.seen - (at if together else to_read[0]).begin for at in to_read))
    return Times(statistics.median(have) / 1e3, statistics.median(seen) / 1e3)


def row(own: Times, copy: Times, peers: dict[str, Times]) -> dict[str, Any]:
    """Returns a row's times: levada's, one copy's, and the peers' with their ratios to levada's."""
    return {
        "levada_us": round(own.have_us, 1),
        "copy_us": round(copy.have_us, 1),
        "peers": {name: round(times.have_us, 1) for name, times in peers.items()},
        "ratio": {name: round(times.have_us / own.have_us, 2) for name, times in peers.items()},
        "read_us": round(own.read_us, 1),
        "read_peers": {name: round(times.read_us, 1) for name, times in peers.items()},
        "read_ratio": {name: round(times.read_us / own.read_us, 2) for name, times in peers.items()},
    }
