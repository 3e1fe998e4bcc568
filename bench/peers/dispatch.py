"""`python bench/peers peers --op dispatch`: items from one process through workers to this one, over levada.Pipeline
and its peers. Every contestant runs for the same time; none of them works on items."""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import queue
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch.utils.data import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    DataLoader,
    IterableDataset,
    get_worker_info,
)

import levada

INT_BYTES = 8
"""Items of this size are ints."""
SIZES = (INT_BYTES, 64 << 10, 1 << 20)
_PREPARED = 16


class Items:
    """An endless source of ints, or of tensors of bytes."""

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes

    def __iter__(self) -> Iterator[Any]:
        if self.item_bytes == INT_BYTES:
            return itertools.count()
        prepared = [torch.full((self.item_bytes,), at, dtype=torch.uint8) for at in range(_PREPARED)]
        # Each is a new tensor: one that is sent again may not be carried again, because of pickle's memo or torch's
        # shared files.
        return (tensor.clone() for tensor in itertools.cycle(prepared))


class Measured(NamedTuple):
    items_per_s: float
    wakeups_per_item: float | None = None
    copies_per_byte: float | None = None


def same(item: Any) -> Any:
    """The workers' function."""
    return item


def _rate(items: Iterator[Any], seconds: float) -> float:
    """Returns items a second, after a warm-up of a fifth of `seconds`."""
    _count_until(items, time.perf_counter() + seconds / 5)
    begin = time.perf_counter()
    count = _count_until(items, begin + seconds)
    return count / (time.perf_counter() - begin)


def _count_until(items: Iterator[Any], end: float) -> int:
    count, bunch = 0, 1
    while time.perf_counter() < end:
        for _ in itertools.islice(items, bunch):
            pass
        count += bunch
        bunch = min(bunch * 2, 256)
    return count


def measure_levada(item_bytes: int, workers: int, seconds: float) -> Measured:
    pipeline = levada.Pipeline[Any](Items(item_bytes)).dispatch().map(same)
    with pipeline.run(workers, seed=0) as run:
        items = iter(run)
        rate = _rate(items, seconds)
        stats = run.stats()
    given = max(stats.stages["map"].items, 1)
    # The bytes that reach this process are half of those that workers receive and send.
    return Measured(rate, stats.wakeups / given, 2 * stats.copied / max(stats.bytes, 1))


def measure_torchdata(item_bytes: int, workers: int, seconds: float) -> Measured:
    """Runs in a separate process: torchdata's iterators wait for their threads forever after an endless pipe is
    abandoned."""
    spawn = multiprocessing.get_context("spawn")
    told, telling = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_measure_torchdata, args=(telling, item_bytes, workers, seconds))
    process.start()
    telling.close()
    rate: float = told.recv()
    process.join()
    return Measured(rate)


def _measure_torchdata(telling: Any, item_bytes: int, workers: int, seconds: float) -> None:
    # The 0.9.0 that script/bench-peers installs: the last that has DataLoader2.
    warnings.simplefilter("ignore")
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES  # type: ignore[import-not-found, unused-ignore]
    from torchdata.dataloader2 import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        DataLoader2,
        MultiProcessingReadingService,
    )
    from torchdata.datapipes.iter import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        IterableWrapper,
    )

    torch.set_num_threads(1)
    pipe = IterableWrapper(Items(item_bytes), deepcopy=False)
    pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(same)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, "spawn"))
    telling.send(_rate(iter(loader), seconds))
    for started in multiprocessing.active_children():
        started.kill()
    os._exit(0)


class _OfWorkers(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Each worker makes a part of the items: a DataLoader has no dispatching process."""

    def __init__(self, item_bytes: int) -> None:
        self.items = Items(item_bytes)

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        return map(same, itertools.islice(iter(self.items), info.id, None, info.num_workers))


def measure_dataloader(item_bytes: int, workers: int, seconds: float) -> Measured:
    loader = DataLoader(
        _OfWorkers(item_bytes), batch_size=None, num_workers=workers, multiprocessing_context="spawn", prefetch_factor=10
    )
    return Measured(_rate(iter(loader), seconds))


def measure_queue(item_bytes: int, workers: int, seconds: float) -> Measured:
    """One process puts and this one gets, without workers in between."""
    spawn = multiprocessing.get_context("spawn")
    items: Any = spawn.Queue(10 * workers)
    process = spawn.Process(target=_put, args=(items, item_bytes), daemon=True)
    process.start()
    try:
        return Measured(_rate(_got(items), seconds))
    finally:
        process.kill()
        process.join()
        items.close()


def _put(items: Any, item_bytes: int) -> None:
    torch.set_num_threads(1)
    for item in Items(item_bytes):
        items.put(item)


def _got(items: Any) -> Iterator[Any]:
    while True:
        try:
            yield items.get(timeout=60)
        except queue.Empty:
            return


PEERS: dict[str, Callable[[int, int, float], Measured]] = {
    "torchdata": measure_torchdata,
    "dataloader": measure_dataloader,
    "mp_queue": measure_queue,
}


def _has_dataloader2() -> bool:
    try:
        return importlib.util.find_spec("torchdata.dataloader2") is not None
    except ModuleNotFoundError:
        return False


def row(item_bytes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Returns one size's row, with the keys of `levada_bench dispatch`; `ratio` is levada's speed over each peer's."""
    torch.set_num_threads(1)
    own = measure_levada(item_bytes, workers, seconds)
    peers = {}
    for name, measure in PEERS.items():
        if name == "torchdata" and not _has_dataloader2():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peers[name] = measure(item_bytes, workers, seconds).items_per_s
    return {
        "op": "dispatch",
        "workers": workers,
        "item_bytes": item_bytes,
        "items_per_s": round(own.items_per_s, 1),
        "wakeups_per_item": round(own.wakeups_per_item or 0.0, 4),
        "copies_per_byte": round(own.copies_per_byte or 0.0, 3),
        "peers": {name: round(rate, 1) for name, rate in peers.items()},
        "ratio": {name: round(own.items_per_s / rate, 2) for name, rate in peers.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as aligned text."""
    heads = ["item", "workers", "levada items/s", "wakeups/item", "copies/byte", *PEERS]
    lines = []
    for each in rows:
        item = "int" if each["item_bytes"] == INT_BYTES else f"{each['item_bytes']:,} bytes"
        line = [item, str(each["workers"]), f"{each['items_per_s']:,.0f}"]
        line += [f"{each['wakeups_per_item']:.4f}", f"{each['copies_per_byte']:.2f}"]
        for name in PEERS:
            known = name in each["peers"]
            line.append(f"{each['peers'][name]:,.0f} = 1/{each['ratio'][name]:.1f}" if known else "absent")
        lines.append(line)
    widths = [max(len(line[at]) for line in [heads, *lines]) for at in range(len(heads))]
    aligned = [heads, ["-" * width for width in widths], *lines]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in aligned)
