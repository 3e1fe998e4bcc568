"""A guard for objects that one thread at a time may use."""

from __future__ import annotations

import threading

from levada.base.errors import InvalidArgument


class OneCaller:
    """Entered around a call, which may nest. Raises InvalidArgument while another thread is inside. `what` names the
    calls: "a call of this feed"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InvalidArgument(f"{self._what} is under way on another thread; let one thread at a time use it")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
