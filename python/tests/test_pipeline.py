"""levada.Pipeline in one process and in several."""

from __future__ import annotations

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
from levada import Pipeline
from levada.pipeline import run as _runs
from levada.pipeline import sources as _sources
from levada.pipeline import workers as _workers
from pipelines import BeginsAgain, ByNumber, Stateful, double, got, iter_numbers, pairs


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


def test_skip_calls_no_function_for_skipped_items() -> None:
    made: list[int] = []

    def note(item: int) -> int:
        made.append(item)
        return item

    run = Pipeline(range(10**12)).map(note).skip(10**12 - 3).run()
    iterator = iter(run)
    assert next(iterator) == 10**12 - 3
    state = run.state_dict()
    assert list(iterator) == [10**12 - 2, 10**12 - 1] and len(made) == 3
    run.load_state_dict(state)
    assert list(run) == [10**12 - 2, 10**12 - 1] and len(made) == 5


def test_a_pipeline_is_a_value() -> None:
    numbers = Pipeline(range(5))
    batches = numbers.batch(2)
    assert list(numbers.map(double)) == [0, 2, 4, 6, 8] and list(batches) == [[0, 1], [2, 3], [4]]
    again: Pipeline[Any] = pickle.loads(pickle.dumps(batches.map(double, name="twice")))
    assert list(again) == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 4]]
    assert repr(again) == "<levada.Pipeline source > batch > twice>"


def test_all_kinds_of_sources_are_reopened_each_epoch() -> None:
    def made() -> Iterator[int]:
        yield from range(3)

    for source in (range(3), [0, 1, 2], (0, 1, 2), made, np.arange(3), ByNumber(3), {0: "a", 1: "b", 2: "c"}, Stateful(3)):
        run = Pipeline[Any](source).run()
        assert [int(n) for n in run] == [int(n) for n in run] == [0, 1, 2]


def test_the_length_is_known_whenever_the_stages_determine_it() -> None:
    numbers = Pipeline(range(10))
    assert len(numbers) == 10 and len(numbers.batch(3)) == 4 and len(numbers.batch(3, drop_last=True)) == 3
    assert len(numbers.take(3)) == 3 and len(numbers.skip(3)) == 7 and len(numbers.repeat(2).map(double)) == 20
    assert len(numbers.zip(Pipeline("abc")).run()) == 3
    for unknown in (numbers.filter(bool), numbers.repeat(), Pipeline(lambda: iter(()))):
        with pytest.raises(TypeError):
            len(unknown)


NUMBERS: Any = Pipeline(range(10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NUMBERS.map(None), "function of map\\(\\) must be a function, got None"),
        (lambda: NUMBERS.filter(3), "predicate of filter\\(\\) must be a function, got 3"),
        (lambda: NUMBERS.flat_map("x"), "function of flat_map\\(\\) must be a function, got 'x'"),
        (lambda: NUMBERS.transform(None), "function of transform\\(\\) must be a function, got None"),
        (lambda: NUMBERS.batch(2, collate=3), "collate of batch\\(\\) must be a function, got 3"),
        (lambda: NUMBERS.bucket_batch(None, size=3), "length of bucket_batch\\(\\) must be a function, got None"),
        (lambda: NUMBERS.batch("3"), "size of batch\\(\\) must be a whole number, got '3'"),
        (lambda: NUMBERS.batch(True), "size of batch\\(\\) must be a whole number, got True"),
        (lambda: NUMBERS.take(1.5), "count of take\\(\\) must be a whole number, got 1.5"),
        (lambda: NUMBERS.shuffle(seed="x"), "seed of shuffle\\(\\) must be a whole number, got 'x'"),
        (lambda: NUMBERS.shuffle(seed=-1), "seed of shuffle\\(\\) must be from 0 to 2\\*\\*64 - 1, got -1"),
        (lambda: NUMBERS.interleave(NUMBERS, seed=3), "a seed requires weights; give both, or neither"),
        (lambda: NUMBERS.map(str, threads="x"), "threads of map\\(\\) must be a whole number, got 'x'"),
        (lambda: NUMBERS.fork("2"), "branches of fork\\(\\) must be a whole number, got '2'"),
        (lambda: NUMBERS.zip([1]), "zip\\(\\) takes pipelines, got \\[1\\]; .*levada.Pipeline"),
        (lambda: NUMBERS.interleave([1]), "interleave\\(\\) takes pipelines, got"),
        (lambda: NUMBERS.map(str, name=3), "name of map\\(\\) must be a str, got 3"),
        (lambda: Pipeline(3), "source must be an iterable or a function .*, got an object of type int"),  # type: ignore[arg-type]
    ],
)
def test_the_error_names_an_argument_of_the_wrong_kind(make: Any, message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        make()


def test_impossible_pipelines_are_refused_when_they_are_built() -> None:
    numbers = Pipeline(range(10))
    with pytest.raises(levada.InvalidArgument, match="size is 0"):
        numbers.batch(0)
    with pytest.raises(levada.InvalidArgument, match="taken|twice"):
        numbers.map(double, name="twice").map(double, name="twice")
    with pytest.raises(levada.InvalidArgument, match="source must be an iterable"):
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


def test_undivided_items_come_from_every_worker_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="nothing divides"):
        run = Pipeline(range(3)).map(double).run(2, context="forkserver")
    with run:
        assert sorted(run) == [0, 0, 2, 2, 4, 4]


