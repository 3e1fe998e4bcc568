"""Runs a piece of a program on the ranks of a process group, in processes without a job's environment variables."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap
import time

import ranks

PROLOGUE = """
rank, size = int(sys.argv[1]), int(sys.argv[2])
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=size)
"""


def start(folder: pathlib.Path, size: int, body: str) -> list[subprocess.Popen[str]]:
    script = folder / "script.py"
    script.write_text((ranks.PROLOGUE + PROLOGUE).format(folder=str(folder)) + textwrap.dedent(body))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(size):
        with (folder / f"errors.{rank}").open("w") as errors:
            command = [sys.executable, str(script), str(rank), str(size)]
            started.append(subprocess.Popen(command, stderr=errors, text=True, env=environment))
    return started


def finish(started: list[subprocess.Popen[str]], folder: pathlib.Path, within: float = 100) -> list[ranks.Outcome]:
    """Returns each rank's outcome. Kills ranks that have not ended `within` seconds, which must be less than pytest's
    timeout, since that does not show the ranks' standard error."""
    deadline = time.monotonic() + within
    try:
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
    finally:
        for process in started:
            process.kill()
    return [
        ranks.Outcome(process.wait(), (folder / f"errors.{rank}").read_text(), [ranks.told_by(folder, rank)])
        for rank, process in enumerate(started)
    ]


def succeed(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, object]]]:
    outcomes = finish(start(folder, size, body), folder)
    assert [outcome.status for outcome in outcomes] == [0] * size, "\n".join(each.errors for each in outcomes)
    return [outcome.told[0] for outcome in outcomes]
