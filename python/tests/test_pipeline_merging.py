"""Stages of several pipelines, buckets, and maps on threads."""

from __future__ import annotations

import collections
import itertools
import subprocess
import sys
import threading
import time
from typing import Any

import levada
import pytest


def test_concat_and_interleave_yield_all_items() -> None:
    a, b = levada.Pipeline(range(5)), levada.Pipeline(range(10, 13))
    assert list(a.concat(b)) == [0, 1, 2, 3, 4, 10, 11, 12]
    assert list(a.interleave(b)) == [0, 10, 1, 11, 2, 12, 3]
    assert list(a.interleave(b, stop="last")) == [0, 10, 1, 11, 2, 12, 3, 4]
    assert list(a.interleave(b, stop="cycle")) == [0, 10, 1, 11, 2, 12, 3, 10, 4, 11]
    assert len(a.concat(b)) == len(a.interleave(b, stop="last")) == 8
    with pytest.raises(TypeError):
        len(a.interleave(b))
    with pytest.raises(levada.InvalidArgument, match="it has 1 weights for 2 inputs"):
        a.interleave(b, weights=[1])
    with pytest.raises(levada.InvalidArgument, match="stop is never; it must be first, last or cycle"):
        a.interleave(b, stop="never")


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_are_shares_and_a_state_resumes(workers: int) -> None:
    web = levada.Pipeline([f"web {number}" for number in range(3000)]).shard()
    code = levada.Pipeline([f"code {number}" for number in range(100)]).shard().repeat()
    mixed = web.interleave(code, weights=[3, 1], seed=5).map(str.upper)
    items = list(mixed.run(workers=workers, seed=1, alone=True))
    kinds = collections.Counter(item.split()[0] for item in items)
    assert kinds["WEB"] >= 2900 and abs(kinds["CODE"] / kinds["WEB"] - 1 / 3) < 0.05
    with mixed.run(workers=workers, seed=1, alone=True) as run:
        iterator = iter(run)
        given = [next(iterator) for _ in range(777)]
        state = run.state_dict()
    with mixed.run(workers=workers, seed=1, alone=True) as run:
        run.load_state_dict(state)
        assert given + list(run) == items


def test_buckets_contain_items_of_similar_length() -> None:
    words = [letter * length for letter, length in zip("abcdefgh", (3, 9, 1, 8, 2, 30, 7, 1), strict=True)]
    batches = list(levada.Pipeline(words).bucket_batch(len, boundaries=[5, 10], max_tokens=30))
    assert sorted(sum(batches, [])) == sorted(words)
    assert all(max(map(len, batch)) * len(batch) <= 30 for batch in batches)
    assert {len({len(word) < 5 for word in batch}) for batch in batches} == {1}
    assert list(levada.Pipeline(words).bucket_batch(len, size=3, drop_last=True, collate=len)) == [3, 3]
    with pytest.raises(levada.InvalidArgument, match="item 5 has a length of 30, more than max_tokens, 20"):
        list(levada.Pipeline(words).bucket_batch(len, max_tokens=20))
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        list(levada.Pipeline(words).bucket_batch(str, size=2))  # type: ignore[arg-type]


def test_threads_call_concurrently_and_keep_order() -> None:
    together = threading.Barrier(4, timeout=20)
    names = set()

    def slow(number: int) -> int:
        names.add(threading.get_ident())
        if number < 4:
            together.wait()
        time.sleep(0.001 * (number % 3))
        return number * 2

    run = levada.Pipeline(range(50)).map(slow, threads=4).run()
    assert list(run) == [number * 2 for number in range(50)]
    assert len(names) == 4 and threading.get_ident() not in names


