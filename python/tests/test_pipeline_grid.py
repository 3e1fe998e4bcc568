"""Pipelines with every number of workers, prefetch depth and start method. Each run of the tests includes some
combinations, such that any two of these values meet; with LEVADA_GRID=whole it includes all."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from typing import Any

import pytest
import varying
from levada import Pipeline

multiprocessing.set_forkserver_preload(["levada.pipeline.workers", "cloudpickle"])
COUNTS = [0, 1, 2, 101, 0, 101]
WORKERS, PREFETCH, CONTEXTS = (0, 1, 2, 3, 7), (0, 1, 10), ("forkserver", "spawn")
SOME = [
    *[(0, 0, "spawn"), (0, 1, "forkserver"), (0, 10, "forkserver")],
    *[(1, 0, "forkserver"), (1, 1, "spawn"), (1, 10, "forkserver")],
    *[(2, 0, "forkserver"), (2, 1, "forkserver"), (2, 10, "spawn")],
    *[(3, 0, "spawn"), (3, 1, "forkserver"), (3, 10, "forkserver")],
    *[(7, 0, "forkserver"), (7, 1, "spawn"), (7, 10, "forkserver")],
]
IS_WHOLE = os.environ.get("LEVADA_GRID") == "whole"
GRID = list(itertools.product(WORKERS, PREFETCH, CONTEXTS)) if IS_WHOLE else SOME


def doubled(factor: int = 2) -> list[Pipeline[Any]]:
    """Returns pipelines with the mark after the doubling stage, before it, nowhere, twice, and on each branch."""

    def numbers() -> Pipeline[int]:
        return Pipeline(varying.Lengths(COUNTS))

    left, right = numbers().fork()
    branches = left.dispatch().zip(right.map(lambda n: n * factor).dispatch()).map(lambda pair: pair[1])
    beside = numbers().dispatch().zip(numbers().shard()).map(lambda pair: pair[0] + pair[1])
    return [
        numbers().dispatch().map(lambda n: n * factor),
        numbers().map(lambda n: n * factor).dispatch(),
        numbers().shard().map(lambda n: n * factor),
        numbers().dispatch().map(lambda n: n * factor).dispatch(),
        branches,
        beside,
    ]


def upto(count: int) -> list[int]:
    return list(range(0, 2 * count, 2))


@pytest.mark.parametrize(("workers", "prefetch", "context"), GRID)
def test_any_pipeline_yields_the_same_items_in_any_processes(workers: int, prefetch: int, context: str) -> None:
    shapes = doubled()
    at = GRID.index((workers, prefetch, context))
    for shape in shapes if IS_WHOLE else [shapes[at % len(shapes)]]:
        options = {"context": context, "worker_prefetch": prefetch, "main_prefetch": prefetch}
        with shape.run(workers, **options) as run:
            for count in COUNTS:
                assert list(run) == upto(count)
            for before in (0, 1, 40):  # each time reset while paused
                run.set_epoch(3)
                items = iter(run)
                given = [next(items) for _ in range(before)]
                run.pause()
                assert list(items) == [] and given == upto(before)
                assert list(run) == upto(0)
            run.set_epoch(3)
            items = iter(run)
            given = []
            for more in (1, 0, 50):  # stops at limits
                run.limit(more)
                given += items
                run.resume()
            assert given == upto(51) and given + list(items) == upto(101)


def test_any_two_ranks_connect() -> None:
    for first, second in itertools.combinations((WORKERS, PREFETCH, CONTEXTS), 2):
        at = [(WORKERS, PREFETCH, CONTEXTS).index(each) for each in (first, second)]
        assert {(case[at[0]], case[at[1]]) for case in SOME} == set(itertools.product(first, second))
