"""One pass of a DataLoader: the agreement of its ranks before it, and the properties of its batches."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from levada import _levada
from levada._levada import Membership, Mesh
from levada.base.errors import InvalidArgument, ItemError, SourceError
from levada.feed.passes import Beginning, FeedPass, JoinedFeed
from levada.feed.rows import num_rows
from levada.loader.counted import taken_apart
from levada.loader.items import Plan

if TYPE_CHECKING:
    from levada.batch.devices import Sender


class Offer(NamedTuple):
    """A rank's knowledge of the pass that is about to begin."""

    reads: bool
    settings: dict[str, str]
    """Arguments that must be the same on all ranks."""
    identity: dict[str, str]
    """Identity of the data set; empty if the rank has none."""
    begins: list[int]
    """Epoch and position of the pass, and the draws per epoch; empty if the rank does not know them."""
    digest: str
    """Digest of a reader's sampler list."""
    error: str
    """Reason why the rank cannot begin; "" if it can."""
    first_item: str = ""
    """Digest of the first item of the pass, if readers compare it."""


def agreed(job: Membership, mine: Offer, timeout: float) -> Offer:
    """Compares the offers of all ranks and returns the offer of a reader, which knows the position of the pass.
    Collective. Raises InvalidArgument on every rank, naming two ranks that differ or one that cannot begin."""
    packed = [_levada.pack_state(list(mine))]
    if job.size > 1:
        packed = _levada.agree(job, packed[0], timeout, "comparing the data sets of a DataLoader")
    offers = [Offer(*_levada.unpack_state(each)) for each in packed]
    for rank, offer in enumerate(offers):
        if offer.error:
            raise InvalidArgument(f"rank {rank} cannot begin a pass of the DataLoader: {offer.error}")
        if offer.reads and not offer.identity:
            raise InvalidArgument(f"rank {rank} reads for the DataLoader, but its dataset is None: only ranks that do not read may lack it")
    _expect_equal([offer.settings for offer in offers], range(len(offers)), "give every rank the same arguments")
    known = [rank for rank, offer in enumerate(offers) if offer.identity]
    _expect_equal([offers[rank].identity for rank in known], known, "give every rank the same data set and order")
    readers = [rank for rank, offer in enumerate(offers) if offer.reads]
    listed = [{"the sampler's list": offers[rank].digest} for rank in readers]
    _expect_equal(listed, readers, "a sampler must list the same on every rank: seed it by the epoch, in set_epoch()")
    first_items = [{"the digest of the first item": offers[rank].first_item} for rank in readers]
    _expect_equal(first_items, readers, "their data sets have other content, or an item draws from generators without levada.item_seed()")
    begins = [{"the pass's begin": ", ".join(map(str, offers[rank].begins))} for rank in readers]
    _expect_equal(begins, readers, "load the same state on every rank")
    return offers[readers[0]]


def _expect_equal(values: Sequence[Mapping[str, str]], ranks: Sequence[int], remedy: str) -> None:
    first = values[0]
    for rank, value in zip(ranks, values, strict=True):
        for name in first:
            if value.get(name) != first[name]:
                raise InvalidArgument(
                    f"{name} of a DataLoader is {first[name]} on rank {ranks[0]} and {value.get(name)} on rank {rank}; {remedy}"
                )


class Taken(NamedTuple):
    """The step of a taken batch, and its counts."""

    plan: Plan
    draws: int
    """Draws per epoch."""
    step: int
    coordinate: int
    """Data coordinate of this rank."""
    valid: int | None
    global_valid: int
    left_out: frozenset[int] = frozenset()
    """Places, among the part's samples, of those that are left out."""

    @property
    def epoch(self) -> int:
        """Epoch of the step's first draw."""
        return self.plan.epoch + self.plan.division.step(self.step)[0] // self.draws


class PassCounts(NamedTuple):
    """The last batch of a pass, and the counts of its batches up to that one."""

    taken: Taken | None = None
    samples: int = 0
    """Samples in the batches, without padding. The core counts those of balanced steps."""
    skipped: int = 0
    """Items left out of the batches."""


class StartedByNext:
    """An iterator whose pass begins with the first next(), because trainers create iterators before they load a state
    or set the epoch."""

    def __init__(self, start: Callable[[], FeedPass]) -> None:
        self._start: Callable[[], FeedPass] | None = start
        self._pass: FeedPass | None = None

    def __iter__(self) -> StartedByNext:
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            if self._start is None:
                raise StopIteration
            self._pass = self._start()
            self._start = None  # so that leaving a loop drops the pass even if the loader remains
        batch = self._pass.take()  # after next(), a signal handler could still drop a batch that counts as delivered
        self._pass.core.delivered = True
        return batch

    def close(self) -> None:
        """Leaves the pass."""
        self._start = None
        if self._pass is not None:
            self._pass.close()


class LoaderPass(FeedPass):
    """The iterator of a pass. Reports each batch to the loader as long as the loader exists."""

    def __init__(
        self,
        loader: Any,
        agreed_on: tuple[Plan, int, int],
        joined: JoinedFeed,
        begin: Beginning,
        name: str,
        sender: Sender | None,
        *,
        counts: bool,
        failed: Callable[[], ItemError | None],
        finish: Callable[[Any], Any],
    ) -> None:
        """`agreed_on`: the plan, the draws per epoch, and this rank's data coordinate. `counts`: whether batches
        include their counts. `failed`: returns the error that ended the pass if this rank reads and raised it.
        `finish`: called with each batch; its result is returned."""
        self._loader = weakref.ref(loader)
        self._plan, self._draws, self._coordinate = agreed_on
        self._has_counts, self._failed, self._finish = counts, failed, finish
        super().__init__(joined, begin, name, sender, is_ahead=loader.prefetch_to_device, empty="")
        self._counts_rows = False
        self._has_own_rows = loader.batch_size is None or loader._lists_batches  # otherwise the plan knows their number

    def take(self) -> Any:
        try:
            batch = super().take()
        except StopIteration:
            loader = self._loader()
            if loader is not None and (self.core.end or {}).get("cause") in ("exhausted", "steps"):
                loader._note_end(self._plan, self._draws, self.core.position()[0])
            raise
        except SourceError as error:
            failed = self._failed()
            if failed is None or str(failed) not in str(error):  # an item of another reader failed in the same step
                raise
            made = ItemError(str(error))  # an item of this rank failed
            vars(made).update(vars(failed))
            raise made from failed.__cause__
        step, division = self.core.taken_step - 1, self._plan.division
        valid, places, total = division.part(step, self._coordinate).draws, "", division.step(step)[1]
        if self._has_counts:
            (valid, places, total), batch = taken_apart(batch)
        if self._has_own_rows:
            self.rows.number = num_rows(batch)
        loader = self._loader()
        if loader is not None:
            counts = None if self.is_balanced else valid, total, frozenset(map(int, places.split()))
            loader._note_taken(Taken(self._plan, self._draws, step, self._coordinate, *counts))
        return self._finish(batch)


def coordinates_of(readers: str, mesh: Mesh, job: Membership) -> tuple[int, ...]:
    """Returns the data coordinates for which this rank reads, as one of a feed's `readers`."""
    readers_of = _levada.readers_of(readers, mesh, job.host_of)
    return tuple(sorted({mesh.data_coordinate(rank) for rank, reader in enumerate(readers_of) if reader == job.rank}))


def pinned(batch: Any) -> Any:
    """Returns the batch with its tensors in pinned memory if there is a CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    return importlib.import_module("torch.utils.data._utils.pin_memory").pin_memory(batch)
