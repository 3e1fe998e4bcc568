"""Resuming feeds: states of corpora and loaders."""

from __future__ import annotations

import contextlib
import pathlib
import pickle
import re
import types
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks
from levada.feed import makers


def test_a_loaded_state_is_returned_until_a_batch_is_taken() -> None:
    class Counting:
        at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 6:
                self.at += 1
                yield self.at - 1

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    stopped = levada.Feed(Counting())
    batches = iter(stopped)
    assert [next(batches) for _ in range(2)] == [0, 1]
    state = stopped.state_dict()
    stopped.close()
    resumed = levada.Feed(Counting())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    items = iter(resumed)
    assert resumed.state_dict() == state
    resumed.close()
    assert resumed.state_dict() == state
    again = levada.Feed(Counting())
    again.load_state_dict(resumed.state_dict())
    assert list(again) == [2, 3, 4, 5]
    del items


class Stateful:
    """A loader of consecutive numbers, with `extra` in its state."""

    def __init__(self, extra: Any = None, items: int = 12) -> None:
        self.at, self.items, self.extra, self.asked = 0, items, extra, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.items:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"at": self.at, "extra": self.extra() if callable(self.extra) else self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.extra = state["at"], state["extra"]


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_state_with_large_integers_and_plain_keys_is_restored(iterate: str) -> None:
    extra = {"rng": np.random.default_rng(7).bit_generator.state, (0, "worker"): {1, 2}}
    stopped = levada.Feed(Stateful(extra), iterate=iterate)
    batches = iter(stopped)
    assert [next(batches) for _ in range(5)] == list(range(5))
    state = stopped.state_dict()
    stopped.close()
    loader = Stateful()
    resumed = levada.Feed(loader)
    resumed.load_state_dict(state)
    assert list(resumed) == list(range(5, 12)) and loader.extra == extra


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_state_that_cannot_be_saved_raises_when_it_is_requested(iterate: str) -> None:
    feed = levada.Feed(Stateful({"pools": [contextlib.nullcontext()]}), iterate=iterate)
    items = iter(feed)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(levada.Unsupported, match=r"state cannot be saved: .*state\['extra'\]\['pools'\]\[0\] cannot cross"):
        feed.state_dict()
    assert list(items) == list(range(3, 12))


def test_a_state_refused_by_its_loader_raises_when_it_is_requested() -> None:
    def refuse() -> None:
        raise NotImplementedError("this loader has no state in caf\udce9")

    feed = levada.Feed(Stateful(refuse))
    items = iter(feed)
    assert next(items) == 0
    with pytest.raises(levada.Unsupported, match=r"NotImplementedError: this loader has no state in caf\\udce9"):
        feed.state_dict()
    assert list(items) == list(range(1, 12))


