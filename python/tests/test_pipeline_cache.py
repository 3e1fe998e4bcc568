"""Items that a pipeline caches in a file."""

from __future__ import annotations

import pathlib
from typing import Any

import levada
import numpy as np
import pytest


class Parse:
    """Makes an item from a number, and logs that it did."""

    def __init__(self, log: pathlib.Path) -> None:
        self.log = log

    def __call__(self, number: int) -> dict[str, Any]:
        with self.log.open("a") as log:
            log.write(f"{number}\n")
        return {"ids": np.arange(number), "name": f"n{number}", "pair": (number, None)}

    def calls(self) -> int:
        return len(self.log.read_text().splitlines())


class Zeros:
    def __call__(self, number: int) -> np.ndarray[Any, Any]:
        return np.zeros(4)


def plain(items: list[dict[str, Any]]) -> list[Any]:
    return [(item["ids"].tolist(), item["name"], item["pair"]) for item in items]


@pytest.mark.parametrize("workers", [0, 2])
def test_items_are_made_once(workers: int, tmp_path: pathlib.Path) -> None:
    parse = Parse(tmp_path / "log")
    pipeline = levada.Pipeline(range(100)).shard().map(parse).cache(tmp_path / "cache")
    assert len(pipeline) == 100
    for _ in range(2):
        with pipeline.run(workers=workers, alone=True) as run:
            first, second = plain(list(run)), plain(list(run))
            assert sorted(first) == sorted(second) == sorted(plain([Parse(tmp_path / "other")(i) for i in range(100)]))
    assert parse.calls() == 100


def test_a_state_resumes_within_the_file(tmp_path: pathlib.Path) -> None:
    pipeline = levada.Pipeline(range(1000)).map(str).cache(tmp_path).shuffle(50)
    whole = list(pipeline.run(seed=3))
    with pipeline.run(seed=3) as run:
        iterator = iter(run)
        given = [next(iterator) for _ in range(321)]
        state = run.state_dict()
    with pipeline.run(seed=3) as run:
        run.load_state_dict(state)
        assert given + list(run) == whole
    for part in tmp_path.iterdir():
        part.unlink()
    with pipeline.run(seed=3) as run:
        run.load_state_dict(state)
        assert given + list(run) == whole


def test_arrays_from_the_file_can_be_written_to(tmp_path: pathlib.Path) -> None:
    cached = levada.Pipeline(range(2)).map(Zeros()).cache(tmp_path)
    for _ in range(3):
        for item in cached:
            assert item.tolist() == [0.0] * 4
            item += 1


def test_a_cache_refuses_unregistered_classes_shuffles_and_another_key(tmp_path: pathlib.Path) -> None:
    with pytest.raises(levada.InvalidArgument, match=r"its class is object; register it with levada.register\(\)$"):
        list(levada.Pipeline([object()]).cache(tmp_path / "objects"))
    with pytest.raises(levada.InvalidArgument, match='"shuffle" before it would run in the first pass only'):
        list(levada.Pipeline(range(3)).shuffle().cache(tmp_path / "shuffled"))
    list(levada.Pipeline(range(3)).cache(tmp_path / "numbers", key="1"))
    with pytest.raises(levada.InvalidArgument, match="has the items of another pipeline"):
        list(levada.Pipeline(range(3)).cache(tmp_path / "numbers", key="2"))


def document(number: int) -> np.ndarray[Any, Any]:
    return np.arange(number + 5)


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "int32"},
        {"pad_to": 4},
        {"max_documents": 2},
        {"too_long": "error"},
        {"buffer": 7},
        {"method": "cut"},
        {"method": "cut", "partial": "drop"},
        {"method": "cut", "pad_to": 2},
        {"tokens": "ids"},
    ],
)
def test_rows_of_other_options_are_refused(other: dict[str, Any], tmp_path: pathlib.Path) -> None:
    documents = levada.Pipeline(range(9)).map(document)
    usual = {"method": other.get("method", "best-fit")} if len(other) > 1 else {"method": "best-fit"}
    list(documents.pack(16, **usual).cache(tmp_path))
    assert list(documents.pack(16, **usual).cache(tmp_path))
    with pytest.raises(levada.InvalidArgument, match="has the items of another pipeline"):
        list(documents.pack(16, **{**usual, **other}).cache(tmp_path))


def test_items_of_other_stages_and_other_data_are_refused(tmp_path: pathlib.Path) -> None:
    def numbers() -> levada.Pipeline[Any]:
        return levada.Pipeline(range(9))

    text = tmp_path / "corpus.txt"
    text.write_text("some text\n" * 50)

    def corpus(**options: Any) -> levada.Pipeline[Any]:
        return levada.Pipeline(levada.Corpus(text, cache_dir=tmp_path / "tokens", tokenizer="bytes", **options))

    different = [
        numbers().batch(2),
        numbers().batch(2, drop_last=True),
        numbers().batch(3),
        numbers().take(3),
        numbers().take(0),
        numbers().concat(numbers().take(3)),
        numbers().concat(numbers()).take(3),
        numbers().zip(numbers(), numbers()).zip(),
        numbers().zip(numbers().zip(numbers())),
        numbers().interleave(numbers(), stop="last"),
        numbers().interleave(numbers(), stop="first"),
        numbers().bucket_batch(abs, boundaries=[3], size=2),
        numbers().bucket_batch(abs, boundaries=[4], size=2),
        numbers().map(abs, on_error="skip"),
        numbers().map(abs, on_error="raise"),
        corpus(seq_length=8),
        corpus(seq_length=16),
        corpus(seq_length=8, dtype="int32"),
        corpus(seq_length=8, attention_mask=True),
        corpus(seq_length=8, shuffle=True, seed=1),
        corpus(seq_length=8, packing="best-fit"),
        corpus(seq_length=8, tensors="torch"),
    ]
    for at, written in enumerate(different):
        folder = tmp_path / f"cache{at}"
        try:
            list(written.cache(folder))
        except levada.Unsupported:  # torch is not installed
            continue
        for other in different[:at] + different[at + 1 :]:
            with pytest.raises(levada.InvalidArgument, match="has the items of another pipeline"):
                next(iter(other.cache(folder)))


