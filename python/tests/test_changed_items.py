"""States of loaders that do not yield the same items again, and skipping to a state."""

from __future__ import annotations

import pathlib
import random
import time
from typing import Any

import numpy as np
import pytest
import ranks

import levada
from levada import _levada

N = 24


def _state_after(source: Any, steps: int, **options: Any) -> dict[str, Any]:
    feed = levada.Feed(source, **options)
    for _ in zip(range(steps), feed):
        pass
    feed.close()
    return feed.state_dict()


def _resume(source: Any, state: dict[str, Any], **options: Any) -> list[Any]:
    feed = levada.Feed(source, **options)
    feed.load_state_dict(state)
    return list(feed)


class Samples:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def _text(item: int) -> Any:
    return f"text {item}"


def _array(item: int) -> Any:
    return {"x": np.full(5000, item), "y": [item, str(item)]}


def _strided(item: int) -> Any:
    return np.arange(60_000).reshape(200, 300).T + item


SOURCES = [list, Samples, levada.Pipeline, lambda items: levada.Pipeline(lambda: iter(items)), lambda items: (x for x in items)]


def test_a_state_resumes_over_the_same_items_and_is_refused_over_others() -> None:
    chance = random.Random(3)
    for _ in range(60):
        kind = chance.choice([int, _text, _array, _strided])
        items = [kind(number) for number in range(N)]
        steps = chance.randint(1, N - 1)
        options = chance.choice([{}, {"iterate": "inline"}, {"iterate": "thread"}])
        make = chance.choice(SOURCES)
        state = _state_after(make(items), steps, **options)
        if make is levada.Pipeline or "Pipeline" in repr(make) or state["cursor"]:
            continue  # the source has a state
        assert len(_resume(make(items), state, **options)) == N - steps
        others = items[:]
        others[steps - 1] = kind(N + 1)
        with pytest.raises(levada.InvalidArgument, match=f"item {steps - 1} is not the one that this state was saved after"):
            _resume(make(others), state, **options)
        assert len(_resume(make(others), state, check="none", **options)) == N - steps


def test_the_digest_of_an_item_sees_each_kind_of_value_and_reads_a_part_of_long_tensors() -> None:
    values: list[Any] = [None, True, 1, 1.0, "1", b"1", [1], (1,), {"a": 1}, {"b": 1}, np.arange(3), np.arange(4)]
    values += [np.arange(3, dtype=np.int32), np.zeros((2, 3)), np.zeros((3, 2)), np.arange(10**6), np.arange(10**6) + 1]
    digests = [_levada.digest_of(value) for value in values]
    assert len(set(digests)) == len(values) and all(digest % 2 == 0 for digest in digests)
    assert digests == [_levada.digest_of(value) for value in values]


def test_readers_resume_at_their_own_items_and_name_differences_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        if __name__ == "__main__":
            items = [{"x": np.arange(4) + 10 * i} for i in range(16)]
            samples = [np.arange(1 + i % 5) + i for i in range(32)]
            cases = [(items, dict(readers=readers, iterate=iterate)) for readers in ("one", "all", "dp")
                     for iterate in ("thread", "inline")]
            cases += [(items, dict(divide="split")), (items, dict(divide="split", batch_size=2)),
                      (samples, dict(balance="tokens", batch_size=4))]
            for source, options in cases:
                feed = levada.Feed(source, **options)
                for _ in zip(range(3), feed): pass
                feed.close()
                state = feed.state_dict()
                again = levada.Feed(source, **options)
                again.load_state_dict(state)
                left = sum(1 for _ in again)
                changed = levada.Feed([np.full(1, -1)] * 3 + source[1:] + source[:1], **options) if isinstance(source[0], np.ndarray) \\
                    else levada.Feed(source[1:] + source[:1], **options)
                changed.load_state_dict(state)
                try: text = str(list(changed))
                except levada.InvalidArgument as error: text = str(error)
                tell(left=left, text=text)
        """,
    )
    for mine in told:
        assert [each["left"] for each in mine] == [5] * 6 + [13] * 2 + [1]
        for each in mine:
            assert "is not the one that this state was saved after" in each["text"], each


def test_the_item_that_a_state_was_saved_after_is_compared_on_another_mesh_and_batch_size_too(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        items, samples = [f"text {i}" for i in range(24)], [np.arange(1 + i % 5) + i for i in range(48)]
        cases = [(items, saved, loaded, {}, {}) for saved, loaded in (("tp=2", "dp=2"), ("dp=2", "tp=2"))]
        cases += [(items, "dp=2", "tp=2", dict(readers="all"), {}), (items, "tp=2", "dp=2", dict(tail="pad"), {})]
        cases += [(samples, "dp=2", "dp=2", dict(balance="tokens", batch_size=4), dict(balance="tokens", batch_size=2))]
        for source, saved, loaded, options, others in cases:
            feed = levada.Feed(source, saved, **options)
            for _ in zip(range(5), feed): pass
            feed.close()
            for rest in (source, source[::-1]):
                again = levada.Feed(rest, loaded, **(others or options))
                again.load_state_dict(feed.state_dict())
                try: text = str(len(list(again)))
                except levada.InvalidArgument as error: text = str(error)
                tell(text=text)
        """,
    )
    for mine in told:
        assert [each["text"] for each in mine[::2]] == ["9", "14", "14", "10", "2"]
        for each in mine[1::2]:
            assert "is not the one that this state was saved after" in each["text"], each


