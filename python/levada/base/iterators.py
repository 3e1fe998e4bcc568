"""Supports iterators that are sources themselves, such as generators, which yield their items only once."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from levada.base.errors import InvalidArgument, SourceError
from levada.base.exception_texts import failure_text

T = TypeVar("T")

_ended: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Iterators that a pass has read to their end, by id. Built-in iterators, such as map objects, do not support weak
references and are missing here."""


class Exhausted(InvalidArgument):
    """A pass was begun over an iterator that an earlier pass has read to its end."""


def iterate(source: Any) -> Iterator[Any]:
    """Returns iter(source). A source that iter() would read until its first IndexError is read by index instead: one
    that has __getitem__ and __len__, and either no __iter__ or the __iter__ of collections.abc.Sequence."""
    own = getattr(type(source), "__iter__", None)
    by_number = hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "keys")
    return items_by_number(source) if by_number and own in (None, Sequence.__iter__) else iter(source)


def items_by_number(source: Any, first: int = 0, step: int = 1) -> Iterator[Any]:
    """Yields every `step`-th item of an indexable source, starting at index `first`. Raises SourceError, which names
    the item, if StopIteration or IndexError ends the items before len(source)."""
    count = len(source)
    for number in range(first, count, step):
        try:
            item = source[number]
        except (StopIteration, IndexError) as error:
            raise SourceError(
                f"item {number} of {count} of a {type(source).__name__} cannot be read: its __getitem__ raised "
                f"{failure_text(error)}; return an item for each number below len()"
            ) from error
        yield item


def is_own_iterator(source: Any, iterator: Any) -> bool:
    """Returns whether `iterator`, which is iter(source), yields each item only once for all passes. An object that can
    load a state may restart that way."""
    return iterator is source and not hasattr(source, "load_state_dict")


def continues(source: Any) -> bool:
    """Returns whether `source` is an iterator without states that iter() certainly does not restart: a generator or another
    built-in one, or one whose class has an __iter__() that only returns `self`."""
    kind = type(source)
    if not hasattr(kind, "__next__") or hasattr(source, "state_dict") or hasattr(source, "load_state_dict"):
        return False
    own = getattr(kind.__iter__, "__code__", None)
    return kind.__module__ in ("builtins", "itertools") if own is None else own.co_code == _returned.__code__.co_code


def _returned(self: Any) -> Any:
    return self


class Ended:
    """Records whether a pass of one feed, or an epoch of one pipeline, has read its source, an iterator, to the end."""

    def __init__(self) -> None:
        self._has_ended = False

    def note(self, iterator: Any, *, is_empty: bool) -> None:
        """Records that a pass has read the source to its end. `is_empty`: whether the pass received no item. Raises
        Exhausted if the pass is empty and an earlier pass has read the same iterator to its end."""
        if is_empty and (self._has_ended or _ended.get(id(iterator)) is iterator):
            raise Exhausted(
                f"an earlier pass has read all items of this {type(iterator).__name__}, which cannot be iterated again: pass an "
                "object that can, such as a list or a loader, or levada.Pipeline(function) of a function that returns the iterator"
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
    yield from map(next, itertools.repeat(iterator))  # does not call iter(), which may restart it
    ended.note(iterator, is_empty=False)
