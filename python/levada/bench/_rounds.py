"""Contestants that do the same work, in turn, round after round."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

SETTLE = 0.001
"""Seconds that rank 0 waits after the barrier, so that the other ranks wait for it already."""


def nothing() -> None:
    """What most contestants have to prepare."""


class Contestant(NamedTuple):
    carry: Callable[[], Any]
    """Timed, on every rank: gives what this rank received."""
    prepare: Callable[[], object] = nothing
    """Not timed, on every rank: makes rank 0's batch where each round takes a new one."""


class Times(NamedTuple):
    """Medians over the rounds, in microseconds since rank 0 had its batch."""

    have_us: float
    """Until the last rank had its batch."""
    read_us: float
    """Until the last rank had read every byte of it."""


def measure(
    contestants: list[Contestant], rounds: int, warm_up: int, read: Callable[[Any], object], meet: Callable[[], object]
) -> list[Times]:
    """The contestants' times. Collective over all ranks of torch.distributed, which are processes of one host: they
    share a clock. `meet`: waits for all ranks, asleep: gloo's barrier keeps a thread of each rank that is late busy, and
    with it a core that the last rank waits for."""
    stamps: list[list[tuple[int, int, int]]] = [[] for _ in contestants]
    gc.disable()
    for number in range(warm_up + rounds):
        for turn in range(len(contestants)):
            at = (number + turn) % len(contestants)
            taken = _time_one(contestants[at], read, meet)
            if number >= warm_up:
                stamps[at].append(taken)
        gc.collect()
    gc.enable()
    return [_times(each) for each in stamps]


def _time_one(
    contestant: Contestant, read: Callable[[Any], object], meet: Callable[[], object]
) -> tuple[int, int, int]:
    contestant.prepare()
    meet()
    if dist.get_rank() == 0:
        time.sleep(SETTLE)
    begin = time.monotonic_ns()
    received = contestant.carry()
    have = time.monotonic_ns()
    read(received)
    return begin, have, time.monotonic_ns()


def _times(stamps: list[tuple[int, int, int]]) -> Times:
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, stamps)
    have, seen = [], []
    for each in zip(*everybody, strict=True):
        begin = each[0][0]
        have.append(max(stamp[1] for stamp in each) - begin)
        seen.append(max(stamp[2] for stamp in each) - begin)
    return Times(statistics.median(have) / 1e3, statistics.median(seen) / 1e3)
