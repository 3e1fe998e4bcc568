"""Makes the items of an iterable for the core, together with their counts, digests and states."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Handoff
from levada.base.exception_texts import report_of, summary_of, text_of
from levada.base.iterators import Ended, Exhausted, continues, is_own_iterator, iterate
from levada.batch.balance import RefusedSample, Samples
from levada.feed.marks import is_same_item, is_same_row, mark_of_rows
from levada.feed.read_ahead import ReadAhead
from levada.feed.rows import Forms, InvalidItem, lists_as_rows, without_rows
from levada.feed.states import state_of_iterator
from levada.feed.torch_loaders import Order, with_order

_FRAMES = 4  # as many as fit on a line of the board
_NOTHING = object()
_FREE = 1e-4
_SHARE = 0.01
"""A loader's state may cost at most _FREE seconds per item, or at most this share of the time."""
_PER_BYTE = 1e-9
"""Seconds that one byte of a state costs: to copy it on the reader and on each rank, or to send it at 10 Gb/s."""

State = tuple[bytes, str, int]
"""A loader's packed state, the reason why it could not be packed, and the number of items taken since."""


class ReportedError(Exception):
    """A failure in another process. Its text is complete, so it is reported without a traceback."""


class Counted(NamedTuple):
    """The items that a loaded state counts, which the data must therefore have."""

    before: int
    """Number of items before the loader's own state, from which it resumes."""
    items: int
    """Total number of items."""
    tolerance: int
    """Number of items that may be missing, because the last step was incomplete."""
    item: int = -1
    """Index of the last item before the state if it is to be compared, otherwise -1."""
    mark: int = 0
    """Mark of the item after which the state was saved."""
    of_row: bool = False
    """Whether to compare only the last row, because the two items have different numbers of rows."""
    name: str = "the source"
    skipped: int = 0
    """Number of further items that `skip` leaves out."""

    def check(self, count: int) -> None:
        """Raises EndsBeforeState if the data has only `count` items, fewer than the state counts."""
        if count < self.items - self.tolerance:
            raise EndsBeforeState(
                f"the state counts {self.items:,} items, but the data end after {count:,}: load a state that "
                "was saved with these data, or none"
            )

    def compare(self, mark: int) -> None:
        """Raises OtherItem if `mark` shows that this is not the item or row after which the state was saved."""
        if is_same_row(mark, self.mark) if self.of_row else is_same_item(mark, self.mark):
            return
        found = "does not end with the row" if self.of_row else "is not the one"
        raise OtherItem(
            f"item {self.item:,} {found} that this state was saved after: the order or content of {self.name} cannot "
            "be repeated. Use a levada.DataLoader, torchdata's StatefulDataLoader, or DistributedSampler(dataset, "
            'num_replicas=1, rank=0), which shuffles by seed and epoch; pass check="none" if only the random augmentation of '
            "the same samples differs"
        )


class Making(NamedTuple):
    """How a reader makes the items of its source."""

    handoff: Handoff
    """Receives the core's requests for items and delivers them."""
    allow_pickle: bool
    ranks: int
    """Number of ranks that receive the batches."""
    samples: Samples | None = None
    """Set if batches must be made from the samples that the source yields."""
    counted: Counted = Counted(0, 0, 0)
    ended: Ended | None = None
    """Records whether an earlier pass has read the source to its end."""
    ahead: ReadAhead | None = None
    """Keeps the items that were read ahead from an iterator that cannot be restarted."""
    cuts_rows: bool = False
    """Whether lists are cut along the rows of the batch."""
    counts_rows: bool = False
    """Whether states count rows rather than items."""
    tail: str = "drop"
    """Feed's `tail`. Unless it is "drop", the last item may be requested again to fill a round; "short" sends it
    without its rows."""


class EndsBeforeState(Exception):
    """The data has fewer items than a loaded state counts."""


class OtherItem(Exception):
    """An item that a state counts is no longer the same."""


