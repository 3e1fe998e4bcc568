"""Ranks of a job, as processes that stay alive and execute one run after another."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

TIMEOUT = 120.0
"""Seconds after which a run counts as hung."""


def leaf_of(values: Any) -> Any:
    """Returns a value as JSON: arrays as dtype, shape and bytes, or a digest of many bytes; other values as text."""
    if not isinstance(values, np.ndarray):
        return repr(values)
    content = np.ascontiguousarray(values).tobytes()
    text = content.hex() if len(content) <= 64 else hashlib.sha1(content).hexdigest()
    return [values.dtype.str, list(values.shape), text]


class Ranks:
    """Starts the ranks on first use, and restarts them if a run ended one of them or their job."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind, size
        self._job: subprocess.Popen[bytes] | None = None
        self._files: list[Any] = []

    def outcomes(self, run: dict[str, Any]) -> list[Any] | str:
        """Returns the result of `perform` of the kind's module on each of the first run["ranks"] ranks, or how the job
        ended."""
        if self._job is None:
            self._start()
        assert self._job is not None
        files = self._files[: run["ranks"]]
        line = json.dumps(run) + "\n"
        try:
            for file in files:
                file.write(line)
                file.flush()
            lines = [file.readline() for file in files]
        except TimeoutError:
            self._job.kill()  # and its ranks with it
            lines = [""]
        except OSError:
            lines = [""]
        if not all(lines):
            status = self._job.wait()
            self.close()
            return f"the ranks ended with status {status}, after {TIMEOUT:g} s at most"
        return [json.loads(line) for line in lines]

    def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
            path = str(pathlib.Path(folder) / "ranks")
            listening.bind(path)
            listening.listen()
            listening.settimeout(TIMEOUT)
            # A rank has no main file, which each process of a pipeline would import again.
            rank = [sys.executable, "-c", "import ranks; ranks.main()", self._kind, path]
            folders = [str(pathlib.Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            # More threads of NumPy would only slow down the start of each process.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "levada", "run", "-n", str(self._size), *rank]
            self._job = subprocess.Popen(command, env=environment)
            connections = [listening.accept()[0] for _ in range(self._size)]
        for connection in connections:
            connection.settimeout(TIMEOUT)
        files = [connection.makefile("rw") for connection in connections]
        self._files = [file for _, file in sorted((int(file.readline()), file) for file in files)]

    def close(self) -> None:
        """Ends the ranks by closing their input."""
        for file in self._files:
            try:
                file.close()
            except OSError:
                pass
        if self._job is not None:
            try:
                self._job.wait(5)
            except subprocess.TimeoutExpired:
                self._job.kill()
                self._job.wait()
        self._job, self._files = None, []


def main() -> None:
    """Runs one of the ranks."""
    import levada

    kind, path = sys.argv[1:]
    perform = importlib.import_module(kind).perform
    job = levada.join()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with connection.makefile("rw") as file:
        print(job.rank, file=file, flush=True)
        for line in file:
            run = json.loads(line)
            group = job.subgroup(list(range(run["ranks"])), "run")
            print(json.dumps(perform(run, group)), file=file, flush=True)
