"""Runs a piece of a program as the ranks of a job, in processes of their own."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

PROLOGUE = """
import json, os, signal, sys, time
import numpy as np
import levada
rank = levada.rank()
def tell(**what):
    with open(os.path.join({folder!r}, f"{{rank}}.jsonl"), "a") as file:
        file.write(json.dumps(what) + "\\n")
"""


class Outcome(NamedTuple):
    status: int
    errors: str
    told: list[list[dict[str, Any]]]
    """By rank, what it told, in order."""


def start(folder: pathlib.Path, ranks: int, body: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(PROLOGUE.format(folder=str(folder)) + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-m", "levada", "run", "-n", str(ranks), str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str], folder: pathlib.Path, ranks: int, within: float = 60) -> Outcome:
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


def run(folder: pathlib.Path, ranks: int, body: str, within: float = 60) -> Outcome:
    return finish(start(folder, ranks, body), folder, ranks, within)


def succeed(folder: pathlib.Path, ranks: int, body: str) -> list[list[dict[str, Any]]]:
    outcome = run(folder, ranks, body)
    assert outcome.status == 0, outcome.errors
    return outcome.told


