"""Iterators that are sources themselves, such as generators: they yield their items once."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from levada.base.errors import InvalidArgument

T = TypeVar("T")

_ended: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Iterators that a pass has read to their end, by id. The interpreter's own, such as map objects, have no weak references."""


class Exhausted(InvalidArgument):
    """A pass begins over an iterator that an earlier pass has read to its end."""


def is_own_iterator(source: Any, iterator: Any) -> bool:
    """Returns whether `iterator`, which is iter(source), yields each item once for all passes. An object that loads a state
    may begin again by that."""
    return iterator is source and not hasattr(source, "load_state_dict")


class Ended:
    """Whether a pass of one feed, or an epoch of one pipeline, has read its source to the end, which is an iterator."""

    def __init__(self) -> None:
        self._has_ended = False

    def note(self, iterator: Any, *, is_empty: bool) -> None:
        """Records that a pass has read the source to its end. `is_empty`: whether the pass got no item. Raises Exhausted if it
        is empty and an earlier pass has read the same iterator to its end."""
        if is_empty and (self._has_ended or _ended.get(id(iterator)) is iterator):
            raise Exhausted(
                f"an earlier pass has read all items of this {type(iterator).__name__}, which cannot be iterated again: give an "
                "object that can, such as a list or a loader, or levada.Pipeline(function) of a function that makes the iterator"
            )
        self._has_ended = True
        with contextlib.suppress(TypeError):
            _ended[id(iterator)] = iterator


def noting_end(iterator: Iterator[T], ended: Ended) -> Iterator[T]:
    """Returns an iterator over the rest of `iterator` that calls ended.note() at its end."""
    try:
        yield next(iterator)
    except StopIteration:
        ended.note(iterator, is_empty=True)
        return
    yield from map(next, itertools.repeat(iterator))  # without iter(), which may begin it again
    ended.note(iterator, is_empty=False)
