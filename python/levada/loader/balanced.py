"""Balanced steps of items with known lengths: divides the items among ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from levada import _levada
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument
from levada.base.exception_texts import failure_text
from levada.batch.balance import Balance, RefusedSample, Size
from levada.batch.packing import Packing


class Lengths:
    """The number of tokens of each item, by index. Each worker process gets a copy."""

    def __init__(self, of: Any) -> None:
        """`of`: a function of the index, or an array."""
        self._of = of

    def __call__(self, numbers: list[int]) -> list[int]:
        get = self._of if callable(self._of) else self._of.item
        return [_length(number, get) for number in numbers]


def _length(number: int, get: Callable[[int], Any]) -> int:
    try:
        value = get(number)
    except Exception as error:
        raise RefusedSample(f"lengths raised {failure_text(error)} for item {number}") from error
    try:
        length = whole_number("", value)
    except InvalidArgument:
        length = 0
    if not 1 <= length < 1 << 31:
        raise RefusedSample(f"the length of item {number} is {value!r}; it must be a whole number from 1 to 2**31 - 1")
    return length


class StepBalance(NamedTuple):
    """Divides the steps of a loader into micro-batches."""

    balance: Balance
    max_tokens: int | None
    lengths: Lengths
    packing: Packing

    def sizes(self, numbers: list[int]) -> list[Size]:
        """Returns the sizes by which the core balances items, without making the items."""
        pad = self.packing.pad_to
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
