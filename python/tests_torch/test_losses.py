"""A rank that ends while the others are in a collective of torch or in a step: each process reports it at once."""

from __future__ import annotations

import pathlib
from typing import Any

import process_groups
import pytest
from host_jobs import Launcher

WITHIN = 5.0
"""Seconds from a rank's end to the other ranks' lines on a busy machine; half a second on an idle one."""

PROLOGUE = """
import io, json, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import levada
if not dist.is_initialized(): dist.init_process_group("gloo")
class Lines(io.TextIOBase):
    "Notes when the process writes that a rank has ended."
    def write(self, text):
        if text.startswith("levada: rank"): tell(line=text.strip(), at=time.monotonic())
        return sys.__stderr__.write(text)
sys.stderr, failing = Lines(), size - 1
def source(end=10**6):
    for number in range(end): yield {"x": torch.full((3,), number // size)}
def loop(feed):
    for batch in feed:
        number = int(batch["x"][0])
        if number == 3: reach_step()
        if number == 5: tell(next_step=True)
        if number == 3 or in_collective: collective()
        if number == 4 and rank == failing:
            until_told("next_step")
            return tell(failed=time.monotonic())
def run(*arguments, **options):
    try:
        loop(levada.Feed(*arguments, **options))
    except BaseException as error:
        cause = error.__cause__
        tell(error=type(error).__name__, cause=type(cause).__name__, why=str(cause), lost=getattr(cause, "rank", None))
in_collective = True
def collective(): dist.all_reduce(torch.ones(3))
def reach_step():
    "Notes that this rank is in the step. The failing rank ends once all others are."
    if rank != failing: return tell(in_step=True)
    until_told("in_step")
    fail()
def until_told(key):
    "Until each other rank has told that. A rank that ends closes the connections of torch, which makes the others raise."
    until = time.monotonic() + 30
    names = [os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{other}.jsonl") for other in range(size - 1)]
    while time.monotonic() < until and not all(os.path.exists(name) and f'"{key}"' in open(name).read() for name in names):
        time.sleep(0.02)
"""

ENDS = {
    "raises": ("tell(failed=time.monotonic()); raise ValueError('bad\\nsample')", "raised ValueError at step 4 (bad\\nsample)", 4),
    "exits": ("tell(failed=time.monotonic()); sys.exit(3)", "raised SystemExit at step 4 (3)", 4),
    "is killed": ("tell(failed=time.monotonic()); os.kill(os.getpid(), signal.SIGKILL)", "is lost", 4),
    "leaves": ("pass", "left its loop at step 5", 6),
}


def _script(end: str, run: str = "run(source(), group=job)", *, engine: str = "shm", settings: str = "") -> str:
    return (
        f"\njob = levada.join(dist.group.WORLD, engine={engine!r})\ndef fail(): {ENDS[end][0]}\n{settings}\n{run}\n"
        'if rank == failing: until_told("line")\nos._exit(0)\n'
    )


def _run(folder: pathlib.Path, script: str, size: int = 3) -> list[list[dict[str, Any]]]:
    started = process_groups.start(folder, size, PROLOGUE + script)
    outcomes = process_groups.finish(started, folder, within=90)
    return [outcome.told[0] for outcome in outcomes]


def _assert_reported(told: list[list[dict[str, Any]]], end: str) -> None:
    """Checks that each rank but the last has written one line, in time, that names the last rank and why it ended."""
    _, text, step = ENDS[end]
    failing = len(told) - 1
    (failed,) = [each["failed"] for each in told[failing] if "failed" in each]
    for rank, mine in enumerate(told[:failing]):
        lines = [each for each in mine if "line" in each]
        assert len(lines) == 1, (rank, told)
        assert lines[0]["line"].startswith(f"levada: rank {failing} ") and text in lines[0]["line"], told
        assert lines[0]["line"].endswith(f"; this rank ({rank}) is in step {step}"), told
        assert 0 <= lines[0]["at"] - failed < WITHIN, told
    assert not any("line" in each for each in told[failing]), told


@pytest.mark.parametrize("engine", ["shm", "c10d"])
@pytest.mark.parametrize("end", ENDS)
def test_ranks_in_a_collective_report_at_once_which_one_ended_and_why(tmp_path: pathlib.Path, end: str, engine: str) -> None:
    told = _run(tmp_path, _script(end, engine=engine))
    _assert_reported(told, end)
    for mine in told[:2]:
        (raised,) = [each for each in mine if "error" in each]
        assert raised["cause"] == "PeerLost" and raised["lost"] == 2 and ENDS[end][1] in raised["why"], told


