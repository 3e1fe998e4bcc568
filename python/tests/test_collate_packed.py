"""Samples that collate_packed() packs or refuses when it is called directly, in a Feed and in a DataLoader."""

from __future__ import annotations

import array
import collections
import functools
from collections.abc import Callable
from typing import Any

import levada
import numpy as np
import pytest

Pair = collections.namedtuple("Pair", "input_ids labels")


@pytest.mark.parametrize(
    "tokens",
    [range(1, 4), array.array("q", [1, 2, 3]), list(np.arange(1, 4)), list(np.arange(1, 4, dtype=np.int32)), (1, 2, 3)],
    ids=lambda tokens: type(tokens[0]).__name__ + " in " + type(tokens).__name__,
)
def test_every_sequence_of_numbers_is_packed(tokens: Any) -> None:
    for sample in (tokens, {"tokens": tokens}):
        assert levada.collate_packed([sample, sample])["tokens"].tolist() == [[1, 2, 3, 1, 2, 3]]
    assert levada.collate_packed([{"input_ids": [4, 5, 6], "extra": tokens}])["extra"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([(np.arange(3), 1)], "a sample is a tuple of 2 parts that are not all numbers"),
        ([Pair([1, 2], [1, 2])], "a sample is a Pair of 2 parts"),
        ([("a text", 1)], "a sample is a tuple of 2 parts"),
        (["a text"], "tokens of sample 0 of a packed row is a str"),
        ([[1], b"text"], "tokens of sample 1 of a packed row is a bytes"),
        ([{"tokens": ["two", "words"]}], "tokens of sample 0 of a packed row is a list of str"),
        ([{"tokens": [1]}, {"tokens": []}], "sample 1 of .* (is an empty list, whose dtype is unknown|has a length of 0)"),
        ([{"input_ids": np.ones((1, 5), int)}], r"input_ids of a sample has the shape \[1, 5\], as of a batch of one"),
        ([{"input_ids": [[1, 2, 3]]}], r"input_ids of a sample has the shape \[1, 3\], as of a batch of one"),
        ([{"tokens": 3}], "tokens of a sample has type int, which has no length"),
        ([3], "a sample has type int, which has no length"),
    ],
)
def test_tokens_that_a_row_cannot_hold_are_refused(samples: list[Any], why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why):
        levada.collate_packed(samples)
    with pytest.raises(levada.InvalidArgument, match=why):
        next(iter(levada.Feed(samples, batch_size=len(samples), balance="tokens")))


def test_samples_whose_length_is_not_their_tokens_need_a_length_also_with_a_collate_fn() -> None:
    pairs = [(np.arange(100), 1)] * 4
    with pytest.raises(levada.InvalidArgument, match=r"a tuple of 2 parts.*pass Balance\(length="):
        next(iter(levada.Feed(pairs, batch_size=2, max_tokens=64, collate_fn=list)))
    feed = levada.Feed(pairs, batch_size=2, max_tokens=128, balance=levada.Balance(length=lambda pair: len(pair[0])), collate_fn=list)
    assert [len(batch) for batch in feed] == [1] * 4
    texts = levada.Feed(["a text", "texts"], batch_size=2, balance="tokens", collate_fn=list)
    assert [batch for batch in texts] == [["a text", "texts"]]


def test_several_rows_of_codes_per_token_are_packed() -> None:
    assert levada.collate_packed([{"tokens": np.ones((3, 4), int)}, {"tokens": np.ones((2, 4), int)}])["tokens"].shape == (1, 5, 4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pad_to": 0}, "pad_to must be a whole number of 1 or more, got 0"),
        ({"pad_to": 1.5}, "pad_to must be a whole number, got 1.5"),
        ({"row_length": 4.0}, "row_length must be a whole number, got 4.0"),
        ({"row_length": -1}, "row_length must be a whole number of 1 or more, got -1"),
        ({"max_segments": "2"}, "max_segments must be a whole number, got '2'"),
        ({"length": lambda _: None}, "the length of sample 0 of a packed row must be a whole number, got None"),
        ({"length": lambda _: -1}, "the length of sample 0 of a packed row is -1"),
        ({"length": lambda _: 3}, "tokens of sample 0 of a packed row is 2 long, and length= returned 3"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why):
        levada.collate_packed([[1, 2]], **options)


def test_labels_without_a_sign_cannot_be_shifted() -> None:
    with pytest.raises(levada.InvalidArgument, match="labels are uint8, which cannot be -100; use int64"):
        levada.collate_packed([{"input_ids": [1, 2], "labels": np.zeros(2, np.uint8)}], shift_labels=True)


class Items:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"ids": np.full(at % 5 + 1, at), "name": str(at)}


def length_of_ids(sample: dict[str, Any]) -> int:
    return len(sample["ids"])


