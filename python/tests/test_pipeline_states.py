"""States of a run: where it resumes, which values they hold and which are refused; and the limits of a run."""

from __future__ import annotations

import itertools
import os
import pathlib
import pickle
import random
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import levada
import numpy as np
import pytest
from levada import Pipeline
from levada.pipeline import position as _positions
from pipelines import CountsReads, Fickle, Numbering, Stateful, double


@pytest.mark.parametrize(("workers", "snapshot_every"), [(0, 0), (2, 0), (2, 1), (2, 7)])
def test_a_state_resumes_at_the_next_item(workers: int, snapshot_every: int) -> None:
    options: dict[str, Any] = {"worker_prefetch": 2, "main_prefetch": 2, "snapshot_every": snapshot_every}
    pipeline = Pipeline[int](Stateful(60)).shuffle(10).dispatch().map(double).filter(lambda n: n % 6 != 0)
    with pipeline.run(workers, context="forkserver", seed=3, **options) as run:
        items, states = [], [run.state_dict()]
        for item in run:
            items.append(item)
            states.append(run.state_dict())
        following = list(run)
        for at in (0, 1, 7, len(items) - 1, len(items)):
            run.load_state_dict(pickle.loads(pickle.dumps(states[at])))
            assert list(run) == (items[at:] if at < len(items) else following[:0]), at
            if at < len(items):
                assert list(run) == following