def test_a_failure_on_a_thread_takes_the_place_of_its_item() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise KeyError("five")
        return number

    pipeline = levada.Pipeline(range(10)).map(fail, threads=3, name="fragile")
    given = []
    with pytest.raises(KeyError, match="five"):
        for number in pipeline:
            given.append(number)
    assert given == [0, 1, 2, 3, 4]
    assert list(pipeline.run(on_error="skip")) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_map_whose_threads_are_refused_ends() -> None:
    code = """
import resource
import levada
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 200 * 2**20  # the stacks of some threads
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    list(levada.Pipeline(range(10)).map(abs, threads=1000))
except levada.EngineError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "cannot start a thread for mapping" in ran.stdout, ran.stderr


NUMBERS = levada.Pipeline(range(500))
STAGES_WITH_STATE = {
    "threads": NUMBERS.shuffle(50).dispatch().map(lambda number: 2 * number, threads=3),
    "threads behind shards": NUMBERS.shard().map(lambda number: 2 * number, threads=3),
    "buckets": NUMBERS.shuffle(50).dispatch().bucket_batch(lambda number: number % 17, boundaries=[5, 10], size=4),
    "concat": NUMBERS.concat(levada.Pipeline(range(200)).shuffle(20)).dispatch().map(str, threads=2).shuffle(10),
    "interleave": NUMBERS.dispatch().interleave(levada.Pipeline(range(200)).shard(), weights=[2, 1], stop="last"),
    "cycle": NUMBERS.interleave(levada.Pipeline(range(70)).shuffle(20), weights=[2, 1], stop="cycle").dispatch(),
    "cycle behind shards": NUMBERS.shard().interleave(levada.Pipeline(range(70)).shard(), stop="cycle"),
}


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stages", STAGES_WITH_STATE)
def test_a_run_resumes_in_the_middle_of_each_source(stages: str, workers: int) -> None:
    pipeline: levada.Pipeline[Any] = STAGES_WITH_STATE[stages]
    options: dict[str, Any] = {"workers": workers, "seed": 3, "alone": True}
    items = list(pipeline.run(**options))
    assert len(items) == len(list(pipeline.run(seed=3, alone=True))) or stages == "buckets"
    for count in (0, 5, len(items) // 2, len(items)):
        with pipeline.run(**options) as run:
            given, state = list(itertools.islice(run, count)), run.state_dict()
        with pipeline.run(**options) as run:
            run.load_state_dict(state)
            assert given + list(run) == items


@pytest.mark.parametrize("source", [list(range(20)), lambda: iter(range(20))], ids=["list", "iterator"])
@pytest.mark.parametrize("others", [0, 2])
def test_a_run_resumes_after_the_first_sources_of_a_concat(source: Any, others: int) -> None:
    first, last = levada.Pipeline(source), levada.Pipeline(list(range(100, 130)))
    divided = first.shard().concat(last.shard()).map(str)
    dispatched = first.concat(last).dispatch().map(str)
    for pipeline, resumed_by in [(divided, 2), (dispatched, others)]:
        with pipeline.run(2, seed=1, snapshot_every=1000, context="forkserver") as run:
            items = iter(run)
            for count in (5, 20, 10):
                given = list(itertools.islice(items, count))
                assert len(given) == count
            state, rest = run.state_dict(), list(items)
        with pipeline.run(resumed_by, context="forkserver") as run:
            run.load_state_dict(state)
            assert list(run) == rest and len(rest) == 15


@pytest.mark.parametrize("workers", [1, 3])
def test_ordered_threads_keep_the_order_of_one_process(workers: int) -> None:
    pipeline = NUMBERS.dispatch().map(str).map(len, threads=2)
    assert list(pipeline.run(workers=workers, ordered=True)) == list(pipeline)


def doubled(number: int) -> int:
    time.sleep(0.0001 * (number % 3))
    return 2 * number


@pytest.mark.parametrize("boundary", ["dispatch", "shard"])
@pytest.mark.parametrize("count", [7, 40])
def test_threads_keep_the_order_of_one_process_and_resume_with_other_workers(boundary: str, count: int) -> None:
    pipeline: levada.Pipeline[int] = getattr(levada.Pipeline(range(count)), boundary)().map(doubled, threads=2)
    expected = [2 * number for number in range(count)]
    with pipeline.run(3, context="forkserver") as run, pipeline.run(2, context="forkserver") as other:
        for taken in (0, 3, count - 1, count):
            items = list(itertools.islice(run, taken))
            other.load_state_dict(run.state_dict())
            assert items + list(other) == expected
