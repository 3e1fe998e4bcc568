"""The arguments of a feed, and the checks that depend only on them. Each check raises InvalidArgument, or its subclass
InvalidType for a wrong type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from levada import _levada
from levada._levada import Layout, Mesh
from levada.base.checks import check_choice, check_function, whole_number
from levada.base.errors import InvalidArgument, InvalidType
from levada.base.iterators import Ended
from levada.batch.balance import Balance
from levada.batch.packing import packing_of
from levada.feed.losses import OnPeerLost
from levada.feed.read_ahead import ReadAhead
from levada.feed.readers import ITERATE

_DIVIDE = ("deal", "split")
_TAIL = ("drop", "pad", "short")
CHECK = ("items", "digests", "none")
ACCESS = ("private", "copy", "read_only")
_END_OF_COUNTS = 2**31
_MAX_PREFETCH = 2**30


class FeedArguments:
    """The arguments of a Feed that its passes use."""

    source: Any
    mesh: Mesh
    layout: Layout
    readers: str
    iterate: str
    divide: str
    batch_size: int | None
    balance: Balance | None
    max_tokens: int | None
    collate_fn: Callable[[list[Any]], Any] | None
    tail: str
    prefetch: int
    skip: int
    max_steps: int | None
    timeout: float
    on_peer_lost: OnPeerLost
    access: str | None
    allow_pickle: bool
    record: bool
    check: str
    _ended: Ended
    _ahead: ReadAhead
    _passes: int
    _rank_samples: int
    """Samples or rows per dp rank per step; 1 if an item is a whole batch."""

    _balanced_collate: Callable[[list[Any]], Any] | None
    """Makes a batch from balanced samples that the feed itself takes from an iterable."""

    _counts_rows: bool
    """Whether each item of an iterable has `batch_size` rows per rank, so that the last item may have fewer."""

    _cuts_rows: bool
    """Whether every field of an item is cut along its rows."""

    @property
    def _samples_per_step(self) -> int:
        return self._rank_samples * self.mesh.data_size

    @property
    def _counted_a_step(self) -> int:
        """Number of samples, rows or batches that a step takes, in the unit that states count in."""
        return 1 if self.divide == "split" and not self._counts_rows else self._samples_per_step

    @property
    def _items_a_step(self) -> int:
        """Number of items of an iterable that a step takes."""
        return self._samples_per_step // self._samples_per_item

    @property
    def _samples_per_item(self) -> int:
        """Number of the core's samples in one item of an iterable."""
        return self._samples_per_step if self.divide == "split" else 1


def count(name: str, number: Any, *, smallest: int = 0) -> int:
    """Returns an argument as an int. Raises InvalidArgument unless `smallest` <= `number` < 2**31."""
    counted = whole_number(name, number)
    if counted < smallest:
        raise InvalidArgument(f"{name} must be at least {smallest}, got {counted:,}")
    if counted >= _END_OF_COUNTS:
        raise InvalidArgument(f"{name} must be less than {_END_OF_COUNTS:,}, got {counted:,}")
    return counted


def count_or_none(name: str, number: Any, *, smallest: int = 0) -> int | None:
    return None if number is None else count(name, number, smallest=smallest)


def check_iteration(iterate: str, divide: str, tail: str, *, is_corpus: bool, counts_rows: bool, is_balanced: bool) -> None:
    if isinstance(iterate, str) and iterate == "process":
        raise InvalidArgument(
            'iterate is process, which a feed does not have: iterate the source in a worker of torch\'s DataLoader (num_workers=1), or '
            "read a data set by number with levada.DataLoader(num_workers=...)"
        )
    check_choice("iterate", iterate, ITERATE)
    check_choice("divide", divide, _DIVIDE)
    check_choice("tail", tail, _TAIL)
    if is_corpus and iterate != "thread":
        raise InvalidArgument(f"iterate is {iterate}; the C++ core reads a Corpus on its own threads")
    if counts_rows and divide != "split":
        raise InvalidArgument(
            'batch_size is for a Corpus, for samples with balance= or max_tokens=, and for divide="split"; otherwise an item '
            "is a whole batch"
        )
    if tail != "drop" and divide == "split" and not (is_corpus or counts_rows):
        raise InvalidArgument(
            f'tail is "{tail}"; with divide="split" an item is a whole step, so pass batch_size=, the rows of a rank, of which the '
            "last item may lack some"
        )


