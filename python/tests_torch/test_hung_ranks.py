"""A rank that hangs is named, and the others leave. `script/check hosts` runs all cases.

LEVADA_FAULTS sets how often a rank is made to hang, in each way, at a random moment; LEVADA_SOAK_SECONDS for how long
ranks are stopped and links cut, each for less time than ends a job.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from typing import Any

import hosts as several
import pytest
from host_jobs import Job, Launcher

IS_WHOLE = os.environ.get("LEVADA_HOSTS") == "required"
"""Whether every rank hangs on every layout; otherwise only one does, behind a forwarder."""
TIMEOUT = 4
LEAVES = 30.0
"""Seconds after the first error within which all other ranks must have exited."""

JOIN = """
import ctypes, itertools, os, signal, threading, time
import numpy as np
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
job = levada.join(timeout=60)
hang_at, how = int(os.environ.get("HANG_AT", "-1")), os.environ.get("HANG_HOW", "")
counted = 0
def count():
    global counted
    counted += 1
    if counted == 5: tell(works=True)
    if rank == int(os.environ["HANG_RANK"]) and counted == hang_at:
        tell(hangs=True)
        if how == "sleeps": time.sleep(10_000)
        if how == "stops itself": os.kill(os.getpid(), signal.SIGSTOP)
        if how == "holds the GIL": ctypes.PyDLL(None).sleep(10_000)
"""

UNTIL_ERROR = """
try:
    work()
