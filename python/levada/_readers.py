"""Who makes the batches of an iterable on a rank that reads: a thread, the caller, or a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from levada._levada import Handoff

READERS = ("background", "inline", "process")
_FRAMES = 4  # as many as a line of the board holds
_LONG = 0.5
"""Seconds after which those who wait are told what an item takes so long in."""


class ReportedError(Exception):
    """A failure elsewhere, whose text says all there is to say."""


class Maker:
    """Makes what a feed asks a Handoff for: the items of one iterator, each with the state after it."""

    def __init__(
        self, iterator: Iterator[Any], state: Callable[[], Any] | None, handoff: Handoff, allow_pickle: bool
    ) -> None:
        self._iterator = iterator
        self._state = state
        self._handoff = handoff
        self._allow_pickle = allow_pickle
        self._thread = 0

    def make(self) -> bool:
        """Makes the item that is wanted, and blocks until one is; False after the last. What the iterator raises goes
        to all ranks; what is no Exception, such as KeyboardInterrupt, is raised here as well."""
        items = self._handoff.wanted()
        self._thread = threading.get_ident()
        try:
            if items > 0 and self._advance(items):
                self._handoff.give()
                return True
        except ReportedError as failure:
            self._handoff.fail(str(failure))
        except Exception:
            self._handoff.fail(traceback.format_exc())
        except BaseException:
            self._handoff.fail(traceback.format_exc())
            raise
        return False

    def _advance(self, items: int) -> bool:
        """Prepares the last of so many items; False where there are fewer."""
        for done in range(items):
            try:
                item = next(self._iterator)
            except StopIteration:
                self._handoff.end(done)
                return False
        state = None if self._state is None else self._state()
        self._handoff.prepare(item, state, allow_pickle=self._allow_pickle)
        return True

    def where(self) -> str:
        """The functions that make() is in, the innermost last: "__next__ > get > wait (threading.py:320)"."""
        frame = sys._current_frames().get(self._thread)
        names: list[str] = []
        place = ""
        while frame is not None and frame.f_code not in _MAKING:
            place = place or f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            names.insert(0, frame.f_code.co_name)
            frame = frame.f_back
        return f"{' > '.join(names[-_FRAMES:])} ({place})" if names and frame is not None else "the interpreter"


_MAKING = (Maker.make.__code__, Maker._advance.__code__)


def open_maker(source: Any, state: Any, handoff: Handoff, allow_pickle: bool) -> Maker:
    """Of iter() of `source`, which goes on at `state` unless that is None."""
    if source is None:
        raise TypeError("this rank reads for the feed, but its source is None")
    if state is not None:
        source.load_state_dict(state)
    return Maker(iter(source), getattr(source, "state_dict", None), handoff, allow_pickle)


class Reader(Protocol):
    """What makes items for a Handoff."""

    make: Callable[[], bool] | None
    """To be called on the thread that wants a batch; None where another one makes it."""

    where: Callable[[], str]
    """What it is in, for who waits for it."""

    def watch(self, tell_where: Callable[[], None]) -> None:
        """Sees to it that `tell_where` is called now and then while an item takes long, where no thread of the core's does."""

    def stop(self) -> None:
        """Ends it. Its Handoff has been stopped."""


class InlineReader:
    """The caller's own thread, inside next(), and one that watches it."""

    def __init__(self, maker: Maker) -> None:
        self.make: Callable[[], bool] | None = self._make
        self.where: Callable[[], str] = maker.where
        self._maker = maker
        self._since: float | None = None  # when the item was wanted that is being made
        self._stopped = threading.Event()

    def _make(self) -> bool:
        self._since = time.monotonic()
        try:
            return self._maker.make()
        finally:
            self._since = None

    def watch(self, tell_where: Callable[[], None]) -> None:
        threading.Thread(target=self._watch, args=(tell_where,), name="levada watch", daemon=True).start()

    def _watch(self, tell_where: Callable[[], None]) -> None:
        while not self._stopped.wait(_LONG):
            since = self._since
            if since is not None and time.monotonic() - since > _LONG:
                tell_where()

    def stop(self) -> None:
        self.make = None
        self._stopped.set()


class BackgroundReader:
    """A thread, which can be left behind where the iterator hangs."""

    make: Callable[[], bool] | None = None

    def __init__(self, maker: Maker) -> None:
        self.where: Callable[[], str] = maker.where
        self._thread = threading.Thread(target=_make_all, args=(maker,), name="levada reader", daemon=True)
        self._thread.start()

    def watch(self, tell_where: Callable[[], None]) -> None:
        """The core's reading thread does."""

    def stop(self) -> None:
        self._thread.join(timeout=1.0)


def _make_all(maker: Maker) -> None:
    with contextlib.suppress(BaseException):  # which every rank hears of
        while maker.make():
            pass
