"""A reference model of levada.DataLoader: order, division over data coordinates, random numbers, states. It uses no
code of Levada."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_IN_LIST = 1 << 32


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derived(seed: int, stream: int) -> int:
    return _mix(_mix((seed + _GOLDEN) & _MASK) ^ _mix((stream + _GOLDEN) & _MASK))


def permuted(size: int, seed: int, epoch: int, index: int) -> int:
    """Returns element `index` of a keyed permutation of [0, size)."""
    bits = (size - 1).bit_length()
    half = 1 if bits < 2 else (bits + 1) // 2
    state, keys = _mix((_mix((seed + _GOLDEN) & _MASK) + epoch) & _MASK), []
    for _ in range(8):
        state = (state + _GOLDEN) & _MASK
        keys.append(_mix(state))
    while True:
        left, right = index >> half, index & ((1 << half) - 1)
        for key in keys:
            left, right = right, left ^ (_mix((right + key) & _MASK) & ((1 << half) - 1))
        index = left << half | right
        if index < size:
            return index


def _in_epochs(size: int, seed: int | None, draw: int) -> int:
    return draw % size if seed is None else permuted(size, seed, draw // size, draw % size)


def weighted(weights: list[float], key: int) -> int:
    """Returns the item that a key draws by weight, with the alias method."""
    count, mean = len(weights), _sum(weights) / len(weights)
    left = [weight / mean for weight in weights]
    small = [at for at in range(count) if left[at] < 1]
    large = [at for at in range(count) if left[at] >= 1]
    columns: list[tuple[int, int]] = [(0, 0)] * count
    while small and large:
        filled, source = small.pop(), large.pop()
        columns[filled] = (_of_all(left[filled]), source)
        left[source] -= 1 - left[filled]
        (small if left[source] < 1 else large).append(source)
    heaviest = weights.index(max(weights))
    for at in large:
        columns[at] = (_MASK, at)
    for at in small:
        columns[at] = (_MASK if weights[at] > 0 else 0, heaviest)
    column = key * count >> 64
    own, other = columns[column]
    return column if derived(key, 1) < own else other


def _sum(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def _of_all(share: float) -> int:
    return _MASK if share >= 1 else int(math.ldexp(share, 64))


def mixed(shares: list[float], seed: int, draws: int) -> list[tuple[int, int]]:
    """Returns, for each of the first draws, its source and its number among that source's draws."""
    assert draws <= 4096, "the model knows the first block alone"
    total = _sum(shares)
    scaled = [max(round(share / total * 2**36), 1) for share in shares]
    phases = [((at * _GOLDEN + (1 << 63)) & _MASK) >> 56 for at in range(len(shares))]
    counts, owners = [0] * len(shares), []
    others = [math.prod(scaled) // share for share in scaled]  # compared as times over a common denominator
    for _ in range(4096):
        source = min(range(len(shares)), key=lambda at: ((counts[at] * 256 + phases[at]) * others[at], at))
        counts[source] += 1
        owners.append(source)
    owners.sort()
    given, found = [0] * len(shares), []
    for at in range(draws):
        source = owners[permuted(4096, seed, 0, at)]
        found.append((source, given[source]))
        given[source] += 1
    return found


class Job(NamedTuple):
    """The parts of a loader's configuration that determine its draws, on any mesh, with any batch size and workers."""

    sizes: list[int]
    """The sizes of the data sets; several are a dict."""
    subset: list[int] | None
    """The items of the single data set that can be drawn."""
    shares: list[float] | None
    weights: list[float] | None
    seed: int
    shuffle: bool
    draws: int
    """Draws of an epoch."""
    epochs: int
    sampler: str
    """One of "none", "items" and "batches"."""
    bad: list[int]
    """Items that raise and are skipped."""
    whole: bool
    """Whether an item is a whole batch."""

    @property
    def items(self) -> int:
        return sum(self.sizes)


class Draw(NamedTuple):
    key: int
    numbers: list[int]


class Model:
    """The draws and samples of a job's loader."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._listed, self.draw, self.rows = functools.cache(self._list), functools.cache(self._draw), functools.cache(self._rows)
        self._mix = [] if job.shares is None else mixed(job.shares, derived(job.seed if job.shuffle else 0, 0), 4096)

    def _list(self, epoch: int) -> list[Any]:
        """Returns the list of the test's sampler."""
        job, drawn = self.job, np.random.RandomState(derived(self.job.seed, epoch) >> 32)
        return list(listing(job.sampler, job.items, job.draws, epoch, drawn))

    def _draw(self, epoch: int, at: int) -> Draw:
        """Returns draw `at` of a pass that began with an epoch."""
        job = self.job
        epoch, position = epoch + at // job.draws, at % job.draws
        key = derived(derived(job.seed, epoch), position)
        seed = job.seed if job.shuffle else None
        if job.sampler != "none":
            found = self._listed(epoch)[position]
            return Draw(key, found if job.sampler == "batches" else [found])
        if job.weights is not None:
            return Draw(key, [weighted(job.weights, derived(key, 2))])
        draw = epoch * job.draws + position
        if job.shares is None:
            return Draw(key, [_in_epochs(job.items, seed, draw)])
        source, own = self._mix[draw]
        own_seed = derived(seed, source + 1) if seed is not None and len(job.sizes) > 1 else seed
        return Draw(key, [sum(job.sizes[:source]) + _in_epochs(job.sizes[source], own_seed, own)])

    def _rows(self, epoch: int, at: int) -> list[dict[str, Any]]:
        """Returns the samples of a draw, except samples that raise."""
        drawn = self.draw(epoch, at)
        keys = [derived(drawn.key, _IN_LIST + place) for place in range(len(drawn.numbers))]
        if self.job.sampler != "batches":
            keys = [drawn.key]
        return [item(self.job, number, key) for number, key in zip(drawn.numbers, keys, strict=True) if number not in self.job.bad]


def item(job: Job, number: int, key: int) -> dict[str, Any]:
    own = number if job.subset is None else job.subset[number]
    return {"id": own, "py": random.Random(key).random(), "np": np.random.RandomState(key >> 32).rand(), "seed": key >> 1}


def listing(kind: str, items: int, draws: int, epoch: int, drawn: Any) -> Iterator[Any]:
    """Yields the test sampler's choices for an epoch, which depend on the epoch and on a random generator."""
    offset = int(drawn.randint(0, 1000)) + epoch
    for at in range(draws):
        numbers = [(at * 7 + offset + place) % items for place in range(1 + (at + epoch) % 3)]
        yield numbers if kind == "batches" else numbers[0]


class Shape(NamedTuple):
    """The division of a pass's draws into batches."""

    batch: int
    ranks: int
    drop_last: bool
    pad_last: bool


class Batch(NamedTuple):
    """The batch of a data coordinate in a step."""

    rows: list[dict[str, Any]]
    valid: int
    total: int
    """Samples of the whole step."""
    numbers: list[int]
    epoch: int


def steps_of(job: Job, begin: int, shape: Shape) -> int:
    left, a_step = job.draws * job.epochs - begin, shape.batch * shape.ranks
    return left // a_step if shape.drop_last else math.ceil(left / a_step)


def position_after(job: Job, begin: int, steps: int, shape: Shape) -> int:
    end = job.draws * job.epochs
    return end if steps >= steps_of(job, begin, shape) else begin + steps * shape.batch * shape.ranks


def divides(lengths: list[int], ranks: int, max_tokens: int) -> bool:
    """Returns whether first-fit decreasing divides samples into equally many micro-batches of at most max_tokens for
    each rank, none of them empty."""
    sums: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = next((at for at, sum in enumerate(sums) if sum + length <= max_tokens), len(sums))
        sums[at : at + 1] = [length + (sums[at] if at < len(sums) else 0)]
    return -(-len(sums) // ranks) * ranks <= len(lengths)


def batch_of(model: Model, epoch: int, begin: int, step: int, coordinate: int, shape: Shape) -> Batch | None:
    """Returns a batch, or None if all of its samples raise."""
    job, end = model.job, model.job.draws * model.job.epochs
    first = begin + step * shape.batch * shape.ranks
    count = min(end - first, shape.batch * shape.ranks)
    low, high = count * coordinate // shape.ranks, count * (coordinate + 1) // shape.ranks
    rows = [row for at in range(first + low, first + high) for row in model.rows(epoch, at)]
    drawn = [number for at in range(first + low, first + high) for number in model.draw(epoch, at).numbers]
    valid = len(rows)
    if low == high:
        for at in range(min(first + low, end - 1), begin - 1, -1):
            rows = model.rows(epoch, at)
            if rows:
                break
        size = len(model.draw(epoch, at).numbers)
    else:
        size = len(drawn)
    if not rows:
        return None
    if job.sampler != "batches":
        size = shape.batch if shape.pad_last else max(high - low, 1)
    rows = rows + [rows[-1]] * (size - len(rows))
    total = count if job.sampler != "batches" else sum(len(model.draw(epoch, at).numbers) for at in range(first, first + count))
    return Batch(rows, valid, total, [number for number in drawn if number not in job.bad], epoch + first // job.draws)


def begins_at(job: Job, epoch: int, position: int, shape: Shape) -> tuple[int, int]:
    """Returns the epoch and position at which a loader begins after loading a state: after the end of a pass, the next
    pass."""
    if position > 0 and steps_of(job, position, shape) == 0:
        return epoch + job.epochs, 0
    return epoch, position


def draw_job(chance: random.Random) -> Job:
    parts = chance.choice([1, 1, 1, 2, 3])
    sizes = [chance.randint(1, 24) for _ in range(parts)]
    items = sum(sizes)
    sampler = chance.choice(["none", "none", "none", "items", "batches"])
    plain = sampler == "none"
    shares = [chance.choice([1.0, 2.5, 0.1]) for _ in sizes] if plain and parts > 1 and chance.random() < 0.6 else None
    weights = None
    if plain and shares is None and parts == 1 and chance.random() < 0.3:
        weights = [chance.choice([0.0, 1.0, 3.0, chance.random()]) for _ in range(items)]
        weights[chance.randrange(items)] = 1.0
    subset = [chance.randrange(500) for _ in range(items)] if parts == 1 and chance.random() < 0.3 else None
    draws = chance.randint(1, 40) if not plain or chance.random() < 0.4 else items
    bad = sorted({chance.randrange(items) for _ in range(2)}) if chance.random() < 0.2 else []
    return Job(
        sizes=sizes,
        subset=subset,
        shares=shares,
        weights=weights,
        seed=chance.randrange(1 << 64),
        shuffle=plain and weights is None and chance.random() < 0.8,
        draws=draws,
        epochs=chance.choice([1, 1, 2]) if plain else 1,
        sampler=sampler,
        bad=bad,
        whole=plain and not bad and chance.random() < 0.15,
    )
