"""Determines the items that a pass draws: by the keyed permutation, by weights, or from a sampler's list."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from levada._levada import MIX_VERSION, PERMUTATION_VERSION, SampleOrder, derived_seed
from levada.base.checks import whole_number
from levada.base.epochs import set_epoch_of
from levada.base.errors import InvalidArgument

_END_OF_NUMBERS = 1 << 62


def seed_all(key: int) -> None:
    """Seeds the global generators of Python and numpy, and torch's CPU generator if torch is imported."""
    import numpy as np

    random.seed(key)
    np.random.seed(key >> 32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key >> 1)  # torch.manual_seed() would take 70 us


def generators() -> tuple[Any, Any, Any]:
    """Returns the states of the global random generators."""
    import numpy as np

    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(legacy=False), torch and torch.default_generator.get_state()


@contextmanager
def own_generators() -> Iterator[None]:
    """Restores this process's global random generators on exit."""
    import numpy as np

    python, of_numpy, of_torch = generators()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        if of_torch is not None:
            sys.modules["torch"].default_generator.set_state(of_torch)


class Parts(Sequence[Any]):
    """Several data sets, concatenated."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.names, self.parts = list(parts), list(parts.values())
        self._ends = list(itertools.accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, number: int) -> tuple[int, int]:
        """Returns the index of the data set that contains an item, and the item's index in it."""
        at = bisect.bisect_right(self._ends, number)
        return at, number - (self._ends[at - 1] if at else 0)

    def __getitem__(self, number: Any) -> Any:
        at, own = self.place(number)
        return self.parts[at][own]

    def set_epoch(self, epoch: int) -> None:
        set_epoch_of(self.parts, epoch)


class Order:
    """The item of each draw. Worker processes get a copy by value, and each recreates the C++ order."""

    def __init__(
        self, dataset: Any, seed: int, *, shuffle: bool, weights: Any = None, num_samples: int | None = None
    ) -> None:
        """`weights`: a number for each item, or for each name of a Parts."""
        names = dataset.names if isinstance(dataset, Parts) else [""]
        sizes = [len(part) for part in dataset.parts] if isinstance(dataset, Parts) else [len(dataset)]
        shares = [1.0] * len(names)
        self.items, self.seed, self._shuffle = sum(sizes), seed, shuffle
        self._mixes, self._weights = isinstance(weights, Mapping), b""
        if self._mixes:
            shares = _shares(weights, dataset)
        elif weights is not None:
            self._weights = _packed_weights(weights, self.items)
        self._parts = list(zip(names, sizes, shares, strict=True))
        self.draws = num_samples or self.items
        self._core: SampleOrder | None = None
        self._order()  # checks the arguments

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_core": None}

    def _order(self) -> SampleOrder:
        if self._core is None:
            options: dict[str, Any] = {"shuffle": self._shuffle, "mix": self._mixes, "weights": self._weights}
            self._core = SampleOrder(self._parts, self.seed, draws=self.draws, **options)
        return self._core

    def identity(self) -> dict[str, str]:
        """Returns the facts that define the meaning of a position. States are for loaders of the same identity."""
        named = [f"{items:,} of {name}" for name, items, _ in self._parts] if len(self._parts) > 1 else [f"{self.items:,}"]
        order = f"shuffled (permutation {PERMUTATION_VERSION})" if self._shuffle else "as stored"
        if self._weights:
            order = f"weights {hashlib.blake2b(self._weights, digest_size=8).hexdigest()}"
        elif self._mixes:
            order += f", mixed {' '.join(f'{share:g}' for _, _, share in self._parts)} (version {MIX_VERSION})"
        return {"items": ", ".join(named), "draws": f"{self.draws:,}", "seed": str(self.seed), "order": order}

    def numbers(self, epoch: int, first: int, count: int) -> list[list[int]]:
        """Returns the items of `count` draws, starting at position `first` of a pass that began with `epoch`. Each draw
        is a list, because a draw of a batch sampler has several items."""
        found: list[int] = []
        while len(found) < count:
            more, position = divmod(first + len(found), self.draws)
            taken = min(count - len(found), self.draws - position)
            found += self._order().numbers(epoch + more, position, taken)
        return [[number] for number in found]


