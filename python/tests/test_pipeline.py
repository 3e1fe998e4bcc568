"""levada.Pipeline in one process and in several."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks
import varying
from levada import Pipeline, _runs, _sources, _workers

multiprocessing.set_forkserver_preload(["levada._workers", "cloudpickle"])


def got(pipeline: Pipeline[Any], workers: int = 0, **options: Any) -> list[Any]:
    options = {"context": "forkserver", "seed": 1, **options}
    with pipeline.run(workers, **options) as run:
        return list(run)


class Stateful:
    """Says where it stands; counts how often it was asked to go on there."""

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


class ByNumber:
    """Knows which of its items were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> int:
        self.read.append(at)
        return at


def pairs(items: Iterator[int]) -> Iterator[tuple[int, int]]:
    for first in items:
        yield first, next(items, -1)


def double(item: int) -> int:
    return item * 2


def test_stages_do_what_their_names_say() -> None:
    numbers = Pipeline(range(10))
    assert list(numbers) == list(range(10)) and list(numbers) == list(range(10))
    assert list(numbers.map(double)) == list(range(0, 20, 2))
    assert list(numbers.filter(lambda n: n % 3 == 0)) == [0, 3, 6, 9]
    assert list(numbers.take(4).flat_map(range)) == [0, 0, 1, 0, 1, 2]
    assert list(numbers.batch(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(numbers.batch(4, drop_last=True, collate=sum)) == [6, 22]
    assert list(numbers.batch(3).unbatch()) == list(range(10))
    assert list(numbers.skip(7)) == [7, 8, 9] and list(numbers.take(2).repeat(3)) == [0, 1] * 3
    assert list(numbers.zip(Pipeline("abc"), Pipeline([5, 6, 7]))) == [(0, "a", 5), (1, "b", 6), (2, "c", 7)]
    assert list(numbers.prefetch(3)) == list(range(10)) == list(numbers.dispatch().shard())
    assert list(numbers.transform(pairs)) == [(n, n + 1) for n in range(0, 10, 2)]
    assert list(numbers.fullsync()) == list(range(10))
    left, right = numbers.fork()
    assert list(left.zip(right.map(double))) == [(n, 2 * n) for n in range(10)]
    assert sorted(numbers.shuffle(4)) == list(range(10))


def test_a_pipeline_is_a_value() -> None:
    numbers = Pipeline(range(5))
    batches = numbers.batch(2)
    assert list(numbers.map(double)) == [0, 2, 4, 6, 8] and list(batches) == [[0, 1], [2, 3], [4]]
    again: Pipeline[Any] = pickle.loads(pickle.dumps(batches.map(double, name="twice")))
    assert list(again) == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 4]]
    assert repr(again) == "<levada.Pipeline source > batch > twice>"


def test_all_kinds_of_sources_are_opened_anew_each_epoch() -> None:
    def made() -> Iterator[int]:
        yield from range(3)

    for source in (range(3), [0, 1, 2], (0, 1, 2), made, np.arange(3), ByNumber(3), {0: "a", 1: "b", 2: "c"}, Stateful(3)):
        run = Pipeline[Any](source).run()
        assert [int(n) for n in run] == [int(n) for n in run] == [0, 1, 2]


def test_lengths_are_known_where_they_can_be() -> None:
    numbers = Pipeline(range(10))
    assert len(numbers) == 10 and len(numbers.batch(3)) == 4 and len(numbers.batch(3, drop_last=True)) == 3
    assert len(numbers.take(3)) == 3 and len(numbers.skip(3)) == 7 and len(numbers.repeat(2).map(double)) == 20
    assert len(numbers.zip(Pipeline("abc")).run()) == 3
    for unknown in (numbers.filter(bool), numbers.repeat(), Pipeline(lambda: iter(()))):
        with pytest.raises(TypeError):
            len(unknown)


