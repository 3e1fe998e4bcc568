"""ms-swift's DataLoaderDispatcher: one rank reads, and every rank of the group trains on a different batch.

    import levada.dropin.swift
    levada.dropin.swift.install()    # before or after ms-swift's trainers are imported

In ms-swift                                       Here
------------------------------------------------  ------------------------------------------------------------------
pickles every batch, pads it to the longest of    tensors are sent unchanged, through shared memory on one host;
its round and unpickles it                        tensors and plain values are neither padded nor pickled
every rank makes an iterator of its loader, and   only the reading rank does so
its worker processes
named tuples and some mappings do not survive     named tuples, mappings and data classes arrive unchanged
the move to a device
if the loader raises, one rank ends and the       every rank raises levada.SourceError with the loader's traceback,
others wait until they time out                   at the same step
set_epoch() sets the epoch of the data set        also sets the epoch of the loader, its sampler and batch sampler
skip_batches past the end raises RuntimeError     all ranks stop
device=0 moves nothing                            device=0 is a device
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada._levada import Mesh
from levada.base.epochs import set_epoch
from levada.base.errors import InvalidArgument, Unsupported
from levada.batch.devices import accelerator, mover
from levada.feed.feed import Feed

_HOOKS = ("_scatter_object_list", "_skip_batches", "_scatter_device")
"""Private methods of ms-swift, none of which this class calls."""


class DataLoaderDispatcher:
    """Delivers in round k, to group rank r, batch k * world_size + r of `base_dataloader`, which only rank 0 of the
    group iterates (others may pass None). A last round that the data does not fill is dropped on all ranks. The batches
    of a round may differ in shape and structure. Values that cannot be sent otherwise are pickled; ms-swift pickles
    everything.

    base_dataloader: any iterable of batches. device: the device to which each batch is moved. None means the
    accelerator if the group's backend is nccl or hccl; otherwise batches are not moved. skip_batches: number of rounds
    that each iter() skips, on all ranks. Subclasses may override rank, world_size, group and timeout, in the same way
    on all ranks. Without torch.distributed, each process iterates separately, and the batches are the loader's own.

    Iterating is collective over the group. Iteration raises SourceError on every rank, Timeout, and PeerLost;
    InvalidArgument if rank and world_size are not those of the group; and Unsupported if a subclass has ms-swift's
    private methods, which would not be called.
    """

    timeout: float | None = None
    """Seconds that one wait for the reading rank may take, which may be writing a checkpoint between its steps. None
    means the timeout of the process group, which is ms-swift's `ddp_timeout`."""

    def __init__(self, base_dataloader: Iterable[Any] | None, device: Any = None, skip_batches: int = 0) -> None:
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
        """The torch.distributed process group to whose ranks the batches are dealt; 1 without torch.distributed."""
        return dist.group.WORLD if dist.is_initialized() else 1

    def set_epoch(self, epoch: int) -> None:
        """Calls set_epoch() on the loader and on its dataset, sampler, batch sampler and batch sampler's sampler if
        they have one."""
        set_epoch(self.base_dataloader, epoch)

    def __iter__(self) -> Iterator[Any]:
        overridden = [name for name in _HOOKS if hasattr(type(self), name)]
        if overridden:
            raise Unsupported(f"{type(self).__name__} has {', '.join(overridden)}, which Levada's dispatcher never calls")
        distributed = dist.is_initialized()
        device = self.device
        if device is None and distributed and dist.get_backend(self.group) in ("nccl", "hccl"):
            device = accelerator()
        move = mover(device)
        for batch in self._dealt() if distributed and self.world_size > 1 else self._alone():
            yield batch if move is None else move(batch)

    def _alone(self) -> Iterator[Any]:
        if self.base_dataloader is None:
            raise InvalidArgument("base_dataloader is None, and no other rank reads for this one")
        return islice(iter(self.base_dataloader), max(0, self.skip_batches), None)

    def _dealt(self) -> Iterator[Any]:
        place, actual = (self.rank, self.world_size), (dist.get_rank(self.group), dist.get_world_size(self.group))
        if place != actual:
            raise InvalidArgument(f"rank and world_size are {place}, but the group has {actual}")
        with Feed(
            self.base_dataloader,
            Mesh(dp=self.world_size),
            group=self.group,
            iterate="inline",
            skip=max(0, self.skip_batches),
            timeout=_timeout_of(self.group) if self.timeout is None else self.timeout,
            access="private",
            allow_pickle=True,
        ) as feed:
            yield from feed


def _timeout_of(group: Any) -> float:
    """Returns the timeout of a process group in seconds, or 1800 if torch does not report it."""
    for device in getattr(group, "_device_types", []):
        options = getattr(group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if timeout is not None:
            return float(timeout.total_seconds())
    return 1800.0


def install() -> None:
    """Makes ms-swift's own DataLoaderDispatcher work like this one, whichever of its modules have been imported. The
    class object remains, so its subclasses and isinstance() continue to work. Must be called on every rank before
    training. Raises Unsupported if ms-swift is not installed or has no such class.
    """
    theirs = _class_of_swift()
    for name in _HOOKS:
        if name in vars(theirs):
            delattr(theirs, name)
    for name, value in vars(DataLoaderDispatcher).items():
        if name not in ("__dict__", "__weakref__", "__module__"):
            setattr(theirs, name, value)


def _class_of_swift() -> Any:
    for module in ("swift.dataloader.dispatcher", "swift.llm.data_loader"):  # in versions 4 and 3
        try:
            return importlib.import_module(module).DataLoaderDispatcher
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise  # a module that ms-swift imports has raised
    raise Unsupported("ms-swift is not installed, so its DataLoaderDispatcher cannot be replaced; install ms-swift first")
