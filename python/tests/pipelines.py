"""Sources and stages of pipelines, shared by tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
from levada import Pipeline

multiprocessing.set_forkserver_preload(["levada.pipeline.workers", "cloudpickle"])


def got(pipeline: Pipeline[Any], workers: int = 0, **options: Any) -> list[Any]:
    options = {"context": "forkserver", "seed": 1, **options}
    with pipeline.run(workers, **options) as run:
        return list(run)


def plain(item: Any) -> Any:
    """Returns the item as values that == can compare."""
    if isinstance(item, np.ndarray):
        return (str(item.dtype), item.tolist())
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [plain(each) for each in item]
    return item


class Stateful:
    """A source with a state; records the epochs that it was given."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.at = 0
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            yield self.at - 1
        self.at = 0


class Fickle:
    """A source whose state may be any object."""

    def __init__(self, state: Any) -> None:
        self.begin, self.next, self.state = 0, 0, state

    def __iter__(self) -> Iterator[int]:
        self.next, self.begin = self.begin, 0
        while self.next < 30:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> Any:
        return {"next": self.next, "more": self.state}

    def load_state_dict(self, state: Any) -> None:
        self.begin = state["next"]


class ByNumber:
    """Records which of its items were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> int:
        self.read.append(at)
        return at


class CountsReads(ByNumber):
    """Has a state that does not identify the next item."""

    def state_dict(self) -> dict[str, int]:
        return {"reads": len(self.read)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = [-1] * state["reads"]


def pairs(items: Iterator[int]) -> Iterator[tuple[int, int]]:
    for first in items:
        yield first, next(items, -1)


class Numbering:
    """A transform with a state."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items, self.count = items, 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for item in self.items:
            self.count += 1
            yield self.count, item

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def double(item: int) -> int:
    return item * 2


def iter_numbers() -> Iterator[int]:
    yield from range(10)


class BeginsAgain:
    """An iterator that restarts when iter() is called."""

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 3:
            raise StopIteration
        return self.at