def test_what_cannot_work_is_refused_when_it_is_said() -> None:
    numbers = Pipeline(range(10))
    with pytest.raises(levada.InvalidArgument, match="size is 0"):
        numbers.batch(0)
    with pytest.raises(levada.InvalidArgument, match="taken|twice"):
        numbers.map(double, name="twice").map(double, name="twice")
    with pytest.raises(levada.InvalidArgument, match="no source"):
        Pipeline(5)  # type: ignore[arg-type]
    with pytest.raises(levada.InvalidArgument, match="on_error"):
        numbers.run(on_error="ignore")
    with pytest.raises(levada.InvalidArgument, match="context"):
        numbers.run(2, context="threads")
    beside = numbers.dispatch().zip(Pipeline(range(5), name="beside"))
    with pytest.raises(levada.InvalidArgument, match="beside"):
        beside.run(2)
    with pytest.raises(levada.InvalidArgument, match="fork"):
        numbers.zip(numbers.map(double))


def test_items_without_a_division_are_given_by_each_worker_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="nothing divides"):
        run = Pipeline(range(3)).map(double).run(2, context="forkserver")
    with run:
        assert sorted(run) == [0, 0, 2, 2, 4, 4]


def test_a_shard_behind_items_by_number_reads_no_others() -> None:
    source = ByNumber(10)
    pipeline = Pipeline[int](source).shard().map(double)
    assert list(pipeline) == list(range(0, 20, 2)) and source.read == list(range(10))
    assert got(pipeline, 3) == list(range(0, 20, 2))
    assert got(Pipeline(iter_numbers).shard(), 3) == list(range(10))


def test_arrays_and_datasets_are_read_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(map(int, got(Pipeline(np.arange(10)).shard().map(double), 2))) == list(range(0, 20, 2))
    assert _sources.is_sequence(np.arange(10).reshape(5, 2))

    class Dataset(ByNumber):
        """As that of Hugging Face: with a loop of its own beside."""

        loops = 0

        def __iter__(self) -> Iterator[int]:
            self.loops += 1
            return iter(range(self.count))

    class Shuffled(Dataset):
        pass

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=Dataset))
    source = Dataset(10)
    with Pipeline[int](source).shard().map(double).run() as run:
        items = iter(run)
        first = [next(items) for _ in range(7)]
        state = run.state_dict()
    assert source.loops == 1, "a loop over all is a loop of its own"
    with Pipeline[int](source).shard().map(double).run() as run:
        run.load_state_dict(state)
        assert first + list(run) == list(range(0, 20, 2))
    assert source.read == [7, 8, 9] and source.loops == 1
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=int))
    assert not _sources.is_sequence(Shuffled(10))


def iter_numbers() -> Iterator[int]:
    yield from range(10)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 10])
def test_order_is_that_of_one_process(workers: int, prefetch: int) -> None:
    """Sources of all lengths in one tree of processes: an epoch each."""
    counts = [0, 1, 2, 7, 101, 0, 5]
    shapes = [
        Pipeline[int](varying.Lengths(counts)).dispatch().map(double),
        Pipeline[int](varying.Lengths(counts)).map(double).dispatch(),
        Pipeline[int](varying.Lengths(counts)).shard().map(double),
        Pipeline[int](varying.Lengths(counts)).dispatch().map(double).dispatch(),
    ]
    for shape in shapes:
        options = {"context": "forkserver", "worker_prefetch": prefetch, "main_prefetch": prefetch}
        with shape.run(workers, **options) as run:
            for count in counts:
                assert list(run) == list(range(0, 2 * count, 2))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_lambdas_and_local_functions_cross(context: str) -> None:
    local = 3

    def times(number: int) -> int:
        return number * local

    pipeline = Pipeline(lambda: iter(range(5))).dispatch().map(times).map(lambda n: (n, double(n)))
    assert got(pipeline, 1, context=context) == [(n, 2 * n) for n in range(0, 15, 3)]


def test_epochs_are_shuffled_differently_and_repeatably() -> None:
    pipeline = Pipeline(range(50)).shuffle(20).dispatch().map(double).map(lambda n: (n, random.random()))
    with pipeline.run(2, context="forkserver", seed=5) as run:
        first, second = list(run), list(run)
        assert run.seed == 5 and run.epoch == 2
    assert first != second and sorted(n for n, _ in first) == sorted(n for n, _ in second) == list(range(0, 100, 2))
    with pipeline.run(2, context="forkserver", seed=5) as run:
        assert list(run) == first
        assert list(run) == second
        run.set_epoch(0)
        assert list(run) == first
    with pipeline.run(2, context="forkserver") as run:
        assert list(run) != first
    assert [n for n, _ in got(pipeline, 0, seed=5)] == [n for n, _ in first]


