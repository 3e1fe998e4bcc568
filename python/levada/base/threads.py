"""Starts threads, and guards objects that only one thread at a time may use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from levada import _levada
from levada.base.errors import InvalidArgument


def start_thread(what: str, name: str, work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Starts a daemon thread that calls `work`. Raises EngineError, which names `what`, if the system refuses one."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
        return thread
    except RuntimeError:
        if sys.is_finalizing():
            raise
    _levada.throw_no_thread(what)


def join_thread(thread: threading.Thread, timeout: float) -> bool:
    """Waits at most `timeout` seconds until the thread has ended, and returns whether it has. Does not wait if called
    on that thread itself, as the garbage collector may do."""
    if thread is not threading.current_thread():
        thread.join(timeout)
    return not thread.is_alive()


class OneCaller:
    """Guards calls, which may nest. Raises InvalidArgument while another thread is inside one. `what`: a name of the
    calls, such as "a call of this feed"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidArgument(f"{self._what} is under way on another thread; let one thread at a time use it")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
