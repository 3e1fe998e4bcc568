"""Marks that identify the samples of an item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from levada.feed.marks import is_same_item, is_same_row, mark_of_samples


@pytest.mark.parametrize(
    "samples",
    [
        [np.int64(1), np.int64(2), np.int64(7)],
        (np.uint8(1), 2, np.int32(7)),
        np.array([1, 2, 7]),
        [np.array(1), np.array(2), 7],
    ],
)
def test_integers_of_any_kind_have_one_mark(samples: Any) -> None:
    plain = type(samples)([1, 2, 7]) if isinstance(samples, tuple) else [1, 2, 7]
    assert mark_of_samples(samples) == mark_of_samples(plain)
    assert is_same_row(mark_of_samples(samples), mark_of_samples([5, 7]))
    assert not is_same_item(mark_of_samples(samples), mark_of_samples([1, 2, 8]))


def test_other_samples_keep_their_marks_apart() -> None:
    samples: list[Any] = [[1, 2], [[1, 2]], [(0, 1), (0, 2)], [(0, np.int64(1)), (0, 3)], ["1", "2"], [1.0, 2.0], 1, np.int64(2), "a"]
    assert len({mark_of_samples(each) for each in samples}) == len(samples)
    assert mark_of_samples([("a", np.int64(1))]) == mark_of_samples([("a", 1)])
    assert mark_of_samples(np.int64(3)) == mark_of_samples(3)