def test_workers_draw_other_numbers_than_each_other() -> None:
    drawn = got(Pipeline(range(8)).dispatch().map(lambda _: (random.random(), float(np.random.rand()))), 2)
    assert len(set(drawn)) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_with_the_very_next_item(workers: int) -> None:
    pipeline = Pipeline[int](Stateful(60)).shuffle(10).dispatch().map(double).filter(lambda n: n % 6 != 0)
    with pipeline.run(workers, context="forkserver", seed=3, worker_prefetch=2, main_prefetch=2) as run:
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


def test_a_state_of_two_workers_serves_three_and_none() -> None:
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
    with flat.run(2, context="forkserver") as run, pytest.raises(levada.InvalidArgument, match="one with 2 does not"):
        run.load_state_dict(state)
        iter(run)


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


def test_a_new_epoch_ends_the_one_under_way() -> None:
    with Pipeline(range(30)).dispatch().map(double).run(2, context="forkserver") as run:
        first = iter(run)
        assert [next(first) for _ in range(5)] == [0, 2, 4, 6, 8]
        assert list(run) == list(range(0, 60, 2))
        with pytest.raises(levada.InvalidArgument, match="another epoch"):
            next(first)


def test_ordered_keeps_the_order_of_one_process_for_all_stages() -> None:
    pipeline = Pipeline(range(40)).dispatch().flat_map(lambda n: range(n % 4)).filter(lambda n: n != 1).batch(3)
    assert got(pipeline, 3, ordered=True) == list(pipeline)
    once = got(pipeline, 3)
    assert once == got(pipeline, 3) and sorted(sum(once, [])) == sorted(sum(list(pipeline), []))


def test_arrays_cross_without_being_shared() -> None:
    def fill(n: int) -> dict[str, Any]:
        return {"n": n, "array": np.full(5000, n), "text": "x" * n}

    kept = got(Pipeline(range(40)).dispatch().map(fill), 2)
    for n, item in enumerate(kept):
        assert item["n"] == n and len(item["text"]) == n and (item["array"] == n).all()
        item["array"][:] = -1  # nobody else's
    assert (kept[3]["array"] == -1).all()


def test_worker_init_runs_in_each_worker() -> None:
    def name(number: int) -> None:
        import os

        os.environ["LEVADA_TEST_WORKER"] = str(number)

    def told(n: int) -> tuple[int, str, str]:
        import os

        return n, os.environ["LEVADA_TEST_WORKER"], os.environ["OMP_NUM_THREADS"]

    assert got(Pipeline(range(4)).dispatch().map(told), 2, worker_init=name) == [(n, str(n % 2), "1") for n in range(4)]


def test_a_corpus_is_a_source(tmp_path: Any) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f'{{"text": "document number {n}, which says {n * n}"}}\n' for n in range(30)))
    corpus = levada.Corpus(path, sequence=16, cache=False)
    alone = [item["tokens"].tolist() for item in Pipeline[Any](corpus)]
    assert len(alone) == len(corpus) and len(alone[0]) == 16
    pipeline = Pipeline[Any](corpus).shard().map(lambda item: item["tokens"].tolist())
    assert got(pipeline, 2) == alone
    assert got(Pipeline[Any](corpus).dispatch().map(lambda item: item["tokens"].tolist()), 2) == alone


def test_a_corpus_may_have_a_name_that_is_no_utf8(tmp_path: Any) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt")
    with pytest.raises(levada.SourceError, match=r"a\\xff\.txt"):
        len(levada.Corpus(path, sequence=16, cache=False))
    with open(path, "w") as file:
        file.write("some text that is long enough" * 4)
    assert len(levada.Corpus(path, sequence=16, cache=False)) > 4


def test_a_feed_takes_a_pipeline() -> None:
    pipeline = Pipeline(range(12)).shuffle(5).dispatch().map(lambda n: {"n": np.full(4, n)})
    feed = levada.Feed(pipeline.run(2, context="forkserver", seed=1, alone=True), steps=5)
    first = [int(batch["n"][0]) for batch in feed]
    state = feed.state_dict()
    feed.load_state_dict(state)
    rest = [int(batch["n"][0]) for batch in levada.Feed(pipeline, steps=None)]
    assert len(first) == 5 and sorted(rest) == list(range(12))