class PacedState:
    """Calls a loader's state_dict() rarely enough that getting, encoding and sending its state costs almost no time.
    The state of an item between two calls is the earlier state plus the number of items since then, which are read
    again on resuming."""

    def __init__(self, state_dict: Callable[[], Any], allow_pickle: bool, ranks: int) -> None:
        """`ranks`: number of ranks to which this reader sends the state."""
        self._state_dict = state_dict
        self._allow_pickle = allow_pickle
        self._seconds_per_byte = (1 + ranks) * _PER_BYTE
        self._due = 0.0
        self._before: bytes | None = None

    def __call__(self) -> State | None:
        """Returns the state, or None if state_dict() is not due yet."""
        begun = time.monotonic()
        if begun < self._due:
            return None
        state = self._pack()
        ended = time.monotonic()
        cost = ended - begun + len(state[0]) * self._seconds_per_byte
        if cost > _FREE:
            self._due = ended + cost / _SHARE
        return state

    def _pack(self) -> State:
        try:
            state = _levada.pack_state(self._state_dict(), allow_pickle=self._allow_pickle)
        except Exception as error:  # only Feed.state_dict() raises it
            return b"", summary_of(error), 0
        before, self._before = self._before, state
        if state != before:
            return state, "", 0
        return b"", _stands_still(getattr(self._state_dict, "__self__", self._state_dict)), 0


def _stands_still(loader: Any) -> str:
    return (
        f"{type(loader).__name__}.state_dict() has returned the same state after two different items, so that it cannot resume "
        "after either; count the items in it, or remove it from the loader, so that the feed counts them"
    )


class Opened(NamedTuple):
    """The opened iterator of a source."""

    iterator: Iterator[Any]
    state: Callable[[], State | None] = lambda: None
    noted: Iterator[Any] | None = None
    """The source itself, if it is an iterator, so that a later pass continues it."""
    order: Order | None = None
    """Records the samples that items are made of, and skips the first items."""
    mark: Callable[[], int | None] = lambda: None
    """Returns the mark of the latest item, or None if the mark must be computed from the item's content."""
    num_before: int = 0
    """Number of items that earlier passes have taken of the iterator, if the feed counts its items."""


class CannotOpen(Exception):
    """The source cannot be opened because of the caller's arguments. The text is shown to users."""


_REFUSED = (RefusedSample, EndsBeforeState, OtherItem, Exhausted, InvalidItem, CannotOpen)
"""Exceptions whose text every rank raises as InvalidArgument."""