def forked(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    first, second = pipeline.fork(2)
    return first.zip(second)


def forked_and_numbered(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    first, second = pipeline.fork(2, buffer=4)
    return first.transform(Numbering).zip(second)


def numbered(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    return pipeline.transform(Numbering)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [forked, forked_and_numbered, numbered])
def test_a_state_resumes_if_a_fork_or_a_transform_runs_in_the_consumer(workers: int, make: Any) -> None:
    pipeline = make(Pipeline(range(30)).shuffle(10).dispatch().filter(lambda n: n % 4 != 1))
    with pipeline.run(workers, context="forkserver", seed=3, ordered=True) as run:
        items, states = [], [run.state_dict()]
        for item in run:
            items.append(item)
            states.append(run.state_dict())
        for at, state in enumerate(states[:-1]):
            run.load_state_dict(state)
            assert list(run) == items[at:], at


@pytest.mark.parametrize("snapshot_every", [0, 1])
@pytest.mark.parametrize(("workers", "others"), [(0, 0), (2, 2), (2, 0)])
def test_a_map_style_data_set_resumes_by_index_whatever_its_own_state(
    workers: int, others: int, snapshot_every: int
) -> None:
    pipeline = Pipeline(CountsReads(12)).shard().map(double)
    with pipeline.run(workers, context="forkserver", seed=1, snapshot_every=snapshot_every) as run:
        items = iter(run)
        assert [next(items) for _ in range(5)] == [0, 2, 4, 6, 8]
        state = run.state_dict()
    with pipeline.run(others, context="forkserver") as run:
        run.load_state_dict(state)
        assert list(run) == list(range(10, 24, 2))
        assert list(run) == list(range(0, 24, 2))


def test_invalid_numbers_for_a_run_are_refused() -> None:
    for name, number in (("snapshot_every", -1), ("snapshot_every", 2**63), ("prefetch_bytes", 2**64), ("worker_prefetch", 2**40)):
        with pytest.raises(levada.InvalidArgument, match=f"{name} must be from 0 to"):
            Pipeline(range(4)).run(**{name: number})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_of_a_run_whose_options_are_numpy_integers_is_of_plain_values(workers: int) -> None:
    pipeline = Pipeline(range(8)).shuffle(4).dispatch().map(double)
    with pipeline.run(np.int64(workers), context="forkserver", seed=np.uint64(3), snapshot_every=np.int8(1)) as run:
        run.set_epoch(np.int64(2))
        items = iter(run)
        next(items)
        state = run.state_dict()
        rest = list(items)
    assert all(type(state[key]) is int for key in ("seed", "epoch"))
    with pipeline.run(workers, context="forkserver") as run:
        run.load_state_dict(state)
        assert run.epoch == 2 and list(run) == rest


def test_a_state_of_two_workers_resumes_with_three_and_none() -> None:
    pipeline = Pipeline(range(40)).shuffle(10).dispatch().map(double)
    with pipeline.run(2, context="forkserver", seed=3) as run:
        items = iter(run)
        before = [next(items) for _ in range(13)]
        state = run.state_dict()
        after = list(items)
    assert len(pickle.dumps(state)) < 4000
    for workers in (3, 0):
        with pipeline.run(workers, context="forkserver") as run:
            run.load_state_dict(state)
            assert list(run) == after
    assert sorted(before + after) == list(range(0, 80, 2))
    with pipeline.run(0) as run:
        run.load_state_dict(state)
        items = iter(run)
        assert next(items) == after[0]
        state = run.state_dict()
    with pipeline.run(2, context="forkserver") as run:
        run.load_state_dict(state)
        assert list(run) == after[1:]
    flat = pipeline.flat_map(range)
    with flat.run(0) as run:
        next(iter(run))
        state = run.state_dict()
    with flat.run(2, context="forkserver") as run, pytest.raises(levada.InvalidArgument, match="a run with 2 workers has another order"):
        run.load_state_dict(state)
        iter(run)


def test_an_ordered_run_without_dispatch_has_the_order_of_one_process_and_its_states() -> None:
    shuffled = Pipeline(list(range(30))).shuffle(12)
    weighted = shuffled.interleave(Pipeline(range(100, 120)), weights=[2, 1], stop="last")
    for pipeline in (shuffled, weighted):
        whole = list(pipeline.run(seed=7))
        with pipeline.run(2, context="forkserver", seed=7, ordered=True) as run:
            items = iter(run)
            assert [next(items) for _ in range(9)] == whole[:9]
            state = run.state_dict()
            assert list(items) == whole[9:]
        with pipeline.run(0, ordered=True) as run:
            run.load_state_dict(state)
            assert list(run) == whole[9:]


def test_limit_pause_and_resume() -> None:
    with Pipeline(range(30)).dispatch().map(double).run(2, context="forkserver") as run:
        items = iter(run)
        run.limit(4)
        assert list(items) == [0, 2, 4, 6] and list(items) == []
        run.resume()
        assert next(items) == 8
        run.pause()
        assert list(items) == []
        run.resume()
        assert list(items) == list(range(10, 60, 2))
        assert list(run) == list(range(0, 60, 2))


def test_a_state_of_too_many_values_is_not_kept() -> None:
    with (
        Pipeline(Fickle([0] * 300_000)).shuffle(5).run(0, seed=1) as run,
        pytest.warns(RuntimeWarning, match="cannot be kept, so that going on reads again .* more than 262144 values"),
    ):
        assert sorted(run) == list(range(30))


class Streaming:
    """A source whose methods for states raise."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def state_dict(self) -> Any:
        raise NotImplementedError("no state while streaming")

    load_state_dict = state_dict


@pytest.mark.filterwarnings("ignore:.*raised NotImplementedError")
def test_a_source_whose_state_dict_raises_is_counted_instead() -> None:
    for pipeline in (Pipeline(Streaming(30)).shuffle(5), Pipeline(Streaming(30)).prefetch(3).map(double)):
        assert len(list(pipeline.run())) == 30
    with Pipeline(Streaming(20_000)).dispatch().run(1, context="forkserver") as run:
        assert sum(1 for _ in run) == 20_000
    for resumes in (7, 12):
        with Pipeline(Streaming(30)).run() as run:
            if resumes > 7:
                run.load_state_dict(state)
            items = iter(run)
            [next(items) for _ in range(7 if resumes == 7 else 5)]
            with pytest.warns(RuntimeWarning, match=r"state_dict\(\) raised NotImplementedError.*no state while streaming"):
                state = run.state_dict()
            assert list(items) == list(range(resumes, 30))


class Marked:
    """Sets an environment variable when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.putenv, ("LEVADA_UNPICKLED", "yes")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_contains_pickles_only_if_they_are_allowed(workers: int) -> None:
    for state in ({"tokens": np.arange(3), "seen": [1, 2.5, None, "x", b"y"]}, (1, 2)):
        with Pipeline(Fickle(state)).dispatch().run(workers, context="forkserver") as run:
            items = iter(run)
            assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
            run.load_state_dict(run.state_dict())
            assert list(run) == list(range(5, 30))
    with Pipeline(Fickle(Marked())).dispatch().run(0) as run:
        items = iter(run)
        assert next(items) == 0
        with pytest.warns(RuntimeWarning, match="allow_pickle=True"):
            assert b"putenv" not in run.state_dict()["position"]
    with Pipeline(Fickle(Marked())).dispatch().run(0, allow_pickle=True) as run:
        items = iter(run)
        assert next(items) == 0
        state = run.state_dict()
        assert b"putenv" in state["position"]
    with Pipeline(Fickle(0)).dispatch().run(0) as run:
        run.load_state_dict(state)
        with pytest.raises(levada.Unsupported, match="pickle"):
            list(run)


def test_a_state_that_has_been_changed_is_refused() -> None:
    pipeline = Pipeline(Stateful(60)).shuffle(10).dispatch().map(double)
    draw = random.Random(3)
    with pipeline.run(0, seed=3) as run:
        items = iter(run)
        next(items)
        state = run.state_dict()
        run.load_state_dict(state)
        others: list[Any] = [None, -1, 1.5, "x", b"", [], {}, 2**70, state["epoch"] + 1]
        for name in state:
            for other in others:
                if other != state[name]:
                    with pytest.raises((levada.InvalidArgument, levada.CorruptMessage)):
                        run.load_state_dict({**state, name: other})
            without = {key: value for key, value in state.items() if key != name}
            with pytest.raises((levada.InvalidArgument, levada.CorruptMessage)):
                run.load_state_dict(without)
        for _ in range(200):
            changed = bytearray(state["position"])
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            with pytest.raises(levada.CorruptMessage, match="checksum"):
                run.load_state_dict({**state, "position": bytes(changed)})
        with pytest.raises(levada.InvalidArgument, match="no state"):
            run.load_state_dict([])  # type: ignore[arg-type]


def forged(value: Any, draw: random.Random) -> Any:
    """Returns the value with one part replaced."""
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, key: forged(value[key], draw)}
    if isinstance(value, (list, tuple)) and value:
        at = draw.randrange(len(value))
        return type(value)([*value[:at], forged(value[at], draw), *value[at + 1 :]])
    return draw.choice([None, -1, 2**62, 7, 1.5, "x", b"y", [], {}, True])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_forged_state_is_refused_with_a_sentence(workers: int) -> None:
    pipeline = Pipeline(Stateful(60)).shuffle(10).dispatch().map(double)
    draw = random.Random(4)
    with pipeline.run(workers, seed=3, context="forkserver", timeout=30) as run:
        items = iter(run)
        next(items)
        state = run.state_dict()
        for _ in range(100 if workers == 0 else 30):
            packed = levada.pack(forged(levada.unpack(state["position"]), draw))
            checksum = _positions.checksum(state["seed"], state["epoch"], packed)
            run.load_state_dict(state)
            try:
                run.load_state_dict({**state, "position": packed, "checksum": checksum})
                list(itertools.islice(run, 5))
            except (levada.InvalidArgument, levada.CorruptMessage, levada.Unsupported):
                pass
        run.load_state_dict(state)
        assert len(list(run)) == 59


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_past_the_end_is_an_error_and_not_an_empty_epoch(workers: int) -> None:
    def of(items: int) -> list[Pipeline[Any]]:
        numbers = Pipeline(range(items)).dispatch().map(double)
        return [numbers, Pipeline(lambda: iter(range(items))).dispatch(), Pipeline(list(range(items))).shard().map(double)]

    for longer, shorter in zip(of(20), of(10), strict=True):
        with longer.run(workers, context="forkserver", seed=1) as run:
            items = iter(run)
            for _ in range(15):
                next(items)
            state = run.state_dict()
        for others in (workers, 1):
            with shorter.run(others, context="forkserver", seed=1) as run:
                run.load_state_dict(state)
                with pytest.raises(levada.InvalidArgument, match="state is of"):
                    list(run)


Stages = Callable[[Pipeline[Any], Callable[[Any], Any]], Pipeline[Any]]


@pytest.mark.long
@pytest.mark.parametrize("source", [range(300), lambda: iter(range(300))], ids=["range", "generator"])
@pytest.mark.parametrize(
    "stages",
    [
        lambda numbers, mark: numbers.shard().map(mark),
        lambda numbers, mark: numbers.shard().map(mark).prefetch(5),
        lambda numbers, mark: numbers.prefetch(5).shard().prefetch(5).map(mark).prefetch(5),
        lambda numbers, mark: numbers.shard().zip().map(mark).map(itemgetter(0)).prefetch(5),
        lambda numbers, mark: numbers.filter(bool).shard().map(mark).prefetch(5),
        lambda numbers, mark: numbers.map(mark).prefetch(5).dispatch(),
        lambda numbers, mark: numbers.zip(Pipeline(range(1000))).map(mark).dispatch().map(itemgetter(0)),
    ],
    ids=["map", "prefetch", "prefetches", "zip", "filter", "dispatch", "dispatch zip"],
)
@pytest.mark.parametrize("saved_with", [0, 2])
def test_resuming_with_other_workers_makes_no_item_again(
    source: Any, stages: Stages, saved_with: int, tmp_path: pathlib.Path
) -> None:
    made = tmp_path / "made"

    def mark(item: Any) -> Any:
        with made.open("ab") as file:
            file.write(b".")
        return item

    pipeline = stages(Pipeline(source), mark)
    with pipeline.run(context="forkserver") as run:
        all_items = list(run)
    with pipeline.run(saved_with, context="forkserver", snapshot_every=1) as run:
        items = iter(run)
        assert [next(items) for _ in range(200)] == all_items[:200]
        state = run.state_dict()
    for workers in {0, 1, 3} - {saved_with}:
        made.unlink()
        with pipeline.run(workers, context="forkserver", snapshot_every=1) as run:
            run.load_state_dict(state)
            assert list(run) == all_items[200:]
        assert made.stat().st_size == len(all_items) - 200


def test_a_fork_with_a_small_buffer_resumes_with_other_workers() -> None:
    left, right = Pipeline(range(300)).shard().fork(buffer=3)
    pipeline = left.prefetch(2).zip(right)
    with pipeline.run(2, context="forkserver") as run:
        items = iter(run)
        taken = [next(items) for _ in range(200)]
        state = run.state_dict()
    for workers in (0, 3):
        with pipeline.run(workers, context="forkserver") as run:
            run.load_state_dict(state)
            assert taken + list(run) == [(number, number) for number in range(300)]


def test_a_run_that_was_closed_within_an_epoch_has_no_state() -> None:
    with Pipeline(range(10)).run() as run:
        next(iter(run))
    with pytest.raises(levada.InvalidArgument, match="before close"):
        run.state_dict()
    assert list(run) == list(range(10)) and run.state_dict()["epoch"] == 2


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
@pytest.mark.parametrize("taken", [0, 1, 8])
def test_a_state_of_a_run_in_another_order_is_refused(taken: int, first: bool, second: bool) -> None:
    pipeline = Pipeline(range(7)).shard().repeat(2)
    with pipeline.run(3, context="forkserver", seed=1, ordered=first) as run:
        list(itertools.islice(run, taken))
        state = run.state_dict()
    with pipeline.run(3, context="forkserver", ordered=second) as run:
        run.load_state_dict(state)
        with pytest.raises(levada.InvalidArgument, match="3 workers.*, but a run with 3 workers"):
            list(run)


def unlike(pipeline: Pipeline[int], other: Pipeline[int]) -> dict[str, tuple[Pipeline[Any], Pipeline[Any], str]]:
    """Returns pairs of pipelines whose stages have the same names and other parameters, with the difference."""

    def documents(pipeline: Pipeline[int]) -> Pipeline[Any]:
        return pipeline.map(lambda number: np.arange(1, 3 + number % 5))

    return {
        "batch": (pipeline.batch(3).shuffle(4), pipeline.batch(4).shuffle(4), "size=3, drop_last=False, and now has size=4"),
        "shuffle": (pipeline.shuffle(7), pipeline.shuffle(20), "buffer=7, seed=None, and now has buffer=20, seed=None"),
        "shuffle seed": (pipeline.shuffle(7, seed=1), pipeline.shuffle(7, seed=2), "seed=1, and now has buffer=7, seed=2"),
        "skip": (pipeline.skip(3), pipeline.skip(10), "count=3, and now has count=10"),
        "interleave": (
            pipeline.interleave(other, weights=[1, 1]),
            pipeline.interleave(other, weights=np.array([1, 5])),
            r"weights=\[0.5, 0.5\], seed=None, and now has weights=\[0.16.*, 0.83.*\], seed=None",
        ),
        "bucket_batch": (
            pipeline.bucket_batch(lambda number: number % 9, boundaries=[4], size=3),
            pipeline.bucket_batch(lambda number: number % 9, boundaries=np.array([2, 4]), size=3),
            r"boundaries=\[4\], size=3, max_tokens=None, and now has boundaries=\[2, 4\]",
        ),
        "pack": (documents(pipeline).pack(16), documents(pipeline).pack(32), "sequence=16, .*, and now has sequence=32"),
        "batch that is taken apart": (pipeline.batch(4).unbatch(), pipeline.batch(5).unbatch(), "size=4, and now has size=5"),
        "take before concat": (pipeline.take(5).concat(other), pipeline.take(10).concat(other), "count=5, and now has count=10"),
        "take before shuffle": (pipeline.take(5).shuffle(3), pipeline.take(10).shuffle(3), "count=5, and now has count=10"),
        "repeat before concat": (
            pipeline.repeat(2).concat(other),
            pipeline.repeat(4).concat(other),
            "times=2, and now has times=4",
        ),
        "batch before repeat": (
            pipeline.batch(7).repeat(),
            pipeline.batch(7, drop_last=True).repeat(),
            "drop_last=False, and now has size=7, drop_last=True",
        ),
    }


@pytest.mark.parametrize("kind", list(unlike(Pipeline([1]), Pipeline([1]))))
def test_a_state_of_other_parameters_is_refused(kind: str) -> None:
    saved, resumed, difference = unlike(Pipeline(range(60)), Pipeline(range(100, 160)))[kind]
    run = saved.run(seed=3)
    next(iter(run))
    state = run.state_dict()
    loaded = resumed.run()
    loaded.load_state_dict(state)
    with pytest.raises(levada.InvalidArgument, match=rf"stage {kind.split()[0]} was saved with .*{difference}.*lose or repeat"):
        list(loaded)
    again = saved.run()
    again.load_state_dict(state)
    assert next(iter(again)) is not None


def test_weights_of_the_same_shares_are_the_same() -> None:
    numbers, others = Pipeline(range(60)), Pipeline(range(100, 160))
    run = numbers.interleave(others, weights=[1, 2]).run(seed=3)
    taken = list(itertools.islice(run, 20))
    resumed = numbers.interleave(others, weights=[0.5, 1]).run()
    resumed.load_state_dict(run.state_dict())
    assert taken + list(resumed) == list(numbers.interleave(others, weights=[1, 2]).run(seed=3))


def test_a_state_of_from_lines_is_refused_for_other_ranges_and_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(300)))
    run = Pipeline.from_lines(path, range_bytes=90).run()
    lines = list(itertools.islice(run, 100))
    state = run.state_dict()
    copied = tmp_path / "copy.txt"
    copied.write_bytes(path.read_bytes())
    resumed = Pipeline.from_lines(copied, range_bytes=90).run()
    resumed.load_state_dict(state)
    assert lines + list(resumed) == path.read_text().split()
    copied.write_text("".join(f"{number + 1000}\n" for number in range(300)))
    for other, range_bytes in ((path, 50), (copied, 90)):
        resumed = Pipeline.from_lines(other, range_bytes=range_bytes).run()
        resumed.load_state_dict(state)
        with pytest.raises(levada.InvalidArgument, match="stage source was saved with range_bytes=90, files=.* and now has"):
            list(resumed)


