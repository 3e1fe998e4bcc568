"""collate_padded()."""

from __future__ import annotations

from typing import Any

import levada
import numpy as np
import pytest


def sample(length: int, **more: Any) -> dict[str, Any]:
    return {"tokens": list(range(1, length + 1)), "labels": np.arange(length, dtype=np.int32), **more}


def test_each_field_is_padded_to_its_longest() -> None:
    samples = [
        sample(2, image=np.ones((1, 3), np.float32), id=7, name="a", weight=0.5),
        sample(5, image=np.full((2, 3), 2, np.float32), id=8, name="b", weight=1.5),
    ]
    batch = levada.collate_padded(samples, pad_value={"labels": -100, "image": 0.1}, pad_to=4)
    assert batch["tokens"].tolist() == [[1, 2, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 0, 0, 0]]
    assert np.asarray(batch["tokens"]).dtype == np.int64
    assert batch["labels"].tolist() == [[0, 1] + [-100] * 6, [0, 1, 2, 3, 4] + [-100] * 3]
    assert np.asarray(batch["labels"]).dtype == np.int32
    assert batch["image"].shape == (2, 4, 3) and np.asarray(batch["image"]).dtype == np.float32
    assert batch["image"][0, 1:].tolist() == np.full((3, 3), 0.1, np.float32).tolist()
    assert batch["id"].tolist() == [7, 8] and batch["name"] == ["a", "b"] and batch["weight"].tolist() == [0.5, 1.5]


def test_samples_may_be_arrays_or_lists_and_empty() -> None:
    assert levada.collate_padded([[1, 2, 3], [], [4]]).tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert levada.collate_padded([[], []]).shape == (2, 0)
    assert levada.collate_padded([np.zeros(0, np.uint8), np.ones(2, np.uint8)], pad_value=255).tolist() == [[255, 255], [1, 1]]


@pytest.mark.parametrize(
    ("samples", "arguments", "said"),
    [
        ([], {}, "at least one sample"),
        ([[1]], {"pad_to": 0}, "pad_to must be a whole number of 1 or more, got 0"),
        ([[1, 2]], {"pad_to": 1.5}, "pad_to must be a whole number, got 1.5"),
        ([[1], [2, 3]], {"pad_value": None}, "the samples of .*int64 cannot be padded with None"),
        ([(np.zeros(2), 1)], {}, "the samples are lists or tuples whose parts differ in length or are not numbers"),
        ([{"a": np.zeros(2)}, {"a": "text"}], {}, "field a have different dtypes"),
        ([[1], [2, 3]], {"pad_value": {"a": 1}}, "the samples are not mappings"),
        ([{"a": [1]}, {"b": [1]}], {}, "different fields"),
        ([{"a": [1]}], {"pad_value": {"b": 1}}, "pad_value names b, which the samples lack"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], {}, "the samples have different dtypes, or shapes"),
        ([np.zeros(1, np.int32), np.zeros(1, np.int64)], {}, "different dtypes"),
        ([{"a": np.zeros(1, np.uint8)}, {"a": np.zeros(2, np.uint8)}], {"pad_value": -100}, "field a of .*uint8 cannot be padded with -100"),
        ([np.zeros(1, np.int32), np.zeros(2, np.int32)], {"pad_value": 0.5}, "cannot be padded with 0.5"),
    ],
)
def test_samples_that_form_no_batch_are_refused(samples: Any, arguments: Any, said: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=said):
        levada.collate_padded(samples, **arguments)


def test_a_feed_sends_it() -> None:
    batches = levada.Pipeline([sample(length) for length in (3, 1, 9, 2, 8)]).bucket_batch(
        "tokens", boundaries=[5], size=3, collate=levada.collate_padded
    )
    assert [batch["tokens"].shape for batch in levada.Feed(batches)] == [(3, 3), (2, 9)]
