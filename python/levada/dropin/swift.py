"""ms-swift's DataLoaderDispatcher: one rank reads, every rank of the group trains on a batch of its own.

    from levada.dropin.swift import DataLoaderDispatcher    # was: from swift.dataloader import DataLoaderDispatcher

In ms-swift                                       Here
------------------------------------------------  ------------------------------------------------------------------
every batch is pickled, padded to the longest     tensors cross as they are, through shared memory on one host;
of its round and unpickled                        nothing is padded or pickled that is a tensor or a plain value
every rank makes an iterator of its loader, and   the rank that reads does, alone
with it worker processes
named tuples and some mappings do not survive     named tuples, mappings and data classes come back as what they were
the move to a device
an exception of the loader ends one rank; the     every rank raises levada.SourceError with the loader's traceback, at
others wait until their time-out                  the same step
a rank that leaves its loop leaves the others     the others' loops end
waiting
set_epoch() tells the data set                    and the loader itself, its sampler and batch sampler
skip_batches past the end is a RuntimeError       all ranks stop
device=0 moves nothing                            device=0 is a device
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada._devices import mover
from levada._errors import InvalidArgument
from levada._feed import Feed, tell_epoch
from levada._levada import Mesh


class DataLoaderDispatcher:
    """Round k gives group rank r batch k * world_size + r of `base_dataloader`, which rank 0 of the group iterates alone
    (others may pass None). A last round that the data does not fill is dropped on all ranks. The batches of a round may
    differ in shape and structure. What cannot cross as it is is pickled, as ms-swift does with everything.

    base_dataloader: any iterable of batches. device: where each batch goes. skip_batches: rounds that each iter()
    leaves out, on all ranks. Subclasses may override rank, world_size and group, alike; without torch.distributed each
    process iterates alone, and batches are those of the loader itself.

    Iterating is collective over the group. Raises, from the iteration: SourceError on every rank, Timeout, PeerLost;
    InvalidArgument where rank and world_size are not those of the group.
    """

    timeout: float = 1800.0
    """Seconds of one wait for the rank that reads, which also may be writing a checkpoint between its steps."""

    def __init__(self, base_dataloader: Iterable[Any] | None, device: Any = None, skip_batches: int = 0) -> None:
        if skip_batches < 0:
            raise InvalidArgument(f"skip_batches is {skip_batches}; it counts rounds from 0")
        self.base_dataloader = base_dataloader
        self.device = device
        self.skip_batches = skip_batches

    @property
    def rank(self) -> int:
        return int(dist.get_rank(self.group)) if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        return int(dist.get_world_size(self.group)) if dist.is_initialized() else 1

    @property
    def group(self) -> Any:
        """The torch.distributed process group among whose ranks the batches are dealt."""
        return dist.group.WORLD if dist.is_initialized() else None

    def set_epoch(self, epoch: int) -> None:
        """Tells the loader, its dataset, sampler and batch sampler and that one's sampler, whichever has a set_epoch()."""
        tell_epoch(self.base_dataloader, epoch)

    def __iter__(self) -> Iterator[Any]:
        move = mover(self.device)
        for batch in self._dealt() if dist.is_initialized() and self.world_size > 1 else self._alone():
            yield batch if move is None else move(batch)

    def _alone(self) -> Iterator[Any]:
        if self.base_dataloader is None:
            raise InvalidArgument("base_dataloader is None, and no other rank reads for this one")
        return islice(iter(self.base_dataloader), self.skip_batches, None)

    def _dealt(self) -> Iterator[Any]:
        place, actual = (self.rank, self.world_size), (dist.get_rank(self.group), dist.get_world_size(self.group))
        if place != actual:
            raise InvalidArgument(f"rank and world_size are {place}, but those of the group are {actual}")
        with Feed(
            self.base_dataloader,
            Mesh(dp=self.world_size),
            group=self.group,
            reader="inline",
            skip=self.skip_batches,
            timeout=self.timeout,
            access="private",
            allow_pickle=True,
        ) as feed:
            yield from feed