def test_a_shard_after_numbered_items_reads_only_its_own() -> None:
    source = ByNumber(10)
    pipeline = Pipeline[int](source).shard().map(double)
    assert list(pipeline) == list(range(0, 20, 2)) and source.read == list(range(10))
    assert got(pipeline, 3) == list(range(0, 20, 2))
    assert got(Pipeline(iter_numbers).shard(), 3) == list(range(10))


def test_arrays_and_datasets_are_read_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(map(int, got(Pipeline(np.arange(10)).shard().map(double), 2))) == list(range(0, 20, 2))
    assert _sources.is_sequence(np.arange(10).reshape(5, 2))

    class Dataset(ByNumber):
        """Like Hugging Face's: indexed, but with an __iter__, too."""

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


def test_a_map_style_data_set_of_torch_is_read_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dataset:
        def __getitem__(self, number: int) -> int:
            raise NotImplementedError

    class IterableDataset(Dataset):
        pass

    class Iterated(Dataset):
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[int]:
            return iter(range(9, -1, -1))

    class MapStyle(Iterated):
        def __getitem__(self, number: int) -> int:
            return number

    class Streamed(MapStyle, IterableDataset):
        pass

    torch_data = types.SimpleNamespace(Dataset=Dataset, IterableDataset=IterableDataset)
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch_data)
    assert list(Pipeline[int](MapStyle())) == list(Pipeline[int](MapStyle()).shard()) == list(range(10))
    assert list(Pipeline[int](Iterated())) == list(Pipeline[int](Streamed())) == list(range(9, -1, -1))


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 10])
def test_workers_keep_the_order_of_one_process(workers: int, prefetch: int) -> None:
    """Sources of different lengths in the same processes, one epoch each."""
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


def test_workers_draw_different_random_numbers() -> None:
    drawn = got(Pipeline(range(8)).dispatch().map(lambda _: (random.random(), float(np.random.rand()))), 2)
    assert len(set(drawn)) == 8


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
        item["array"][:] = -1  # no other item shares this memory
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
    corpus = levada.Corpus(path, seq_length=16, tokenizer="bytes")
    alone = [item["tokens"].tolist() for item in Pipeline[Any](corpus)]
    assert len(alone) == len(corpus) and len(alone[0]) == 16
    pipeline = Pipeline[Any](corpus).shard().map(lambda item: item["tokens"].tolist())
    assert got(pipeline, 2) == alone
    assert got(Pipeline[Any](corpus).dispatch().map(lambda item: item["tokens"].tolist()), 2) == alone


def test_a_corpus_may_have_a_name_that_is_not_utf8(tmp_path: Any) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt")
    with pytest.raises(levada.SourceError, match=r"a\\xff\.txt"):
        len(levada.Corpus(path, seq_length=16, tokenizer="bytes"))
    with open(path, "w") as file:
        file.write("some text that is long enough" * 4)
    assert len(levada.Corpus(path, seq_length=16, tokenizer="bytes")) > 4


def test_a_feed_takes_a_pipeline() -> None:
    pipeline = Pipeline(range(12)).shuffle(5).dispatch().map(lambda n: {"n": np.full(4, n)})
    feed = levada.Feed(pipeline.run(2, context="forkserver", seed=1, alone=True), max_steps=5)
    first = [int(batch["n"][0]) for batch in feed]
    state = feed.state_dict()
    feed.load_state_dict(state)
    rest = [int(batch["n"][0]) for batch in levada.Feed(pipeline, max_steps=None)]
    assert len(first) == 5 and sorted(rest) == list(range(12))