def test_a_state_is_unpickled_only_if_pickles_are_allowed() -> None:
    feed = levada.Feed(Stateful(contextlib.nullcontext), allow_pickle=True)
    batches = iter(feed)
    next(batches)
    state = feed.state_dict()
    feed.close()
    with pytest.raises(levada.Unsupported, match="allow_pickle"):
        resumed = levada.Feed(Stateful())
        resumed.load_state_dict(state)
        rest_of = iter(resumed)
        next(rest_of)
    resumed = levada.Feed(Stateful(), allow_pickle=True)
    resumed.load_state_dict(state)
    rest_of = iter(resumed)
    assert next(rest_of) == 1


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_slow_state_is_saved_rarely_and_resumes_exactly(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Loader:
            def __init__(self): self.at = self.asked = 0
            def __iter__(self):
                while self.at < 60:
                    self.at += 1
                    yield self.at - 1, self.asked
            def state_dict(self):
                self.asked += 1
                end = time.monotonic() + 0.02  # a hundredth of two seconds
                while time.monotonic() < end: pass
                return {{"at": self.at, "large": bytes(100_000)}}
            def load_state_dict(self, state): self.at = state["at"]
        if __name__ == "__main__":
            whole = [item for item, _ in levada.Feed(Loader(), mesh=levada.Mesh(dp=2), iterate={iterate!r})]
            for steps in (1, 2, 17):
                began = time.monotonic()
                feed = levada.Feed(Loader(), mesh=levada.Mesh(dp=2), iterate={iterate!r})
                batches = iter(feed)
                before = [next(batches) for _ in range(steps)]
                took = time.monotonic() - began
                state = feed.state_dict()
                feed.close()
                feed = levada.Feed(Loader(), mesh=levada.Mesh(dp=2), iterate={iterate!r})
                feed.load_state_dict(state)
                tell(same=[item for item, _ in before] + [item for item, _ in feed] == whole, size=len(state["cursor"]),
                     seldom=before[-1][1] <= 1 + took / 2)
        """,
    )
    assert [len(mine) for mine in told] == [3, 3]
    for each in [*told[0], *told[1]]:
        assert each["same"] and each["seldom"] and 100_000 < each["size"] < 110_000


@pytest.mark.parametrize(("size", "receivers", "seconds"), [(1 << 20, 1, 0.2), (1 << 20, 7, 0.8), (1000, 7, 0.0)])
def test_saving_a_state_costs_at_most_one_percent_of_the_time_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, size: int, receivers: int, seconds: float
) -> None:
    now = 100.0
    monkeypatch.setattr(makers, "time", types.SimpleNamespace(monotonic=lambda: now))
    state = makers.PacedState(lambda: bytes(size), False, receivers)
    assert state() is not None
    now += seconds
    assert (state() is None) == (seconds > 0)
    now += 0.1 * seconds
    assert state() is not None


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_an_iterable_without_a_state_resumes_by_counting_its_items(iterate: str) -> None:
    stopped = levada.Feed(range(9), iterate=iterate, skip=1)
    state = stopped.state_dict()
    batches = iter(stopped)
    assert [next(batches) for _ in range(3)] == [1, 2, 3]
    states = [state, stopped.state_dict()]
    stopped.close()
    resumed = levada.Feed(range(9), iterate=iterate)
    resumed.load_state_dict(states[1])
    assert resumed.state_dict() == states[1]
    rest_of = iter(resumed)
    assert [next(rest_of) for _ in range(2)] == [4, 5]
    states.append(resumed.state_dict())
    resumed.close()
    for state, first in zip(states, (0, 4, 6), strict=True):
        resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert list(resumed) == list(range(first, 9))
        assert list(resumed) == list(range(9))


def test_counted_items_are_not_repeated_on_another_mesh(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        feed = levada.Feed(range(9), mesh=levada.Mesh(dp=2))
        batches = iter(feed)
        before = [next(batches) for _ in range(2)]
        state = feed.state_dict()
        feed.close()
        feed = levada.Feed(range(9), mesh=levada.Mesh(tp=2))
        feed.load_state_dict(state)
        tell(before=before, after=list(feed))
        """,
    )
    assert told == [[{"before": [0 + rank, 2 + rank], "after": [4, 5, 6, 7, 8]}] for rank in (0, 1)]


