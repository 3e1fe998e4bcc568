"""Sources of pipelines: any iterable, opened in the process that reads it."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from levada._levada import OpenContext
from levada.base.epochs import set_epoch
from levada.base.errors import InvalidArgument
from levada.base.iterators import Ended, is_own_iterator, items_by_number, iterate, noting_end
from levada.base.packages import is_of
from levada.base.tables import expect_samples
from levada.corpus.corpus import Corpus

Opened = tuple[Iterator[Any], Callable[[], Any] | None, int]
"""An iterator, its state_dict() if it resumes from that, and the index of its next item."""


class NativeSource:
    """A source that opens its own partition in each process."""

    def __call__(self, inputs: list[Iterator[Any]], context: OpenContext) -> Iterator[Any]:
        raise NotImplementedError


def is_factory(source: Any) -> bool:
    """Returns whether `source` is a function that returns an iterable, to be called in each epoch."""
    return callable(source) and not hasattr(source, "__iter__") and not is_sequence(source)


def is_sequence(source: Any) -> bool:
    """Returns whether `source` is indexable, so that a partition is read without others and resumes immediately."""
    if isinstance(source, Sequence):
        return True
    if isinstance(source, type):  # its __getitem__ is for its objects
        return False
    by_number = hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "keys")
    return by_number and (not hasattr(source, "__iter__") or _is_of_library(source) or _is_torch_map_style(source))


def _is_of_library(source: Any) -> bool:
    """Returns whether the class of `source` is known to yield the same items by iteration and by index. Other classes
    may shuffle in one of the two."""
    classes = [("numpy", "ndarray"), ("torch", "Tensor"), ("datasets", "Dataset")]
    return any(is_of(source, module, name) for module, name in classes)


def _is_torch_map_style(source: Any) -> bool:
    """Returns whether torch's DataLoader reads `source` by index, whatever it yields when iterated."""
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(source, torch_data.Dataset):
        return False
    is_iterable = isinstance(source, torch_data.IterableDataset)
    return not is_iterable and type(source).__getitem__ is not torch_data.Dataset.__getitem__


def divides_itself(source: Any) -> str:
    """Returns whether the source opens only its partition if a shard directly follows: "no", "in turns" if the
    partition is every n-th item, and otherwise "in parts"."""
    if isinstance(source, NativeSource):
        return "in parts"
    return "in turns" if isinstance(source, Corpus) or is_sequence(source) else "no"


def check_source(source: Any) -> None:
    expect_samples(source)
    if not (isinstance(source, Iterable) or is_sequence(source) or is_factory(source)):
        raise InvalidArgument(
            f"source must be an iterable or a function that makes one, got an object of type {type(source).__name__}"
        )


def describe(source: Any) -> str:
    """Returns a name of the source for messages."""
    return str(getattr(source, "__name__", None) or type(source).__name__)


class SourceOpener:
    """Opens a source in one process, once for each pass, after it has set the epoch as Feed.set_epoch() does.

    If a pass was left and the source has state_dict() and load_state_dict(), its iter() may continue from there. The
    state before the very first pass is therefore kept, and loaded before a pass that starts over.
    """

    def __init__(self, source: Any, ended: Ended) -> None:
        """`ended`: records whether an epoch of the pipeline has read the source to its end."""
        self._source = source
        self._ended = ended
        self._first: tuple[Any] | None = None  # the source's state before the very first pass, if it had one
        self._last: list[int] | None = None  # number of the last opened pass

    def __call__(self, context: OpenContext, index: int, count: int, given: int, state: Any) -> Opened:
        """Opens partition `index` of `count`, from its item number `given`. If the source is not read by index, opens
        it from `state` unless that is None."""
        source = self._source
        if isinstance(source, NativeSource):
            return source([], context), None, 0
        set_epoch(source, context.epoch)
        if is_sequence(source):
            at = min(given, max(0, -(-(len(source) - index) // count)))
            return _by_number(source, index + at * count, count), None, at
        state_dict = getattr(source, "state_dict", None) if hasattr(source, "load_state_dict") else None
        if state_dict is not None:
            start = self._start_of(context.pass_number, state_dict)
            if state is not None:
                source.load_state_dict(state)
            elif start is not None:
                source.load_state_dict(start[0])
                set_epoch(source, context.epoch)  # the state may contain another epoch
        iterator = iterate(source() if is_factory(source) else source)
        if is_own_iterator(source, iterator):
            iterator = noting_end(iterator, self._ended)
        return iterator, state_dict, 0 if state is None else given

    def _start_of(self, number: list[int], state_dict: Callable[[], Any]) -> tuple[Any] | None:
        """Returns the state before the very first pass; None if there was none, or if pass `number` follows the last
        one."""
        last, self._last = self._last, number
        if last is None:
            with contextlib.suppress(Exception):  # a source may have a state only while it is being read
                self._first = (copy.deepcopy(state_dict()),)
        return copy.deepcopy(self._first) if last is not None and number <= last else None


def _by_number(source: Any, first: int, step: int) -> Iterator[Any]:
    if isinstance(source, range):
        return iter(source[first::step])
    if first == 0 and step == 1 and (type(source) in (list, tuple) or _is_of_library(source)):
        return iter(source)
    return items_by_number(source, first, step)
