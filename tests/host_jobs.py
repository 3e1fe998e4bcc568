"""Jobs on simulated hosts, whose ranks are forked by a launcher on each host.

Run as a program in a host, this file is the launcher of that host's ranks; see Launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from hosts import SPAWN_GRACE, Host, Hosts

_FOLDER = "levada-hosts-"


class Ended(NamedTuple):
    """How a rank ended."""

    status: int
    """As in subprocess: -9 if it was killed."""
    errors: str
    told: list[dict[str, Any]]
    """The arguments of the rank's calls of tell(), in order."""


class Job:
    """Ranks that a Launcher has started."""

    def __init__(self, pids: list[int], folder: pathlib.Path, launchers: list[_Forker]) -> None:
        self.pids = pids
        """Process ids, by rank."""
        self._folder = folder
        self._launchers = launchers

    def told(self, rank: int) -> list[dict[str, Any]]:
        """Returns what a rank has reported by tell() so far."""
        file = self._folder / f"{rank}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for(self, key: str, ranks: Sequence[int], within: float = 60.0) -> None:
        """Waits until each of these ranks has reported `key`."""
        until = time.monotonic() + within
        while not all(any(key in each for each in self.told(rank)) for rank in ranks):
            if time.monotonic() > until:
                self.kill()
                raise AssertionError(f"ranks {list(ranks)} have not told {key} within {within} s: {self.finish(10)}")
            time.sleep(0.01)

    def has_ended(self, rank: int) -> bool:
        """Returns whether a rank's process has ended."""
        try:
            state = pathlib.Path(f"/proc/{self.pids[rank]}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"

    def kill(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def write_stacks(self) -> None:
        """Makes the running ranks write their threads' stacks to their standard error."""
        for rank, pid in enumerate(self.pids):
            if not self.has_ended(rank):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)

    def finish(self, within: float = 60.0) -> list[Ended]:
        """Returns how each rank ended, by rank. After `within` seconds, kills the remaining ranks and raises
        AssertionError with their stacks."""
        until = time.monotonic() + within
        statuses: dict[int, int] = {}
        is_late = False
        for launcher in self._launchers:
            ended = launcher.wait(until)
            if ended is None:
                is_late = True
                self.write_stacks()
                self.kill()
                ended = launcher.wait(time.monotonic() + SPAWN_GRACE)
            statuses.update(ended or {})
        ranks = []
        for rank in range(len(self.pids)):
            errors = (self._folder / f"{rank}.err").read_text(errors="replace")
            ranks.append(Ended(statuses[rank], errors, self.told(rank)))
        if is_late:
            texts = "\n".join(f"rank {rank}: {ended}" for rank, ended in enumerate(ranks))
            raise AssertionError(f"the ranks did not end within {within} s:\n{texts}")
        return ranks

    def succeed(self, within: float = 90.0) -> list[list[dict[str, Any]]]:
        """Returns what each rank reported, by rank, once all have succeeded. Raises AssertionError if one failed."""
        ended = self.finish(within)
        assert [each.status for each in ended] == [0] * len(ended), "\n".join(each.errors for each in ended)
        return [each.told for each in ended]


class Launcher:
    """Starts jobs in hosts, one after another. A process on each host imports the modules once and forks its ranks, so
    that starting a job takes almost no time. Ranks are killed when that process dies, and it is killed when this one
    dies."""

    def __init__(self, hosts: Hosts, modules: Sequence[str] = ("torch.distributed", "numpy", "levada")) -> None:
        self._hosts = hosts
        _remove_stale_folders()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-")
        self._num_jobs = 0
        self._forkers: list[_Forker] = []
        try:
            self._forkers += [_Forker(host, modules) for host in hosts]
            for forker in self._forkers:
                forker.await_ready()
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes that fork ranks."""
        return [forker.pid for forker in self._forkers]

    def start(
        self,
        ranks: int | Sequence[int],
        script: str,
        *,
        launcher: str = "torchrun",
        environment: dict[str, str] | None = None,
    ) -> Job:
        """Runs `script` as each rank of a new job, with this process's environment and a launcher's variables. The
        script finds the globals `rank`, `size`, `local_rank`, `host` and tell(**what). `ranks` is as in environments().
        Only one job runs at a time."""
        folder = pathlib.Path(self._folder.name) / str(self._num_jobs)
        folder.mkdir()
        self._num_jobs += 1
        (folder / "script.py").write_text(script)
        pids: list[int] = []
        environments = self._hosts.environments(ranks, launcher)
        size = sum(len(each) for each in environments)
        for forker, variables in zip(self._forkers, environments):
            pids += forker.fork(folder, len(pids), size, [{**each, **(environment or {})} for each in variables])
        return Job(pids, folder, self._forkers)

    def end(self) -> None:
        for forker in self._forkers:
            forker.end()
        self._folder.cleanup()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _remove_stale_folders() -> None:
    """Removes the folders of processes that were killed."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        pid = folder.name.removeprefix(_FOLDER).split("-")[0]
        if not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(folder, ignore_errors=True)


class _Forker:
    """The test's handle for the launcher process on one host."""

    def __init__(self, host: Host, modules: Sequence[str]) -> None:
        self._host = host
        self._answers = b""
        self._process = subprocess.Popen(
            host.command([sys.executable, __file__, str(host.number), *modules]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answer(self, until: float) -> Any:
        """Returns the next line, or None if none arrives by then."""
        while b"\n" not in self._answers:
            if time.monotonic() > until:
                return None
            more = self._stdout.read()
            if more == b"":
                raise AssertionError(f"the launcher of {self._host.name} has ended with {self._process.wait()}")
            self._answers += more or b""
            if not more:
                time.sleep(0.002)
        line, _, self._answers = self._answers.partition(b"\n")
        return json.loads(line)

    def await_ready(self) -> None:
        answer = self._answer(time.monotonic() + SPAWN_GRACE)
        assert answer == "ready", f"the launcher of {self._host.name} is not ready"

    def fork(self, folder: pathlib.Path, first: int, size: int, environments: list[dict[str, str]]) -> list[int]:
        self._stdin.write(json.dumps([str(folder), first, size, environments]).encode() + b"\n")
        self._stdin.flush()
        pids = self._answer(time.monotonic() + SPAWN_GRACE)
        assert pids is not None, f"the launcher of {self._host.name} starts no ranks"
        return [int(pid) for pid in pids]

    def wait(self, until: float) -> dict[int, int] | None:
        """Returns the status of each rank of the job when all have ended, or None if they have not ended by then."""
        answer = self._answer(until)
        return None if answer is None else {int(rank): int(status) for rank, status in answer.items()}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


def _die_with_parent(parent: int) -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _redirect(path: pathlib.Path) -> None:
    with open(os.devnull) as nothing, open(path, "w") as errors:
        os.dup2(nothing.fileno(), 0)
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)


def _globals_of(folder: pathlib.Path, host: int, rank: int, local: int, size: int) -> dict[str, Any]:
    def tell(**what: Any) -> None:
        with open(folder / f"{rank}.jsonl", "a") as file:
            file.write(json.dumps(what) + "\n")

    return {"rank": rank, "size": size, "local_rank": local, "host": host, "tell": tell}


def _serve(host: int, orders: IO[str]) -> tuple[pathlib.Path, dict[str, Any]] | None:
    """Forks ranks on request. Returns in each rank with the script and its globals, and returns None in this process at
    the end of input."""
    for line in orders:
        name, first, size, environments = json.loads(line)
        folder, parent, pids = pathlib.Path(name), os.getpid(), []
        for local, variables in enumerate(environments):
            pid = os.fork()
            if pid == 0:
                _die_with_parent(parent)
                os.environ.update(variables)
                _redirect(folder / f"{first + local}.err")
                faulthandler.register(signal.SIGUSR1)  # an unhandled SIGUSR1 would kill the rank
                return folder, _globals_of(folder, host, first + local, local, size)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        statuses = {first + at: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for at, pid in enumerate(pids)}
        print(json.dumps(statuses), flush=True)
    return None


def main(arguments: list[str]) -> None:
    for module in arguments[1:]:
        importlib.import_module(module)
    gc.freeze()  # otherwise each rank that exits would copy all of it
    print(json.dumps("ready"), flush=True)
    work = _serve(int(arguments[0]), sys.stdin)
    if work is not None:
        folder, names = work
        runpy.run_path(str(folder / "script.py"), names, "__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