def test_a_batch_may_have_another_size_only_where_the_resumed_items_are_exact() -> None:
    numbers = Pipeline(list(range(60)))
    run = numbers.batch(3).map(list).run()
    batches = list(itertools.islice(run, 5))
    state = run.state_dict()
    resumed = numbers.batch(4).map(list).run()
    resumed.load_state_dict(state)
    assert sum([*batches, *resumed], []) == list(range(60))
    with numbers.dispatch().map(double).batch(3).run(1, context="forkserver") as apart:
        next(iter(apart))
        state = apart.state_dict()
    for workers in (0, 1):
        with numbers.dispatch().map(double).batch(4).run(workers, context="forkserver") as resumed:
            resumed.load_state_dict(state)
            with pytest.raises(levada.InvalidArgument, match="stage batch was saved with size=3, and now has size=4"):
                list(resumed)


def test_the_end_of_take_and_repeat_may_be_another_one() -> None:
    for saved, resumed, items in (
        (Pipeline(range(9)).take(5), Pipeline(range(9)).take(8), list(range(8))),
        (Pipeline(range(3)).repeat(2), Pipeline(range(3)).repeat(3), [0, 1, 2] * 3),
    ):
        run, following = saved.run(), resumed.run()
        taken = list(itertools.islice(run, 4))
        following.load_state_dict(run.state_dict())
        assert taken + list(following) == items
