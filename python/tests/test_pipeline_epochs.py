"""Epochs of a run: each begins at its beginning, whatever its source keeps, and a state leads back into its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import levada
import pytest
from levada import Pipeline
from pipelines import Fickle, Stateful, double


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_may_be_of_any_epoch_that_set_epoch_accepts(workers: int) -> None:
    pipeline = Pipeline(range(20)).shuffle(10).dispatch().map(double)
    for epoch in (2**62, 2**63 - 1):
        with pipeline.run(workers, seed=3) as run:
            run.set_epoch(epoch)
            items = iter(run)
            next(items)
            state = run.state_dict()
            rest = list(items)
        with pipeline.run(workers, seed=3) as run:
            run.load_state_dict(state)
            assert run.epoch == epoch and list(run) == rest
            for beyond in (-1, 2**63):
                with pytest.raises(levada.InvalidArgument, match=f"from 0 to .*, got {beyond}"):
                    run.set_epoch(beyond)


def test_a_new_epoch_ends_the_one_under_way() -> None:
    with Pipeline(range(30)).dispatch().map(double).run(2, context="forkserver") as run:
        first = iter(run)
        assert [next(first) for _ in range(5)] == [0, 2, 4, 6, 8]
        assert list(run) == list(range(0, 60, 2))
        with pytest.raises(levada.InvalidArgument, match="another epoch"):
            next(first)


class Dated(Fickle):
    """A source whose items and state depend on the epoch."""

    def __init__(self) -> None:
        super().__init__(0)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            yield self.epoch * 100 + item

    def state_dict(self) -> Any:
        return {**super().state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.epoch = state["epoch"]


class NewestEpoch(Stateful):
    """Like data sets that apply a loaded state, keyed by the epoch, only in iter(), and have none before the first
    iter()."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.loaded: dict[str, int] | None = None
        self.now: dict[str, int] | None = None

    def state_dict(self) -> Any:
        return self.now

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self.loaded = state

    def __iter__(self) -> Iterator[int]:
        epoch = self.epochs[-1]
        begin = self.loaded["at"] if self.loaded is not None and self.loaded["epoch"] == epoch else 0
        for item in range(begin, self.count):
            self.now = {"at": item + 1, "epoch": epoch}
            yield item


def epochs_of(pipeline: Pipeline[Any], workers: int, epochs: list[int]) -> list[list[Any]]:
    """Returns the items of each epoch. Every second epoch is started twice."""
    found = []
    with pipeline.run(workers, context="forkserver", seed=1) as run:
        for number, epoch in enumerate(epochs):
            run.set_epoch(epoch)
            if number % 2 == 1:
                list(itertools.islice(run, 3))
                run.set_epoch(epoch)
            found.append(list(run))
    return found


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("epochs", [[0, 1, 2], [0, 1, 1], [2, 1, 0]])
def test_every_pass_of_a_source_with_a_state_begins_at_its_beginning(workers: int, epochs: list[int]) -> None:
    def source() -> Pipeline[int]:
        return Pipeline(Fickle(0))

    whole = list(range(30))
    more = [*whole, *whole[:10]]
    assert epochs_of(source().dispatch(), workers, epochs) == [whole] * 3
    assert epochs_of(source().repeat().take(40).dispatch(), workers, epochs) == [more] * 3
    assert epochs_of(source().repeat().take(40).repeat(2).dispatch(), workers, epochs) == [more * 2] * 3
    cycle = source().interleave(Pipeline(range(100, 140)), stop="cycle").dispatch()
    mixed = [item for pair in zip(more, range(100, 140), strict=True) for item in pair]
    assert epochs_of(cycle, workers, epochs) == [[*mixed, 10]] * 3
    assert epochs_of(Pipeline(NewestEpoch(30)).dispatch(), workers, epochs) == [whole] * 3
    dated = [list(range(epoch * 100, epoch * 100 + 30)) for epoch in epochs]
    assert epochs_of(Pipeline(Dated()).dispatch(), workers, epochs) == dated


def test_a_state_loaded_into_the_same_run_resumes_in_its_epoch() -> None:
    with Pipeline(Dated()).run(0) as run:
        list(run)
        items = iter(run)
        assert [next(items) for _ in range(3)] == [100, 101, 102]
        state = run.state_dict()
        assert list(items) == list(range(103, 130)) and list(run) == list(range(200, 230))
        run.load_state_dict(state)
        assert list(run) == list(range(103, 130))


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_state_before_an_epoch_leads_to_its_beginning(epoch: int) -> None:
    with Pipeline(Fickle(0)).run(0, seed=1) as run:
        for _ in range(epoch):
            list(run)
        state = run.state_dict()
        for _ in range(2):
            assert list(run) == list(range(30))
            run.load_state_dict(state)


@pytest.mark.parametrize("kind", [Stateful, NewestEpoch])
@pytest.mark.parametrize("workers", [0, 1])
def test_going_back_in_an_epoch_repeats_the_items_whatever_iter_does(
    kind: type[Stateful], workers: int
) -> None:
    pipeline = Pipeline(kind(60)).shuffle(10).dispatch()
    with pipeline.run(workers, seed=3, context="forkserver", timeout=30) as run:
        beginning = run.state_dict()
        items = iter(run)
        first = next(items)
        early = run.state_dict()
        between = [next(items) for _ in range(40)]
        late = run.state_dict()
        rest = list(items)
        for taken, state in [(41, late), (1, early), (41, late), (0, beginning)]:
            run.load_state_dict(state)
            assert list(itertools.islice(run, 15)) == [first, *between, *rest][taken:][:15]
        run.load_state_dict(early)
        assert list(run) == between + rest
        assert sorted(run) == list(range(60))
    with pipeline.run(workers, seed=3, context="forkserver", timeout=30) as run:
        run.load_state_dict(late)
        assert list(itertools.islice(run, 5)) == rest[:5]
        run.load_state_dict(early)
        assert list(run) == between + rest
