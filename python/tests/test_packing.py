"""Rows of documents: Pipeline.pack() against simple references."""

from __future__ import annotations

import bisect
import json
import pathlib
import pickle
import random
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
from levada import Pipeline
from pipelines import got

Documents = list[list[int]]


def documents(count: int, longest: int, seed: int = 1) -> Documents:
    """Returns documents in which every token is unique."""
    draw = random.Random(seed)
    lengths = [draw.choice([0, 1, 2]) if draw.random() < 0.1 else draw.randrange(longest) for _ in range(count)]
    ends = np.cumsum(lengths).tolist()
    return [list(range(end - length + 1, end + 1)) for length, end in zip(lengths, ends, strict=True)]


def arrays(given: Documents, dtype: Any = np.int32) -> list[Any]:
    return [np.array(document, dtype) for document in given]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in row.items()}


def row_of(segments: Documents, sequence: int, pad_to: int, most: int) -> dict[str, Any]:
    """Returns the row that contains these segments in order, with a label for every token of each but its last."""
    row: dict[str, Any] = {"tokens": [], "labels": [], "position_ids": [], "loss_mask": []}
    begins = [0]

    def add(tokens: list[int], labels: list[int], mask: float, to: int) -> None:
        more = to - len(row["tokens"])
        row["tokens"] += tokens + [0] * (more - len(tokens))
        row["labels"] += labels + [0] * (more - len(labels))
        row["loss_mask"] += [mask] * len(tokens) + [0.0] * (more - len(tokens))
        row["position_ids"] += range(more)
        begins.append(to)

    for segment in segments:
        padded = -(-(len(segment) - 1) // pad_to) * pad_to
        add(segment[:-1], segment[1:], 1.0, begins[-1] + padded)
    if begins[-1] < sequence:
        add([], [], 0.0, sequence)
    longest = max(end - begin for begin, end in zip(begins, begins[1:], strict=False))
    begins += [sequence] * (most + 2 - len(begins))
    return {**row, "cu_seqlens": begins, "max_seqlen": longest}


def cut(given: Documents, sequence: int, partial: str = "pad", pad_to: int = 1) -> list[dict[str, Any]]:
    tokens = [token for document in given for token in document]
    cuts = [tokens[at : at + sequence + 1] for at in range(0, len(tokens) - 1, sequence)]
    return [row_of([cut], sequence, pad_to, 1) for cut in cuts if len(cut) == sequence + 1 or partial == "pad"]


def fit(lengths: list[int], capacity: int, most: int) -> list[list[int]]:
    """Packs by best-fit decreasing, searching all bins. Returns the sorted numbers of each bin's documents."""
    bins: list[list[int]] = []
    for thing in sorted(range(len(lengths)), key=lambda thing: -lengths[thing]):
        room = [capacity - sum(lengths[other] for other in each) for each in bins]
        fitting = [at for at in range(len(bins)) if room[at] >= lengths[thing] and len(bins[at]) < most]
        if fitting:
            bins[min(fitting, key=lambda at: (room[at], at))].append(thing)
        else:
            bins.append([thing])
    return [sorted(each) for each in bins]


def best_fit(given: Documents, sequence: int, buffer: int, pad_to: int = 1, most: int = 64) -> list[dict[str, Any]]:
    rows: list[Documents] = []
    held: list[tuple[list[int], int]] = []  # a document, and the number of rounds for which it was held
    coming = iter(given)
    is_over = False
    while not is_over:
        for _ in range(buffer):
            if len(held) == buffer:
                break
            document = next(coming, None)
            if document is None:
                is_over = True
                break
            while len(document) > sequence:
                rows.append([document[: sequence + 1]])
                document = document[sequence:]
            if len(document) > 1:
                held.append((document, 0))
        lengths = [-(-(len(document) - 1) // pad_to) * pad_to for document, _ in held]
        bins = fit(lengths, sequence, most)
        fullest = sorted(bins, key=lambda each: (-sum(lengths[thing] for thing in each), each[0]))
        goes = fullest if is_over else fullest[: (len(bins) + 1) // 2]
        goes += [each for each in bins if each not in goes and any(held[thing][1] >= 8 for thing in each)]
        rows += [[held[thing][0] for thing in each] for each in sorted(goes)]
        gone = {thing for each in goes for thing in each}
        held = [(document, rounds + 1) for at, (document, rounds) in enumerate(held) if at not in gone]
    return [row_of(row, sequence, pad_to, most) for row in rows]


@pytest.mark.parametrize("dtype", [np.int64, np.uint16])
def test_cutting_matches_a_plain_reference(dtype: Any) -> None:
    for count, sequence, longest in [(0, 4, 9), (1, 4, 9), (60, 16, 40), (60, 100, 7), (3, 1, 9)]:
        given = documents(count, longest)
        for partial in ("pad", "drop"):
            rows = got(Pipeline(arrays(given, dtype)).pack(sequence, partial=partial))
            assert [plain(row) for row in rows] == cut(given, sequence, partial)
    given = documents(30, 20)
    assert [plain(row) for row in Pipeline(arrays(given)).pack(24, pad_to=8)] == cut(given, 24, pad_to=8)


def test_best_fit_matches_a_plain_reference() -> None:
    cases = [(50, 64, 60, 1, 64), (7, 32, 90, 4, 8), (1, 32, 90, 1, 32), (200, 64, 9, 1, 3)]
    for buffer, sequence, longest, pad_to, most in cases:
        given = documents(300, longest)
        pipeline = Pipeline(arrays(given)).pack(
            sequence, method="best-fit", buffer=buffer, pad_to=pad_to, max_documents=None if most >= 8 else most
        )
        assert [plain(row) for row in pipeline] == best_fit(given, sequence, buffer, pad_to, most)


def parts_of(row: dict[str, Any]) -> Iterator[list[int]]:
    """Yields the documents, or parts of documents, in a row."""
    begins = row["cu_seqlens"].tolist()
    for begin, end in zip(begins, begins[1:], strict=False):
        mask = row["loss_mask"][begin:end].astype(bool)
        tokens, labels = row["tokens"][begin:end][mask], row["labels"][begin:end][mask]
        assert row["position_ids"][begin:end].tolist() == list(range(end - begin))
        if len(tokens) > 0:
            assert tokens[1:].tolist() == labels[:-1].tolist()
            yield [int(tokens[0]), *labels.tolist()]


def test_best_fit_packs_each_document_once_and_whole_into_full_rows() -> None:
    given, sequence, buffer = documents(3000, 120), 256, 200
    rows = got(Pipeline(arrays(given)).pack(sequence, method="best-fit", buffer=buffer))
    wanted = [document for document in given if len(document) > 1]
    assert sorted(part for row in rows for part in parts_of(row)) == sorted(wanted)
    windows = [wanted[at : at + buffer] for at in range(0, len(wanted), buffer)]
    in_windows = sum(len(fit([len(document) - 1 for document in window], sequence, 64)) for window in windows)
    assert len(rows) <= in_windows
    filled = [int(row["loss_mask"].sum()) for row in rows]
    assert all(full > 0.98 * sequence for full in filled[: len(rows) * 9 // 10])


def test_packed_rows_equal_those_of_a_corpus(tmp_path: pathlib.Path) -> None:
    texts = [f"document {n} " * (n % 13) + "." for n in range(120)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = Pipeline([np.array([*text.encode(), 256], np.int64) for text in texts])
    of_corpus = [plain(row) for row in Pipeline[Any](levada.Corpus(path, seq_length=48, tokenizer="bytes"))]
    rows = [plain(row) for row in given.pack(48, partial="drop")]
    assert [{name: row[name] for name in ("tokens", "labels", "position_ids", "loss_mask")} for row in rows] == of_corpus
    packed = levada.Corpus(path, seq_length=48, packing="best-fit", pad_to=4, tokenizer="bytes")
    both = [Pipeline[Any](packed), given.pack(48, method="best-fit", buffer=1000, pad_to=4)]
    wanted, found = [sorted(map(without_width, map(plain, pipeline))) for pipeline in both]
    assert found == wanted and len(found) == len(packed)
    apart = levada.Corpus(path, seq_length=48, packing="documents", pad_to=4, tokenizer="bytes")
    both = [Pipeline[Any](apart), given.pack(48, method="best-fit", max_documents=1, pad_to=4)]
    wanted, found = [sorted(map(without_width, map(plain, pipeline))) for pipeline in both]
    assert found == wanted and len(found) == len(apart)


def without_width(row: dict[str, Any]) -> str:
    """Returns a row as text, without the repeated end in cu_seqlens."""
    return json.dumps({**row, "cu_seqlens": sorted(set(row["cu_seqlens"]))}, sort_keys=True)


def test_fields_are_packed_alongside() -> None:
    items: list[dict[str, Any]] = [
        {"ids": np.array([1, 2, 3]), "loss_mask": np.array([True, False, True]), "weight": np.array([0.5, 0.25, 0.125])},
        {"ids": np.array([4, 5]), "loss_mask": np.array([True, True]), "weight": np.array([2.0, 4.0])},
    ]
    whole, apart = (next(iter(Pipeline(items).pack(5, method=way, tokens="ids"))) for way in ("cut", "best-fit"))
    assert whole["tokens"].tolist() == [1, 2, 3, 4, 0] and whole["loss_mask"].tolist() == [0, 1, 1, 1, 0]
    assert whole["weight"].tolist() == [0.5, 0.25, 0.125, 2.0, 0.0] and whole["weight"].dtype == np.float64
    assert apart["tokens"].tolist() == [1, 2, 4, 0, 0] and apart["loss_mask"].tolist() == [0, 1, 1, 0, 0]
    narrow = next(iter(Pipeline(items).pack(5, tokens="ids", dtype="int32")))
    assert plain(narrow) == plain(whole)
    assert all(narrow[name].dtype == np.int32 for name in ("tokens", "labels", "position_ids"))
    chat = {"tokens": np.array([1, 2, 3, 4]), "labels": np.array([-100, -100, 3, 4])}
    row = next(iter(Pipeline([chat]).pack(4)))
    assert row["labels"].tolist() == [-100, 3, 4, -100] and row["loss_mask"].tolist() == [0, 1, 1, 0]


def test_rows_make_batches() -> None:
    given = documents(100, 40)
    pipeline = Pipeline(arrays(given)).pack(32, method="best-fit", buffer=20)
    feed = levada.Feed(pipeline.batch(4, drop_last=True, collate=stacked), max_steps=3)
    for batch in feed:
        assert {name: tuple(value.shape) for name, value in batch.items()} == {
            **dict.fromkeys(("tokens", "labels", "position_ids", "loss_mask"), (4, 32)),
            "cu_seqlens": (4, 34),
            "max_seqlen": (4,),
        }


def stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_torch_tensors_become_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    given = [torch.arange(1, n) for n in (2, 5, 9)]
    rows = got(Pipeline(given).pack(4))
    assert {type(value) for row in rows for value in row.values()} == {torch.Tensor}
    assert [plain(row) for row in rows] == cut([tensor.tolist() for tensor in given], 4)
    batch = next(iter(Pipeline(given).pack(4).batch(2, collate=torch.utils.data.default_collate)))
    assert batch["tokens"].shape == (2, 4) and batch["max_seqlen"].tolist() == [4, 4]


METHODS: list[dict[str, Any]] = [{"method": "cut"}, {"method": "best-fit", "buffer": 8}]


@pytest.mark.parametrize("options", METHODS)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_state_at_any_row_resumes_at_the_next_row(options: dict[str, Any], workers: int) -> None:
    given = documents(60, 40)
    pipeline = Pipeline(arrays(given)).shuffle(5).dispatch().pack(32, **options)
    ways: dict[str, Any] = {"context": "forkserver", "seed": 3, "worker_prefetch": 2, "main_prefetch": 2}
    with pipeline.run(workers, **ways) as run:
        rows, states = [], [run.state_dict()]
        for row in run:
            rows.append(plain(row))
            states.append(run.state_dict())
        assert rows == [plain(row) for row in got(pipeline, workers, **ways)] and len(rows) > 20
        for at, state in enumerate(states):
            run.load_state_dict(pickle.loads(pickle.dumps(state)))
            assert [plain(row) for row in run] == rows[at:], at
    assert max(len(pickle.dumps(state)) for state in states) < 6000


@pytest.mark.parametrize("options", METHODS)
def test_a_state_of_rows_that_are_dealt_serves_any_number_of_workers(options: dict[str, Any]) -> None:
    pipeline = Pipeline(arrays(documents(60, 40))).pack(32, **options).dispatch().map(plain)
    rows = got(pipeline)
    for workers, others in [(3, 0), (0, 1), (1, 3)]:
        with pipeline.run(workers, context="forkserver") as run:
            items = iter(run)
            assert [next(items) for _ in range(7)] == rows[:7]
            state = run.state_dict()
        with pipeline.run(others, context="forkserver") as run:
            run.load_state_dict(state)
            assert list(run) == rows[7:]


def test_each_worker_packs_its_own_documents_and_ordered_packs_all() -> None:
    given = documents(90, 40)
    for options in METHODS:
        pipeline = Pipeline(arrays(given)).shard().pack(32, **options)
        rows = got(pipeline, 3)
        parts = [got(Pipeline(arrays(given[at::3])).pack(32, **options)) for at in range(3)]
        assert sorted(str(plain(row)) for row in rows) == sorted(str(plain(row)) for part in parts for row in part)
        alone = got(Pipeline(arrays(given)).pack(32, **options))
        assert [plain(row) for row in got(pipeline, 3, ordered=True)] == [plain(row) for row in alone]


def test_branches_of_a_fork_pack_in_two_ways() -> None:
    given = documents(60, 40)
    left, right = Pipeline(arrays(given)).fork(buffer=1000)
    both = left.pack(32).zip(right.pack(32, method="best-fit", buffer=8)).dispatch()
    count = min(len(cut(given, 32)), len(best_fit(given, 32, 8)))
    for workers in (0, 2):
        pairs = [(plain(one), plain(other)) for one, other in got(both, workers)]
        assert pairs == list(zip(cut(given, 32)[:count], best_fit(given, 32, 8, most=32)[:count], strict=True))


GOOD = {"tokens": np.array([1, 2]), "reward": np.array([1, 2], np.float32)}
BAD: list[tuple[Any, str]] = [
    (np.array([1.5, 2.5]), r"stage rows, item 1.*: the item is float64 \[2\]; it must be integers"),
    (np.array([[1, 2]]), r"item 1.*: the item is int64 \[1, 2\]; a document is an array of one dimension"),
    ({"tokens": np.array([1, -2])}, r"item 1.*: element 1 of tokens is -2; it must be from 0 to"),
    ({**GOOD, "reward": np.array([1], np.float32)}, r"item 1.*: reward has 1 elements, but the document has 2 tokens"),
    ({**GOOD, "reward": np.array([1, 2])}, r"item 1.*: besides tokens it has reward \(int64\), but earlier documents"),
    ({"tokens": np.array([1, 2])}, r"item 1.*: besides tokens it has no other fields, but earlier documents have reward"),
    ({"ids": np.array([1, 2])}, r"item 1.*: the document has no field tokens, but ids; set tokens to"),
    ({**GOOD, "text": "hello"}, r"item 1.*: text has type str; it must be an array of numpy or a tensor of torch"),
    ([1, 2, 3], r"item 1.*: the item has type list; it must be an array of numpy"),
    ({1: np.array([1])}, r"item 1.*: a field is named 1, which is no str"),
    (np.array(["a"]), r"item 1.*: the item .* numpy's dtype str"),
]


@pytest.mark.parametrize("bad", range(len(BAD)))
def test_the_error_for_a_malformed_document_names_stage_item_and_field(bad: int) -> None:
    item, message = BAD[bad]
    for workers in (0, 1):
        with pytest.raises(levada.InvalidArgument, match=message) as raised:
            got(Pipeline([GOOD, item]).dispatch().pack(4, name="rows"), workers)
        assert "\n" not in str(raised.value)


def test_impossible_options_are_refused_when_they_are_passed() -> None:
    numbers = Pipeline(range(3))
    with pytest.raises(levada.InvalidArgument, match="sequence is 0"):
        numbers.pack(0)
    with pytest.raises(levada.InvalidArgument, match="packing must be cut, best-fit or documents, got wrapped"):
        numbers.pack(method="wrapped")
    with pytest.raises(levada.InvalidArgument, match="method is documents, .* it must be cut or best-fit"):
        numbers.pack(method="documents")
    with pytest.raises(levada.InvalidArgument, match="dtype is int16; it must be int64 or int32"):
        numbers.pack(dtype="int16")
    with pytest.raises(levada.InvalidArgument, match="not a multiple of pad_to, 3"):
        numbers.pack(16, pad_to=3)
    long = [np.arange(9)]
    with pytest.raises(levada.InvalidArgument, match="the document has 9 tokens, and a row holds 5"):
        got(Pipeline(long).pack(4, method="best-fit", too_long="error"))