def check_balance(
    balance: Balance | None,
    max_tokens: int | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    divide: str,
    tail: str,
    *,
    seq_length: int | None,
) -> None:
    """Checks that `balance` and `max_tokens` fit the other arguments. `seq_length`: of a Corpus; None for an iterable.
    Raises InvalidArgument."""
    is_corpus = seq_length is not None
    if balance is None:
        if collate_fn is not None:
            raise InvalidArgument("collate_fn= makes batches of balanced samples; pass balance= or max_tokens=, too")
        return
    if divide != "deal":
        raise InvalidArgument(f'divide is "{divide}"; balanced steps are dealt, each dp rank its own samples')
    if tail == "pad":
        raise InvalidArgument('tail is "pad"; the last step of balanced ones can be dropped or short')
    if collate_fn is not None:
        check_function("collate_fn", collate_fn)
    pad_to = packing_of(collate_fn, balance.length, balance.multiple).pad_to
    room = None if max_tokens is None else max_tokens * balance.max_cp
    if room is not None and room < pad_to:
        raise InvalidArgument(f"max_tokens is {max_tokens}; with lengths rounded up to {pad_to} no sample fits a micro-batch")
    if room is not None and seq_length is not None and seq_length > room:
        raise InvalidArgument(
            f"the seq_length of the corpus is {seq_length} and max_tokens {max_tokens}, so that a sample may fit no micro-batch: "
            "raise max_tokens or the balance's max_cp, or lower seq_length, at which documents are cut"
        )
    balance.resolved(max_tokens or 0, collate_fn)
    if not is_corpus and balance.max_delay > 0:
        raise InvalidArgument(
            f"max_delay is {balance.max_delay}, but an iterable yields samples one after the other, and a state could "
            "not hold the delayed ones; use a Corpus, let the loader itself yield long samples together, or cut them with "
            'too_long="cut"'
        )
    of_samples = [balance.weight, balance.length, balance.pad_to > 1, balance.too_long != "error", collate_fn]
    if is_corpus and any(of_samples):
        raise InvalidArgument(
            "cost as a field or function, length, pad_to and too_long of a Balance and collate_fn are for samples of an "
            "iterable: a Corpus knows its lengths, and has its own options for cutting and padding"
        )


def check_prefetch(prefetch: int, mesh: Mesh) -> None:
    stages = mesh.axis_size("pp")
    if prefetch > _MAX_PREFETCH:
        raise InvalidArgument(f"prefetch must be at most {_MAX_PREFETCH:,}, got {prefetch:,}")
    if 0 < prefetch < stages:
        raise InvalidArgument(
            f"prefetch is {prefetch}, but pp has {stages} stages: the first takes so many batches before the last takes one; "
            f"choose {stages} or more"
        )


def check_readers(readers: Any, mesh: Mesh) -> str:
    """Returns `readers` if it is valid. Raises InvalidArgument otherwise."""
    if not isinstance(readers, str):
        raise InvalidType(f"readers must be one, all, host, spread or axes of the mesh such as 'dp,pp', got {readers!r}")
    _levada.readers_of(readers, mesh, [0] * mesh.size)
    return readers


def check_device(device: Any, iterate: str, *, prefetch_to_device: bool, device_buffers: int | None) -> None:
    if prefetch_to_device and device is None:
        raise InvalidArgument("prefetch_to_device=True copies batches to a device, and device is None: name it, too")
    if prefetch_to_device and iterate == "inline":
        raise InvalidArgument(
            'iterate is inline, which reads no batch ahead that prefetch_to_device=True could copy: iterate by "thread", '
            "or do without prefetching"
        )
    # A loop still holds the last batch while it requests the next one; prefetching adds one in flight.
    smallest = 3 if prefetch_to_device else 2
    if device_buffers is not None and device is None:
        raise InvalidArgument("device_buffers is for batches on a device, and device is None: name it, too")
    if device_buffers is not None and device_buffers < smallest:
        raise InvalidArgument(
            f"device_buffers must be at least {smallest}{' with prefetch_to_device=True' if prefetch_to_device else ''}, got "
            f"{device_buffers}: a loop still holds a batch when it asks for the next one"
        )