@pytest.mark.parametrize("collective", ["dist.barrier()", "time.sleep(4)"])
@pytest.mark.parametrize("end", ["raises", "is killed"])
def test_ranks_in_a_barrier_or_a_long_step_report_at_once_which_one_ended(tmp_path: pathlib.Path, end: str, collective: str) -> None:
    settings = f"in_collective = False\ndef collective(): {collective}"
    _assert_reported(_run(tmp_path, _script(end, settings=settings)), end)


@pytest.mark.parametrize("end", ["raises", "leaves"])
def test_abort_ends_the_collective_and_its_exception_has_the_cause(tmp_path: pathlib.Path, end: str) -> None:
    script = _script(end, "run(source(), group=job, on_peer_lost='abort')").replace('until_told("line")', 'until_told("error")')
    told = _run(tmp_path, script)
    _assert_reported(told, end)
    for mine in told[:2]:
        (raised,) = [each for each in mine if "error" in each]
        assert raised["cause"] == "PeerLost" and raised["lost"] == 2 and ENDS[end][1] in raised["why"], told


def test_a_function_is_called_once_with_the_cause(tmp_path: pathlib.Path) -> None:
    called = "def called(lost): tell(called=[type(lost).__name__, lost.rank, threading.current_thread() is threading.main_thread()])"
    told = _run(tmp_path, _script("raises", "run(source(), group=job, on_peer_lost=called)", settings=called))
    _assert_reported(told, "raises")
    assert [[each["called"] for each in mine if "called" in each] for mine in told] == [[["PeerLost", 2, False]]] * 2 + [[]]


def test_several_feeds_report_one_cause_once(tmp_path: pathlib.Path) -> None:
    run = """
feeds = [levada.Feed(source(), group=job, on_peer_lost=called) for _ in range(3)]
def loop(feeds):
    for number, batches in enumerate(zip(*feeds)):
        if number == 3: reach_step()
        collective()
levada.Feed = lambda: feeds
run()
"""
    told = _run(tmp_path, _script("raises", run, settings="def called(lost): tell(called=True)"))
    _assert_reported(told, "raises")
    assert [len([each for each in mine if "called" in each]) for mine in told] == [1, 1, 0]


@pytest.mark.parametrize("end", ["break", "exhausted", "stop"])
def test_a_normal_end_is_not_reported_though_ranks_leave_one_after_another(tmp_path: pathlib.Path, end: str) -> None:
    script = f"""
job = levada.join(dist.group.WORLD)
feed = levada.Feed(source(12 if {end!r} == "exhausted" else 10**6), group=job)
for batch in feed:
    if {end!r} == "stop" and feed.step == 3 and rank == 0: feed.request_stop()
    if {end!r} == "break" and feed.step == 3:
        time.sleep(rank)
        break
time.sleep(size - rank)
dist.barrier()
tell(steps=feed.step)
"""
    told = _run(tmp_path, script)
    assert [list(each) for mine in told for each in mine] == [["steps"]] * 3, told


def test_the_watching_thread_ends_with_the_pass_and_holds_no_feed(tmp_path: pathlib.Path) -> None:
    script = """
import gc, weakref
job = levada.join(dist.group.WORLD)
def watching(): return [each.name for each in threading.enumerate() if each.name == "levada losses"]
feed = levada.Feed(source(), group=job)
for batch in feed:
    tell(watching=len(watching()))
    child = os.fork()
    if child == 0: os._exit(0 if not watching() else 1)
    tell(child=os.waitpid(child, 0)[1])
    break
gc.collect()
tell(after=len(watching()))
iterator = iter(feed)
next(iterator)
known = weakref.ref(feed)
del feed
gc.collect()
tell(is_alive=known() is not None, watching=len(watching()))
dist.barrier()
"""
    told = _run(tmp_path, script, size=2)
    assert told == [[{"watching": 1}, {"child": 0}, {"after": 0}, {"is_alive": False, "watching": 1}]] * 2


def test_on_peer_lost_accepts_two_words_or_a_function() -> None:
    import levada

    with pytest.raises(levada.InvalidArgument, match="on_peer_lost is 'print'; it must be one of report, abort, or a function"):
        levada.Feed([], on_peer_lost="print")


@pytest.mark.parametrize("end", ["raises", "exits", "is killed"])
def test_ranks_of_two_hosts_report_which_one_ended(launcher: Launcher, end: str) -> None:
    script = PROLOGUE + _script(end, engine="shm+c10d").replace('until_told("line")', "time.sleep(3)")
    job = launcher.start(2, script)
    _assert_reported([each.told for each in job.finish(90)], end)
