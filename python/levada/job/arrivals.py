"""Tracks which ranks have arrived at a call of a process group, so that reminders and errors can name the others."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
import weakref
from typing import Any, NamedTuple

from levada.base.console import write_line
from levada.base.errors import EngineError
from levada.base.threads import start_thread

REMIND_AFTER = 30.0
"""Seconds until the first reminder. Each further interval is twice as long."""
_MAX_LOOK = 2.0
"""Maximum number of seconds for reading the marks."""

_WAITS, _DONE = "waits", "done"


class _Others(NamedTuple):
    """Ranks that do not wait together with this one."""

    missing: list[int]
    """Ranks that have not arrived."""
    left: list[int]
    """Ranks that have completed this call, or are in a later one."""


_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Arrivals:
    """A context in which this rank waits for the others. On entry and on exit, the rank leaves a mark in a store of
    torch.distributed. In between, a thread writes lines to standard error that name the ranks without a mark. A store
    may outlive an attempt of the job and keep its marks; a rank that has left while this one waits is therefore
    reported as such."""

    def __init__(self, store: Any, rank: int, size: int, doing: str, call: int = 1) -> None:
        """`store`: may be None, and then no rank is named. `doing`: for example "to join the group". `call`: the number
        of this call of the group, the same on all ranks."""
        self._store, self._rank, self._size, self._doing, self._call = store, rank, size, doing, call
        self._over = threading.Event()

    def __enter__(self) -> Arrivals:
        self._began = time.monotonic()
        self._leave_mark(_WAITS)
        start_thread("reminders about absent ranks", "levada reminders", self._remind)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        if kind is None:
            self._leave_mark(_DONE)

    def _leave_mark(self, state: str) -> None:
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the rank that hosts the store has ended
                self._store.set(_mark(self._rank), f"{self._call} {state}")

    def describe(self) -> str:
        """Returns how long this rank has waited, and for which ranks."""
        waited = f"rank {self._rank} on host {socket.gethostname()} has waited {time.monotonic() - self._began:.1f} s"
        return f"{waited} {self._doing} {self._awaited()}"

    def _awaited(self) -> str:
        found: queue.SimpleQueue[_Others | None] = queue.SimpleQueue()
        if self._store is not None:  # its host may be unreachable, and its own timeout is long
            with contextlib.suppress(EngineError):  # if no thread can start, no rank is named
                start_thread("the ranks that have arrived", "levada arrivals", lambda: found.put(self._look()))
        try:
            others = found.get(timeout=0 if self._store is None else _MAX_LOOK)
        except queue.Empty:
            others = None
        if others is None:
            return f"for all its {self._size} ranks"
        if others.missing:
            return f"for rank(s) {_listed(others.missing)} of its {self._size}"
        if others.left:
            return (
                f"for rank(s) {_listed(others.left)} of its {self._size}, which have done so already, perhaps in an earlier "
                "attempt of the job that used the same store"
            )
        return f"though all its {self._size} ranks have arrived, or arrived in an earlier attempt of the job that used the same store"

    def _look(self) -> _Others | None:
        try:
            store = self._store.clone() if hasattr(self._store, "clone") else self._store  # a store is not thread-safe
            marks = [store.get(_mark(rank)).decode() if store.check([_mark(rank)]) else "0 " for rank in range(self._size)]
        except RuntimeError:
            return None
        others = _Others([], [])
        for rank, mark in enumerate(marks):
            call, _, state = mark.partition(" ")
            if int(call) < self._call:
                others.missing.append(rank)
            elif int(call) > self._call or state == _DONE:
                others.left.append(rank)
        return others

    def _remind(self) -> None:
        pause = REMIND_AFTER
        while not self._over.wait(pause):
            line = f"{self.describe()}; still waiting"
            if not self._over.is_set():
                write_line(line)
            pause *= 2


def arrivals_at(group: Any, doing: str) -> Arrivals:
    """Returns the Arrivals for this rank's next call of a process group. All ranks of the group make these calls in the
    same order."""
    call = _calls[group] = _calls.get(group, 0) + 1
    store = group.get_group_store() if hasattr(group, "get_group_store") else None
    return Arrivals(store, group.rank(), group.size(), doing, call)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _mark(rank: int) -> str:
    return f"levada arrivals/{rank}"
