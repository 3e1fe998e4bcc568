"""Laws that hold for every pipeline, tried on pipelines drawn at random: more of them where LEVADA_LAWS is a number."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import time
from typing import Any

import levada
import pytest
from random_pipelines import Drawn, Fuse, plain, seeds

pytestmark = [
    pytest.mark.filterwarnings("ignore:nothing divides"),
    pytest.mark.filterwarnings("ignore:.*counts the items of each"),
    pytest.mark.filterwarnings("ignore:.*started again"),
]


def items_of(run: Any, count: int | None = None) -> list[Any]:
    return [plain(item) for item in itertools.islice(run, count)]


def whole_epochs(drawn: Drawn, count: int) -> list[list[Any]]:
    """Returns the items of some epochs. Skips a pipeline that cannot be placed."""
    try:
        with drawn.run() as run:
            return [items_of(run) for _ in range(count)]
    except levada.InvalidArgument as refused:
        pytest.skip(str(refused))


def resumed(drawn: Drawn, state: Any, workers: int | None = None, **other: Any) -> list[list[Any]]:
    """Returns the rest of the epoch of a state, and the next epoch."""
    with drawn.run(workers, **{"seed": None, **other}) as run:
        run.load_state_dict(pickle.loads(pickle.dumps(state)))
        return [items_of(run) for _ in range(2)]


@pytest.mark.parametrize("with_workers", [False, True])
@pytest.mark.parametrize("seed", seeds(20))
def test_a_state_resumes_with_the_rest_or_is_refused(seed: int, with_workers: bool) -> None:
    drawn = Drawn(f"state {seed}", with_workers=with_workers)
    first, second = whole_epochs(drawn, 2)
    draw = random.Random(seed)
    for _ in range(2):
        taken = draw.randint(0, max(len(first) - 1, 0))
        with drawn.run() as run:
            assert items_of(run, taken) == first[:taken], drawn
            state = run.state_dict()
        assert resumed(drawn, state) == [first[taken:], second], (taken, drawn)
        for workers, ordered in [(draw.randint(0, 3), drawn.options["ordered"]), (drawn.workers, draw.random() < 0.5)]:
            with contextlib.suppress(levada.InvalidArgument):
                assert resumed(drawn, state, workers, ordered=ordered)[0] == first[taken:], (taken, workers, ordered, drawn)


@pytest.mark.parametrize(("with_workers", "kind"), [(False, OSError), (False, KeyboardInterrupt), (True, OSError)])
@pytest.mark.parametrize("seed", seeds(20))
def test_a_state_after_a_failure_resumes_with_the_rest(
    seed: int, with_workers: bool, kind: type[BaseException], tmp_path: pathlib.Path
) -> None:
    path, calls = tmp_path / "fuse", random.Random(seed).choice([1, 2, 5, 12])
    fuse = Fuse(path, calls, kind)
    drawn = Drawn(f"fuse {seed}", with_workers=with_workers, fuse=fuse)
    [whole] = whole_epochs(drawn, 1)
    fuse.calls = calls
    path.touch()
    given: list[Any] = []
    with drawn.run() as run:
        try:
            for item in run:
                given.append(plain(item))
            pytest.skip("too few items for the fuse to blow")
        except kind:
            pass
        state = run.state_dict()
        path.unlink()
        assert given == whole[: len(given)], drawn
        run.load_state_dict(state)
        assert items_of(run) == whole[len(given) :], (len(given), drawn)
    assert resumed(drawn, state)[0] == whole[len(given) :], (len(given), drawn)


@pytest.mark.parametrize("seed", seeds(10))
def test_a_process_that_is_killed_and_replaced_changes_no_item(seed: int) -> None:
    drawn = Drawn(f"kill {seed}", with_workers=True)
    [whole] = whole_epochs(drawn, 1)
    draw = random.Random(seed)
    given = []
    with drawn.run(on_worker_death="replace") as run:
        for at, item in enumerate(run):
            given.append(plain(item))
            if at in (3, len(whole) // 2):
                children = multiprocessing.active_children()
                for child in draw.sample(children, min(len(children), 1)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid or 0, signal.SIGKILL)
                time.sleep(0.01)
    assert given == whole, drawn
