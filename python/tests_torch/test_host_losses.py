"""Ranks and hosts that are killed, cut off or stopped, in jobs of several hosts. Run by `script/check hosts`.

LEVADA_KILLS sets how often a rank is killed, LEVADA_FAULTS how often a host is cut off and a link cut for a while, each
at a random moment.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import hosts as several
import pytest
from host_jobs import Job, Launcher
from host_scripts import ENGINE, JOIN

KILLS = int(os.environ.get("LEVADA_KILLS", "4"))
FAULTS = int(os.environ.get("LEVADA_FAULTS", "1"))
WITHIN = 10.0
"""Seconds within which all ranks must learn of a loss on a busy machine; the median must be less than MEDIAN."""
MEDIAN = 1.0


@pytest.fixture(scope="module")
def seconds_to_notice(request: pytest.FixtureRequest) -> Iterator[list[float]]:
    seconds: list[float] = []
    yield seconds
    capture: Any = request.config.pluginmanager.get_plugin("capturemanager")
    if seconds:
        median, last = statistics.median(seconds), max(seconds)
        with capture.global_and_fixture_disabled():
            print(f"\nall ranks knew of a killed one after {median:.3f} s, at most {last:.3f} s, {len(seconds)} times")


WORK = {
    "feed": """
import itertools
def work(count):
    batches = ({"x": np.full(100_000, i)} for i in itertools.count())
    for batch in levada.Feed(batches, levada.Mesh(dp=2, tp=size // 2), group=job):
        count()
""",
    "exchange": """
from levada import exchange
def work(count):
    while True:
        store = exchange.Store()
        store.store(exchange.SampleBatch([str(rank)], {"tokens": [np.arange(200_000)]}))
        exchange.redistribute(store, {to: [str(of) for of in range(size)] for to in range(size)}, ["tokens"], group=job)
        count()
""",
    "reduce": """
def work(count):
    reduce = levada.ReduceScatter(group=job)
    while True:
        reduce(np.full(size * 50_000, 1.0)).wait()
        count()
""",
    "nothing": """
def work(count):
    over = threading.Event()
    batches = (i if i < 5 else over.wait(600) for i in range(6))
    try:
        for batch in levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job):
            count()
    finally:
        over.set()
""",
}


UNTIL_LOST = """
counted = 0
def count():
    global counted
    counted += 1
    if counted == 5: tell(works=True)
try:
    work(count)
except BaseException as error:
    tell(at=time.monotonic(), kind=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
"""


def expect_loss(
    hosts: several.Hosts, launcher: Launcher, job: Job, victims: set[int], since: float, within: float
) -> float:
    """Checks that every other rank learned of the loss of one of the victims. Returns the seconds until the last one
    did."""
    ended = job.finish(within + 30.0)
    seconds: list[float] = []
    for rank, each in enumerate(ended):
        if rank in victims:
            continue
        last = each.told[-1]
        assert each.status == 0, each.errors
        assert last.get("kind") == "PeerLost" and last["rank"] in victims, (rank, last, victims)
        seconds.append(float(last["at"]) - since)
    assert max(seconds) < within, seconds
    assert hosts.left(launcher.pids) == []
    return max(seconds)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_is_named_on_every_host(
    hosts: several.Hosts, launcher: Launcher, seconds_to_notice: list[float], number: int
) -> None:
    kinds = [*WORK]
    victim = number % 4
    moment = random.Random(number).uniform(0, 0.3)
    job = launcher.start([2, 2], JOIN + WORK[kinds[number // 4 % len(kinds)]] + UNTIL_LOST)
    job.wait_for("works", range(4))
    time.sleep(moment)  # a random moment of the ranks' work
    since = time.monotonic()
    os.kill(job.pids[victim], 9)
    seconds_to_notice.append(expect_loss(hosts, launcher, job, {victim}, since, WITHIN))


def test_half_of_the_killed_ranks_are_noticed_within_a_second(seconds_to_notice: list[float]) -> None:
    if not seconds_to_notice:
        pytest.skip("no rank has been killed in this run")
    assert statistics.median(seconds_to_notice) < MEDIAN, sorted(seconds_to_notice)


def test_a_host_whose_ranks_are_all_killed_is_noticed_on_the_other(hosts: several.Hosts, launcher: Launcher) -> None:
    for victims in ({0, 1}, {2, 3}):
        job = launcher.start([2, 2], JOIN + WORK["feed"] + UNTIL_LOST)
        job.wait_for("works", range(4))
        since = time.monotonic()
        for victim in victims:
            os.kill(job.pids[victim], 9)
        expect_loss(hosts, launcher, job, victims, since, WITHIN)


def expect_cut(
    hosts: several.Hosts,
    launcher: Launcher,
    kind: str,
    moment: float,
    environment: dict[str, str],
    silence: int,
    cut: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
) -> None:
    """Cuts a host off from a job, `moment` seconds into its work. Checks that every rank learns of the loss of the
    other host."""
    job = launcher.start([2, 2], JOIN + WORK[kind] + UNTIL_LOST, environment=environment)
    job.wait_for("works", range(4))
    time.sleep(moment)
    since = time.monotonic()
    with (cut or hosts[1].is_cut)():
        ended = job.finish(60.0)
    for rank, each in enumerate(ended):
        last = each.told[-1]
        far, ranks = (hosts[1], "2, 3") if rank < 2 else (hosts[0], "0, 1")
        assert each.status == 0 and last.get("kind") == "PeerLost" and str(last["rank"]) in ranks, (rank, each)
        near = hosts[0] if rank < 2 else hosts[1]
        lost = rf"is lost.*: its host {far.address} \(ranks {ranks}\) has not answered host {near.address} for ([0-9.]+) s"
        found = re.search(lost, str(last["text"]))
        assert found and silence <= float(found[1]) < silence + WITHIN, last
        assert silence <= float(last["at"]) - since < silence + WITHIN
    assert hosts.left(launcher.pids, within=60.0) == []


@pytest.mark.parametrize("number", range(max(FAULTS, len(WORK))))
def test_a_host_that_is_cut_off_is_named_with_its_ranks_on_both_sides(
    hosts: several.Hosts, launcher: Launcher, number: int
) -> None:
    kind = list(WORK)[number % len(WORK)]
    expect_cut(hosts, launcher, kind, random.Random(number).uniform(0, 0.3), {"LEVADA_SILENCE": "3"}, 3)


def test_a_host_that_is_cut_off_is_lost_after_ten_seconds_by_default(
    hosts: several.Hosts, launcher: Launcher
) -> None:
    expect_cut(hosts, launcher, "nothing", 0.0, {}, 10)


def test_hosts_with_dead_interfaces_lose_each_other(hosts: several.Hosts, launcher: Launcher) -> None:
    @contextlib.contextmanager
    def stuck() -> Iterator[None]:
        with hosts[0].takes_no_packets(), hosts[1].takes_no_packets():
            yield

    expect_cut(hosts, launcher, "feed", 0.1, {"LEVADA_SILENCE": "3"}, 3, stuck)


@pytest.mark.parametrize("deaf", [0, 1])
def test_a_host_that_no_longer_hears_the_other_is_named_on_both_sides(
    hosts: several.Hosts, launcher: Launcher, deaf: int
) -> None:
    job = launcher.start([2, 2], JOIN + WORK["feed"] + UNTIL_LOST, environment={"LEVADA_SILENCE": "3"})
    job.wait_for("works", range(4))
    with hosts[1 - deaf].is_not_heard_by(hosts[deaf]):
        ended = job.finish(60.0)
    for rank, each in enumerate(ended):
        last = each.told[-1]
        far, ranks = (hosts[1], "2, 3") if rank < 2 else (hosts[0], "0, 1")
        assert each.status == 0 and last.get("kind") == "PeerLost" and str(last["rank"]) in ranks, (rank, each)
        how = "has not answered host|no longer receives what host|answers the probes of host"
        assert re.search(rf"is lost.*: its host {far.address} \(ranks {ranks}\) ({how})", str(last["text"])), last
    assert hosts.left(launcher.pids, within=60.0) == []


UNTIL_STOPPED = """
import itertools
batches = ({"x": np.full(100_000, i)} for i in itertools.count())
feed = levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job)
counted = 0
for i, batch in enumerate(feed):
    if not (batch["x"] == i).all(): raise AssertionError(f"step {i} has {batch['x']}")
    counted += 1
    if counted == 5: tell(works=True)
    if rank == 0 and os.path.exists(os.environ["LEVADA_TEST_END"]): feed.request_stop()
tell(ended=counted, cause=feed.end.cause)
"""


@pytest.mark.parametrize("number", range(max(FAULTS, 2)))
def test_a_link_restored_within_the_silence_limit_ends_no_job(
    hosts: several.Hosts, launcher: Launcher, tmp_path: pathlib.Path, number: int
) -> None:
    end, silence = tmp_path / "end", (3, 6)[number % 2]
    environment = {"LEVADA_SILENCE": str(silence), "LEVADA_TEST_END": str(end)}
    job = launcher.start([2, 2], JOIN + UNTIL_STOPPED, environment=environment)
    job.wait_for("works", range(4))
    time.sleep(random.Random(number).uniform(0, 1))  # a random moment between two probes
    with hosts[1].is_cut():
        time.sleep(silence - 1)
    end.touch()
    told = job.succeed()
    assert {mine[-1]["cause"] for mine in told} == {"stopped"} and len({mine[-1]["ended"] for mine in told}) == 1


def test_a_killed_rank_is_noticed_while_a_child_that_it_forked_lives_on(
    hosts: several.Hosts, launcher: Launcher
) -> None:
    forked = """
if rank == 2:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    tell(child=child)
"""
    job = launcher.start([2, 2], JOIN + forked + WORK["nothing"] + UNTIL_LOST)
    job.wait_for("works", range(4))
    child = job.told(2)[0]["child"]
    since = time.monotonic()
    os.kill(job.pids[2], signal.SIGKILL)
    try:
        job.wait_for("kind", [0, 1, 3], WITHIN)
    finally:
        os.kill(child, signal.SIGKILL)
    expect_loss(hosts, launcher, job, {2}, since, WITHIN)


@pytest.mark.skipif(ENGINE == "c10d", reason="nobody forwards")
def test_ctrl_c_ends_the_wait_of_a_leaving_forwarder_and_its_group(launcher: Launcher) -> None:
    script = JOIN + """
reduce = levada.ReduceScatter(group=job)
reduce(np.zeros(size * 1000)).wait()  # its channels stay open
if rank == 2:
    reduce.close()
    began = time.monotonic()
    tell(leaves=True)
    job.leave()
    tell(left=time.monotonic() - began)
else:
    while not os.path.exists(os.environ["LEVADA_TEST_GO"]): time.sleep(0.01)
    try:
        reduce(np.zeros(size)).wait()
    except levada.EngineError as error:
        tell(text=str(error))
"""
    with tempfile.TemporaryDirectory() as folder:
        go = pathlib.Path(folder) / "go"
        job = launcher.start([2, 2], script, environment={"LEVADA_TEST_GO": str(go)})
        job.wait_for("leaves", [2])
        time.sleep(1)
        os.kill(job.pids[2], signal.SIGINT)
        job.wait_for("left", [2], WITHIN)
        go.touch()
        ended = job.finish()
    assert ended[2].told[1]["left"] > 0.9 and "KeyboardInterrupt" in ended[2].errors
    for rank in (0, 1, 3):
        assert "it was interrupted while it was leaving" in str(ended[rank].told[0]["text"]), ended[rank]


def test_a_stopped_rank_is_awaited(hosts: several.Hosts, launcher: Launcher) -> None:
    script = JOIN + """
import itertools
batches = ({"x": np.full(1_000_000, i)} for i in itertools.count())
for i, batch in enumerate(levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job)):
    if i == 5: tell(works=True)
    if batch["x"][-1] != i: raise AssertionError(f"step {i} has {batch['x']}")
    if os.path.exists(os.environ["LEVADA_TEST_END"]): break
tell(ended=True)
"""
    with tempfile.TemporaryDirectory() as folder:
        end = pathlib.Path(folder) / "end"
        job = launcher.start([2, 2], script, environment={"LEVADA_SILENCE": "3", "LEVADA_TEST_END": str(end)})
        job.wait_for("works", range(4))
        os.kill(job.pids[2], signal.SIGSTOP)
        time.sleep(6)  # twice as long as a host may be silent
        os.kill(job.pids[2], signal.SIGCONT)
        end.touch()
        ended = job.finish()
    assert not any("has not answered" in each.errors for each in ended), ended