@pytest.mark.parametrize(
    "stages",
    [
        lambda cached: cached.take(9),
        lambda cached: cached.map(abs).take(9),
        lambda cached: cached.prefetch(2).take(9),
        lambda cached: cached.shuffle(4).take(9),
        lambda cached: cached.batch(3).unbatch().take(9),
        lambda cached: levada.Pipeline(range(9)).zip(cached),
        lambda cached: cached.zip(levada.Pipeline(range(9))),
        lambda cached: levada.Pipeline(range(9)).interleave(cached),
        lambda cached: levada.Pipeline(range(9)).interleave(cached, weights=[1, 1], stop="last"),
        lambda cached: levada.Pipeline(range(2)).concat(cached).take(11),
    ],
)
def test_a_file_is_complete_once_all_items_were_yielded(stages: Any, tmp_path: pathlib.Path) -> None:
    parse = Parse(tmp_path / "log")

    def number(item: int) -> int:
        parse(item)
        return item

    pipeline = stages(levada.Pipeline(range(9)).map(number).cache(tmp_path / "cache"))
    first = list(pipeline.run(seed=1))
    assert parse.calls() == 9
    assert sorted(map(str, pipeline.run(seed=1))) == sorted(map(str, first)) and parse.calls() == 9


def test_a_file_is_absent_until_all_items_were_yielded(tmp_path: pathlib.Path) -> None:
    def broken(item: int) -> int:
        if item == 5:
            raise ValueError("broken")
        return item

    for at, pipeline in enumerate([levada.Pipeline(range(9)), levada.Pipeline(range(9)).map(broken)]):
        folder = tmp_path / f"cache{at}"
        assert list(pipeline.cache(folder).take(5)) == list(range(5))
        assert not list(folder.glob("*.items"))


def write_tokens(text: pathlib.Path, word: str) -> None:
    text.write_text(f"{word} text\n" * 50)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["corpus", "lines", "nested", "mapped", "list", "zip"])
def test_items_of_a_source_that_has_changed_since_are_refused(kind: str, workers: int, tmp_path: pathlib.Path) -> None:
    text, tokens = tmp_path / "a.txt", tmp_path / "tokens"

    def written(word: str) -> levada.Pipeline[Any]:
        write_tokens(text, word)
        if kind == "corpus":
            return levada.Pipeline(levada.Corpus(text, cache_dir=tokens, tokenizer="bytes", seq_length=8))
        if kind == "mapped":
            np.full(40, len(word)).tofile(text)
            return levada.Pipeline(np.memmap(text, np.int64, "r"))
        if kind == "list":
            return levada.Pipeline([word] * len(word))
        lines: levada.Pipeline[Any] = levada.Pipeline.from_lines(text)
        if kind == "nested":
            return levada.Pipeline(lines)
        return levada.Pipeline(range(9)).zip(lines) if kind == "zip" else lines

    def run(pipeline: levada.Pipeline[Any]) -> list[str]:
        with pipeline.cache(tmp_path / "cache").dispatch().run(workers=workers) as items:
            return sorted(map(str, items))

    first = run(written("some"))
    with pytest.raises(levada.InvalidArgument, match="has the items of another pipeline.*content of the sources"):
        run(written("other"))
    for part in (tmp_path / "cache").iterdir():
        part.unlink()
    assert run(written("other")) != first


@pytest.mark.parametrize("kind", ["corpus", "lines"])
def test_a_run_whose_source_changes_between_epochs_serves_no_old_items(kind: str, tmp_path: pathlib.Path) -> None:
    text = tmp_path / "a.txt"
    write_tokens(text, "some")
    corpus = levada.Corpus(text, cache_dir=tmp_path / "tokens", tokenizer="bytes", seq_length=8)
    pipeline: levada.Pipeline[Any] = levada.Pipeline(corpus) if kind == "corpus" else levada.Pipeline.from_lines(text)
    with pipeline.cache(tmp_path / "cache").run() as run:
        assert len(list(run)) == len(list(run)) > 0
        write_tokens(text, "other")
        with pytest.raises(levada.SourceError, match="changed since"):
            list(run)


def test_a_state_of_a_cached_corpus_resumes_in_another_run(tmp_path: pathlib.Path) -> None:
    text = tmp_path / "a.txt"
    write_tokens(text, "some")
    corpus = levada.Corpus(text, cache_dir=tmp_path / "tokens", tokenizer="bytes", seq_length=8)
    pipeline = levada.Pipeline(corpus).cache(tmp_path / "cache")
    whole = list(map(str, pipeline))
    with pipeline.run(seed=1) as run:
        iterator = iter(run)
        given = [str(next(iterator)) for _ in range(3)]
        state = run.state_dict()
    with pipeline.run(seed=1) as run:
        run.load_state_dict(state)
        assert given + list(map(str, run)) == whole
