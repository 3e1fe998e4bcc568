"""Keeps the items that a feed read ahead from a one-time iterator and had not used when its loop was left, and rejects
a second pass that would lose such items."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, NamedTuple

from levada import _levada
from levada.feed.rows import InvalidItem


class _Kept(NamedTuple):
    number: int
    item: Any
    digest: int | None
    """None if the item cannot be sent. Sending it raises the error."""


class Taken(NamedTuple):
    """The items that a pass took."""

    number: int
    """Number of the pass."""
    end: int
    """Index of the item after the last one."""


class ReadAhead:
    """Keeps the last items of a pass over a one-time iterator until it is known how many were taken. The next pass
    begins with the others."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._left: list[_Kept] = []
        self._due = 0  # items that other readers took and that were not read here
        self._read = 0  # items read so far in this pass
        self._opened: weakref.ref[Any] | None = None  # the generator of the previous pass
        self._num_unused = 0  # items of that generator that were read but not taken
        self._ended = 0  # number of the last pass that has ended
        self.num_before = 0
        """Items that earlier passes have taken, unless iter() has restarted the source since."""
        self._keeps = False
        self._most = 0
        self._allow_pickle = False

    def begin(self, most: int, *, allow_pickle: bool) -> None:
        """Begins a pass that reads at most `most` items beyond those taken."""
        self._most, self._allow_pickle = most, allow_pickle
        self._kept.clear()
        self._read = 0
        self._keeps = False

    def keep(self, number: int, item: Any) -> None:
        self._read = number + 1
        if not self._keeps:
            return
        if self._most > 0:
            self._kept.append(_Kept(number, item, self._digest(item)))
        if len(self._kept) > self._most:
            self._kept.popleft()

    def drop_last(self) -> None:
        """Forgets the last item read, which cannot be sent and would end every later pass, too."""
        if self._kept:
            self._kept.pop()

    def end(self, taken: Taken) -> None:
        """Ends a pass, unless that has been done: a later pass that cannot begin is begun again."""
        if taken.number == self._ended:
            return
        self._ended = taken.number
        self._due += max(taken.end - self._read, 0)
        self._num_unused += max(self._read - taken.end, 0)
        self.num_before += taken.end
        self._left = [kept for kept in self._kept if kept.number >= taken.end] + self._left
        self._kept.clear()

    def clear(self) -> None:
        """Forgets everything, because the iterator has been read to its end or restarts."""
        self._kept.clear()
        self._left.clear()
        self._due = 0
        self._num_unused = self.num_before = 0

    def expect_restarted(self, iterator: Iterator[Any], source: Any) -> None:
        """Raises InvalidItem if iter(source) has returned the generator of the previous pass again, so that items that
        had been read ahead would be missing."""
        if self._opened is None or self._opened() is not iterator:
            self._num_unused = self.num_before = 0
        if self._num_unused > 0:
            raise InvalidItem(
                f"iter() of this {type(source).__name__} continues where the last pass was left, but {self._num_unused} of its "
                "items had been read ahead and would be missing: take all batches of the run from one iter(feed), or read "
                'nothing ahead (iterate="inline")'
            )
        self._opened = weakref.ref(iterator) if isinstance(iterator, GeneratorType) else None

    def over(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yields the items left over from earlier passes, then the rest of `iterator`, without those already taken. The
        next pass begins with the items that this one does not take."""
        self._keeps = True
        rest = self._over(iterator)
        while self._due > 0:
            self._due -= 1
            next(rest, None)
        yield from rest

    def _over(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while self._left:
            kept = self._left.pop(0)
            if self._digest(kept.item) != kept.digest:
                raise InvalidItem(
                    "an item that was read before the loop was left has been changed since, so that the next loop cannot begin "
                    'with it: let the iterator yield new arrays, or read nothing ahead (iterate="inline")'
                )
            yield kept.item
        while True:
            try:
                passed = [next(iterator)]
            except StopIteration:
                return
            yield passed.pop()  # memory to which only the batch refers is sent without a copy

    def _digest(self, item: Any) -> int | None:
        try:
            return _levada.digest_of(item, allow_pickle=self._allow_pickle)
        except Exception:
            return None
