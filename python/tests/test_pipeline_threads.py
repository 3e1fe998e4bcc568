"""Threads of the functions of a pipeline, and threads of the program that uses its run."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import levada
import pytest
from levada import Pipeline
from pipelines import got


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Requests the items on a thread, as a prefetcher does."""
    handed: queue.Queue[Any] = queue.Queue(4)

    def pull() -> None:
        try:
            for item in items:
                handed.put(item)
            handed.put(None)
        except BaseException as error:
            handed.put(error)

    threading.Thread(target=pull, daemon=True).start()
    while (item := handed.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item


def nested_ahead(items: Iterator[Any]) -> Iterator[Any]:
    return iter(Pipeline(items).prefetch(4).run(alone=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("function", [ahead, nested_ahead])
def test_a_transform_that_requests_items_on_another_thread_is_refused(function: Any, workers: int) -> None:
    for _ in range(3):
        with Pipeline(range(400)).dispatch().transform(function).run(workers, context="forkserver", alone=True) as run:
            with pytest.raises(levada.Unsupported, match=r"items on another thread.*prefetch\(\)"):
                list(run)


class Buffering:
    """Requests items when it is made, when it is iterated and when its state is saved."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items
        self.kept = [next(items), next(items)]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.kept:
            return next(self.items)
        return self.kept.pop(0)

    def state_dict(self) -> list[Any]:
        self.kept += itertools.islice(self.items, 1)
        return self.kept

    def load_state_dict(self, state: list[Any]) -> None:
        self.kept = [*state]


def drained(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    finally:
        list(items)


def nested(items: Iterator[Any]) -> Iterator[Any]:
    return iter(Pipeline(items).map(abs).run(alone=True))


def test_a_transform_may_request_items_whenever_it_is_called() -> None:
    numbers = Pipeline(range(50))
    for workers in (0, 1):
        for function in (Buffering, drained, nested):
            assert got(numbers.dispatch().transform(function), workers) == list(range(50))
        assert got(numbers.dispatch().prefetch(3).transform(drained).prefetch(3), workers) == list(range(50))
    with numbers.transform(drained).run() as run:
        items = iter(run)
        assert [next(items) for _ in range(5)] == list(range(5))
        state = run.state_dict()
    with numbers.transform(drained).run() as run:
        run.load_state_dict(state)
        assert list(run) == list(range(5, 50))
