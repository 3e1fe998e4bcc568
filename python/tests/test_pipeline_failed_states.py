"""States of a run after an exception."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import levada
import pytest
from levada import Pipeline


class Labels:
    """Raises once, for one of its items."""

    def __init__(self, raises: type[BaseException]) -> None:
        self.raises: type[BaseException] | None = raises

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> str:
        if at == 10 and self.raises is not None:
            raises, self.raises = self.raises, None
            raise raises("network")
        return f"label {at}"


def reading(raises: type[BaseException]) -> Pipeline[Any]:
    source: Any = Labels(raises)
    return Pipeline(source)


@pytest.mark.parametrize("raises", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("since", [0, 7, 9])
def test_a_state_after_a_failure_is_that_of_the_last_item(raises: type[BaseException], since: int) -> None:
    images = [f"image {at}" for at in range(40)]
    whole = [(image, f"label {at}") for at, image in enumerate(images)]
    labels = [label for _, label in whole]
    cases: list[tuple[Callable[[], Pipeline[Any]], int, list[Any]]] = [
        (lambda: Pipeline(images).zip(reading(raises)), 10, whole[10:]),
        (lambda: reading(raises).map(str), 10, labels[10:]),
        (lambda: reading(raises).batch(3), 3, [labels[at : at + 3] for at in range(9, 40, 3)]),
    ]
    for make, taken, rest in cases:
        with make().run() as run:
            items = iter(run)
            for _ in range(min(since, taken)):
                next(items)
            run.state_dict()
            with pytest.raises(raises):
                for _ in items:
                    pass
            assert list(items) == [] and run.epoch == 0  # the epoch has not ended
            state = pickle.loads(pickle.dumps(run.state_dict()))
            assert run.state_dict() == state
            run.load_state_dict(state)
            assert list(run) == rest
        with make().run() as run:
            run.load_state_dict(state)
            with pytest.raises(raises):
                list(run)
            again = run.state_dict()
            run.load_state_dict(again)
            assert list(run) == rest


def test_a_state_after_a_failure_of_a_pass_that_has_not_begun_is_the_loaded_one() -> None:
    def make(path: pathlib.Path | None = None) -> Pipeline[Any]:
        return Pipeline(lambda: iter(range(9))).filter(lambda item: path is None or (item < 3 or 1 // 0)).batch(2)

    with make().run() as run:
        items = iter(run)
        assert [next(items) for _ in range(2)] == [[0, 1], [2, 3]]
        state = run.state_dict()
    with make(pathlib.Path()).run() as run:
        run.load_state_dict(state)
        with pytest.raises(ZeroDivisionError):
            list(run)
        again = run.state_dict()
    with make().run() as run:
        run.load_state_dict(again)
        assert list(run) == [[4, 5], [6, 7], [8]]


@pytest.mark.parametrize("raises", [KeyboardInterrupt, SystemExit])
def test_on_error_skip_does_not_skip_an_exception_that_ends_the_program(raises: type[BaseException]) -> None:
    def fail(item: int) -> int:
        if item == 3:
            raise raises(7)
        return item

    def fail_later(item: int) -> Iterator[int]:
        yield fail(item)

    numbers = Pipeline(range(1, 8))
    pipelines: list[Pipeline[Any]] = [
        numbers.map(fail),
        numbers.map(fail, threads=2),
        numbers.filter(fail),
        numbers.flat_map(lambda item: [fail(item)]),
        numbers.flat_map(fail_later),
    ]
    for pipeline in pipelines:
        with pipeline.run(on_error="skip") as run, pytest.raises(raises):
            list(run)
    with numbers.dispatch().map(fail).run(1, on_error="skip", context="forkserver", alone=True) as run:
        with pytest.raises(levada.StageFailed, match=raises.__name__):
            list(run)


@pytest.mark.parametrize("raises", [levada.Timeout, levada.PeerLost])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_function_is_not_taken_for_one_of_the_processes(raises: type[levada.Error], workers: int) -> None:
    def fail(item: int) -> int:
        if item == 5:
            raise raises("the object store did not answer in 3 s")
        return item

    options: dict[str, Any] = {"context": "forkserver", "alone": True, "on_worker_death": "replace" if workers else "raise"}
    with Pipeline(range(10)).dispatch().map(fail, name="check").run(workers, **options) as run:
        with pytest.raises(raises) as caught:
            list(run)
        assert str(caught.value) == "the object store did not answer in 3 s"
        assert isinstance(caught.value.__cause__, levada.StageFailed) and caught.value.__cause__.stage == "check"
        assert not run._is_stuck


def test_an_error_of_a_function_while_a_state_is_resumed_is_raised_unchanged() -> None:
    ends = 10

    def reading() -> Iterator[int]:
        yield from range(ends)
        if ends < 10:
            raise levada.PeerLost("rank 3 of the nested feed is lost")

    pipeline = Pipeline(reading).dispatch().map(abs)
    with pipeline.run(1, context="forkserver", alone=True) as run:
        items = iter(run)
        assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
        state = run.state_dict()
    ends = 2
    with pipeline.run(0, alone=True) as run:
        run.load_state_dict(state)
        with pytest.raises(levada.PeerLost, match="rank 3 of the nested feed is lost"):
            list(run)
