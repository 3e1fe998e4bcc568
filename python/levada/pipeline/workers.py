"""Starts, watches and ends the other processes of a pipeline: the dispatching process and the workers."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import resource
import signal
import socket
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from levada import _levada
from levada._levada import Membership, OpenContext
from levada.base.errors import InvalidArgument, PeerLost, SourceError, StageFailed, Timeout, Unsupported
from levada.base.exits import begin, die_if_ending, exit_text, has_main_file, kill, start
from levada.pipeline import failures
from levada.pipeline.options import Options
from levada.pipeline.steps import build
from levada.pipeline.tasks import Task

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_ANSWER = 2.0
"""Seconds within which a process writes its stack unless it hangs in the kernel."""
_REPORTED = 1.0
"""Seconds within which the exit of an ended process is reported."""
_OWN_PROCESS_LOST = " of the pipeline ended unexpectedly: "
"""Marks the text of a PeerLost whose rank is a process of this pipeline, not a rank of its fullsync() group."""
_MOMENT = 0.1
"""Seconds between two checks whether the start must be abandoned."""


def _check_context(context: str) -> None:
    """Raises Unsupported if processes cannot currently be started in this way."""
    reason = _levada.unforkable() if context == "fork" else None
    if reason is not None:
        raise Unsupported(f'{reason}, which a fork would not have; use context="forkserver" or "spawn"')


def startable_again(options: Options) -> Options:
    """Returns options with which a run can restart its processes. If they were forked before this process had threads
    that a fork would not have, these options use the fork server, with a warning."""
    reason = _levada.unforkable() if options.context == "fork" else None
    if reason is None:
        return options
    warnings.warn(f'{reason}, which a fork would not have; processes start by "forkserver" from now on', stacklevel=6)
    return dataclasses.replace(options, context="forkserver")


class WorkerGroup:
    """The dispatching process and the workers, once started. This process is rank 0 of a private job with them."""

    def __init__(self, options: Options, tasks: list[Task], is_closing: Callable[[], bool]) -> None:
        """`is_closing`: returns whether another thread is closing the run. Starting then raises InvalidArgument."""
        _check_context(options.context)
        _check_descriptors(len(tasks))
        self._owner = os.getpid()
        self._tasks = tasks
        self._processes: list[BaseProcess] = []
        self._status_pipes: list[Connection] = []
        links: list[socket.socket] = []
        deadline = time.monotonic() + options.start_timeout
        try:
            with one_thread_each(options.threads):
                for rank, task in enumerate(tasks, 1):
                    links.append(self._start(rank, task))
            self._wait_until_ready(deadline, is_closing)
            sockets = [link.detach() for link in links]
            links.clear()
            self.job: Membership = self._join(sockets, options.start_timeout)
        except BaseException:
            self._kill()
            raise
        finally:
            for link in links:
                link.close()

    def _start(self, rank: int, task: Task) -> socket.socket:
        """Starts a process and returns this process's end of the socket between the two."""
        context = task.options.context
        starting = multiprocessing.get_context(context)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status, report = starting.Pipe(duplex=False)
        given = task if context == "fork" else dumps(task)
        # Not a daemon, which could not start workers of its own. _serve() makes it end with this process.
        process = starting.Process(  # type: ignore[attr-defined]
            target=_serve,
            args=(there, report, self._owner, rank, len(self._tasks) + 1, given),
            name=f"levada {task.title}",
            daemon=False,
        )
        self._processes.append(process)
        self._status_pipes.append(status)
        try:
            with there, report:
                start(process)
        except OSError as error:
            here.close()
            raise Unsupported(f"{task.title} cannot be started: {error}{_remedy_of(error)}") from error
        except BaseException:
            here.close()
            raise
        return here

    def _wait_until_ready(self, deadline: float, is_closing: Callable[[], bool]) -> None:
        """Waits until all processes are ready. Raises the exception of a process that failed to start."""
        waiting: dict[Any, int] = {status: at for at, status in enumerate(self._status_pipes)}
        while waiting:
            left = deadline - time.monotonic()
            ready = multiprocessing.connection.wait(list(waiting), timeout=max(min(left, _MOMENT), 0))
            if is_closing():
                raise InvalidArgument("another thread has closed this run while its processes started")
            if not ready and left <= _MOMENT:
                late = ", ".join(self.name_of(at) for at in waiting.values())
                raise Timeout(f"{late} did not start in time; raise start_timeout")
            for status in map(_as_connection, ready):
                at = waiting.pop(status)
                try:
                    failure = status.recv_bytes()
                except EOFError:
                    text = f"{self.exit_text(at)} while it started; see its output on standard error"
                    raise SourceError(text + self._unguarded_main(at)) from None
                if failure:
                    raise self._failed_to_start(at, failure)

    def _unguarded_main(self, at: int) -> str:
        """Returns the likely cause, as the end of a message, if a process exited while it started."""
        if self._tasks[at].options.context == "fork" or (self._processes[at].exitcode or 0) < 0:
            return ""
        return '; a likely cause is that the main module, which it imports, runs its program without if __name__ == "__main__":'

    def _failed_to_start(self, at: int, failure: bytes) -> BaseException:
        _, message, trace, packed, *_ = pickle.loads(failure)
        name = self.name_of(at)
        return failures.unpack(f"in {name}, while it started: {message}\n\n{trace}", "", name, 0, trace, packed)

    def _join(self, sockets: list[int], timeout: float) -> Membership:
        try:
            return _levada.link(0, len(self._tasks) + 1, sockets, timeout)
        except PeerLost as error:
            raise SourceError(f"{self.exit_text(error.rank - 1)} while it started") from None

    def name_of(self, at: int) -> str:
        return f"{self._tasks[at].title} (process {self._processes[at].pid})"

    def exit_text(self, at: int) -> str:
        """Returns a text such as "worker 1 (process 4242) was killed by SIGKILL"."""
        process = self._processes[at]
        process.join(1.0)
        return f"{self.name_of(at)} {exit_text(process)}"

    def lost(self, rank: int = -1) -> int | None:
        """Returns the index of a process that has ended, or None if there is none. `rank`: the process that the engine
        considers lost. The system, or the fork server, may report its exit a moment later."""
        if 0 < rank <= len(self._processes):
            multiprocessing.connection.wait([self._processes[rank - 1].sentinel], _REPORTED)
        return next((at for at, process in enumerate(self._processes) if process.exitcode is not None), None)

    def loss_of(self, text: str, rank: int) -> PeerLost | None:
        """Returns a PeerLost that names the process that has ended, and how it ended; None if none has. Kills the
        processes that it had started. `text`, `rank`: from the engine's PeerLost."""
        at = rank - 1 if rank > 0 and _OWN_PROCESS_LOST in text else self.lost(rank)
        if at is None:
            return None
        lost = PeerLost(self.exit_text(at))
        lost.rank = rank
        if self._processes[at].exitcode is not None:
            kill(self._processes[at])
        return lost

    def _request_stack(self, at: int) -> None:
        """Makes a process write its stack."""
        pid = self._processes[at].pid
        assert pid is not None
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)

    def _read_stack(self, at: int, deadline: float) -> str:
        """Returns the Python functions that a process is running, innermost first."""
        status = self._status_pipes[at]
        text = b""
        with contextlib.suppress(OSError):
            while status.poll(0.05 if text else max(deadline - time.monotonic(), 0)):
                more = os.read(status.fileno(), 1 << 16)
                if not more:
                    break
                text += more
        return text.decode(errors="replace").rstrip() or "(it does not answer)"

    def describe(self) -> str:
        """Returns the functions that each process is running."""
        running = [at for at, process in enumerate(self._processes) if process.exitcode is None]
        for at in running:
            self._request_stack(at)
        deadline = time.monotonic() + _ANSWER
        return "\n\n".join(f"{self.name_of(at)} is in:\n{self._read_stack(at, deadline)}" for at in running)

    def end(self, grace: float) -> None:
        """Waits for the processes, which have been asked to end. Kills those that do not end, with a warning that names
        the functions they were in. Does nothing in a forked child, which did not start them."""
        if os.getpid() != self._owner:
            return
        deadline = time.monotonic() + grace
        for at, process in enumerate(self._processes):
            process.join(max(deadline - time.monotonic(), 0))
            if process.exitcode is None and grace > 0:
                self._request_stack(at)
                where = self._read_stack(at, time.monotonic() + _ANSWER)
                text = f"{self.name_of(at)} did not end in time and is killed; it was in:\n{where}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._kill()

    def _kill(self) -> None:
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            kill(process)
        for process in started:
            process.join()
        for status in self._status_pipes:
            status.close()
        job = getattr(self, "job", None)
        if job is not None:
            job.leave()


