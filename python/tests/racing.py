"""Programs in which several threads use one object concurrently."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

TIMES = int(os.environ.get("LEVADA_THREADS", "1"))
"""Number of runs of each program."""

PROLOGUE = """
import collections, itertools, multiprocessing, sys, threading, time
import numpy as np
import levada
from levada import exchange

def together(*works):
    # Runs each on a separate thread. Returns what they return or raise.
    outcomes = [None] * len(works)
    barrier = threading.Barrier(len(works))
    def run(at, work):
        barrier.wait()
        try:
            outcomes[at] = work()
        except Exception as error:
            outcomes[at] = error
    threads = [threading.Thread(target=run, args=(at, work), daemon=True) for at, work in enumerate(works)]
    for thread in threads: thread.start()
    for thread in threads: thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return outcomes

def same(item):
    return item

def no(item):
    return False

def is_busy(outcome):
    return isinstance(outcome, levada.InvalidArgument) and "under way on another thread" in str(outcome)

if __name__ == "__main__":
"""


def run(folder: pathlib.Path, body: str, ranks: int = 1) -> None:
    """Runs the program in one process, or as `ranks` ranks of a job."""
    path = folder / "program.py"
    path.write_text(PROLOGUE + textwrap.indent(textwrap.dedent(body), "    "))
    launcher = [] if ranks == 1 else ["-m", "levada", "run", "-n", str(ranks)]
    for _ in range(TIMES):
        ran = subprocess.run([sys.executable, *launcher, str(path)], capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, f"{ran.returncode}: {ran.stdout}{ran.stderr}"