packed = levada.collate_packed
COLLATE: list[Callable[..., Any] | None] = [
    None,
    packed,
    functools.partial(packed, shift_labels=False),
    functools.partial(functools.partial(packed, pad_to=2), length=length_of_ids),
]


@pytest.mark.parametrize("collate", range(len(COLLATE)))
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_are_padded_as_the_balance_says_however_collate_packed_is_passed(collate: int, workers: int) -> None:
    balance = levada.Balance("flops", pad_to=4, length=length_of_ids)
    options: dict[str, Any] = {"balance": balance, "max_tokens": 8, "collate_fn": COLLATE[collate]}
    items = [Items()[at] for at in range(8)]
    loader = levada.DataLoader(Items(), 4, lengths=[len(item["ids"]) for item in items], num_workers=workers, **options)
    for batches in (levada.Feed(items, batch_size=4, **options), loader):
        rows = list(batches)
        assert sorted(name for row in rows for name in row["name"]) == [str(at) for at in range(8)]
        for row in rows:
            lengths = [-(-(int(name) % 5 + 1) // 4) * 4 for name in row["name"]]
            assert np.diff(row["cu_seqlens"][0]).tolist() == lengths and row["ids"].shape == (1, sum(lengths))
            assert sum(lengths) <= 8


def test_a_partial_that_pads_more_than_the_balance_stays_within_max_tokens() -> None:
    samples = [np.arange(5)] * 8
    feed = levada.Feed(samples, batch_size=8, max_tokens=16, collate_fn=functools.partial(packed, pad_to=8))
    assert [row["tokens"].shape for row in feed] == [(1, 16)] * 4
    with pytest.raises(levada.InvalidArgument, match="max_tokens is 16; with lengths rounded up to 32"):
        levada.Feed(samples, batch_size=8, max_tokens=16, collate_fn=functools.partial(packed, pad_to=32))
    with pytest.raises(levada.InvalidArgument, match="pad_to must be a whole number of 1 or more, got 0"):
        levada.Feed(samples, batch_size=8, max_tokens=16, collate_fn=functools.partial(packed, pad_to=0))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"length": "tokens"}, "length is 'tokens'; it must be a function of a sample"),
        ({"length": 0}, "length is 0; it must be a function of a sample"),
        ({"pad_to": "8"}, "pad_to must be a whole number, 1 or more, got '8'"),
        ({"max_delay": 1.0}, "max_delay must be a number of steps, 0 or more, got 1.0"),
    ],
)
def test_a_balance_refuses_options_of_another_type(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why) as raised:
        levada.Balance("flops", **options)
    assert isinstance(raised.value, levada.InvalidArgument)


def test_a_balance_takes_numpys_integers() -> None:
    assert repr(levada.Balance("flops", pad_to=np.int64(8))) == repr(levada.Balance("flops", pad_to=8))  # type: ignore[arg-type]


def test_a_collate_fn_that_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(levada.InvalidArgument, match="collate_fn must be a function, got 3"):
        levada.Feed([[1]], balance="tokens", collate_fn=3)  # type: ignore[arg-type]


def test_a_sample_of_none_is_one_sentence() -> None:
    with pytest.raises(levada.InvalidArgument, match="sample 1 of the step is None"):
        next(iter(levada.Feed([[1], None], batch_size=2, balance="tokens")))


@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        (lambda number: 1 // 0, "lengths raised ZeroDivisionError: .* for item 0"),
        (lambda number: 2.0, "the length of item 0 is 2.0; it must be a whole number from 1"),
        ([0] * 8, "the length of item 0 is 0; it must be a whole number from 1"),
    ],
)
def test_a_length_that_is_not_known_is_one_sentence(lengths: Any, why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why) as raised:
        next(iter(levada.DataLoader(Items(), 4, lengths=lengths, max_tokens=8)))
    assert "Traceback" not in str(raised.value)


class MixedItems(Items):
    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"tokens": np.ones(2, np.int64 if at != 2 else np.int32)}


def test_items_that_cannot_share_a_row_are_named_without_a_traceback() -> None:
    with pytest.raises(levada.SourceError, match=r"sample 2 is int32 \[2\].*for the items 0, 1, 2, 3 of MixedItems") as raised:
        next(iter(levada.DataLoader(MixedItems(), 4, lengths=[2] * 8, balance="tokens")))
    assert "Traceback" not in str(raised.value)


def test_a_collate_fn_may_return_none() -> None:
    loader = levada.DataLoader(Items(), 4, lengths=[at % 5 + 1 for at in range(8)], balance="tokens", num_workers=1, collate_fn=nothing)
    assert list(loader) == [None, None]


def nothing(items: list[Any]) -> None:
    return None