def _check_descriptors(processes: int) -> None:
    """Raises Unsupported if this process may not open enough file descriptors for this many processes."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = 4 * processes + 16
    left = limit - len(os.listdir("/proc/self/fd"))
    if limit != resource.RLIM_INFINITY and wanted > left:
        raise Unsupported(
            f"{processes} processes take some {wanted} file descriptors, and this process may open {left} more; use fewer "
            "workers, or raise the limit (ulimit -n)"
        )


def _as_connection(ready: Any) -> Connection:
    """Returns an object that wait() returned as a Connection."""
    assert isinstance(ready, Connection)
    return ready


@contextlib.contextmanager
def one_thread_each(threads: int) -> Iterator[None]:
    """Sets the number of threads in the environment of processes started in this context, unless it is already set."""
    added = [name for name in _THREADS if threads > 0 and name not in os.environ]
    os.environ.update(dict.fromkeys(added, str(threads)))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _serve(link: socket.socket, report: Connection, parent: int, rank: int, size: int, given: bytes | Task) -> None:
    """The main function of a process."""
    begin(parent)
    try:
        task = given if isinstance(given, Task) else pickle.loads(given)
        graph = _prepare(task)
    except BaseException as error:
        report.send_bytes(pickle.dumps(failures.pack(error)))
        return
    report.send_bytes(b"")
    faulthandler.register(signal.SIGUSR1, file=report.fileno(), all_threads=True)
    job = _levada.link(rank, size, [link.detach()], task.options.start_timeout)
    try:
        _levada.serve(job, graph, task.options, task.place, f"{task.title} (process {os.getpid()})", seed_all)
    except PeerLost:  # the other processes have been notified, or have ended
        die_if_ending(parent)
    job.leave()


def _prepare(task: Task) -> _levada.Graph:
    options = task.options
    if options.threads > 0:
        for name in _THREADS:
            os.environ.setdefault(name, str(options.threads))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(options.threads)
    if options.worker_init is not None and task.role == "worker":
        options.worker_init(task.number)
    return build(task.steps, options.on_error, options.allow_pickle)


def seed_all(context: OpenContext) -> None:
    """Seeds the generators of Python, numpy and torch with the pipeline's seed."""
    seed = context.own_seed
    random.seed(seed)
    import numpy  # not needed by a process that only starts others

    numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def dumps(value: Any, what: str = "a stage", instead: str = "a function that makes") -> bytes:
    """Pickles a value for a process to be started. Objects that the process can import are pickled by name, and others,
    such as lambdas and local functions, by value. Raises StageFailed, naming `what` and what can be passed
    `instead`."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    main = sys.modules.get("__main__")
    by_name = has_main_file()  # the other process imports the module

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc, unused-ignore]
        def reducer_override(self, given: Any) -> Any:
            if by_name and isinstance(given, (type, types.FunctionType)) and _is_in(main, given):
                return NotImplemented
            if isinstance(given, types.CodeType):  # cloudpickle drops the file name, which tracebacks need
                make, arguments = self.dispatch_table[types.CodeType](given)
                return _make_code, (make, arguments, given.co_filename)
            return super().reducer_override(given)

    stream = io.BytesIO()
    try:
        Pickler(stream, protocol=5).dump(value)
    except Exception as error:
        raise StageFailed(
            f"{what} cannot be sent to another process: {error}; pass {instead} the object that cannot be sent (a generator, an "
            "open file, a connection); it is called in the process that needs it"
        ) from error
    return stream.getvalue()


def _make_code(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


def _remedy_of(error: OSError) -> str:
    """Returns the end of a message about a process that cannot be started."""
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return "; use fewer workers, or raise the limits on processes (ulimit -u), file descriptors (ulimit -n) and memory"
    if "path too long" in str(error):  # that of multiprocessing's socket
        return f"; set TMPDIR to a shorter path than {tempfile.gettempdir()}"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "; the working folder has been removed: start the program in one that exists"
    return ""


def _is_in(module: Any, given: Any) -> bool:
    if given.__module__ != "__main__":
        return False
    found = module
    for step in given.__qualname__.split("."):
        found = getattr(found, step, None)
    return found is given
