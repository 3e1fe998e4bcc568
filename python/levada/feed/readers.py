"""Readers: iterate a source on a reading rank, on the caller's thread or on a separate one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from levada.base.abandoned import Abandoned, abandon, abandoned, release
from levada.base.console import write_line
from levada.base.errors import Timeout
from levada.base.threads import join_thread, start_thread
from levada.feed.context import in_callers_context
from levada.feed.makers import Maker
from levada.job.arrivals import REMIND_AFTER

ITERATE = ("thread", "inline")
_LONG = 0.5
"""Seconds after which waiting ranks are told which functions a slow item is in."""
_GRACE = 1.0
"""Seconds that stop() waits for a thread, which may be inside the iterator."""


class Reader(Protocol):
    """Makes items for a Handoff."""

    make: Callable[[], bool] | None
    """Called on the thread that requests a batch. None if another thread makes the items."""

    where: Callable[[], str]
    """Returns the functions that the iterator is running, for messages on ranks that wait for it."""

    raised: Callable[[], BaseException | None]
    """Returns the exception that the source raised, but only once."""

    def open(self) -> None:
        """Opens the source on the caller's thread. Called after the pass has begun and watch() has been called, so that
        other ranks can be told which function it is in if that takes long."""

    def watch(self, post_place: Callable[[], None]) -> None:
        """Starts a thread that calls `post_place` periodically while an item is slow, unless a thread of the core does
        that."""

    def stop(self) -> None:
        """Stops the reader. Its Handoff must have been stopped before."""


class InlineReader:
    """Iterates on the caller's thread, inside next(), while a second thread watches for slow items."""

    def __init__(self, maker: Maker) -> None:
        self.make: Callable[[], bool] | None = self._make
        self.where: Callable[[], str] = maker.where
        self.raised: Callable[[], BaseException | None] = maker.take_raised
        self._maker = maker
        self._since: float | None = None  # time at which the current item was requested
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    def open(self) -> None:
        self._since = time.monotonic()
        try:
            self._maker.open()
        finally:
            self._since = None

    def _make(self) -> bool:
        self._since = time.monotonic()
        try:
            return self._maker.make()
        finally:
            self._since = None

    def watch(self, post_place: Callable[[], None]) -> None:
        self._watcher = start_thread("watching the loader", "levada watch", self._watch, post_place)

    def _watch(self, post_place: Callable[[], None]) -> None:
        while not self._stopped.wait(_LONG):
            since = self._since
            if since is not None and time.monotonic() - since > _LONG:
                post_place()

    def stop(self) -> None:
        self.make = None
        self._stopped.set()
        if self._watcher is not None:
            join_thread(self._watcher, _GRACE)  # it refers to batches, which it must not drop during interpreter exit


class BackgroundReader:
    """Iterates on a separate thread, which is abandoned if the iterator hangs."""

    make: Callable[[], bool] | None = None

    def __init__(self, maker: Maker, source: Any) -> None:
        """`source`: an object that no other pass may iterate before the thread has ended, or None."""
        self.where: Callable[[], str] = lambda: _place(source, maker)
        self.raised: Callable[[], BaseException | None] = maker.take_raised
        self._source = source
        self._where = maker.where
        self._maker: Maker | None = maker
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        maker, self._maker = self._maker, None
        if maker is not None and maker.open():
            self._thread = start_thread("iterating the source", "levada reader", in_callers_context(_make_all), [maker])

    def watch(self, post_place: Callable[[], None]) -> None:
        """Does nothing, because the core's reading thread calls `post_place`."""

    def stop(self) -> None:
        self._maker = None
        if self._thread is None:
            return
        abandon(self._thread, self._source, self._where)  # stays abandoned if the lines below are interrupted
        if join_thread(self._thread, _GRACE):
            release(self._thread)


def _place(source: Any, maker: Maker) -> str:
    """Returns the functions that the maker, or the earlier pass that it waits for, is running."""
    earlier = next((each for each in abandoned() if source is not None and each.source is source), None)
    return maker.where() if earlier is None else earlier.where()


def _make_all(makers: list[Maker]) -> None:
    """Makes all items. `makers` is a list of one Maker, which is dropped before this function ends, because an exiting
    interpreter only waits for the thread to end."""
    maker = makers.pop()
    try:
        with contextlib.suppress(BaseException):  # the Handoff reports it to every rank
            while maker.make():
                pass
    finally:
        release(threading.current_thread())


def await_earlier_passes(source: Any, rank: int, timeout: float) -> None:
    """Waits until no abandoned thread iterates `source`, with reminders on standard error. After `timeout` seconds,
    raises Timeout, which names the functions that the thread is in."""
    deadline = time.monotonic() + timeout
    for each in abandoned():
        if source is not None and each.source is source:
            _await(each, f"an earlier pass over {type(source).__name__} on rank {rank}", deadline, timeout)


def _await(earlier: Abandoned, name: str, deadline: float, timeout: float) -> None:
    pause = REMIND_AFTER
    while True:
        left = deadline - time.monotonic()
        earlier.thread.join(min(pause, max(left, 0.0)))
        if not earlier.thread.is_alive():
            return
        if left <= pause:
            raise Timeout(
                f"{name} has been left, but its thread did not leave the iterator within {timeout:g} s, the timeout of the "
                f"feed: it is in {earlier.where()}; raise timeout=, or pass the feed a separate loader"
            )
        write_line(f"{name} has been left, but its thread is in {earlier.where()}; still waiting")
        pause *= 2
