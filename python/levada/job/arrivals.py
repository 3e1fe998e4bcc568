"""Which ranks have come to a call of a process group: reminders and errors name those that have not."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
import weakref
from typing import Any

from levada.base.console import write_line
from levada.base.errors import EngineError
from levada.base.threads import start_thread

REMIND_AFTER = 30.0
"""Seconds until the first reminder; each further one comes after twice as long."""
_MAX_LOOK = 2.0
"""Seconds that reading the marks may take."""

_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Arrivals:
    """A context in which this rank waits for the others. At its start the rank leaves a mark in a store of
    torch.distributed; while it lasts, a thread writes lines on standard error that name the ranks without one."""

    def __init__(self, store: Any, rank: int, size: int, doing: str, call: int = 1) -> None:
        """`store`: None if there is none, and then no rank is named. `doing`: "to join the group". `call`: the number of
        this call of the group, the same on all ranks."""
        self._store, self._rank, self._size, self._doing, self._call = store, rank, size, doing, call
        self._over = threading.Event()

    def __enter__(self) -> Arrivals:
        self._began = time.monotonic()
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # the rank that keeps the store has ended
                self._store.set(_mark(self._rank), str(self._call))
        start_thread("reminders of ranks that have not come", "levada reminders", self._remind)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def describe(self) -> str:
        """Returns for how long this rank has waited, and for whom."""
        waited = f"rank {self._rank} on host {socket.gethostname()} has waited {time.monotonic() - self._began:.1f} s"
        return f"{waited} {self._doing} {self._awaited()}"

    def _awaited(self) -> str:
        found: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        if self._store is not None:  # whose host may be cut off: it has its own time-out, which is long
            with contextlib.suppress(EngineError):  # where no thread can be had, no rank is named
                start_thread("the ranks that have come", "levada arrivals", lambda: found.put(self._missing()))
        try:
            missing = found.get(timeout=0 if self._store is None else _MAX_LOOK)
        except queue.Empty:
            missing = None
        if missing is None:
            return f"for all its {self._size} ranks"
        if not missing:
            return f"though all its {self._size} ranks have come"
        return f"for rank(s) {', '.join(map(str, missing))} of its {self._size}"

    def _missing(self) -> list[int] | None:
        try:
            store = self._store.clone() if hasattr(self._store, "clone") else self._store  # one thread uses one store
            has_come = [store.check([_mark(rank)]) and int(store.get(_mark(rank))) >= self._call for rank in range(self._size)]
        except RuntimeError:
            return None
        return [rank for rank, here in enumerate(has_come) if not here]

    def _remind(self) -> None:
        pause = REMIND_AFTER
        while not self._over.wait(pause):
            line = f"{self.describe()}; still waiting"
            if not self._over.is_set():
                write_line(line)
            pause *= 2


def arrivals_at(group: Any, doing: str) -> Arrivals:
    """Returns the Arrivals of this rank's next call of a process group, which all its ranks make in the same order."""
    call = _calls[group] = _calls.get(group, 0) + 1
    store = group.get_group_store() if hasattr(group, "get_group_store") else None
    return Arrivals(store, group.rank(), group.size(), doing, call)


def _mark(rank: int) -> str:
    return f"levada arrivals/{rank}"