except levada.Error as error:
    tell(at=time.monotonic(), kind=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
"""

WORK = {
    "feed": f"""
def work():
    batches = ({{"x": np.full(100_000, i)}} for i in itertools.count())
    for batch in levada.Feed(batches, levada.Mesh(tp=size), group=job, timeout={TIMEOUT}):
        count()
        time.sleep(0.005)
""",
    "exchange": f"""
from levada import exchange
def work():
    while True:
        store = exchange.Store()
        store.store(exchange.SampleBatch([str(rank)], {{"tokens": [np.arange(50_000)]}}))
        wants = {{to: [str(of) for of in range(size)] for to in range(size)}}
        exchange.redistribute(store, wants, ["tokens"], group=job, timeout={TIMEOUT})
        count()
""",
    "reduce": f"""
def work():
    reduce = levada.ReduceScatter(group=job, timeout={TIMEOUT})
    while True:
        reduce(np.full(size * 50_000, 1.0)).wait()
        count()
""",
    "pipeline": f"""
def work():
    ended = levada.Pipeline(range(10_000_000)).shard().map(lambda n: 2 * n).fullsync()
    for item in ended.run(0, seed=7, group=job, timeout={TIMEOUT}):
        count()
""",
    "feed beside other groups": f"""
def work():
    others = [levada.join(dist.new_group()) for _ in range(3)]
    for other in others:
        with levada.ReduceScatter(group=other, timeout={TIMEOUT}) as reduce:
            reduce(np.full(size * 100, 1.0)).wait()
    batches = ({{"x": np.full(2000, i)}} for i in itertools.count())
    for batch in levada.Feed(batches, levada.Mesh(tp=size), group=job, timeout={TIMEOUT}):
        count()
        time.sleep(0.005)
""",
}


IN_FEEDS = [*itertools.product([[2, 2], [4, 0], [3, 1]], range(4))] if IS_WHOLE else [([2, 2], 3)]
"""The layouts, and the rank that hangs in a feed."""
IN_OPERATIONS = [
    (kind, layout, hung)
    for layout, hung in (itertools.product([[2, 2], [4, 0]], [0, 2, 3]) if IS_WHOLE else [([2, 2], 3)])
    for kind in WORK
    if kind != "feed"
]
FAULTS = int(os.environ.get("LEVADA_FAULTS", "1"))


def errors_without(job: Job, hung: int) -> dict[int, dict[str, Any]]:
    """Waits until all other ranks have exited. Returns the error that each of them raised, by rank."""
    others = [rank for rank in range(len(job.pids)) if rank != hung]
    job.wait_for("kind", others[:1], TIMEOUT + 60.0)
    until = time.monotonic() + LEAVES
    while not all(job.has_ended(rank) for rank in others) and time.monotonic() < until:
        time.sleep(0.05)
    late = [rank for rank in others if not job.has_ended(rank)]
    job.kill()
    ended = job.finish(30)
    told = {rank: next((each for each in ended[rank].told if "kind" in each), {}) for rank in others}
    assert late == [], (late, told, [each.errors for each in ended])
    return told


def expect_named(told: dict[int, dict[str, Any]], hung: int) -> None:
    """Checks that every rank's error is a Timeout, or quotes another rank's, and says what the hung rank did last."""
    for rank, each in told.items():
        text = str(each["text"])
        assert each["kind"] in ("Timeout", "PeerLost") and "Timeout" in f"{each['kind']}: {text}", (rank, each)
        assert f"; rank {hung}: " in text, (rank, each)
        assert "has posted nothing" not in text, (rank, each)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["stops", "sleeps", "holds the GIL"])
@pytest.mark.parametrize("number", range(max(FAULTS, len(IN_FEEDS))))
def test_a_rank_that_hangs_in_a_feed_is_named_and_the_others_leave(launcher: Launcher, how: str, number: int) -> None:
    ranks, hung = IN_FEEDS[number % len(IN_FEEDS)]
    moment = random.Random(number)
    environment = {"HANG_RANK": str(hung), "HANG_HOW": how}
    if how != "stops":
        environment["HANG_AT"] = str(moment.randrange(6, 100))
    job = launcher.start(ranks, JOIN + WORK["feed"] + UNTIL_ERROR, environment=environment)
    job.wait_for("works", range(4))
    if how == "stops":
        time.sleep(moment.uniform(0, 0.5))
        os.kill(job.pids[hung], signal.SIGSTOP)
    expect_named(errors_without(job, hung), hung)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", range(max(FAULTS, len(IN_OPERATIONS))))
def test_the_others_leave_a_rank_that_hangs_in_an_operation(launcher: Launcher, number: int) -> None:
    kind, ranks, hung = IN_OPERATIONS[number % len(IN_OPERATIONS)]
    job = launcher.start(ranks, JOIN + WORK[kind] + UNTIL_ERROR, environment={"HANG_RANK": str(hung)})
    job.wait_for("works", range(4))
    time.sleep(random.Random(number).uniform(0, 0.5))
    os.kill(job.pids[hung], signal.SIGSTOP)
    for rank, each in errors_without(job, hung).items():
        assert each["kind"] in ("Timeout", "PeerLost", "EngineError"), (rank, each)
        assert "Timeout" in f"{each['kind']}: {each['text']}" or "waited" in each["text"], (rank, each)
        assert f"; rank {hung}: " in each["text"] and "has posted nothing" not in each["text"], (kind, rank, each)


OWN_COLLECTIVE = f"""
import datetime, torch
def work():
    gradients = dist.new_group(timeout=datetime.timedelta(seconds={TIMEOUT}))
    batches = ({{"x": np.full(100_000, i)}} for i in itertools.count())
    for batch in levada.Feed(batches, levada.Mesh(tp=size), group=job, timeout={TIMEOUT}):
        count()
        dist.all_reduce(torch.ones(1), group=gradients)
try:
    work()
except Exception as error:
    tell(kind=type(error).__name__, text=str(error))
    raise
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("hung", range(4) if IS_WHOLE else [3])
def test_ranks_whose_own_collective_fails_leave_the_rank_that_hangs(launcher: Launcher, hung: int) -> None:
    environment = {"HANG_RANK": str(hung), "HANG_AT": "20", "HANG_HOW": "stops itself"}
    job = launcher.start([2, 2], JOIN + OWN_COLLECTIVE, environment=environment)
    assert {each["kind"] for each in errors_without(job, hung).values()} <= {"RuntimeError", "PeerLost", "Timeout"}


@pytest.mark.timeout(180)
def test_a_path_that_loses_large_packets_is_named(hosts: several.Hosts, launcher: Launcher) -> None:
    environment = {"HANG_RANK": "-1", "LEVADA_SILENCE": "3"}
    script = JOIN + WORK["feed"].replace(f"timeout={TIMEOUT}", "timeout=60") + UNTIL_ERROR
    job = launcher.start([2, 2], script, environment=environment)
    job.wait_for("works", range(4))
    with hosts.lose_large_packets():
        ended = job.finish(60.0)
    texts = [str(each.told[-1]["text"]) for each in ended]
    assert all(each.told[-1]["kind"] == "PeerLost" for each in ended), ended
    assert all(each.status >= 0 for each in ended), ended  # no thread of a transport outlives the interpreter
    assert any("has taken no data from it for 3 s: is the MTU the same on the way?" in text for text in texts), texts


def test_timeouts_that_differ_between_ranks_are_refused_at_the_start(launcher: Launcher) -> None:
    script = JOIN + """
try:
    for batch in levada.Feed(range(8), group=job, timeout=7 if rank == 1 else 60): pass
except levada.InvalidArgument as error:
    tell(text=str(error))
"""
    for mine in launcher.start([1, 1], script, environment={"HANG_RANK": "-1"}).succeed():
        assert "timeout: rank 1 has '7.0 s', rank 0 has '60.0 s'" in mine[0]["text"], mine


SOAK_SECONDS = float(os.environ.get("LEVADA_SOAK_SECONDS", "20"))
SILENCE = 6

SOAK = """
def item(i):
    random = np.random.default_rng(i)
    return {"x": random.integers(0, 1 << 30, size=int(random.integers(1, 200_000)), dtype=np.int32), "i": i}
def items():
    for i in itertools.count():
        if time.time() > float(os.environ["SOAK_UNTIL"]): return
        yield item(i)
steps = 0
for batch in levada.Feed(items(), mesh=levada.Mesh(dp=2, tp=2), group=job, timeout=60):
    i = 2 * steps + rank // 2
    if batch["i"] != i or not np.array_equal(batch["x"], item(i)["x"]): raise AssertionError(f"step {steps} has {batch}")
    steps += 1
    if steps == 5: tell(works=True)
    time.sleep(0.03)
tell(steps=steps)
"""


@pytest.mark.timeout(int(SOAK_SECONDS) + 180)
def test_ranks_that_are_stopped_and_links_that_are_cut_for_a_while_change_no_batch(
    hosts: several.Hosts, launcher: Launcher
) -> None:
    moment, until = random.Random(7), time.time() + SOAK_SECONDS
    environment = {"HANG_RANK": "-1", "SOAK_UNTIL": str(until), "LEVADA_SILENCE": str(SILENCE)}
    job = launcher.start([2, 2], JOIN + SOAK, environment=environment)
    job.wait_for("works", range(4))
    while time.time() < until - 2 * SILENCE:
        if moment.random() < 0.7:
            stopped = moment.sample(range(4), moment.choice([1, 1, 2]))
            for rank in stopped:
                os.kill(job.pids[rank], signal.SIGSTOP)
            time.sleep(moment.uniform(0.5, 3))
            for rank in stopped:
                os.kill(job.pids[rank], signal.SIGCONT)
        else:
            with hosts[moment.randrange(2)].is_cut():
                time.sleep(moment.uniform(0.5, SILENCE))
        time.sleep(moment.uniform(0.5, 3))
    told = job.succeed(120.0)
    assert len({mine[-1]["steps"] for mine in told}) == 1 and told[0][-1]["steps"] > 5, told
