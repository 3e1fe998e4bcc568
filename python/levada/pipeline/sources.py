"""Where the items of a pipeline come from: any iterable, opened in the process that reads it."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from levada._levada import OpenContext
from levada.base.errors import InvalidArgument
from levada.corpus.corpus import Corpus

Opened = tuple[Iterator[Any], Callable[[], Any] | None, int]
"""An iterator, what says its state, and how many items it has passed over."""


class NativeSource:
    """Opens its part by itself, in each process."""

    def __call__(self, inputs: list[Iterator[Any]], context: OpenContext) -> Iterator[Any]:
        raise NotImplementedError


def is_factory(source: Any) -> bool:
    """Whether it is to be called for an iterable, in each epoch."""
    return callable(source) and not hasattr(source, "__iter__") and not is_sequence(source)


def is_sequence(source: Any) -> bool:
    """Whether items can be had by number, so that a part of them is read alone and going on costs nothing."""
    if isinstance(source, Sequence):
        return True
    by_number = hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "keys")
    return by_number and (not hasattr(source, "__iter__") or _iterates_by_number(source))


def _iterates_by_number(source: Any) -> bool:
    """Whether it is of a class that gives the same items in a loop and by number. Others may shuffle in one of them."""
    classes = [("numpy", "ndarray"), ("torch", "Tensor"), ("datasets", "Dataset")]
    found = (getattr(sys.modules.get(module), name, None) for module, name in classes)
    return any(isinstance(source, cls) for cls in found if cls is not None)


def divides_itself(source: Any) -> str:
    """Whether a shard right behind it has it open its part alone, and whether that is every n-th item: "no", "in parts"
    or "in turns"."""
    if isinstance(source, NativeSource):
        return "in parts"
    return "in turns" if isinstance(source, Corpus) or is_sequence(source) else "no"


def check_source(source: Any) -> None:
    if not (isinstance(source, Iterable) or is_sequence(source) or is_factory(source)):
        raise InvalidArgument(f"a {type(source).__name__} is no source: give an iterable, or a function that makes one")


def describe(source: Any) -> str:
    """For people."""
    return str(getattr(source, "__name__", None) or type(source).__name__)


def length_of(source: Any) -> int:
    """Raises TypeError where it has none."""
    return len(source)


class SourceOpener:
    """Opens a source in one process, once for each pass. The source is told the epoch if it has a set_epoch().

    Where a pass left a source that has state_dict() and load_state_dict(), iter() of it may go on. So what it says before
    the first pass of an epoch is kept, and loaded before another pass that begins in the same epoch.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._begin: tuple[int, Any] | None = None  # an epoch, and the source's state before it

    def __call__(self, context: OpenContext, index: int, count: int, given: int, state: Any) -> Opened:
        """Part `index` of `count` of the items, from number `given` of that part or from `state`, if that is not None."""
        source = self._source
        if isinstance(source, NativeSource):
            return source([], context), None, 0
        tell = getattr(source, "set_epoch", None)
        if tell is not None:
            tell(context.epoch)
        state_dict = getattr(source, "state_dict", None)
        if state is None and is_sequence(source):
            size = max(0, -(-(len(source) - index) // count))
            if given > size:
                raise InvalidArgument(
                    f"the state is of item {given} of a {type(source).__name__} that has {size} of them here"
                )
            return _by_number(source, index + given * count, count), state_dict, given
        if not hasattr(source, "load_state_dict"):
            state_dict = None
        if state_dict is not None:
            start = self._start_of(context.epoch, state_dict)
            if state is not None:
                source.load_state_dict(state)
            elif start is not None:
                source.load_state_dict(start[0])
        return iter(source() if is_factory(source) else source), state_dict, 0

    def _start_of(self, epoch: int, state_dict: Callable[[], Any]) -> tuple[Any] | None:
        """What it said before the first pass of the epoch; None where this is that pass, or it could not say it."""
        if self._begin is not None and self._begin[0] == epoch:
            return (copy.deepcopy(self._begin[1]),)
        self._begin = None
        with contextlib.suppress(Exception):  # of a source that knows its state only while it is read
            self._begin = (epoch, copy.deepcopy(state_dict()))
        return None


def _by_number(source: Any, first: int, step: int) -> Iterator[Any]:
    if isinstance(source, range):
        return iter(source[first::step])
    if first == 0 and step == 1 and hasattr(source, "__iter__"):
        return iter(source)
    return map(source.__getitem__, range(first, len(source), step))
