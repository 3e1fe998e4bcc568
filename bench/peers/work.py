"""The script of a benchmark on each of its ranks. __main__ starts the ranks and passes them their task as JSON."""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch_calls
import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from exchange import exchanges
from reduce import reduce_scatters
from rounds import Contestant, measure, nothing, row

import levada
from levada import _levada
from levada.batch.memory import make_batches_for
from levada.dropin import bridge

Batch = dict[str, Any]
Ask = SimpleNamespace

METADATA: Batch = {"epoch": 3, "lengths": [7, 1024, 12], "name": "part-00017.jsonl", "shuffled": True}
EXTRAS: Batch = {"max_seqlen": 4096, "names": ["part-00017.jsonl", "part-00018.jsonl"]}
ROWS = 4
STEP = 0.05
"""Duration of a step of the loop, in seconds."""
FIELDS = ("tokens", "labels", "loss_mask", "position_ids")
SOURCES = ("host", "arena")
LOOP_PARTS = ("engine_us", "beyond_us", "tensors_us")
"""Times of a step of the loop: until the engine had returned the batch; the rest of next(); torch's time to make such
tensors."""


def four_tensors(size: int, of: int) -> Batch:
    """Returns `size` bytes of int64 in four tensors of ROWS rows, different ones for each `of`, and metadata."""
    numbers = torch.arange(size // 8).reshape(len(FIELDS), ROWS, -1) + of
    tensors: Batch = {name: numbers[at].clone() for at, name in enumerate(FIELDS)}
    return tensors | METADATA


def gpt_batch(tokens: int, *, extras: bool) -> Batch:
    """Returns a batch of Megatron with one row."""
    row = torch.arange(tokens).reshape(1, -1)
    batch = {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(1, tokens), "position_ids": row.clone()}
    if extras:
        batch |= {"cu_seqlens": torch.arange(0, tokens + 1, 4096, dtype=torch.int32).reshape(1, -1), **EXTRAS}
    return batch


def read_all(batch: Batch) -> None:
    """Reads every byte of the batch's tensors."""
    for value in batch.values():
        if isinstance(value, (torch.Tensor, np.ndarray)):
            value.sum()


def collated(batch: Batch, job: levada.Membership) -> Batch:
    """Returns the batch as a DataLoader's collate_fn makes it in the memory that feeds of `job` send from."""
    make_batches_for(job)
    tensors = {key: value for key, value in batch.items() if torch.is_tensor(value)}
    made = levada.collate([{key: value[row] for key, value in tensors.items()} for row in range(len(tensors["tokens"]))])
    return {**made, **{key: value for key, value in batch.items() if key not in made}}


def as_numpy(batch: Batch) -> Batch:
    return {key: value.numpy() if torch.is_tensor(value) else value for key, value in batch.items()}


class Prepared:
    """The source of a feed, whose items exist before the feed asks for them."""

    def __init__(self, make: Callable[[], list[Batch]]) -> None:
        self._make = make
        self._items: collections.deque[Batch] = collections.deque()

    def prepare(self) -> None:
        self._items.extend(self._make())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self._items.popleft()


def _items(batches: list[Batch], source: str, access: str, job: levada.Membership) -> Callable[[], list[Batch]]:
    """Returns a function that makes rank 0's items of a round."""

    def make() -> list[Batch]:
        made = [collated(batch, job) for batch in batches] if source == "arena" else list(batches)
        return [as_numpy(batch) for batch in made] if access == "read_only" else made

    return make


def _feed_contestant(ask: Ask, job: levada.Membership, batches: list[Batch], source: str) -> Contestant:
    axis = "dp" if ask.op == "scatter" else "tp"
    prepared = Prepared(_items(batches, source, ask.access, job))
    access = None if ask.access == "default" else ask.access
    feed = levada.Feed(prepared, levada.Mesh.parse(f"{axis}={job.size}"), group=job, iterate="inline", access=access)
    return Contestant(functools.partial(next, iter(feed)), prepared.prepare if job.rank == 0 else nothing)


def _bridge_contestant(cfg: Any, group: Any, job: levada.Membership, batch: Batch, source: str) -> Contestant:
    prepared = Prepared(_items([batch], source, "default", job))
    groups = SimpleNamespace(tp=group, pp=None, cp=None)
    iterator = prepared if job.rank == 0 else None
    carry = functools.partial(bridge.get_batch_on_this_tp_rank, iterator, cfg, pg_collection=groups)
    return Contestant(carry, prepared.prepare if iterator else nothing)


def _copy_contestant(batches: list[Batch]) -> Contestant:
    """One copy of the bytes that leave the reader, into warm memory: a lower bound for everything that copies."""
    sources = [value for batch in batches for value in batch.values() if torch.is_tensor(value)]
    targets = [torch.zeros_like(source) for source in sources] if dist.get_rank() == 0 else []

    def copy() -> Batch:
        for target, source in zip(targets, sources, strict=False):
            target.copy_(source)
        return {}

    return Contestant(copy)


def _peers_of(op: str, batches: list[Batch]) -> dict[str, Contestant]:
    given = batches if dist.get_rank() == 0 else None
    batch = None if given is None else given[0]
    like = {key: value for key, value in batches[0].items() if key in FIELDS}
    calls: dict[str, Callable[[], Batch]]
    if op == "scatter":
        calls = {
            "scatter_object_list": functools.partial(torch_calls.scatter_object_list, given),
            "schema_isend": functools.partial(torch_calls.schema_isend, given),
        }
    else:
        direct = torch_calls.direct if op == "broadcast" else torch_calls.direct_and_extras
        calls = {
            "broadcast_object_list": functools.partial(torch_calls.broadcast_object_list, batch),
            "direct": functools.partial(direct, batch, like),
        }
    return {name: Contestant(call) for name, call in calls.items()}


def _contest(
    ask: Ask, about: dict[str, Any], entered: dict[tuple[str, str], Contestant], batches: list[Batch]
) -> list[dict[str, Any]]:
    """Returns one row for each (source, engine) that has entered."""
    peers = _peers_of(about["op"], batches)
    contestants = [*entered.values(), *peers.values(), _copy_contestant(batches)]
    host = levada.join(dist.new_group(), engine="shm")
    meet = functools.partial(_levada.agree, host, b"", 60.0, "benchmark")
    times = measure(contestants, ask.rounds, ask.warm_up, read_all, meet)
    by_peer = dict(zip(peers, times[len(entered) :], strict=False))
    return [
        {**about, "engine": engine, "source": source, **row(own, times[-1], by_peer)}
        for (source, engine), own in zip(entered, times, strict=False)
    ]


def peers(ask: Ask) -> list[dict[str, Any]]:
    """`python bench/peers peers`: one operation, one size."""
    batches = [four_tensors(ask.bytes, of) for of in range(ask.ranks if ask.op == "scatter" else 1)]
    jobs = {engine: levada.join(dist.new_group(), engine=engine) for engine in ask.engines}
    entered = {
        (source, engine): _feed_contestant(ask, job, batches, source)
        for engine, job in jobs.items()
        for source in ask.sources
    }
    about = {"op": ask.op, "ranks": ask.ranks, "bytes": ask.bytes, "access": ask.access}
    return _contest(ask, about, entered, batches)


def megatron(ask: Ask) -> list[dict[str, Any]]:
    """`python bench/peers bridge`: one number of tokens, with extra keys or without, through the drop-in."""
    batch = gpt_batch(ask.tokens, extras=ask.extras)
    cfg = SimpleNamespace(model=SimpleNamespace(), dataset=SimpleNamespace(broadcast_data_across_tp=True))
    entered = {}
    for engine in ask.engines:
        for source in ask.sources:
            group = dist.new_group()
            entered[source, engine] = _bridge_contestant(cfg, group, levada.join(group, engine=engine), batch, source)
    size = sum(value.nbytes for value in batch.values() if torch.is_tensor(value))
    about = {"op": "bridge", "ranks": ask.ranks, "tokens": ask.tokens, "bytes": size, "extras": ask.extras}
    return _contest(ask, about, entered, [batch])


def loop(ask: Ask) -> list[dict[str, Any]]:
    """`python bench/peers loop`: the cost of `for batch in feed` if batches are ready before they are wanted."""
    batches = [four_tensors(ask.bytes, of) for of in range(ask.ranks)]
    rows = []
    for engine_name in ask.engines:
        job = levada.join(dist.new_group(), engine=engine_name)
        for source in ask.sources:
            items = itertools.chain.from_iterable(_items(batches, source, ask.access, job)() for _ in itertools.repeat(0))
            feed = levada.Feed(items, levada.Mesh(dp=job.size), group=job)
            later = STEP * job.rank / job.size
            whole, engine = zip(*_times_of_next(feed, ask.rounds + ask.warm_up, later)[ask.warm_up :], strict=True)
            beyond = [each - part for each, part in zip(whole, engine, strict=True)]
            tensors = _times_of_tensors(ask.bytes, ask.rounds, later)
            everybody: list[Any] = [None] * ask.ranks
            dist.all_gather_object(everybody, [statistics.median(each) for each in (whole, engine, beyond, tensors)])
            slowest = [round(max(each), 1) for each in zip(*everybody, strict=True)]
            about = {"op": "loop", "ranks": ask.ranks, "bytes": ask.bytes, "engine": engine_name, "source": source}
            rows.append(about | dict(zip(("levada_us", *LOOP_PARTS), slowest, strict=True)))
    return rows


def _steps(count: int, later: float) -> Iterator[None]:
    """Yields at the beginning of each step. Steps are long enough for a reader to be ahead. Each rank starts `later`
    than the first, so that ranks which share a core do not wait for it."""
    start = time.monotonic() + later
    for step in range(count):
        time.sleep(max(0.0, start + STEP * (step + 1) - time.monotonic()))
        yield


def _times_of_next(feed: levada.Feed, steps: int, later: float) -> list[tuple[float, float]]:
    """Returns the microseconds of next(), and of its part until the engine had returned the batch."""
    took = []
    batches, before = iter(feed), 0.0
    for _ in _steps(steps, later):
        begin = time.perf_counter()
        batch = next(batches)
        whole = time.perf_counter() - begin
        taken = feed.stats.taken_seconds
        took.append((whole * 1e6, (taken - before) * 1e6))
        before = taken
        del batch
    feed.close()
    return took


def _times_of_tensors(size: int, steps: int, later: float) -> list[float]:
    """Returns the microseconds in which torch makes a batch's tensors from existing memory."""
    took = []
    memory = memoryview(bytearray(size))
    parts = [memory[at : at + size // len(FIELDS)] for at in range(0, size, size // len(FIELDS))]
    for _ in _steps(steps, later):
        begin = time.perf_counter()
        tensors = [torch.frombuffer(part, dtype=torch.int64) for part in parts]
        took.append((time.perf_counter() - begin) * 1e6)
        del tensors
    return took


def main() -> None:
    ask, folder = json.loads(sys.argv[1], object_hook=lambda fields: SimpleNamespace(**fields)), pathlib.Path(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=levada.rank(), world_size=levada.world_size())
    works = {"peers": peers, "bridge": megatron, "loop": loop, "exchange": exchanges, "reduce": reduce_scatters}
    rows = [row for each in ask.asks for row in works[each.command](each)]
    if levada.rank() == 0:
        (folder / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
