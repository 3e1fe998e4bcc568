"""Divides the draws of a pass into steps and data coordinates. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """The part of a step that one data coordinate gets."""

    first: int
    """Position of the first draw."""
    draws: int
    """Number of draws; 0 if the step has fewer draws than there are coordinates."""
    rows: int
    """Number of samples in the batch: at least 1, and more than `draws` with padding."""


class Division(NamedTuple):
    """Divides the draws [begin, end) of a pass into steps of `batch` draws for each of `ranks` data coordinates."""

    begin: int
    end: int
    batch: int
    ranks: int
    drop_last: bool
    pad_last: bool

    @property
    def steps(self) -> int:
        left, a_step = max(self.end - self.begin, 0), self.batch * self.ranks
        return left // a_step if self.drop_last else -(-left // a_step)

    def step(self, number: int) -> tuple[int, int]:
        """Returns the position of a step's first draw, and its number of draws."""
        first = self.begin + number * self.batch * self.ranks
        return first, min(self.end - first, self.batch * self.ranks)

    def number_of(self, position: int) -> int:
        """Returns the index of the step that begins at a position."""
        return (position - self.begin) // (self.batch * self.ranks)

    def part(self, number: int, rank: int) -> Part:
        """Returns the part of coordinate `rank` in a step. The sizes of a step's parts differ by at most one draw."""
        first, draws = self.step(number)
        begin, end = draws * rank // self.ranks, draws * (rank + 1) // self.ranks
        return Part(first + begin, end - begin, self.batch if self.pad_last else max(end - begin, 1))

    def position(self, taken: int) -> int:
        """Returns the position of the first draw after `taken` steps, or `end` if no further step follows."""
        return self.end if taken >= self.steps else self.begin + taken * self.batch * self.ranks
