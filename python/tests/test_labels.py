"""The pairs of a token and its label that a model would learn from a feed's batches."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks

Pairs = list[tuple[int, int]]


def documents(seed: int, count: int = 12) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(1000) for _ in range(drawn.randrange(1, 20))] for _ in range(count)]


def pairs_of_documents(texts: list[list[int]]) -> Pairs:
    return sorted(pair for text in texts for pair in zip(text, text[1:], strict=False))


def pairs_of_transformers(batch: dict[str, Any]) -> Pairs:
    """Returns the pairs for a model that compares its prediction at position i with the label at position i + 1."""
    tokens, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    return [(token, label) for token, label in zip(tokens, labels[1:], strict=False) if label != -100]


def pairs_of_shifted(batch: dict[str, Any]) -> Pairs:
    """Returns the pairs for a model that compares its prediction at position i with the shifted label at position i."""
    tokens, labels = batch["input_ids"][0].tolist(), batch["shift_labels"][0].tolist()
    return [(token, label) for token, label in zip(tokens, labels, strict=True) if label != -100]


def samples(texts: list[list[int]]) -> Iterator[dict[str, Any]]:
    for text in texts:
        yield {"input_ids": text, "labels": text}


@pytest.mark.parametrize("pad_to", [1, 4])
@pytest.mark.parametrize("row_length", [None, 400])
def test_a_packed_row_has_labels_only_within_documents(pad_to: int, row_length: int | None) -> None:
    for seed in range(40):
        texts = documents(seed)
        row = levada.collate_packed(list(samples(texts)), pad_to=pad_to, row_length=row_length, shift_labels=True)
        assert sorted(pairs_of_transformers(row)) == pairs_of_documents(texts)
        assert sorted(pairs_of_shifted(row)) == pairs_of_documents(texts)


def test_labels_that_differ_from_the_tokens_are_unchanged() -> None:
    row = levada.collate_packed([{"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}] * 2, shift_labels=True)
    assert row["labels"].tolist() == [[-100, -100, 3, 4] * 2]
    assert row["shift_labels"].tolist() == [[-100, 3, 4, -100] * 2]
    classes = levada.collate_packed([{"input_ids": [7, 8], "labels": [1, 0]}, {"input_ids": [9], "labels": [1]}])
    assert classes["labels"].tolist() == [[1, 0, 1]]
    deep = levada.collate_packed([{"input_ids": [1, 2], "labels": np.array([[1, 1], [2, 2]])}], shift_labels=True)
    assert deep["labels"].tolist() == [[[1, 1], [2, 2]]] and deep["shift_labels"].tolist() == [[[2, 2], [-100, -100]]]
    whole = levada.collate_packed([{"input_ids": [1, 2], "labels": 7}, {"input_ids": [3], "labels": 8}])
    assert whole["labels"] == [7, 8]
    empty = levada.collate_packed([{"tokens": np.arange(0), "labels": np.arange(0)}, {"tokens": [5, 6], "labels": [5, 6]}])
    assert empty["labels"].tolist() == [[-100, 6]]


@pytest.mark.parametrize("name", ["input_ids", "tokens"])
def test_labels_that_are_the_next_tokens_require_megatrons_names(name: str) -> None:
    following = [{name: [1, 2, 3], "labels": [2, 3, 4]}, {name: [7, 8], "labels": [8, 9]}]
    for shifts in (False, True):
        if name == "tokens" and not shifts:
            assert levada.collate_packed(following)["labels"].tolist() == [[2, 3, 4, 8, 9]]
            continue
        with pytest.raises(levada.InvalidArgument, match="labels of samples are their next tokens"):
            levada.collate_packed(following, shift_labels=shifts)
    given = [{name: [1, 2, 3], "shift_labels": [2, 3, -100]}, {name: [7, 8], "shift_labels": [8, -100]}]
    shifted = levada.collate_packed(given, pad_to=2)
    assert shifted["shift_labels"].tolist() == [[2, 3, -100, -100, 8, -100]]
    same = [{name: [5, 5], "labels": [5, 5]}]
    assert levada.collate_packed(same)["labels"].tolist() == [[-100, 5]]


def test_labels_that_cannot_be_masked_or_shifted_are_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="labels are uint16, which cannot be -100"):
        levada.collate_packed([{"tokens": [1, 2], "labels": np.array([1, 2], np.uint16)}])
    for sample in ({"tokens": [1, 2]}, {"tokens": [1, 2], "labels": 1}, {"tokens": [1], "labels": [1], "shift_labels": [1]}):
        with pytest.raises(levada.InvalidArgument, match="shift_labels=True makes them"):
            levada.collate_packed([sample], shift_labels=True)


JOB = """
import functools, random
def samples():
    drawn = random.Random(3)
    for _ in range(24):
        text = [drawn.randrange(1000) for _ in range(drawn.randrange(1, 20))]
        yield {"input_ids": text, "labels": text}
def failure(own, placement):
    row = {"input_ids": np.arange(16)[None], "labels": np.arange(16)[None], "shift_labels": np.arange(1, 17)[None]}
    layout = {field: placement for field in own}
    try:
        list(levada.Feed([{field: row[field] for field in own}], mesh=levada.Mesh(cp=2), layout=layout))
    except levada.Error as error:
        return str(error)
    return ""
"""


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_context_parallel_ranks_learn_each_pair_once(tmp_path: pathlib.Path, cp: int) -> None:
    told = ranks.succeed(
        tmp_path,
        cp,
        JOB
        + f"""
collate = functools.partial(levada.collate_packed, pad_to=2 * {cp}, shift_labels=True)
feed = levada.Feed(
    samples(), mesh=levada.Mesh(cp={cp}), batch_size=6, balance=levada.Balance("flops", pad_to=2 * {cp}), max_tokens=64, collate_fn=collate,
    layout={{field: "zigzag(cp,1)" for field in ("input_ids", "shift_labels", "position_ids")}},
)
for batch in feed:
    tell(tokens=batch["input_ids"][0].tolist(), labels=batch["shift_labels"][0].tolist())
""",
    )
    learned = [
        (token, label)
        for mine in told
        for batch in mine
        for token, label in zip(batch["tokens"], batch["labels"], strict=True)
        if label != -100
    ]
    assert sorted(learned) == pairs_of_documents(documents(3, 24))


@pytest.mark.parametrize("placement", ["zigzag(cp,1)", "shard(cp,1)"])
def test_labels_at_their_own_places_are_not_cut_within_rows(tmp_path: pathlib.Path, placement: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        JOB
        + f"""
cut = functools.partial(failure, placement={placement!r})
tell(unshifted=cut(["input_ids", "labels"]), shifted=cut(["input_ids", "labels", "shift_labels"]))
""",
    )
    for (mine,) in told:
        assert "labels are the input_ids at the same places" in mine["unshifted"] and "shift_labels" in mine["unshifted"]
        assert mine["shifted"] == ""
