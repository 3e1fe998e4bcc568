"""Who makes the batches of an iterable on a rank that reads: a thread, the caller, or a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from levada import _levada
from levada._levada import Handoff
from levada.base.threads import start_thread
from levada.batch.balance import RefusedSample, Samples

ITERATE = ("thread", "inline", "process")
_FRAMES = 4  # as many as a line of the board holds
_LONG = 0.5
"""Seconds after which those who wait are told what an item takes so long in."""


_NOTHING = object()
_FREE = 1e-4
_SHARE = 0.01
"""Asking a loader for its state takes so many seconds, or at most such a share of the time."""

State = tuple[bytes, str, int]
"""A loader's state, packed; why it could not be; and how many items have come since."""


class ReportedError(Exception):
    """A failure elsewhere, whose text says all there is to say."""


class Counted(NamedTuple):
    """The items that a loaded state counts, and that the data therefore have."""

    before: int
    """Those before the loader's own state, at which it resumes."""
    items: int
    """All of them."""
    tolerance: int
    """As many may lack: those of a last step that was not full."""

    def check(self, passed: int) -> None:
        """Raises EndsBeforeState if no more items than `passed` came of those that were to be read again."""
        if self.before + passed < self.items - self.tolerance:
            raise EndsBeforeState(
                f"the state counts {self.items:,} items, but the data end after {self.before + passed:,}: load a state that "
                "was saved with these data, or none"
            )


NOTHING_COUNTED = Counted(0, 0, 0)


class EndsBeforeState(Exception):
    """The data have fewer items than a loaded state counts."""


class PacedState:
    """A loader's state, asked for at a pace that costs its batches nothing to speak of: that of an item between two
    states is the earlier one, from which the items since are read again."""

    def __init__(self, state_dict: Callable[[], Any], allow_pickle: bool) -> None:
        self._state_dict = state_dict
        self._allow_pickle = allow_pickle
        self._due = 0.0

    def __call__(self) -> State | None:
        """None where it is not due."""
        begun = time.monotonic()
        if begun < self._due:
            return None
        state = self._pack()
        ended = time.monotonic()
        if ended - begun > _FREE:
            self._due = ended + (ended - begun) / _SHARE
        return state

    def _pack(self) -> State:
        try:
            return _levada.pack_state(self._state_dict(), allow_pickle=self._allow_pickle), "", 0
        except Exception as error:  # which concerns only those who ask the feed for its state
            return b"", "".join(traceback.format_exception_only(error)).strip(), 0


class Maker:
    """Makes what a feed asks a Handoff for: the items of one iterator, with the states after some of them; or batches of
    `samples`, which they are then."""

    def __init__(
        self,
        iterator: Iterator[Any],
        state: Callable[[], State | None],
        handoff: Handoff,
        allow_pickle: bool,
        samples: Samples | None,
        counted: Counted,
    ) -> None:
        self._iterator = iterator
        self._counted = counted
        self._samples = samples
        self._state = state
        self._handoff = handoff
        self._allow_pickle = allow_pickle
        self._thread = 0

    def make(self) -> bool:
        """Makes the item that is wanted, and blocks until one is; False after the last. What the iterator raises goes
        to all ranks; what is no Exception, such as KeyboardInterrupt, is raised here as well."""
        wanted = self._handoff.wanted()
        self._thread = threading.get_ident()
        try:
            if wanted is not None and self._serve(*wanted):
                return True
        except (RefusedSample, EndsBeforeState) as refused:
            self._handoff.fail(str(refused), is_argument=True)
        except ReportedError as failure:
            self._handoff.fail(str(failure))
        except Exception:
            self._handoff.fail(traceback.format_exc())
        except BaseException:
            self._handoff.fail(traceback.format_exc())
            raise
        return False

    def _serve(self, skipped: int, taken: int, gathered: list[int]) -> bool:
        """Gives what is wanted, as Handoff.wanted() says it; False behind the end."""
        if gathered:
            assert self._samples is not None
            self._prepare(self._samples.gather(gathered), None)
        elif (passed := self._skip(skipped)) < skipped:
            self._counted.check(passed)
            self._handoff.end(passed)
            return False
        elif taken:
            assert self._samples is not None
            self._handoff.tell(self._samples.take(self._iterator, taken), self._state())
            return True
        else:
            item = next(self._iterator, _NOTHING)
            if item is _NOTHING:
                self._handoff.end(skipped)
                return False
            self._prepare(item, self._state())
            del item  # What the batch alone holds is sent as it lies.
        self._handoff.give()
        return True

    def _prepare(self, item: Any, state: State | None) -> None:
        self._handoff.prepare(item, state, allow_pickle=self._allow_pickle)

    def _skip(self, items: int) -> int:
        """Passes over so many, or as many as there are. Returns how many."""
        return sum(1 for _ in itertools.islice(self._iterator, items))

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


_MAKING = (Maker.make.__code__, Maker._serve.__code__)


def open_maker(
    source: Any,
    state: Any,
    handoff: Handoff,
    allow_pickle: bool,
    samples: Samples | None = None,
    counted: Counted = NOTHING_COUNTED,
) -> Maker:
    """Of iter() of `source`, which goes on at `state` unless that is None."""
    if source is None:
        raise TypeError("this rank reads for the feed, but its source is None")
    if state is not None:
        source.load_state_dict(state)
    iterator = iter(source)
    state_dict = getattr(source, "state_dict", None)
    paced = PacedState(state_dict, allow_pickle) if state_dict else lambda: None
    return Maker(iterator, paced, handoff, allow_pickle, samples, counted)


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
        start_thread("watching the loader", "levada watch", self._watch, tell_where)

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
        self._thread = start_thread("iterating the source", "levada reader", _make_all, maker)

    def watch(self, tell_where: Callable[[], None]) -> None:
        """The core's reading thread does."""

    def stop(self) -> None:
        self._thread.join(timeout=1.0)


def _make_all(maker: Maker) -> None:
    with contextlib.suppress(BaseException):  # which every rank hears of
        while maker.make():
            pass
