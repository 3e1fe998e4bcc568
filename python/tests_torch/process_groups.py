"""Runs a piece of a program on the ranks of a process group, in processes that nobody has told of a job."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

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
    return [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(size)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(size)
    ]


def finish(started: list[subprocess.Popen[str]], folder: pathlib.Path, within: float = 90) -> list[ranks.Outcome]:
    """Each rank's own."""
    try:
        errors = [process.communicate(timeout=within)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        ranks.Outcome(process.returncode, error, [ranks.told_by(folder, rank)])
        for rank, (process, error) in enumerate(zip(started, errors))
    ]


def succeed(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, object]]]:
    outcomes = finish(start(folder, size, body), folder)
    assert [outcome.status for outcome in outcomes] == [0] * size, "\n".join(each.errors for each in outcomes)
    return [outcome.told[0] for outcome in outcomes]