class Listed(NamedTuple):
    """A sampler's list for one epoch."""

    items: bytes
    """Indexes of the items, as int64."""
    ends: bytes | None
    """For a batch sampler, the end of each of its lists within `items`, as int64."""

    @property
    def draws(self) -> int:
        return len(self.items if self.ends is None else self.ends) // 8

    def digest(self) -> str:
        return hashlib.blake2b(self.items + b"|" + (self.ends or b""), digest_size=16).hexdigest()

    def numbers(self, first: int, count: int) -> list[list[int]]:
        import numpy as np

        items = np.frombuffer(self.items, np.int64)
        if self.ends is None:
            return [[number] for number in items[first : first + count].tolist()]
        ends = np.frombuffer(self.ends, np.int64)[max(first - 1, 0) : first + count].tolist()
        begins = ends if first > 0 else [0, *ends]
        return [items[begin:end].tolist() for begin, end in itertools.pairwise(begins)]


def list_sampler(sampler: Any, epoch: int, seed: int, items: int, *, in_batches: bool) -> Listed:
    """Returns a sampler's list for an epoch. The sampler draws from generators that are seeded by the seed and the
    epoch. Raises InvalidArgument for an element that is not the index of an item."""
    import numpy as np

    key = derived_seed(seed, epoch)
    with own_generators():
        seed_all(key)
        parts = (sampler, getattr(sampler, "sampler", None))
        set_epoch_of(parts, epoch)
        for part in parts:
            generator = getattr(part, "generator", None)
            if generator is not None and hasattr(generator, "manual_seed"):
                generator.manual_seed(key >> 1)
        listed = [list(each) for each in sampler] if in_batches else list(sampler)
    name = type(sampler).__name__
    if in_batches and not all(listed):
        raise InvalidArgument(f"the batch_sampler {name} yielded a list without an item in epoch {epoch}")
    numbers = [_number_of(each, name, items) for each in (itertools.chain(*listed) if in_batches else listed)]
    if not numbers:
        raise InvalidArgument(f"the sampler {name} yielded no number in epoch {epoch}")
    ends = np.cumsum([len(each) for each in listed], dtype=np.int64).tobytes() if in_batches else None
    return Listed(np.asarray(numbers, np.int64).tobytes(), ends)


def _number_of(value: Any, sampler: str, items: int) -> int:
    if getattr(value, "ndim", None) == 0:  # from torch.randperm() and similar functions
        value = value.item()
    if isinstance(value, (list, tuple)):
        raise InvalidArgument(f"the sampler {sampler} yields lists; pass it as batch_sampler=, without batch_size")
    number = whole_number(f"an item of the sampler {sampler}", value)
    if not -items <= number < items:
        raise InvalidArgument(f"the sampler {sampler} yielded {number}, and the data set has {items:,} items")
    return number % items


def _shares(weights: Mapping[str, Any], dataset: Any) -> list[float]:
    if not isinstance(dataset, Parts):
        raise InvalidArgument("weights by name are for a dict of data sets; pass one number per item for a single one")
    if set(weights) != set(dataset.names):
        raise InvalidArgument(f"weights name {sorted(weights)}, and the data sets are {sorted(dataset.names)}: name each once")
    try:
        return [float(weights[name]) for name in dataset.names]
    except (TypeError, ValueError):
        raise InvalidArgument(f"the weights of data sets must be numbers, got {dict(weights)}") from None


def _packed_weights(weights: Any, items: int) -> bytes:
    import numpy as np

    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"weights must be one number for each item, or a dict by name: {error}") from None
    if array.shape != (items,):
        raise InvalidArgument(f"weights has the shape {array.shape}, and the data set {items:,} items: pass one number per item")
    return array.tobytes()
