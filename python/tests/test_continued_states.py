"""States of passes that continue an iterator, of which earlier passes have taken items."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks


def generator() -> Iterator[int]:
    yield from range(40)


class Stream:
    """An iterator that iter() does not restart."""

    def __init__(self) -> None:
        self.items = generator()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> int:
        return next(self.items)


class Continuing:
    """A loader whose iter() returns one generator for all passes."""

    def __init__(self) -> None:
        self.items = generator()

    def __iter__(self) -> Iterator[int]:
        return self.items


class Restarting(Stream):
    def __iter__(self) -> Restarting:
        self.items = generator()
        return self


def taken(feed: levada.Feed[Any], steps: int) -> list[Any]:
    return [batch for _, batch in zip(range(steps), feed)]


@pytest.mark.parametrize("check", ["items", "none"])
@pytest.mark.parametrize(
    ("make", "iterate"),
    [
        *((make, iterate) for make in (generator, lambda: map(int, range(40)), Stream) for iterate in ("inline", "thread")),
        (Continuing, "inline"),
    ],
)
def test_a_state_of_a_later_pass_counts_the_items_of_earlier_ones(make: Callable[[], Any], iterate: str, check: str) -> None:
    feed = levada.Feed(make(), max_steps=5, iterate=iterate, check=check)
    assert [*feed] + [*feed] == list(range(10))
    states = {10: feed.state_dict()}
    feed.skip = 1
    batches = iter(feed)
    if make is not Continuing:  # no rank knows before the first batch that iter() has returned the same generator
        states[11] = feed.state_dict()
    assert [next(batches) for _ in range(2)] == [11, 12]
    states[13] = feed.state_dict()
    for first, state in states.items():
        resumed = levada.Feed(make(), iterate=iterate, check=check)
        resumed.load_state_dict(state)
        assert taken(resumed, 2) == [first, first + 1]
        twice = levada.Feed(make(), iterate=iterate, check=check)
        twice.load_state_dict(resumed.state_dict())
        assert taken(twice, 2) + taken(twice, 1) == [first + 2, first + 3, first + 4]
        again = levada.Feed(make(), iterate=iterate, check=check)
        again.load_state_dict(twice.state_dict())
        assert taken(again, 1) == [first + 5]


@pytest.mark.parametrize("make", [lambda: list(range(40)), Restarting])
def test_a_state_of_a_later_pass_over_a_source_that_restarts_counts_that_pass(make: Callable[[], Any]) -> None:
    feed = levada.Feed(make(), max_steps=5)
    assert [*feed] == list(range(5))
    assert taken(feed, 3) == [0, 1, 2]
    resumed = levada.Feed(make())
    resumed.load_state_dict(feed.state_dict())
    assert taken(resumed, 2) == [3, 4]


def test_every_rank_knows_the_items_of_earlier_passes(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def items(): return ({"x": np.arange(8 * i, 8 * i + 8)} for i in range(40))
        def samples(): return ({"tokens": np.full(3, i)} for i in range(40))
        def make(source, mesh, **options):
            return levada.Feed(source() if rank == 0 else None, mesh, **options)
        def numbers(batch): return (batch["x"] if "x" in batch else batch["tokens"]).ravel().tolist()
        meshes = [levada.Mesh(dp=2), levada.Mesh(tp=2)]
        for name, source, options in [
            ("dealt", items, {}),
            ("global batches", items, {"divide": "split"}),
            ("rows", items, {"divide": "split", "batch_size": 4}),
            ("balanced", samples, {"balance": "tokens", "batch_size": 2, "max_tokens": 6}),
        ]:
            feed = make(source, meshes[0], max_steps=2, **options)
            list(feed), list(feed)
            feed.max_steps = None
            got = [numbers(batch) for _, batch in zip(range(3), feed)]
            state = feed.state_dict()
            feed.close()
            resumed = make(source, meshes[0], **options)
            resumed.load_state_dict(state)
            after = numbers(next(iter(resumed)))
            resumed.close()
            whole = [numbers(batch) for batch in make(source, meshes[0], **options)]
            tell(name=name, got=got == whole[4:7], after=after == whole[7])
        """,
    )
    names = ["dealt", "global batches", "rows", "balanced"]
    assert told == [[{"name": name, "got": True, "after": True} for name in names]] * 2


def test_a_state_with_an_equal_key_of_its_loader_is_the_loaders() -> None:
    class Stateful:
        at = 0

        def __iter__(self) -> Iterator[Any]:
            while self.at < 9:
                self.at += 1
                yield {"x": np.array(self.at - 1)}

        def state_dict(self) -> dict[str, int]:
            return {"levada: items that earlier passes have taken of this iterator, or": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            (self.at,) = state.values()

    feed = levada.Feed(Stateful())
    taken(feed, 3)
    resumed = levada.Feed(Stateful())
    resumed.load_state_dict(feed.state_dict())
    assert [int(batch["x"]) for batch in resumed] == list(range(3, 9))
