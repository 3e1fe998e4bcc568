"""A source with another number of items each epoch."""

from collections.abc import Iterator, Sequence


class Lengths:
    """Gives `counts[epoch]` numbers, counting from 0; after the last count it begins with the first again."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from range(self.counts[self.epoch % len(self.counts)])
