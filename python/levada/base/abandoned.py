"""Tracks threads that are still inside a user's iterable after their pass has ended."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from levada.base.console import write_line

_QUIET = 1.0
"""Seconds that the exiting interpreter waits before it prints a message."""


class Abandoned(NamedTuple):
    """A thread that still iterates `source`. `where` returns the functions that it is running."""

    thread: threading.Thread
    source: Any
    where: Callable[[], str]


_abandoned: dict[threading.Thread, Abandoned] = {}


def abandon(thread: threading.Thread, source: Any, where: Callable[[], str]) -> None:
    """Keeps a reference to a thread until it has ended."""
    for each in list(_abandoned):
        if not each.is_alive():
            _abandoned.pop(each, None)
    _abandoned[thread] = Abandoned(thread, source, where)


def release(thread: threading.Thread) -> None:
    """Drops the source and iterator of an abandoned thread, but still waits for the thread at exit. The thread calls
    this when it has finished with them; others may call it after the thread has ended."""
    if thread in _abandoned:
        _abandoned[thread] = Abandoned(thread, None, lambda: "the end of its iterator")


def abandoned() -> list[Abandoned]:
    """Returns the threads that are still running; none in a forked child, which does not have them."""
    return [each for each in list(_abandoned.values()) if each.thread.is_alive()]


def await_at_exit(timeout: float) -> None:
    """Waits until the abandoned threads have ended, at most `timeout` seconds. An exiting interpreter ends a thread
    when the thread returns to Python, which aborts the process if C++ functions, such as torch's, are on its stack.
    Ctrl-C ends the wait."""
    begun = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        _join(abandoned(), begun + _QUIET)
        late = abandoned()
        if not late:
            return
        write_line(
            f"process {os.getpid()} waits up to {timeout:g} s before it exits, because a loader is still in "
            f"{late[0].where()}; Ctrl-C ends the wait"
        )
        _join(late, begun + timeout)


def _join(threads: list[Abandoned], deadline: float) -> None:
    for each in threads:
        each.thread.join(max(0.0, deadline - time.monotonic()))