def test_show_and_stats_name_the_process_of_each_stage() -> None:
    pipeline = Pipeline(range(20), name="numbers").dispatch().map(double, name="twice")
    text = pipeline.show(workers=2)
    assert "numbers" in text and "twice" in text and "worker" in text
    assert pipeline.show("mermaid").startswith("flowchart") and '"twice"' in pipeline.show("json")
    with pipeline.run(2, context="forkserver") as run:
        assert len(list(run)) == 20
        stats = run.stats()
        assert stats.stages["numbers"].items == stats.stages["twice"].items == 20
        assert stats.messages > 0 and "twice" in run.show()


def random_pipeline(draw: random.Random) -> Pipeline[Any]:
    """Returns a random pipeline of stages whose items and order do not depend on the number of workers."""
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_yield_the_items_of_one_process(seed: int) -> None:
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
            with pipeline.fullsync().run(group=levada.join()) as run:
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


def test_a_corpus_is_tokenized_before_its_workers_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "corpus.jsonl", tmp_path / "cache"
    path.write_text("".join('{"text": "%s"}\n' % ("x" * number) for number in range(100)))
    corpus = levada.Corpus(path, seq_length=16, cache_dir=cache, tokenizer="bytes")
    found: list[int] = []

    class Group(_workers.WorkerGroup):
        def __init__(self, *arguments: Any) -> None:
            found.append(len(list((cache / "tokens").glob("*.json"))))
            super().__init__(*arguments)

    monkeypatch.setattr(_runs, "WorkerGroup", Group)
    pipeline: Pipeline[Any] = Pipeline(corpus).shard()
    with pipeline.run(2, context="forkserver") as run:
        assert len(list(run)) == len(corpus)
    assert found == [1]


def test_iterating_a_pipeline_involves_no_other_rank_by_default(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        numbers = levada.Pipeline(range(6))
        if rank == 0:  # rank 1 never iterates one
            tell(alone=list(numbers.shuffle(3).run(seed=1)), dealt=list(numbers.shard().run(alone=True)))
            for among_ranks in (numbers.shard(), numbers.fullsync()):
                try: list(among_ranks)
                except levada.InvalidArgument as error: tell(error=str(error))
        tell(shared=list(numbers.shard().run(group=levada.join())))
        """,
    )
    alone, shard, fullsync, mine = told[0]
    assert sorted(alone["alone"]) == alone["dealt"] == list(range(6))
    assert "has shard(), and this process is one of 2 ranks: pass group=levada.join()" in shard["error"]
    assert "has fullsync()" in fullsync["error"]
    assert sorted(mine["shared"] + told[1][0]["shared"]) == list(range(6))


@pytest.mark.parametrize("make", [lambda: (n for n in range(4)), lambda: iter(range(4)), lambda: map(abs, range(4))])
def test_an_epoch_over_an_iterator_that_an_earlier_one_has_ended_is_an_error(make: Any) -> None:
    taking = Pipeline(make()).take(2)
    assert [list(taking) for _ in range(3)] == [[0, 1], [2, 3], []]
    whole = Pipeline(make()).map(abs)
    assert list(whole) == list(range(4))
    running = Pipeline(make()).run()
    assert list(running) == list(range(4))
    for again in (taking, whole, running, levada.Feed(whole)):
        with pytest.raises(levada.Error, match="an earlier pass has read all items of this .*levada.Pipeline"):
            list(again)
    with pytest.raises(levada.InvalidArgument, match="an earlier pass"):
        list(Pipeline(make()).repeat(2))


def test_epochs_over_an_iterator_that_begins_again_are_whole() -> None:
    pipeline = Pipeline(BeginsAgain()).map(double)
    assert [list(pipeline) for _ in range(3)] == [[2, 4, 6]] * 3


def test_epochs_over_a_function_that_returns_an_iterator_restart() -> None:
    pipeline = Pipeline(lambda: iter(range(3)))
    assert [list(pipeline) for _ in range(3)] == [[0, 1, 2]] * 3
    assert list(Pipeline(lambda: iter(())).repeat(2)) == []
