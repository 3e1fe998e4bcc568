"""A reference model of pipelines, as plain generators: the items of an epoch in one process.

It has no process, no message and no state. A pipeline is a list of stages that pipelines.py draws; that module makes
the levada.Pipeline of the same stages. Epochs that depend on random draws are not modeled; see Unknown.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

Json = dict[str, Any]


def plain(item: Any) -> Any:
    """Returns the item as values that == can compare."""
    if isinstance(item, np.ndarray):
        return [item.dtype.str, item.tolist()]
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [plain(each) for each in item]
    return item


def digest(item: Any) -> int:
    """Returns a number that depends only on the value and is the same in any process."""
    return zlib.crc32(repr(plain(item)).encode())


# Functions of stages, which the real pipelines call, too


def tag(item: Any) -> Any:
    return (digest(item) % 100, item)


ROW, FIELDS = np.zeros(300, np.int64), {"row": np.zeros(0, np.int64)}


def reuses(item: Any) -> Any:
    """Returns an item in memory, and in an object, that the next call changes."""
    ROW[:] = digest(item)
    FIELDS["row"] = ROW[: 1 + digest(item) % 300]
    return FIELDS


def unshared(item: Any) -> Any:
    """Returns an item equal to that of reuses(), in new memory."""
    return {"row": np.full(1 + digest(item) % 300, digest(item))}


def keeps(item: Any) -> bool:
    return digest(item) % 4 != 0


def copies(item: Any) -> list[Any]:
    return [item] * (digest(item) % 3)


def refuses(item: Any) -> Any:
    if digest(item) % 5 == 0:
        raise ValueError("refused")
    return item


def length(item: Any) -> int:
    return digest(item) % 40


def document(item: Any) -> Any:
    return np.arange(1 + digest(item) % 30)


def echo(items: Iterator[Any]) -> Iterator[Any]:
    yield from items


def pairs(items: Iterator[Any]) -> Iterator[Any]:
    for first in items:
        yield first, next(items, -1)


def merged(first: Iterator[Any], second: Iterator[Any]) -> Iterator[Any]:
    for item in first:
        yield item
        yield from (each for each, _ in zip(second, range(digest(item) % 2)))


class Numbering:
    """A transform with a state."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items, self.count = items, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.count += 1
            yield self.count, item

    def state_dict(self) -> Any:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


class Parts:
    """The elements of an item, with a state."""

    def __init__(self, item: Any) -> None:
        self.item, self.at = item, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < digest(self.item) % 4:
            self.at += 1
            yield (self.at, self.item)

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (tag, keeps, copies, refuses, length, document, echo, pairs, merged, Numbering, Parts)
}


# Stages


class Unknown(Exception):
    """The items depend on random draws, or on how documents are chosen for a row."""


def is_kept(item: Any) -> bool:
    try:
        refuses(item)
    except ValueError:
        return False
    return True


def batches(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        if len(batch) == size or not drop_last:
            yield batch


def bucket_batches(items: Iterable[Any], boundaries: list[int], size: int) -> Iterator[Any]:
    """Yields a bucket as soon as it is full, and the remaining ones at the end, shortest items first."""
    buckets: list[list[Any]] = [[] for _ in range(len(boundaries) + 1)]
    for item in items:
        bucket = buckets[sum(length(item) >= boundary for boundary in boundaries)]
        bucket.append(item)
        if len(bucket) == size:
            yield bucket[:]
            bucket.clear()
    yield from filter(None, buckets)


def interleaved(open_first: Callable[[], Iterator[Any]], open_second: Callable[[], Iterator[Any]], stop: str) -> Iterator[Any]:
    """Yields one item of each in turn. stop="cycle": one that ends restarts, until each has ended."""
    opened, iterators, ends, over = [open_first, open_second], [open_first(), open_second()], [0, 0], [False, False]
    turn = -1
    while not all(over):
        turn += 1
        which = turn % 2
        if over[which]:
            continue
        try:
            item = next(iterators[which])
        except StopIteration:
            ends[which] += 1
            if stop == "cycle":
                iterators[which] = opened[which]()
            item = next(iterators[which], Unknown)
        if stop == "cycle" and all(count > 0 for count in ends):
            return
        if item is not Unknown:
            yield item
        elif stop == "first":
            return
        else:
            over[which] = True


def stage(do: Json, open_: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yields the items of a stage whose input is `open_`."""
    what = do["do"]
    if what in ("shuffle", "pack") or do.get("weights"):
        raise Unknown
    if what == "map":
        return map(tag, open_())
    if what == "reuses":
        return map(unshared, open_())
    if what == "skips":
        return filter(is_kept, open_())
    if what == "filter":
        return filter(keeps, open_())
    if what == "flat_map":
        return (each for item in open_() for each in FUNCTIONS[do["function"]](item))
    if what == "batch":
        return batches(open_(), do["size"], do["drop_last"])
    if what == "unbatch":
        return open_()
    if what == "bucket_batch":
        return bucket_batches(open_(), do["boundaries"], do["size"])
    if what == "take":
        return islice(open_(), do["count"])
    if what == "skip":
        return islice(open_(), do["count"], None)
    if what == "repeat":
        return (item for _ in range(do["times"]) for item in open_())
    if what == "zip":
        return zip(open_(), range(do["count"]))
    if what == "concat":
        return (item for each in (open_(), range(do["count"])) for item in each)
    if what == "interleave":
        return interleaved(open_, lambda: iter(range(do["count"])), do["stop"])
    if what == "fork":
        return ((tag(item), item) for item in open_())
    if what == "transform":
        others = [iter(range(10))] if do["function"] == "merged" else []
        return iter(FUNCTIONS[do["function"]](open_(), *others))
    assert what in ("prefetch", "dispatch", "shard", "fuse"), what
    return open_()


def items_of(pipeline: Json) -> Iterator[Any]:
    """Yields the items of an epoch in one process. Raises Unknown."""

    def open_up_to(count: int) -> Iterator[Any]:
        if count == 0:
            return iter(range(pipeline["items"]))
        return stage(pipeline["stages"][count - 1], lambda: open_up_to(count - 1))

    return open_up_to(len(pipeline["stages"]))


ONE_TO_ONE = ("map", "reuses", "prefetch", "fuse", "dispatch", "shard")
KEEPS_ORDER = (*ONE_TO_ONE, "skips", "filter", "flat_map")
"""Stages after which workers keep the order of one process. With threads, stages read ahead, so all of them must be
one-to-one."""


def epoch(pipeline: Json) -> list[Any] | None:
    """Returns the items of an epoch, in order, or None if they are not known."""
    names = [do["do"] for do in pipeline["stages"]]
    boundary = next((at for at, name in enumerate(names) if name in ("dispatch", "shard")), len(names))
    keeping = ONE_TO_ONE if any(do.get("threads") for do in pipeline["stages"][boundary:]) else KEEPS_ORDER
    if pipeline["workers"] > 0 and not pipeline["ordered"] and any(name not in keeping for name in names[boundary:]):
        return None
    try:
        return [plain(item) for item in items_of(pipeline)]
    except Unknown:
        return None