def _batches(numbers: Any, size: int, *, pads: bool = False) -> list[dict[str, Any]]:
    """Returns batches of `size` rows, which are padded to the longest of the batch with `pads`."""
    made = []
    for at in range(0, len(numbers), size):
        part = numbers[at : at + size]
        longest = max(1 + number % 7 for number in part) if pads else 8
        ids = np.zeros((len(part), longest), np.int64)
        for row, number in zip(ids, part, strict=True):
            row[: 1 + number % 7] = number
        made.append({"ids": ids, "text": [f"text {number}" for number in part], "mean": float(np.mean(part))})
    return made


@pytest.mark.parametrize("divide", [{"divide": "split"}, {"divide": "split", "batch_size": 4}])
def test_a_state_of_items_with_lists_of_rows_resumes_over_the_same_items(divide: dict[str, Any]) -> None:
    whole = _batches(range(48), 4)
    state = _state_after(whole, 5, **divide)
    assert len(_resume(whole, state, **divide)) == 7
    with pytest.raises(levada.InvalidArgument, match="item 4 is not the one that this state was saved after"):
        _resume(_batches(range(1, 49), 4), state, **divide)


@pytest.mark.parametrize("size", [1, 2, 8, 16])
@pytest.mark.parametrize("iterate", ["inline", "thread"])
def test_a_state_of_rows_is_refused_over_other_rows_for_items_of_any_size(size: int, iterate: str) -> None:
    options: dict[str, Any] = {"divide": "split", "iterate": iterate}
    numbers = list(range(48))
    state = _state_after(_batches(numbers, 4), 4, batch_size=4, **options)
    assert len(_resume(_batches(numbers, size), state, batch_size=size, **options)) == 32 // size
    others = [numbers[::-1], numbers[1:] + numbers[:1], numbers[:15] + [99] + numbers[16:]]
    for other in others:
        with pytest.raises(levada.InvalidArgument, match=f"item {16 // size - 1} does not end with the row that this state"):
            _resume(_batches(other, size), state, batch_size=size, **options)
        assert len(_resume(_batches(other, size), state, batch_size=size, check="none", **options)) == 32 // size


@pytest.mark.parametrize("size", [1, 2, 8])
def test_rows_that_batches_pad_to_other_lengths_are_not_compared(size: int) -> None:
    numbers = list(range(48))
    for steps in range(1, 12):
        if steps * 4 % size == 0:
            state = _state_after(_batches(numbers, 4, pads=True), steps, divide="split", batch_size=4)
            rest = _resume(_batches(numbers, size, pads=True), state, divide="split", batch_size=size)
            assert sum(len(item["ids"]) for item in rest) == 48 - steps * 4


def test_a_loader_whose_state_never_changes_is_refused_by_name() -> None:
    class Stuck:
        def __iter__(self) -> Any:
            for number in range(6):
                time.sleep(0.2)  # slow items, so that the feed asks for the state after each
                yield number

        def state_dict(self) -> dict[str, int]:
            return {"epoch": 0}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    feed = levada.Feed(Stuck())
    batches = iter(feed)
    assert [next(batches) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(levada.Unsupported, match="Stuck.state_dict.. has returned the same state after two different items"):
        feed.state_dict()
    assert list(feed) == list(range(6))


@pytest.mark.long
def test_no_rank_times_out_while_items_are_skipped_and_the_board_names_the_item(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Slow:
            delay, hangs = 0.0, 99
            def __iter__(self):
                for i in range(30):
                    time.sleep(60 if i == self.hangs else self.delay)
                    yield i
        if __name__ == "__main__":
            for iterate in ("thread", "inline"):
                feed = levada.Feed(Slow(), levada.Mesh(tp=2), iterate=iterate)
                for _ in zip(range(20), feed): pass
                feed.close()
                slow = Slow()
                slow.delay = 0.25
                again = levada.Feed(slow, levada.Mesh(tp=2), iterate=iterate, timeout=2.0)
                again.load_state_dict(feed.state_dict())
                tell(first=next(iter(again)))
                again.close()
                skipping = levada.Feed(slow, levada.Mesh(tp=2), iterate=iterate, timeout=2.0, skip=20)
                tell(first=next(iter(skipping)))
                skipping.close()
        """,
    )
    assert [[each["first"] for each in mine] for mine in told] == [[20] * 4] * 2


@pytest.mark.long
def test_a_loader_that_hangs_while_items_are_skipped_is_a_timeout_that_names_the_item(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        2,
        """
        class Hangs:
            def __iter__(self):
                for i in range(30):
                    if self.hangs and i == 7: time.sleep(9)
                    yield i
        source = Hangs()
        source.hangs = False
        feed = levada.Feed(source, levada.Mesh(tp=2), iterate="thread")
        for _ in zip(range(20), feed): pass
        feed.close()
        source.hangs = True
        again = levada.Feed(source, levada.Mesh(tp=2), iterate="thread", timeout=1.5)
        again.load_state_dict(feed.state_dict())
        try: next(iter(again))
        except levada.Error as error: tell(text=f"{type(error).__name__}: {error}")
        """,
    )
    assert "Timeout" in outcome.told[1][0]["text"] and "re-reading item 7 of 20" in outcome.told[1][0]["text"]
