"""Many reduce-scatters of gradients: levada, fairscale's bucketer, and plain torch.distributed."""

from __future__ import annotations

import functools
import os
import random
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

import levada
from levada import _levada
from levada.base.errors import EngineError
from rounds import Contestant, measure, row
from levada.dropin.fairscale import ReduceScatterBucketer

FAIRSCALE = "fairscale"
ALONE = "one_by_one"
CAP_MB = 25
MIXED = (64, 256, 1024, 4096, 16384, 65536, 131072)
FEW = 1
"""Measured rounds of one reduce-scatter after another, each of which takes seconds."""


def shards_of(sizes: str) -> list[int]:
    """Returns the bytes of each input's piece for one rank: "256x4KiB", or "mixed" for 600 random choices of MIXED."""
    if sizes == "mixed":
        return random.Random(3).choices(MIXED, k=600)
    match = re.fullmatch(r"(\d+)x(\d+)(KiB|MiB)", sizes)
    if match is None or not 0 < int(match[1]) <= 10_000 or not 0 < int(match[2]) <= 1 << 16:
        raise ValueError(f"{sizes} is not such as 256x4KiB, nor mixed")
    return int(match[1]) * [int(match[2]) << {"KiB": 10, "MiB": 20}[match[3]]]


class Work:
    """Each rank's gradients, the same lists for all contestants, and their results."""

    def __init__(self, shards: list[int], ranks: int) -> None:
        self.shards, self.ranks, self.rank = shards, ranks, dist.get_rank()
        self.flat = [self.numbers(n, torch.empty(size // 4 * ranks)) for n, size in enumerate(shards)]
        self.lists = [list(flat.chunk(ranks)) for flat in self.flat]
        self.results: list[Any] = []

    def numbers(self, n: int, to: Any) -> Any:
        """Fills a tensor of input n with whole numbers below 64."""
        return to.copy_(torch.arange(to.numel()).remainder(61) + n % 3 + self.rank)

    def check(self, results: list[Any]) -> None:
        """Checks every result."""
        if len(results) != len(self.shards):
            raise EngineError(f"{len(results)} results came of {len(self.shards)} inputs")
        for n, (result, size) in enumerate(zip(results, self.shards, strict=True)):
            begin = size // 4 * self.rank
            own = torch.arange(begin, begin + size // 4).remainder(61) + n % 3
            expected = self.ranks * own + self.ranks * (self.ranks - 1) // 2
            if not torch.equal(result.reshape(-1), expected.to(result.dtype)):
                raise EngineError(f"the sum of input {n} is wrong")

    def keep(self, result: Any) -> None:
        self.results.append(result)

    def kept(self) -> list[Any]:
        results, self.results = self.results, []
        return results


def _bucketed(work: Work, bucketer: Any, group: Any) -> list[Any]:
    """Makes the calls of fairscale's users."""
    for inputs in work.lists:
        bucketer.reduce_scatter_async(inputs, group, work.keep)
    bucketer.flush()
    return work.kept()


def _fairscale(work: Work) -> Contestant | None:
    os.environ["ENABLE_NCCL_BASE_COLLECTIVES"] = "0"  # gloo has no base collectives
    try:
        from fairscale.internal.reduce_scatter_bucketer import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            ReduceScatterBucketer as Bucketer,
        )
    except ImportError:
        return None
    return Contestant(functools.partial(_bucketed, work, Bucketer(CAP_MB), dist.group.WORLD))


def _one_by_one(work: Work) -> list[Any]:
    results = []
    for inputs in work.lists:
        results.append(torch.empty_like(inputs[0]))
        dist.reduce_scatter(results[-1], inputs)
    return results


def _host_contestant(work: Work, engine: str) -> Contestant:
    """Reduces tensors in ordinary memory, through the drop-in."""
    group = dist.new_group()
    bucketer = ReduceScatterBucketer(CAP_MB, engine=engine)
    return Contestant(functools.partial(_bucketed, work, bucketer, group))


def _arena_contestant(work: Work, engine: str) -> Contestant:
    """Reduces tensors that are in the engine's memory. Filling them is not timed, nor is it for the other
    contestants."""
    reduce = levada.ReduceScatter(levada.join(dist.new_group(), engine=engine), capacity_mb=CAP_MB)
    made: list[Any] = []

    def prepare() -> None:
        made[:] = [
            work.numbers(n, reduce.empty(flat.numel(), dtype=flat.dtype)) for n, flat in enumerate(work.flat)
        ]

    def carry() -> list[Any]:
        for tensor in made:
            reduce(tensor, work.keep)
        reduce.flush()
        made.clear()
        return work.kept()

    return Contestant(carry, prepare)


def _copy(work: Work) -> Contestant:
    """One copy of a rank's inputs, into warm memory."""
    targets = [torch.zeros_like(flat) for flat in work.flat]

    def copy() -> list[Any]:
        for target, flat in zip(targets, work.flat, strict=True):
            target.copy_(flat)
        return []

    return Contestant(copy)


def reduce_scatters(ask: SimpleNamespace) -> list[dict[str, Any]]:
    """`python bench/peers reduce`: returns one row for each engine and source."""
    work = Work(shards_of(ask.sizes), ask.ranks)
    makers: dict[str, Callable[[Work, str], Contestant]] = {"host": _host_contestant, "arena": _arena_contestant}
    entered = {(source, engine): makers[source](work, engine) for engine in ask.engines for source in ask.sources}
    fairscale = _fairscale(work)
    peers = {} if fairscale is None else {FAIRSCALE: fairscale}
    if fairscale is None and work.rank == 0:
        print("bench/peers: fairscale is not installed; script/bench-peers makes a place where it is", file=sys.stderr)
    host = levada.join(dist.new_group(), engine="shm")
    meet = functools.partial(_levada.agree, host, b"", 60.0, "benchmark")

    def check(results: list[Any]) -> None:
        if results:  # a copy has no sums
            work.check(results)

    contestants = [*entered.values(), *peers.values(), _copy(work)]
    times = measure(contestants, ask.rounds, ask.warm_up, check, meet, together=True)
    alone = measure([Contestant(functools.partial(_one_by_one, work))], FEW, 0, check, meet, together=True)
    by_peer = {**dict(zip(peers, times[len(entered) :], strict=False)), ALONE: alone[0]}
    about = {"op": "reduce-scatter", "ranks": ask.ranks, "sizes": ask.sizes, "bytes": sum(work.shards) * ask.ranks}
    return [
        {**about, "engine": engine, "source": source, **row(own, times[-1], by_peer)}
        for (source, engine), own in zip(entered, times, strict=False)
    ]