@pytest.mark.parametrize("loader", ["Loader()", "[{'x': np.full((4, 2), item)} for item in range(12)]"])
def test_counted_global_batches_are_not_repeated_on_another_mesh(tmp_path: pathlib.Path, loader: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Loader:
            at = 0
            def __iter__(self):
                while self.at < 12:
                    self.at += 1
                    yield {{"x": np.full((4, 2), self.at - 1)}}
            def state_dict(self): return {{"at": self.at}}
            def load_state_dict(self, state): self.at = state["at"]
        for meshes in ((levada.Mesh(dp=2), levada.Mesh(dp=1, tp=2)), (levada.Mesh(dp=1, tp=2), levada.Mesh(dp=2))):
            got, state = [], None
            for mesh in (*meshes, meshes[0]):
                feed = levada.Feed({loader}, mesh=mesh, divide="split", skip=0 if got else 1)
                if state: feed.load_state_dict(state)
                batches = iter(feed)
                got += [int(next(batches)["x"][0, 0]) for _ in range(3)]
                state = feed.state_dict()
                feed.close()
            tell(got=got)
        """,
    )
    assert told == [[{"got": list(range(1, 10))}] * 2] * 2


def rows(of: int, items: int = 24) -> list[dict[str, Any]]:
    return [{"x": np.arange(at, min(at + of, items))} for at in range(0, items, of)]


class Rows:
    """A loader of batches of rows, which resumes at a row."""

    def __init__(self, of: int, items: int) -> None:
        self.of, self.items, self.at = of, items, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.items:
            item = np.arange(self.at, min(self.at + self.of, self.items))
            self.at += self.of
            yield {"x": item}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("loader", [rows, Rows])
def test_a_state_between_rows_resumes_at_items_of_another_size(monkeypatch: pytest.MonkeyPatch, loader: Any) -> None:
    monkeypatch.setattr(makers, "_FREE", float("inf"))  # saves a state after each item, even on a slow machine
    stopped = levada.Feed(loader(4, 24), divide="split", batch_size=4)
    batches = iter(stopped)
    assert [next(batches)["x"][0] for _ in range(2)] == [0, 4]
    state = stopped.state_dict()
    stopped.close()
    for batch in (1, 2, 8):
        resumed = levada.Feed(loader(batch, 24), divide="split", batch_size=batch)
        resumed.load_state_dict(state)
        assert [row for item in resumed for row in item["x"]] == list(range(8, 24))
    for batch in (3, 16):
        refused = levada.Feed(loader(batch, 24), divide="split", batch_size=batch)
        refused.load_state_dict(state)
        with pytest.raises(levada.InvalidArgument, match=f"counts 8 rows, and an item has {batch}"):
            iter(refused)
    for divide in ("deal", "split"):
        with pytest.raises(levada.InvalidArgument, match='"source" of the state is .rows.; this feed resumes at one of'):
            levada.Feed(loader(4, 24), divide=divide).load_state_dict(state)


@pytest.mark.parametrize("tail", ["short", "pad"])
@pytest.mark.parametrize("loader", [rows, Rows])
def test_a_state_after_a_short_last_item_has_no_rows_left(loader: Any, tail: str) -> None:
    ended = levada.Feed(loader(4, 9), divide="split", batch_size=4, tail=tail)
    assert len(list(ended)) == 3
    state = ended.state_dict()
    for batch in (4, 3, 2):
        resumed = levada.Feed(loader(batch, 9), divide="split", batch_size=batch, tail=tail)
        resumed.load_state_dict(state)
        assert list(resumed) == [] and resumed.end is not None and resumed.end.cause == "exhausted"
        assert resumed.state_dict() == state


class Shuffled:
    """A loader whose sampler knows the epoch."""

    class Sampler:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    def __init__(self) -> None:
        self.sampler = self.Sampler()

    def __iter__(self) -> Iterator[int]:
        return iter(range(10 * self.sampler.epoch, 10 * self.sampler.epoch + 4))


@pytest.mark.parametrize("steps", [2, 4])
def test_set_epoch_after_a_state_continues_its_epoch_or_begins_another(steps: int) -> None:
    feed = levada.Feed(Shuffled())
    feed.set_epoch(3)
    batches = iter(feed)
    assert [next(batches) for _ in range(steps)] == list(range(30, 30 + steps))
    state = feed.state_dict()
    feed.close()
    for epoch, expected in ((3, range(30 + steps, 34)), (4, range(40, 44))):
        resumed = levada.Feed(Shuffled())
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert list(resumed) == list(expected)


@pytest.mark.parametrize("epoch", [1.0, True, np.bool_(True), "1", None])
@pytest.mark.parametrize("make", [lambda: levada.Feed([1, 2]), lambda: levada.Pipeline([1, 2]).run()])
def test_an_epoch_that_is_not_an_integer_is_refused(make: Any, epoch: Any) -> None:
    source = make()
    source.set_epoch(4)
    with pytest.raises(levada.InvalidArgument, match=f"epoch must be a whole number, got {re.escape(repr(epoch))}"):
        source.set_epoch(epoch)
    assert source.epoch == 4 and list(source) == [1, 2]


def test_an_epoch_set_on_the_loaders_sampler_applies_to_the_feed() -> None:
    feed = levada.Feed(Shuffled())
    feed.sampler.set_epoch(2)
    assert feed.epoch == 2 and list(feed) == list(range(20, 24))


def test_a_pass_that_cannot_begin_leaves_a_loaded_state_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = levada.Feed(range(10))
    batches = iter(feed)
    taken = [next(batches) for _ in range(4)]
    state = feed.state_dict()
    feed = levada.Feed(range(10))
    feed.load_state_dict(state)

    def refuse(*_: object, **__: object) -> None:
        raise levada.Timeout("rank 1 did not arrive")

    with monkeypatch.context() as patched:
        patched.setattr("levada.feed.feed.FeedPass", refuse)
        with pytest.raises(levada.Timeout):
            iter(feed)
    assert feed.state_dict() == state
    assert taken + list(feed) == list(range(10))


@pytest.mark.parametrize("balanced", [False, True])
def test_a_state_after_an_incomplete_last_step_is_at_the_end_also_for_a_feed_that_drops_it(
    tmp_path: pathlib.Path, balanced: bool
) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import warnings
        warnings.simplefilter("ignore")
        def feed(items, tail):
            options = {{"batch_size": 2, "balance": "tokens"}} if {balanced} else {{}}
            return levada.Feed([{{"tokens": np.full(2, item)}} for item in range(items)], tail=tail, **options)
        for items in (7, 6):
            first = feed(7, "short")
            steps = len(list(first))
            resumed = feed(items, "drop")
            resumed.load_state_dict(first.state_dict())
            try: tell(steps=steps, left=len(list(resumed)))
            except levada.InvalidArgument as error: tell(error=str(error))
        """,
    )
    for whole, shorter in told:
        assert whole == {"steps": 2 if balanced else 4, "left": 0}
        assert "the state counts 8 items, but the data end after 6" in shorter["error"]
