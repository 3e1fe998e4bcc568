"""The lists of a levada.DataLoader's batch_sampler, and endless passes of balanced steps."""

from __future__ import annotations

import itertools
import pathlib
import time
from typing import Any

import levada
import numpy as np
import pytest
from levada.loader.orders import Listed
from loading import script
from ranks import run

LISTS = [[1, 2, 3], [4, 5], [6]]


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": None}], ids=repr)
def test_a_batch_sampler_makes_the_batches_whatever_batch_size_a_torch_loader_has(options: dict[str, Any]) -> None:
    loader = levada.DataLoader([np.array([i]) for i in range(10)], batch_sampler=LISTS, **options)
    assert [np.asarray(batch).ravel().tolist() for batch in loader] == LISTS


def test_batch_size_none_without_a_batch_sampler_yields_items() -> None:
    loader = levada.DataLoader([np.array([i]) for i in range(3)], batch_size=None, sampler=[2, 0])
    assert [np.asarray(item).tolist() for item in loader] == [[2], [0]]


class Tokens:
    """Items of four tokens and two labels."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"input_ids": np.full(4, number), "labels": np.array([-100, -100, 1, 2])}


@pytest.mark.parametrize(
    "options, last", [({}, (1, 4, 2)), ({"pad_last": True}, None), ({"on_error": "skip", "max_skipped": 1}, None)], ids=repr
)
def test_totals_never_count_repeated_samples(options: dict[str, Any], last: tuple[int, ...] | None) -> None:
    loader = levada.DataLoader(Tokens(), 2, **options)
    of_steps = [loader.totals for _ in loader]
    totals = [None if each is None else (each.samples, each.tokens, each.labels) for each in of_steps]
    assert totals[-1] == last
    assert totals[:2] == ([None, None] if "on_error" in options else [(2, 8, 4)] * 2)


def test_totals_are_none_for_a_step_in_which_a_rank_repeats_a_sample(tmp_path: pathlib.Path) -> None:
    main = """
loader = levada.DataLoader([np.zeros(3)] * 7, 2, mesh=levada.Mesh(dp=3), readers="one")
samples = [None if loader.totals is None else loader.totals.samples for _ in loader]
tell(samples=samples, valid=loader.valid)
"""
    outcome = run(tmp_path, 3, script("", main))
    assert outcome.status == 0, outcome.errors
    assert [rank[0]["samples"] for rank in outcome.told] == [[6, None]] * 3
    assert sorted(rank[0]["valid"] for rank in outcome.told) == [0, 0, 1]


def test_rows_of_the_last_batch_are_known_after_the_loop() -> None:
    feed = levada.Feed([{"x": np.arange(4)}] * 2, tail="pad")
    for batch in feed:
        pass
    assert feed.valid_rows == 4 and list(feed.gather(list(batch["x"]))) == [0, 1, 2, 3]
    with pytest.raises(levada.InvalidArgument, match="the batch has 4 rows"):
        feed.gather([7])
    loader = levada.DataLoader([np.arange(3)] * 2, None)
    for _ in loader:
        pass
    assert loader.valid_rows == 3


def test_an_endless_pass_of_balanced_steps_has_no_last_step() -> None:
    options: dict[str, Any] = {"lengths": [3] * 3, "balance": "flops", "shuffle": True, "mesh": levada.Mesh(dp=2)}
    data = [{"tokens": [1, 2, 3]}] * 3
    endless = levada.DataLoader(data, 1, epochs=None, **options)
    endless._expect_divisible(0, 3)
    with pytest.raises(levada.InvalidArgument, match="the last step of the pass has 1 of its 2 samples"):
        levada.DataLoader(data, 1, **options)._expect_divisible(0, 3)


def test_the_lists_at_any_position_are_found_without_those_before_them() -> None:
    lists = [list(range(at, at + 1 + at % 3)) for at in range(20)]
    ends = np.cumsum([len(each) for each in lists], dtype=np.int64).tobytes()
    listed = Listed(np.asarray(list(itertools.chain(*lists)), np.int64).tobytes(), ends)
    for first in range(20):
        for count in range(20 - first + 1):
            assert listed.numbers(first, count) == lists[first : first + count]
    many = Listed(np.arange(4_000_000, dtype=np.int64).tobytes(), (np.arange(1, 1_000_001, dtype=np.int64) * 4).tobytes())
    begun = time.perf_counter()
    for first in range(999_000, 999_200):
        assert many.numbers(first, 1) == [[4 * first, 4 * first + 1, 4 * first + 2, 4 * first + 3]]
    assert time.perf_counter() - begun < 2  # a list of all ends takes 50 ms and more each time
