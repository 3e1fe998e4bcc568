"""Handles the end of processes: of this one, and of the processes that it starts, which never outlive it. Each of those
leads a process group, so that the processes that it starts, such as the workers of a loader, do not outlive it either."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing.process
import multiprocessing.resource_tracker
import multiprocessing.util  # noqa: F401  its exit handler, which waits for children, must run after this module's
import os
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from typing import Any

from levada import _levada
from levada.base.exception_texts import failure_text
from levada.base.threads import start_thread

_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_uncaught: BaseException | None = None  # exception that ends this process, once known
_left_at = (0, -1)  # id (not a reference) of the exception with which a feed was last left, and the step


def start(process: BaseProcess) -> None:
    """Starts the process on a thread that ends when this process does, because the kernel signals the child when the
    thread that started it ends. Ctrl-C does not reach the child before it calls begin(). If this function raises, for
    example KeyboardInterrupt, the child may nevertheless have started."""
    _started.add(process)
    # One that the child started would be in its process group, and be killed before it can remove what it tracks.
    multiprocessing.resource_tracker.ensure_running()
    if threading.current_thread() is threading.main_thread():
        _start(process)
    else:
        started: Future[None] = Future()
        _starter(os.getpid()).put(lambda: _answer(started, process))
        started.result()


def begin(parent: int) -> None:
    """Called first in a process that start() has started. From then on, the process dies with its parent and ignores
    Ctrl-C, which the parent handles. It leads a process group, so that the processes that it starts die, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # `stty tostop` would stop this background group when it writes
    _release_fork_server()
    os.setpgid(0, 0)
    _levada.die_with(parent)


def die_if_ending(parent: int) -> None:
    """Kills this process, and those that it has started, if the parent is ending. The sockets of a killed parent close
    a moment before the system reports its end, so this process could otherwise return first and leave them behind."""
    exiting = 0x4  # the kernel's PF_EXITING
    try:
        with open(f"/proc/{parent}/stat") as stat:
            is_ending = int(stat.read().rpartition(")")[2].split()[6]) & exiting != 0
    except OSError:
        is_ending = True
    if is_ending:
        os.killpg(os.getpid(), signal.SIGKILL)


def kill(process: BaseProcess) -> None:
    """Kills a process that start() has started, and the processes that it has started, unless they have left its
    process group. Also kills those of a process that has already ended."""
    if process.pid is None:
        return
    has_ended = process.exitcode is not None
    # The number of an ended process is used again only once its group is empty.
    if not (has_ended and os.path.exists(f"/proc/{process.pid}")):
        with contextlib.suppress(OSError):  # the group is empty, or the process has not yet called begin()
            os.killpg(process.pid, signal.SIGKILL)
    if not has_ended:
        process.kill()


def note_left(error: BaseException | None, step: int) -> None:
    """Records that a feed is left because of an exception."""
    global _left_at
    _left_at = (id(error), step)


def note_uncaught() -> tuple[str, int]:
    """Returns the failure_text() of the exception that ends the interpreter, or "" if none is known; and the step at
    which a feed was left because of it, or -1. Called when the interpreter exits."""
    global _uncaught
    if not hasattr(sys, "ps1"):  # at a prompt, the last exception was printed earlier
        _uncaught = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return failure_text(_uncaught), _left_at[1] if _left_at[0] == id(_uncaught) else -1


def handled() -> BaseException | None:
    """Returns the exception that this thread is handling, or that ends the process."""
    return sys.exc_info()[1] or _uncaught


def exit_text(process: BaseProcess) -> str:
    """Returns "was killed by SIGKILL" or "ended with exit status 3", or "was lost" if the process has not ended."""
    code = process.exitcode
    if code is None:
        return "was lost"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _release_fork_server() -> None:
    """Lets the fork server that started this process, if any, end together with its user. The server lives as long as
    any process holds its pipe, and each process that it starts holds it. A stopped process can neither close the pipe
    nor be killed when the server ends."""
    module = sys.modules.get("multiprocessing.forkserver")
    server = getattr(module, "_forkserver", None)
    if server is None or server._forkserver_pid is not None or server._forkserver_alive_fd is None:
        return
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Blocks Ctrl-C on this thread, and in processes started in this context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def has_main_file() -> bool:
    """Returns whether another process can import the main module. It cannot import a program that was read from
    standard input, whose `__file__` is "<stdin>"."""
    return os.path.exists(getattr(sys.modules.get("__main__"), "__file__", None) or "")


@contextlib.contextmanager
def main_not_imported() -> Iterator[None]:
    """Keeps processes that start in this context from importing the main module."""
    main: Any = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """The context in which a process is started: without Ctrl-C, and without a main module that has no file."""
    with without_interrupts(), contextlib.nullcontext() if has_main_file() else main_not_imported():
        yield


def _start(process: BaseProcess) -> None:
    with starting():
        process.start()


@functools.cache
def _starter(owner: int) -> queue.SimpleQueue[Callable[[], None]]:
    """Returns a queue of functions, which a thread calls that ends only with this process."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call_all() -> None:
        while True:
            calls.get()()

    start_thread("processes to be started by", "levada starter", call_all)
    return calls


def _answer(started: Future[None], process: BaseProcess) -> None:
    try:
        _start(process)
        started.set_result(None)
    except BaseException as error:
        started.set_exception(error)


def _forget_all() -> None:
    """Makes a forked child forget these processes, so that it does not treat them as its own at exit."""
    for process in list(_started):
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _kill_all() -> None:
    """Kills the processes that multiprocessing would wait for."""
    for process in list(_started):
        if process._parent_pid == os.getpid():  # type: ignore[attr-defined]
            kill(process)
