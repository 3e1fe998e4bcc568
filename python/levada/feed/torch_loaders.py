"""Supports torch's DataLoader: iterates its order without its data, and repeats the random draws of iter()."""

from __future__ import annotations

import copy
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from levada.feed.marks import mark_of_samples


def is_loader(source: Any) -> bool:
    """Returns whether `source` is a DataLoader that torch itself iterates, not a subclass with its own __iter__()."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(source, data.DataLoader) and type(source).__iter__ is data.DataLoader.__iter__


def default_iterate(source: Any) -> str:
    """Returns the default of Feed's `iterate`: "thread" for a loader with worker processes, otherwise "inline". A
    source that produces items in this process may draw from its random generators. On the caller's thread it always
    does so in the same order as a plain loop."""
    workers = getattr(source, "num_workers", 0)
    return "thread" if isinstance(workers, int) and workers > 0 else "inline"


class Order:
    """Records which samples a DataLoader makes its items from, and skips items without loading them."""

    def __init__(self, first: int, count: int, marked: int) -> None:
        """`first`: index of the first item. `count`: number of items to skip. `marked`: item whose mark is kept."""
        self._first = first
        self._marked = marked
        self._made: deque[int] = deque()
        self.begun = 0
        """Number of items whose samples the loader has drawn, without the skipped ones."""
        self.count = count
        self.passed = 0
        """Number of items skipped so far; equal to `count` once the first item has been taken."""
        self.mark: int | None = None

    def over(self, sampler: Any) -> Iterator[Any]:
        for number, samples in enumerate(sampler, self._first):
            if self.passed < self.count:
                self.passed += 1
                if number == self._marked:
                    self.mark = mark_of_samples(samples)
            else:
                self._made.append(mark_of_samples(samples))
                self.begun += 1
                yield samples

    def next_mark(self) -> int:
        """Returns the mark of the item that the loader has just yielded. Must be called once per item."""
        return self._made.popleft()


class _Ordered:
    """A sampler whose iterator is watched by an Order."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.order = Order(0, 0, -1)

    def __iter__(self) -> Iterator[Any]:
        return self.order.over(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


_watched: weakref.WeakKeyDictionary[Any, tuple[Any, _Ordered]] = weakref.WeakKeyDictionary()
"""The copies of loaders that with_order() has made."""


def with_order(source: Any, order: Order) -> Any:
    """Returns a copy of a DataLoader over a map-style data set that `order` watches, or None for any other source. Each
    loader has only one copy, so that the copy may keep its workers. In every pass, it has the loader's attributes."""
    if not is_loader(source) or hasattr(source, "state_dict") or not getattr(source, "in_order", True):
        return None
    if source._dataset_kind != sys.modules["torch.utils.data.dataloader"]._DatasetKind.Map:
        return None
    name = "batch_sampler" if source._auto_collation else "sampler"
    if source not in _watched:
        made = copy.copy(source)
        made.__dict__["_iterator"] = None  # the workers of the loader itself
        _watched[source] = made, _Ordered(source.__dict__[name])
    made, sampler = _watched[source]
    sampler.order = order
    # DataLoader's __setattr__ rejects some of these.
    made.__dict__.update(source.__dict__ | {"_iterator": made.__dict__["_iterator"], name: sampler})
    return made


_drawn: weakref.WeakSet[Any] = weakref.WeakSet()
"""The loaders for which draw_as_reader() has drawn."""


def draw_as_reader(source: Any) -> None:
    """Makes the same random draws as iter() of a DataLoader on the reading rank, so that the generators of all ranks
    stay in step: the seed of the workers, and the sampler's draws for the first items."""
    if not is_loader(source):
        return
    torch = sys.modules["torch"]
    if source not in _drawn or not source.persistent_workers:
        torch.empty((), dtype=torch.int64).random_(generator=source.generator)
    _drawn.add(source)
    ahead = source.num_workers * (source.prefetch_factor or 0)
    if source._dataset_kind == sys.modules["torch.utils.data.dataloader"]._DatasetKind.Map:
        deque(itertools.islice(iter(source._index_sampler), max(ahead, 1)), maxlen=0)
