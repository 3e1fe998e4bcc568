"""on_worker_death="replace": killed processes are restarted, and no item is lost or delivered twice."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import select
import signal
import threading
import time
import warnings
from typing import Any

import levada
import numpy as np
import pytest
from levada import Pipeline
from levada.pipeline.workers import WorkerGroup
from pipelines import Numbering, Stateful, got

OPTIONS: Any = {
    "context": "forkserver",
    "seed": 1,
    "timeout": 60.0,
    "worker_prefetch": 2,
    "main_prefetch": 2,
    "on_worker_death": "replace",
}


def work(item: int) -> int:
    """Slow enough that few items wait for the loop."""
    time.sleep(0.0003)
    return item * 2


def odd(item: int) -> bool:
    return item % 3 != 0


def array(item: int) -> Any:
    time.sleep(0.0003)
    return np.full(50, item)


GRAPHS: dict[str, tuple[Pipeline[Any], dict[str, Any]]] = {
    "one to one": (Pipeline(range(600)).dispatch().map(work), {}),
    "sharded": (Pipeline(range(600)).shard().map(work), {"snapshot_every": 7}),
    "filtered": (Pipeline(range(900)).shuffle(50).dispatch().filter(odd).map(work), {}),
    "on threads": (Pipeline(range(600)).dispatch().map(work, threads=2), {}),
    "filtered on threads": (Pipeline(range(900)).dispatch().filter(odd).map(work, threads=2), {}),
    "stateful": (Pipeline(Stateful(600)).dispatch().map(array), {"snapshot_every": 20}),
    "held here": (Pipeline(range(900)).dispatch().filter(odd).map(work).batch(7).prefetch(2), {"ordered": True}),
    "numbered here": (Pipeline(range(900)).dispatch().filter(odd).map(work).transform(Numbering), {"ordered": True}),
    "buckets": (Pipeline(range(600)).shuffle(100).dispatch().map(work).batch(5).unbatch().shuffle(30), {}),
}


def plain(items: list[Any]) -> list[Any]:
    return [np.asarray(item).tolist() for item in items]


def kill_one(rng: random.Random) -> None:
    """Kills one of the processes. A process that has already ended may still be listed. If one was killed before, the
    others end by themselves, while the loop may still take items that they have sent: then there is none to kill."""
    children = multiprocessing.active_children()
    for child in rng.sample(children, min(len(children), 1)):
        assert child.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("trial", range(2))
def test_items_equal_those_of_a_run_without_deaths(name: str, trial: int) -> None:
    pipeline, options = GRAPHS[name]
    rng = random.Random(f"{name} {trial}")
    whole = plain(got(pipeline, 2, **options))
    deaths = set(rng.sample(range(len(whole) // 2), 3))
    items = []
    with pipeline.run(2, **options, **OPTIONS) as run, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for at, item in enumerate(run):
            items.append(item)
            if at in deaths:
                kill_one(rng)
    assert plain(items) == whole
    assert told and all("was killed by SIGKILL; the processes of the pipeline are started again" in str(each.message) for each in told)


@pytest.mark.filterwarnings("ignore:.*started again")
@pytest.mark.parametrize("when", ["before pause()", "before resume()"])
def test_a_process_killed_around_a_pause_is_replaced_on_resume(when: str) -> None:
    rng = random.Random(when)
    with Pipeline(range(60)).dispatch().map(work).run(2, **OPTIONS) as run:
        items = iter(run)
        taken = [next(items) for _ in range(10)]
        for order, name in ((run.pause, "before pause()"), (run.resume, "before resume()")):
            if when == name:
                kill_one(rng)
                time.sleep(0.05)
            order()
            if order == run.pause:
                assert list(items) == []
        assert taken + list(items) == [work(item) for item in range(60)]


def test_a_pause_names_a_killed_process_that_is_not_replaced() -> None:
    rng = random.Random(0)
    with Pipeline(range(60)).dispatch().map(work).run(2, **(OPTIONS | {"on_worker_death": "raise"})) as run:
        items = iter(run)
        next(items)
        kill_one(rng)
        time.sleep(0.05)
        for order in (run.pause, run.resume):
            with pytest.raises(levada.PeerLost, match="was killed by SIGKILL"):
                order()


@pytest.mark.filterwarnings("ignore:.*started again")
def test_a_run_paused_in_another_thread_stays_paused_when_a_process_is_replaced() -> None:
    taken: list[int] = []
    with Pipeline(range(400)).dispatch().map(work).run(2, **OPTIONS) as run:
        items = iter(run)
        taken += [next(items) for _ in range(5)]

        def take() -> None:
            taken.extend(items)

        taking = threading.Thread(target=take)
        taking.start()
        run.pause()
        kill_one(random.Random(0))
        taking.join(2)
        held = len(taken)
        time.sleep(0.2)
        assert len(taken) == held < 400
        run.resume()
        taking.join(60)
        taken.extend(items)
    assert taken == [work(item) for item in range(400)]


def test_a_death_that_the_system_reports_after_the_engine_is_attributed_to_its_process() -> None:
    read, write = os.pipe()

    class Reported:
        sentinel = read

        @property
        def exitcode(self) -> int | None:
            return -9 if select.select([read], [], [], 0)[0] else None

    class Running:
        sentinel, exitcode = os.pipe()[0], None

    group = WorkerGroup.__new__(WorkerGroup)
    group._processes = [Running(), Reported()]  # type: ignore[list-item]
    threading.Timer(0.2, os.write, (write, b"1")).start()
    assert group.lost() is None and group.lost(2) == 1


@pytest.mark.filterwarnings("ignore:.*started again")
def test_a_process_killed_between_epochs_is_replaced_in_the_next() -> None:
    pipeline = Pipeline(range(40)).dispatch().map(work)
    with pipeline.run(2, **OPTIONS) as run:
        for epoch in range(3):
            assert list(run) == list(range(0, 80, 2)), epoch
            kill_one(random.Random(epoch))


@pytest.mark.filterwarnings("ignore:.*started again")
def test_deaths_change_no_limit_state_or_next_epoch() -> None:
    pipeline = Pipeline(range(500)).shuffle(40).dispatch().map(work)
    whole = got(pipeline, 2)
    with pipeline.run(2, **OPTIONS) as run:
        items = iter(run)
        run.limit(200)
        first = [next(items) for _ in range(100)]
        kill_one(random.Random(1))
        first += list(items)
        assert first == whole[:200]
        state = run.state_dict()
        run.resume()
        assert list(items) == whole[200:]
        second = list(run)
    with pipeline.run(2, context="forkserver") as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == whole[200:]
        assert list(resumed) == second


@pytest.mark.filterwarnings("ignore:.*started again")
def test_the_death_of_every_process_is_reported() -> None:
    def leave(item: int) -> int:
        if item == 30:
            os._exit(3)
        return item

    given = []
    with (
        Pipeline(range(100)).dispatch().map(leave).run(1, **OPTIONS) as run,
        pytest.raises(levada.PeerLost, match=r"ended with exit status 3, after item \d+, as 2 times before"),
    ):
        for item in run:
            given.append(item)
    assert given == list(range(len(given))) and len(given) <= 30


@pytest.mark.filterwarnings("ignore:.*started again")
def test_a_feed_continues_after_a_worker_dies() -> None:
    def batch(item: int) -> Any:
        time.sleep(0.0003)  # so that workers are alive at step 40
        return {"x": np.full(4, item)}

    run = Pipeline(range(600)).dispatch().map(batch).run(2, alone=True, **OPTIONS)
    items = []
    with levada.Feed(run, iterate="inline") as feed:
        for step, received in enumerate(feed):
            items.append(int(received["x"][0]))
            if step in (10, 40):
                kill_one(random.Random(step))
    assert items == list(range(600))


def test_replace_is_refused_with_fullsync() -> None:
    with pytest.raises(levada.InvalidArgument, match=r'"replace" cannot be combined with fullsync\(\)'):
        Pipeline(range(3)).fullsync().run(1, **OPTIONS)
    with pytest.raises(levada.InvalidArgument, match='on_worker_death is "ignore"; it must be raise or replace'):
        Pipeline(range(3)).run(on_worker_death="ignore")
