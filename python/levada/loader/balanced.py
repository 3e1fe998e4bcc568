"""Balanced steps of items with known lengths: divides the items among ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

from levada import _levada
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument
from levada.batch.balance import Balance, Size


class Lengths:
    """The number of tokens of each item, by index. Each worker process gets a copy."""

    def __init__(self, of: Any) -> None:
        """`of`: a function of the index, or an array."""
        self._of = of

    def __call__(self, numbers: list[int]) -> list[int]:
        get = self._of if callable(self._of) else self._of.__getitem__
        return [_length(number, get(number)) for number in numbers]


def _length(number: int, value: Any) -> int:
    length = whole_number(f"the length of item {number}", value)
    if not 1 <= length < 1 << 31:
        raise InvalidArgument(f"the length of item {number} is {length}; it must be from 1 to 2**31 - 1")
    return length


class StepBalance(NamedTuple):
    """Divides the steps of a loader into micro-batches."""

    balance: Balance
    max_tokens: int | None
    lengths: Lengths

    def sizes(self, numbers: list[int]) -> list[Size]:
        """Returns the sizes by which the core balances items, without making the items."""
        pad = self.balance.pad_to
        lengths = self.lengths(numbers)
        padded = [-(-length // pad) * pad for length in lengths]
        return [(tokens, tokens * tokens, 0, 0, tokens - length) for tokens, length in zip(padded, lengths, strict=True)]

    def micro_batches(self, numbers: list[int], ranks: int, coordinate: int) -> list[list[int]]:
        """Returns the micro-batches of a step for one of `ranks` data coordinates, as positions in the step. Returns
        none if the step cannot be divided, which the core reports."""
        sizes = [size[:4] for size in self.sizes(numbers)]
        try:
            micros: list[list[list[int]]] = _levada.plan_step(sizes, ranks, self.balance.resolved(self.max_tokens or 0))
        except InvalidArgument:
            return []
        return micros[coordinate]
