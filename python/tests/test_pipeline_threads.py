"""Threads of the functions of a pipeline, and threads of the program that uses its run."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
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


def test_a_refused_epoch_leaves_the_running_one_as_it_is() -> None:
    is_waiting, goes_on = threading.Event(), threading.Event()

    def wait_at_two(item: int) -> int:
        if item == 2:
            is_waiting.set()
            assert goes_on.wait(60)
        return item

    pipeline = Pipeline(range(10)).map(wait_at_two)
    with pipeline.run(alone=True, seed=1) as run:
        items = iter(run)
        taken = [next(items), next(items)]
        taking = threading.Thread(target=lambda: taken.append(next(items)))
        taking.start()
        assert is_waiting.wait(60)
        for refused in (lambda: iter(run), run.state_dict, lambda: run.limit(3)):
            with pytest.raises(levada.InvalidArgument, match="on another thread"):
                refused()
        goes_on.set()
        taking.join()
        state = run.state_dict()
        assert run.epoch == 0 == state["epoch"]
        assert [*taken, *items] == list(range(10))
        assert list(run) == list(range(10)) and run.next_epoch == 2
    with pipeline.run(alone=True) as run:
        run.load_state_dict(state)
        assert list(run) == list(range(3, 10))


def slow(item: int) -> tuple[int, int]:
    time.sleep(0.5)
    return item, os.getpid()


@pytest.mark.filterwarnings("ignore:.*are started again and resume")
def test_workers_that_die_after_a_refused_epoch_are_replaced_at_the_next_item() -> None:
    options: dict[str, Any] = {"context": "forkserver", "alone": True, "on_worker_death": "replace"}
    with Pipeline(range(8)).dispatch().map(slow).run(1, worker_prefetch=0, main_prefetch=0, **options) as run:
        items = iter(run)
        taken = [next(items), next(items)]
        is_taking = threading.Event()

        def take() -> None:
            is_taking.set()
            taken.append(next(items))

        taking = threading.Thread(target=take)
        taking.start()
        is_taking.wait()
        time.sleep(0.2)
        with pytest.raises(levada.InvalidArgument, match="on another thread"):
            iter(run)
        taking.join()
        run.limit(3)
        os.kill(taken[-1][1], signal.SIGKILL)
        taken += items
        assert [number for number, _ in taken] == list(range(6))
        run.resume()
        assert [number for number, _ in items] == [6, 7]
