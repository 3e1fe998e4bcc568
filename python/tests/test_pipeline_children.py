"""Processes that the stages of a pipeline start, such as the workers of a loader: none outlives the stages' process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from test_pipeline_faults import is_gone

PROGRAM = """
import contextlib, multiprocessing, os, signal, subprocess, sys, time
import levada
def sleep():
    time.sleep(300)
def command():
    return subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid
def process():
    child = multiprocessing.get_context("spawn").Process(target=sleep, daemon=True)
    child.start()
    return child.pid
def items():
    child = {child}()
    for number in range(10**9): yield child, os.getpid(), number
def same(item):
    return item
def fail(item):
    if item[2] == 100: raise ValueError("item 100")
    return item
def slow():
    yield command(), os.getpid(), 0
    time.sleep(300)
if __name__ == "__main__":
    run = levada.Pipeline({source}).dispatch().map({stage}).run(1, context="{context}", timeout={timeout})
    taken = iter(run)
    child, dispatcher, _ = next(taken)
    print(child, flush=True)
    {then}
    print("end", flush=True)
    sys.stdin.read()
"""
REST = "with contextlib.suppress({}): [None for _ in taken]"


def program(
    tmp_path: pathlib.Path, then: str, child: str, context: str, source: str, stage: str, timeout: int
) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(
        PROGRAM.format(then=then, child=child, context=context, source=source, stage=stage, timeout=timeout)
    )
    return subprocess.Popen(
        [sys.executable, "-Wignore", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def expect_no_child(ran: subprocess.Popen[str], *, ends: bool = False) -> None:
    """Expects that the child ends while the program still runs, or as soon as it `ends`."""
    assert ran.stdout is not None
    child = int(ran.stdout.readline())
    try:
        assert ran.stdout.readline() == ("" if ends else "end\n")
        assert is_gone(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        ran.communicate(timeout=60)


@pytest.mark.parametrize(
    ("then", "stage"),
    [
        ("run.close()", "same"),
        ("del run, taken", "same"),
        (REST.format("ValueError") + "\n    run.close()", "fail"),
        ("os.kill(dispatcher, signal.SIGKILL)\n    " + REST.format("levada.PeerLost"), "same"),
    ],
    ids=["close", "drop", "exception", "kill of its parent"],
)
def test_a_child_of_a_source_ends_with_the_run(tmp_path: pathlib.Path, then: str, stage: str) -> None:
    expect_no_child(program(tmp_path, then, "command", "forkserver", "items", stage, 60))


def test_a_child_of_a_source_that_hangs_ends_after_the_timeout(tmp_path: pathlib.Path) -> None:
    then = REST.format("levada.Timeout") + "\n    run.close()"
    expect_no_child(program(tmp_path, then, "command", "forkserver", "slow", "same", 1))


@pytest.mark.parametrize("context", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("child", ["command", "process"])
def test_a_child_of_a_source_dies_with_a_killed_program(tmp_path: pathlib.Path, child: str, context: str) -> None:
    then = "os.kill(os.getpid(), signal.SIGKILL)"
    expect_no_child(program(tmp_path, then, child, context, "items", "same", 60), ends=True)


def test_a_child_of_a_source_ends_with_a_program_that_does_not_close_its_run(tmp_path: pathlib.Path) -> None:
    expect_no_child(program(tmp_path, "sys.exit()", "command", "spawn", "items", "same", 60), ends=True)
