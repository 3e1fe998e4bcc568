"""Runs a piece of a program as the ranks of a job, in separate processes."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

PROLOGUE = """
import dataclasses, json, os, signal, sys, time
import numpy as np
import levada
rank = levada.rank()
def tell(**what):
    with open(os.path.join({folder!r}, f"{{rank}}.jsonl"), "a") as file:
        file.write(json.dumps(what, default=dataclasses.asdict) + "\\n")
def barrier(name):
    "Waits until every rank has called it with this name. Does not use the job."
    path = os.path.join({folder!r}, name)
    open(f"{{path}}.{{rank}}", "w").close()
    while not all(os.path.exists(f"{{path}}.{{other}}") for other in range(levada.world_size())): time.sleep(0.01)
"""


BLOCKS = """
import builtins
blocks = {blocks!r}
_not_run = set(blocks)
def exec(block, names=None, *, shown=None):
    "Runs what a page shows, or that changed. At the end every block of the page has to have been run."
    _not_run.discard(shown or block)
    builtins.exec(block, globals() if names is None else names)
"""
BLOCKS_END = "\nassert not _not_run, f'blocks of this page are run by nothing: {_not_run}'\n"


class Outcome(NamedTuple):
    status: int
    errors: str
    told: list[list[dict[str, Any]]]
    """Everything that each rank reported with tell(), by rank, in order."""


def start(folder: pathlib.Path, ranks: int, body: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(PROLOGUE.format(folder=str(folder)) + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-m", "levada", "run", "-n", str(ranks), str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str], folder: pathlib.Path, ranks: int, within: float = 100) -> Outcome:
    try:
        _, errors = job.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        job.kill()  # and its ranks with it
        _, errors = job.communicate()
        raise AssertionError(f"the ranks did not end within {within} s: {errors}") from None
    return Outcome(job.returncode, errors, [told_by(folder, rank) for rank in range(ranks)])


def told_by(folder: pathlib.Path, rank: int) -> list[dict[str, Any]]:
    file = folder / f"{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(folder: pathlib.Path, ranks: int, body: str, within: float = 100) -> Outcome:
    return finish(start(folder, ranks, body), folder, ranks, within)


def succeed(folder: pathlib.Path, ranks: int, body: str) -> list[list[dict[str, Any]]]:
    outcome = run(folder, ranks, body)
    assert outcome.status == 0, outcome.errors
    return outcome.told


def free_ports() -> int:
    """Returns the first of two adjacent free ports."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


PROMPT, CAP = 1.0, 5.0
"""Limits in seconds from a rank's failure to the error on the other ranks: PROMPT for the median of several runs, CAP
for each run, since the machine may be busy."""


def run_without_launcher(folder: pathlib.Path, ranks: int, body: str, within: float = 60) -> list[list[dict[str, Any]]]:
    """Runs ranks without a launcher, so that only the other ranks can notice a rank's end. Returns each rank's
    reports."""
    script = folder / "script.py"
    script.write_text(PROLOGUE.format(folder=str(folder)) + textwrap.dedent(body))
    job = {"LEVADA_WORLD_SIZE": str(ranks), "LEVADA_RENDEZVOUS": str(folder)}
    environments = [os.environ | job | {"LEVADA_RANK": str(rank)} for rank in range(ranks)]
    processes = [subprocess.Popen([sys.executable, str(script)], env=environment) for environment in environments]
    try:
        for process in processes:
            process.wait(timeout=within)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [told_by(folder, rank) for rank in range(ranks)]


def assert_prompt(told: list[list[dict[str, Any]]], failing: int) -> float:
    """Asserts that every other rank's first report has a `heard` at most CAP seconds after the failing rank's `failed`.
    Both are times of time.monotonic(), which all processes of a host share. Returns the longest delay."""
    (failed,) = [each["failed"] for each in told[failing] if "failed" in each]
    others = told[:failing] + told[failing + 1 :]
    assert all(mine and 0 <= mine[0]["heard"] - failed < CAP for mine in others), (failed, others)
    return max(float(mine[0]["heard"]) - failed for mine in others)


def assert_prompt_in_most_runs(delays: list[float]) -> None:
    """Asserts that the median of the delays of assert_prompt() is less than PROMPT."""
    assert len(delays) >= 3 and statistics.median(delays) < PROMPT, delays
