"""Loops over an iterator that are left early, and the first item of the next loop."""

from __future__ import annotations

import pathlib
import time
import warnings
from collections.abc import Iterator

import pytest
import ranks

import levada


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_loops_left_at_any_step_get_every_item_once(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import random
        for seed in range(25):
            chance = random.Random(seed)  # the same on both ranks
            count, dp = chance.randint(0, 40), chance.choice([1, 2])
            options = chance.choice([{{}}, {{"prefetch": 1 if dp == 2 else 3}}, {{"readers": "all"}}, {{"readers": "dp"}}])
            source = chance.choice([iter, lambda items: (x for x in items), lambda items: map(int, items)])(range(count))
            feed = levada.Feed(source, levada.Mesh(dp=dp, tp=2 // dp), iterate={iterate!r}, **options)
            got = []
            for loop in range(8):
                steps = chance.randint(0, 7)
                how = chance.choice(["break", "close", "limit", "stop"]) if loop < 7 else "all"
                feed.max_steps = steps if how == "limit" else None
                try:
                    for batch in feed:
                        got.append(batch)
                        if feed.step < steps: continue
                        if how == "break": break
                        if how == "close": feed.close()
                        if how == "stop": feed.request_stop()
                except levada.InvalidArgument as error:
                    assert "has read all items" in str(error), error
            expected = list(range(count))[rank % dp if dp == 2 else 0 :: dp][: count // dp]
            tell(seed=seed, right=got == expected, got=got, expected=expected)
        """,
    )
    for mine in told:
        for each in mine:
            assert each["right"], each


def test_a_buffer_that_was_overwritten_after_the_loop_was_left_is_an_error() -> None:
    buffers: list[list[int]] = []

    def reusing() -> object:
        for number in range(20):
            buffers.append([number])
            yield buffers[-1]

    feed = levada.Feed(reusing(), iterate="thread")
    for _ in feed:
        break
    for buffer in buffers:
        buffer[0] = -1
    if len(buffers) > 1:
        with pytest.raises(levada.InvalidArgument, match="has been changed since"):
            list(feed)


class Continuing:
    """A loader whose iter() returns one generator for all passes, as that of Megatron Energon does."""

    def __init__(self) -> None:
        self.num_made = 0
        self.items = self._make()

    def _make(self) -> Iterator[int]:
        for number in range(20):
            self.num_made += 1
            yield number

    def __iter__(self) -> Iterator[int]:
        return self.items


def test_a_second_pass_that_would_lose_items_of_a_loader_that_continues_is_an_error() -> None:
    loader = Continuing()
    feed = levada.Feed(loader, iterate="thread")
    for _ in feed:
        while loader.num_made < 3:
            time.sleep(0.01)
        break
    for _ in range(2):
        with pytest.raises(levada.InvalidArgument, match=r"this Continuing continues where the last pass was left.*from one iter\(feed\)"):
            list(feed)


def test_a_second_pass_continues_a_loader_that_did_not_read_ahead() -> None:
    feed = levada.Feed(Continuing(), iterate="inline")
    for _ in feed:
        break
    assert list(feed) == list(range(1, 20))


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_an_item_that_cannot_cross_ends_only_one_pass(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Unknown: pass
        feed = levada.Feed(iter([0, 1, Unknown(), 3, 4]), levada.Mesh(tp=2), iterate={iterate!r})
        got = []
        for loop in range(2):
            try:
                got.extend(feed)
            except levada.SourceError as error:
                assert "cannot cross between ranks" in str(error), error
                got.append("refused")
        tell(got=got)
        """,
    )
    assert [mine[0]["got"] for mine in told] == [[0, 1, "refused", 3, 4]] * 2


def test_a_pass_without_steps_warns_with_the_reason() -> None:
    with pytest.warns(RuntimeWarning, match="no steps: the source has no items"):
        assert list(levada.Feed([])) == []
    feed = levada.Feed([1, 2, 3])
    for _ in zip(range(3), feed):
        pass
    feed.close()
    again = levada.Feed([1, 2, 3])
    again.load_state_dict(feed.state_dict())
    with pytest.warns(RuntimeWarning, match="the state that it resumes is at the end of epoch 0"):
        assert list(again) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(again) == [1, 2, 3]
        assert list(levada.Feed([1], max_steps=0)) == []


def test_fewer_items_than_a_step_needs_raise_a_warning(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tell(steps=len(list(levada.Feed([1]))), text=[str(each.message) for each in caught])
        """,
    )
    for mine in told:
        assert mine[0]["steps"] == 0 and "fewer than the 2 items of one step" in mine[0]["text"][0]
