"""Pipelines drawn at random, for laws that hold for all of them."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from levada import Pipeline
from levada.pipeline.run import Run
from pipelines import Numbering, Stateful, pairs

multiprocessing.set_forkserver_preload(["levada.pipeline.workers", "cloudpickle", "numpy"])
Stage = Callable[[random.Random, Pipeline[Any]], Pipeline[Any]]


def plain(item: Any) -> Any:
    """Returns the item as values that == compares."""
    if isinstance(item, np.ndarray):
        return (str(item.dtype), item.tolist())
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [plain(each) for each in item]
    return item


def digest(item: Any) -> int:
    """Returns a number that depends only on the value, in any process."""
    return zlib.crc32(repr(plain(item)).encode())


def tag(item: Any) -> Any:
    return (digest(item) % 100, item)


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


def merged(first: Iterator[Any], second: Iterator[Any]) -> Iterator[Any]:
    for item in first:
        yield item
        yield from (each for each, _ in zip(second, range(digest(item) % 2), strict=False))


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


class Numbers:
    """Makes an iterator that has no state and cannot seek."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self) -> Iterator[int]:
        yield from range(self.count)


class Fuse:
    """Raises at its n-th call in a process, as long as a file is there."""

    def __init__(self, path: pathlib.Path, calls: int, kind: type[BaseException] = OSError) -> None:
        self.path, self.calls, self.kind = path, calls, kind

    def __call__(self, item: Any) -> Any:
        self.calls -= 1
        if self.calls == 0 and self.path.exists():
            raise self.kind("the fuse has blown")
        return item


def source(draw: random.Random) -> Pipeline[Any]:
    count = draw.choice([0, 1, 7, 40, 90, 600, 600])
    kinds: list[Any] = [range(count), list(range(count)), Numbers(count), Stateful(count)]
    return Pipeline(draw.choice(kinds))


def forked(draw: random.Random, pipeline: Pipeline[Any]) -> Pipeline[Any]:
    first, second = pipeline.fork(2, buffer=draw.choice([4, 1000]))
    if draw.random() < 0.5:
        second = second.prefetch(2)
    return first.map(tag).zip(second)


def packed(draw: random.Random, pipeline: Pipeline[Any]) -> Pipeline[Any]:
    documents = pipeline.map(document)
    if draw.random() < 0.5:
        return documents.pack(16, method="cut", partial=draw.choice(["pad", "drop"]))
    return documents.pack(16, method="best-fit", buffer=draw.choice([1, 6]))


STAGES: dict[str, Stage] = {
    "map": lambda draw, p: p.map(tag),
    "map on threads": lambda draw, p: p.map(tag, threads=2),
    "map that skips": lambda draw, p: p.map(refuses, on_error="skip", threads=draw.choice([0, 2])),
    "filter": lambda draw, p: p.filter(keeps),
    "flat_map": lambda draw, p: p.flat_map(copies if draw.random() < 0.5 else Parts),
    "batch": lambda draw, p: p.batch(draw.choice([1, 3]), drop_last=draw.random() < 0.5),
    "unbatch": lambda draw, p: p.batch(4).unbatch(),
    "bucket_batch": lambda draw, p: p.bucket_batch(length, boundaries=[10, 20], size=3),
    "shuffle": lambda draw, p: p.shuffle(draw.choice([3, 20, 1000])),
    "pack": packed,
    "take": lambda draw, p: p.take(draw.choice([0, 5, 30])),
    "skip": lambda draw, p: p.skip(draw.choice([0, 5, 30])),
    "repeat": lambda draw, p: p.repeat(draw.choice([1, 2])),
    "zip": lambda draw, p: p.zip(Pipeline(range(60))),
    "concat": lambda draw, p: p.concat(Pipeline(range(20))),
    "interleave": lambda draw, p: p.interleave(Pipeline(range(30)), weights=[2, 1], stop=draw.choice(["first", "last", "cycle"])),
    "fork": forked,
    "prefetch": lambda draw, p: p.prefetch(draw.choice([1, 5])),
    "transform": lambda draw, p: p.transform(draw.choice([echo, pairs])),
    "transform with a state": lambda draw, p: p.transform(Numbering),
    "transform of two": lambda draw, p: p.transform(merged, Pipeline(range(10))),
}


TRANSFORMS = ("transform", "transform with a state")
LOOKING_BACK = ("shuffle", "flat_map", "unbatch", "map on threads", "bucket_batch", "fork", "pack")
"""Stages that keep earlier cursors of their input."""


class Drawn:
    """A pipeline drawn at random, whose processes get `fuse` as one more stage, anywhere. Each run has sources of its own."""

    def __init__(self, seed: str, *, with_workers: bool, fuse: Fuse | None = None) -> None:
        self._seed, self._with_workers, self._fuse = seed, with_workers, fuse
        draw = random.Random(f"options {seed}")
        self.workers = draw.choice([1, 2, 3]) if with_workers else 0
        self.options: dict[str, Any] = {
            "seed": draw.randrange(100),
            "ordered": draw.random() < 0.4,
            "snapshot_every": draw.choice([0, 0, 1, 5]),
            "worker_prefetch": draw.choice([1, 10]),
            "main_prefetch": draw.choice([1, 10]),
            "context": "forkserver",
            "timeout": 60,
        }

    def run(self, workers: int | None = None, **other: Any) -> Run[Any]:
        return self._pipeline().run(self.workers if workers is None else workers, **{**self.options, **other})

    def _pipeline(self) -> Pipeline[Any]:
        draw = random.Random(self._seed)
        names = [draw.choice(list(STAGES)) for _ in range(draw.randint(1, 4))]
        boundary = draw.choice(["dispatch", "dispatch", "shard"]) if self._with_workers else "dispatch"
        at = 0 if boundary == "shard" else draw.randint(0, len(names) - 1)
        if draw.random() < 0.4:
            names[at : at + 2] = [draw.choice(TRANSFORMS), draw.choice(LOOKING_BACK)]
        fuse_at, is_beside = draw.randint(0, len(names)), draw.random() < 0.2
        pipeline = source(draw)
        for number, name in enumerate(names):
            if number == at:
                pipeline = pipeline.shard() if boundary == "shard" else pipeline.dispatch()
            if self._fuse is not None and not is_beside and number == fuse_at:
                pipeline = pipeline.map(self._fuse)
            pipeline = STAGES[name](draw, pipeline)
        if self._fuse is not None and is_beside:
            return pipeline.zip(Pipeline(list(range(80))).map(self._fuse).dispatch())
        return pipeline.map(self._fuse) if self._fuse is not None and fuse_at == len(names) else pipeline

    def __repr__(self) -> str:
        return f"{self._pipeline()!r} with {self.workers} workers and {self.options}"


def seeds(count: int) -> list[int]:
    """Returns so many seeds, or as many as LEVADA_LAWS says."""
    return list(range(int(os.environ.get("LEVADA_LAWS", count))))
