"""Threads that are still inside a user's iterable after what they worked for has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Abandoned(NamedTuple):
    """A thread that still iterates `source`. `where` returns the functions that it is in."""

    thread: threading.Thread
    source: Any
    where: Callable[[], str]


_abandoned: dict[threading.Thread, Abandoned] = {}


def abandon(thread: threading.Thread, source: Any, where: Callable[[], str]) -> None:
    """Remembers a thread until forget() is called for it."""
    _abandoned[thread] = Abandoned(thread, source, where)


def forget(thread: threading.Thread) -> None:
    """Called by the thread when it ends, which releases its iterator. Does nothing if it was not abandoned."""
    _abandoned.pop(thread, None)


def abandoned() -> list[Abandoned]:
    """Returns the threads that still run; none in a forked child, which does not have them."""
    return [each for each in list(_abandoned.values()) if each.thread.is_alive()]