def test_show_and_stats_say_who_does_what() -> None:
    pipeline = Pipeline(range(20), name="numbers").dispatch().map(double, name="twice")
    text = pipeline.show(workers=2)
    assert "numbers" in text and "twice" in text and "worker" in text
    assert pipeline.show("mermaid").startswith("flowchart") and '"twice"' in pipeline.show("json")
    with pipeline.run(2, context="forkserver") as run:
        assert len(list(run)) == 20
        stats = run.stats()
        assert stats["stages"]["numbers"]["items"] == stats["stages"]["twice"]["items"] == 20
        assert stats["messages"] > 0 and "twice" in run.show()


def random_pipeline(draw: random.Random) -> Pipeline[Any]:
    """Of stages that give the same items, in the same order, whoever runs them."""
    pipeline: Pipeline[Any] = Pipeline(range(draw.choice([0, 1, 5, 23])))
    marked = False
    for _ in range(draw.randrange(1, 7)):
        kind = draw.randrange(9)
        if kind == 0:
            pipeline = pipeline.map(str)
        elif kind == 1:
            pipeline = pipeline.map(lambda item: [item, item])
        elif kind == 2:
            pipeline = pipeline.shuffle(draw.randrange(1, 8))
        elif kind == 3:
            pipeline = pipeline.batch(draw.randrange(1, 4), drop_last=draw.random() < 0.3)
        elif kind == 4:
            pipeline = pipeline.dispatch()
            marked = True
        elif kind == 5:
            left, right = pipeline.fork()
            pipeline = left.zip(right.map(repr))
        elif kind == 6:
            pipeline = pipeline.filter(lambda item: hash(str(item)) is not None)
        elif kind == 7:
            pipeline = pipeline.take(draw.randrange(1, 30)).repeat(draw.randrange(1, 3))
        else:
            pipeline = pipeline.prefetch(draw.randrange(1, 4))
    return pipeline if marked else pipeline.dispatch()


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_give_what_one_process_gives(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        pipeline = random_pipeline(draw)
        alone = got(pipeline, 0)
        assert got(pipeline, 2, ordered=True, worker_prefetch=draw.choice([0, 3]), main_prefetch=3) == alone, pipeline


def test_a_feed_of_a_pipeline_has_one_reader_for_all_ranks_of_a_host(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import os
        def made(n):
            return {"n": np.full(3, n), "by": os.getpid()}
        if __name__ == "__main__":
            pipeline = levada.Pipeline(range(10)).shuffle(4).dispatch().map(made)
            for source in (pipeline, pipeline.run(2, context="forkserver", alone=True)):
                batches = list(levada.Feed(source))
                tell(n=[int(batch["n"][0]) for batch in batches], by=sorted({batch["by"] for batch in batches}))
            with pipeline.fullsync().run() as run:
                tell(seed=run.seed, epoch=len(list(run)))
        """,
    )
    for at in (0, 1):
        assert sorted(told[0][at]["n"] + told[1][at]["n"]) == list(range(10))
        assert len({*told[0][at]["by"], *told[1][at]["by"]}) == (1 if at == 0 else 2)
    assert told[0][2] == told[1][2] and told[0][2]["epoch"] == 10


def test_thousands_of_empty_epochs_end() -> None:
    with Pipeline[int]([]).dispatch().map(double).run(2, context="forkserver") as run:
        assert sum(len(list(run)) for _ in range(2000)) == 0 and run.epoch == 2000


class Fickle:
    """A source whose state is no plain value."""

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


class Marked:
    """Says when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.putenv, ("LEVADA_UNPICKLED", "yes")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_holds_plain_values_and_pickles_only_where_they_are_allowed(workers: int) -> None:
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
            with pytest.raises(levada.CorruptMessage, match="check sum"):
                run.load_state_dict({**state, "position": bytes(changed)})
        with pytest.raises(levada.InvalidArgument, match="no state"):
            run.load_state_dict([])  # type: ignore[arg-type]


def forged(value: Any, draw: random.Random) -> Any:
    """Another value in one place of it."""
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
            checksum = _runs._checksum(state["seed"], state["epoch"], packed)
            run.load_state_dict(state)
            try:
                run.load_state_dict({**state, "position": packed, "checksum": checksum})
                list(itertools.islice(run, 5))
            except (levada.InvalidArgument, levada.CorruptMessage, levada.Unsupported):
                pass
        run.load_state_dict(state)
        assert len(list(run)) == 59


class NewestEpoch(Stateful):
    """As data sets are that hold a state back until iter(), keyed by the epoch, and say none before the first."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.loaded: dict[str, int] | None = None
        self.now: dict[str, int] | None = None

    def state_dict(self) -> Any:
        return self.now

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self.loaded = state

    def __iter__(self) -> Iterator[int]:
        epoch = self.epochs[-1]
        begin = self.loaded["at"] if self.loaded is not None and self.loaded["epoch"] == epoch else 0
        for item in range(begin, self.count):
            self.now = {"at": item + 1, "epoch": epoch}
            yield item


@pytest.mark.parametrize("kind", [Stateful, NewestEpoch])
@pytest.mark.parametrize("workers", [0, 1])
def test_going_back_in_an_epoch_gives_the_same_items_whatever_a_source_does_at_iter(
    kind: type[Stateful], workers: int
) -> None:
    pipeline = Pipeline(kind(60)).shuffle(10).dispatch()
    with pipeline.run(workers, seed=3, context="forkserver", timeout=30) as run:
        beginning = run.state_dict()
        items = iter(run)
        first = next(items)
        early = run.state_dict()
        between = [next(items) for _ in range(40)]
        late = run.state_dict()
        rest = list(items)
        for taken, state in [(41, late), (1, early), (41, late), (0, beginning)]:
            run.load_state_dict(state)
            assert list(itertools.islice(run, 15)) == [first, *between, *rest][taken:][:15]
        run.load_state_dict(early)
        assert list(run) == between + rest
        assert sorted(run) == list(range(60))
    with pipeline.run(workers, seed=3, context="forkserver", timeout=30) as run:
        run.load_state_dict(late)
        assert list(itertools.islice(run, 5)) == rest[:5]
        run.load_state_dict(early)
        assert list(run) == between + rest


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_behind_the_end_is_an_error_and_not_an_empty_epoch(workers: int) -> None:
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


def test_going_on_with_other_workers_makes_nothing_again(tmp_path: pathlib.Path) -> None:
    made = tmp_path / "made"

    def mark(item: int) -> int:
        with made.open("ab") as file:
            file.write(b".")
        return item

    pipeline = Pipeline(range(300)).shard().map(mark)
    with pipeline.run(2, context="forkserver") as run:
        items = iter(run)
        assert [next(items) for _ in range(200)] == list(range(200))
        state = run.state_dict()
    for workers in (0, 1, 3):
        made.unlink()
        with pipeline.run(workers, context="forkserver") as run:
            run.load_state_dict(state)
            assert list(run) == list(range(200, 300))
        assert made.stat().st_size == 100


def test_a_run_that_was_closed_within_an_epoch_has_no_state() -> None:
    with Pipeline(range(10)).run() as run:
        next(iter(run))
    with pytest.raises(levada.InvalidArgument, match="before close"):
        run.state_dict()
    assert list(run) == list(range(10)) and run.state_dict()["epoch"] == 2


def test_the_index_of_a_corpus_is_made_before_its_workers_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "corpus.jsonl", tmp_path / "cache"
    path.write_text("".join('{"text": "%s"}\n' % ("x" * number) for number in range(100)))
    corpus = levada.Corpus(path, sequence=16, cache_dir=cache)
    found: list[int] = []

    class Group(_workers.WorkerGroup):
        def __init__(self, *arguments: Any) -> None:
            found.append(sum(each.is_file() for each in cache.rglob("*")))
            super().__init__(*arguments)

    monkeypatch.setattr(_runs, "WorkerGroup", Group)
    pipeline: Pipeline[Any] = Pipeline(corpus).shard()
    with pipeline.run(2, context="forkserver") as run:
        assert len(list(run)) == len(corpus)
    assert found == [1]