class Maker:
    """Makes the items of one iterator that a feed requests through a Handoff, and the states after some of them."""

    def __init__(self, open_source: Callable[[], Opened], making: Making) -> None:
        """`open_source`: opens the source, which may take long."""
        self._open_source: Callable[[], Opened] | None = open_source
        self._making = making
        self._handoff, self._allow_pickle, self._samples = making.handoff, making.allow_pickle, making.samples
        self._counted = making.counted
        self._cuts_rows, self._counts_rows, self._tail = making.cuts_rows, making.counts_rows, making.tail
        self._forms = Forms()
        self._number = making.counted.before
        self._num_taken = 0
        self._last: Any = _NOTHING
        self._digest_of_step = 0
        self._has_items = False
        self._is_open = False
        self._thread = 0
        self._raised: list[BaseException] = []  # at most one: the source's exception, until it is taken

    def open(self) -> bool:
        """Opens the source on the caller's thread and returns whether that succeeded. An exception is sent to all
        ranks; KeyboardInterrupt is also raised here."""
        self._thread = threading.get_ident()
        open_source, self._open_source = self._open_source, None
        assert open_source is not None
        try:
            self._iterator, self._state, self._noted, self._order, self._mark, self._num_before = open_source()
        except _REFUSED as refused:
            self._handoff.fail(text_of(refused), is_argument=True)
            return False
        except BaseException as error:  # also SystemExit, which the source raised and not this program
            self._fail(error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return False
        self._ended = None if self._noted is None else self._making.ended
        self._ahead = self._making.ahead
        self._is_open = True
        return True

    def take_raised(self) -> BaseException | None:
        """Returns the exception that the source raised, but only once; None if it did not raise."""
        return self._raised.pop() if self._raised else None

    def make(self) -> bool:
        """Waits for a request, makes the item, and returns False after the last one. An exception of the iterator is
        sent to all ranks; one that is not an Exception, such as KeyboardInterrupt, is also raised here."""
        if not self._is_open:
            return False
        try:
            wanted = self._handoff.wanted()
            self._thread = threading.get_ident()
            return wanted is not None and self._serve(*wanted)
        except _REFUSED as refused:
            self._handoff.fail(text_of(refused), is_argument=True)
        except ReportedError as failure:
            self._handoff.fail(text_of(failure))
        except BaseException as error:
            self._fail(error)
            if not issubclass(type(error), Exception):
                raise
        return False

    def _fail(self, error: BaseException) -> None:
        """Reports the error even if memory is short or the thread is interrupted, because all ranks wait for it."""
        self._raised = [error]
        try:
            self._handoff.fail(report_of(error))
        except BaseException:
            self._handoff.fail("the source raised an exception that could not be reported")
            raise

    def _serve(self, skipped: int, taken: int, gathered: list[int], repeats: bool) -> bool:
        """Delivers what Handoff.wanted() requests. Returns False at the end of the data, unless the last item may be
        requested again."""
        if repeats:
            self._prepare(without_rows(self._last) if self._tail == "short" else self._last, None)
        elif gathered:
            assert self._samples is not None
            self._prepare(self._samples.gather(gathered), None, self._digest_of_step)
        elif (passed := self._skip(skipped)) < skipped:
            self._note_end()
            self._counted.check(self._number)
            self._handoff.end(passed)
            return self._tail != "drop"
        elif taken:
            assert self._samples is not None
            sizes = self._samples.take(map(self._next_item, range(taken)), taken)
            if len(sizes) < taken:
                self._note_end()
            # At the end of its data, a loader may return the state of its beginning.
            self._digest_of_step = self._content_digest()
            self._handoff.report_sizes(sizes, self._next_state(is_whole=len(sizes) == taken), self._digest_of_step)
            return True
        else:
            try:
                item = self._next_item()
            except StopIteration:
                self._note_end()
                self._handoff.end(skipped)
                return self._tail != "drop"
            try:
                self._prepare(item, self._next_state(), self._mark())
            except Exception:
                if self._ahead is not None:
                    self._ahead.drop_last()
                raise
            del item  # memory to which only the batch refers is sent without a copy
        self._handoff.give()
        return True

    def _next_state(self, *, is_whole: bool = True) -> State | None:
        """`is_whole`: whether the data has not ended within a step."""
        before, self._num_before = self._num_before, 0
        if before > 0:
            return state_of_iterator(before), "", 0
        return self._state() if is_whole else None

    def _prepare(self, item: Any, state: State | None, mark: int | None = None) -> None:
        cut = self._cut(item)
        if mark is None and self._counts_rows:
            with contextlib.suppress(TypeError):  # prepare() raises it with the path of the value
                mark = mark_of_rows(item, cut, allow_pickle=self._allow_pickle)
        self._handoff.prepare(cut, state, mark, allow_pickle=self._allow_pickle)

    def _cut(self, item: Any) -> Any:
        return lists_as_rows(item, f"item {self._number - 1}", self._forms) if self._cuts_rows else item

    def _next_item(self, _: object = None) -> Any:
        """Returns the next item. Raises StopIteration at the end. islice() is not used, because it calls iter(), which
        may restart the iterator."""
        try:
            item = next(self._iterator)
        except StopIteration:
            if self._order is not None and self._order.begun > self._num_taken:
                raise ReportedError(
                    f"the loader ended at item {self._number}, for which its sampler lists samples: their data set, or collate_fn, "
                    "raised StopIteration"
                ) from None
            raise
        self._num_taken += 1
        if self._ahead is not None:
            self._ahead.keep(self._number, item)
        self._number += 1
        self._has_items = True
        if self._tail != "drop" or self._samples is not None:
            self._last = item
        return item

    def _content_digest(self) -> int:
        """Returns the digest of the last sample taken."""
        if self._last is _NOTHING:
            return 0
        try:
            return _levada.digest_of(self._last, allow_pickle=self._allow_pickle)
        except TypeError:  # a sample that only collate_fn can handle
            return 0

    def _skip(self, items: int) -> int:
        """Drops up to `items` items and returns how many it dropped. While rereading them, to find the position of a
        state or after `skip` steps, it posts its progress and compares the item after which the state was saved."""
        end, first_wanted = self._number + items, self._counted.items + self._counted.skipped
        if self._order is not None and self._order.count > 0:
            first = next(self._iterator, _NOTHING)
            count, passed, self._order.count = self._order.count, self._order.passed, 0
            self._number += passed
            if passed < count:
                self._counted.check(self._number)
            if self._order.mark is not None:
                self._counted.compare(self._order.mark)
            if first is _NOTHING:
                return passed
            self._iterator = itertools.chain([first], self._iterator)
        begin = end - items
        try:
            while self._number < end:
                if self._number < first_wanted:
                    self._handoff.report_progress(self._number, first_wanted)
                try:
                    item = self._next_item()
                except StopIteration:
                    return self._number - begin
                self._compare(item)
            return items
        finally:
            self._handoff.report_progress(first_wanted, first_wanted)

    def _compare(self, item: Any) -> None:
        mark = self._mark()
        if self._number - 1 != self._counted.item:
            return
        if mark is None:
            cut = self._cut(item)
            of = functools.partial(mark_of_rows, item) if self._counts_rows else _levada.digest_of
            mark = of(cut, allow_pickle=self._allow_pickle)
        self._counted.compare(mark)

    def _note_end(self) -> None:
        if self._ended is not None:
            self._ended.note(self._noted, is_empty=not self._has_items)

    def where(self) -> str:
        """Returns the functions that make() is running, innermost last: "__next__ > get > wait (threading.py:320)"."""
        frame = sys._current_frames().get(self._thread)
        names: list[str] = []
        place = ""
        while frame is not None and frame.f_code not in _MAKING:
            place = place or f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            names.insert(0, frame.f_code.co_name)
            frame = frame.f_back
        return f"{' > '.join(names[-_FRAMES:])} ({place})" if names and frame is not None else "the interpreter"


def _open_iterable(source: Any, state: Any, making: Making) -> Opened:
    if source is None:
        raise TypeError("this rank reads for the feed, but its source is None")
    if state is not None:
        source.load_state_dict(state)
    counted = making.counted
    order = Order(counted.before, counted.items - counted.before, counted.item)
    ordered = None if making.samples is not None else with_order(source, order)
    iterator = iterate(source if ordered is None else ordered)
    noted = iterator if is_own_iterator(source, iterator) else None
    if making.ahead is not None and noted is not None:
        iterator = making.ahead.over(noted)
    elif making.ahead is not None:
        making.ahead.expect_restarted(iterator, source)
    state_dict = getattr(source, "state_dict", None)
    paced = PacedState(state_dict, making.allow_pickle, making.ranks) if state_dict else lambda: None
    if ordered is None:
        is_counted = making.ahead is not None and state_dict is None and (noted is None or continues(noted))
        return Opened(iterator, paced, noted, num_before=making.ahead.num_before if making.ahead and is_counted else 0)
    return Opened(iterator, paced, noted, order, order.next_mark)


def maker_of(source: Any, state: Any, making: Making) -> Maker:
    """Returns a Maker of the items of iter(source), which resumes from `state` unless that is None."""
    return Maker(lambda: _open_iterable(source, state, making), making)


_MAKING = tuple(
    function.__code__
    for function in (
        Maker.open, Maker.make, Maker._serve, Maker._skip, Maker._next_item, ReadAhead.over, ReadAhead._over, _open_iterable, iterate
    )
)  # fmt: skip
