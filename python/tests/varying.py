"""A source whose number of items depends on the epoch."""

from collections.abc import Iterator, Sequence


class Lengths:
    """Yields `counts[epoch]` numbers, counting from 0; after the last count it starts over with the first."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from range(self.counts[self.epoch % len(self.counts)])
