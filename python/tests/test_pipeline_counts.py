"""The number of items that a run yields, and the identity of its objects."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from typing import Any

import levada
import numpy as np
import pytest
from levada import Pipeline
from pipelines import got, plain


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Pipeline(range(10)).dispatch().batch(4), 4),
        (lambda: Pipeline(range(100)).dispatch().take(3), 6),
        (lambda: Pipeline(range(10)).dispatch().skip(3), 4),
        (lambda: Pipeline(range(100)).dispatch().batch(32, drop_last=True), 2),
        (lambda: Pipeline(range(11)).shard().batch(3), 4),
        (lambda: Pipeline(range(11)).dispatch().zip(Pipeline(range(5)).shard()), 5),
        (lambda: Pipeline(range(11)).batch(3).dispatch().map(len), 4),
        (lambda: Pipeline(range(5)).shard().repeat(3), 15),
        (lambda: Pipeline(range(5)), 10),
    ],
)
@pytest.mark.filterwarnings("ignore:.*each of the 2 workers|nothing divides")
def test_the_length_of_a_run_is_the_number_of_its_items(make: Any, expected: int) -> None:
    with make().run(2, context="forkserver") as run:
        assert len(run) == expected == len(list(run))


def test_a_length_that_is_not_known_is_a_type_error() -> None:
    for pipeline in (
        Pipeline(range(9)).filter(bool),
        Pipeline(lambda: iter(range(9))),
        Pipeline(range(9)).map(abs, on_error="skip"),
        Pipeline(range(9)).repeat(),
    ):
        for counted in (pipeline, pipeline.run()):
            with pytest.raises(TypeError):
                len(counted)
    with pytest.raises(TypeError):
        len(Pipeline(range(9)).map(abs).run(on_error="skip"))


def test_only_functions_that_fail_make_a_length_unknown() -> None:
    pipeline = Pipeline(range(9)).shuffle(3).prefetch(2).batch(2)
    assert len(pipeline.run(on_error="skip")) == 5 == len(list(pipeline.run(on_error="skip")))
    assert len(Pipeline(range(9)).map(abs, on_error="raise").run(on_error="skip")) == 9


def test_a_take_or_skip_in_several_workers_is_a_warning() -> None:
    for pipeline in (Pipeline(range(9)).dispatch().take(3), Pipeline(range(9)).shard().skip(3)):
        with pytest.warns(UserWarning, match="counts the items of each of the 2 workers"):
            pipeline.run(2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipeline.run(0), pipeline.run(1), pipeline.run(2, ordered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pipeline(range(9)).take(3).dispatch().run(2)


def grow(item: Any) -> Any:
    """Changes its item in place."""
    array = item["a"] if isinstance(item, dict) else item.array if isinstance(item, Holder) else item
    array += 1
    return item


class Holder:
    def __init__(self, array: Any) -> None:
        self.array = array


def total(item: Any) -> int:
    return int((item["a"] if isinstance(item, dict) else item.array if isinstance(item, Holder) else item).sum())


@pytest.mark.long
@pytest.mark.parametrize("size", [3, 600], ids=["in the pickle", "beside it"])
@pytest.mark.parametrize("make", [lambda a: a, lambda a: {"a": a}, Holder], ids=["array", "dict", "object"])
@pytest.mark.parametrize("shared", [True, False], ids=["one item", "one array"])
def test_items_that_are_one_object_are_apart_in_the_next_process(make: Any, size: int, shared: bool) -> None:
    array = np.zeros(size, np.int64)
    one = make(array)
    items = [one if shared else make(array) for _ in range(50)]
    in_workers = got(Pipeline(items).dispatch().map(grow).map(total), 2)
    assert in_workers == [size] * 50
    here = [total(grow(item)) for item in got(Pipeline(items).dispatch(), 2)]
    assert here == [size] * 50


def test_shared_objects_within_an_item_stay_shared() -> None:
    array = np.zeros(3)
    items = got(Pipeline([{"a": array, "b": [array]}] * 9).dispatch(), 2)
    assert all(item["a"] is item["b"][0] for item in items)
    assert len({id(item["a"]) for item in items}) == 9


def test_copies_equal_those_of_separately_pickled_items() -> None:
    draw = random.Random(1)
    traits = levada._levada.ItemTraits()
    pool: list[Any] = [np.arange(n * 300) for n in range(4)] + [[1, 2], {"x": [3]}, Holder(np.arange(3)), "text", 5, 2.5, None]

    def drawn() -> Any:
        return draw.choice(pool) if draw.random() < 0.5 else [draw.choice(pool), {"k": draw.choice(pool)}]

    for _ in range(300):
        items = [drawn() for _ in range(draw.randint(1, 9))]
        copies, _ = traits.copy(items)
        assert [values(copy) for copy in copies] == [values(item) for item in items]
        mutable = [set(mutable_ids(copy)) for copy in copies]
        assert all(not first & second for first, second in itertools.combinations(mutable, 2))


def inside(item: Any) -> list[Any]:
    if isinstance(item, Holder):
        return [item.array]
    return list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []


def values(item: Any) -> Any:
    return (type(item).__name__, [values(each) for each in inside(item)] or plain(item))


def mutable_ids(item: Any) -> list[int]:
    if isinstance(item, (str, int, float, type(None))):
        return []
    return [id(item), *(found for each in inside(item) for found in mutable_ids(each))]


def slowly(number: int) -> int:
    time.sleep(0.05)
    return number


def test_stats_count_how_often_the_consumer_woke_for_an_item() -> None:
    with Pipeline(range(20)).shard().map(slowly).run(1, context="forkserver") as run:
        assert list(run) == list(range(20))
        assert run.stats().wakeups >= 5  # on a busy machine, several items may come at once
