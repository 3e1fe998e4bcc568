"""Iterators that are sources themselves, such as generators: they yield their items once."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from levada.base.errors import InvalidArgument

T = TypeVar("T")

# Iterators that a pass has read to their end, by id. Iterators without weak references are the interpreter's own, which hold
# little memory once they have ended.
_ended: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_ended_last: collections.deque[Any] = collections.deque(maxlen=64)


class Exhausted(InvalidArgument):
    """A pass begins over an iterator that an earlier pass has read to its end."""


def is_own_iterator(source: Any, iterator: Any) -> bool:
    """Returns whether `iterator`, which is iter(source), yields each item once for all passes. An object that loads a state
    may begin again by that."""
    return iterator is source and not hasattr(source, "load_state_dict")


def note_end(iterator: Any, *, is_empty: bool) -> None:
    """Records that a pass has read an iterator to its end. `is_empty`: whether the pass got no item. Raises Exhausted if it is
    empty and an earlier pass has read the same iterator to its end."""
    if is_empty and (_ended.get(id(iterator)) is iterator or any(each is iterator for each in _ended_last)):
        raise Exhausted(
            f"an earlier pass has read all items of this {type(iterator).__name__}, which cannot be iterated again: give an "
            "object that can, such as a list or a loader, or levada.Pipeline(function) of a function that makes the iterator"
        )
    try:
        _ended[id(iterator)] = iterator
    except TypeError:
        _ended_last.append(iterator)


def noting_end(iterator: Iterator[T]) -> Iterator[T]:
    """Returns an iterator over the rest of `iterator` that calls note_end() at its end."""
    rest = map(next, itertools.repeat(iterator))  # without iter(), which may begin it again
    return itertools.chain(_first(iterator), rest, _end(iterator))


def _first(iterator: Iterator[T]) -> Iterator[T]:
    try:
        yield next(iterator)
    except StopIteration:
        note_end(iterator, is_empty=True)


def _end(iterator: Iterator[T]) -> Iterator[T]:
    note_end(iterator, is_empty=False)
    yield from ()
