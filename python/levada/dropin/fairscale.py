"""fairscale's ReduceScatterBucketer: executes many small reduce-scatters as few large ones.

    from levada.dropin.fairscale import ReduceScatterBucketer
    # was: from fairscale.internal.reduce_scatter_bucketer import ReduceScatterBucketer

In fairscale                                      Here
------------------------------------------------  ------------------------------------------------------------------
the caller waits while a full bucket is reduced   a full bucket is reduced in the background while the next one is
                                                  filled
if a callback raises, the others do not run       the others run, and flush() raises the first exception
shapes that differ between ranks give wrong sums  the error names ranks, position and shapes
or hang
groups of the same ranks have separate buckets    they share buckets
the backend determines the order of summation     sums are computed in rank order, so every run gets the same bits;
                                                  float16 and bfloat16 are summed in float32. On accelerators, the
                                                  backend still determines the order

Tensors on accelerators have buckets on the device, which the backend of the process group reduces; see
levada.ReduceScatter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada._levada import Membership
from levada.base.errors import InvalidArgument
from levada.job.groups import size_of
from levada.job.job import join
from levada.reduce.reduce import ReduceScatter, on_cpu


class Misuse(InvalidArgument, AssertionError):
    """Misuse for which fairscale raises AssertionError. Both an AssertionError and one of Levada's errors."""


class Bucket(NamedTuple):
    """An entry of ReduceScatterBucketer.buckets."""

    group: Any


class ReduceScatterBucketer:
    """Collects reduce-scatters into buckets of `bucket_cap_mb` MiB over all ranks, one for each device, dtype and set
    of ranks. With 0 or less, none are collected. Inputs larger than a bucket are reduced before the call returns. All
    ranks of a group must enqueue the same inputs in the same order. `timeout`: seconds that one wait may take.
    `engine`: as in levada.join().
    """

    def __init__(self, bucket_cap_mb: float = 25, *, timeout: float = 1800.0, engine: str = "auto") -> None:
        self.bucket_cap_mb = bucket_cap_mb
        self._engine = engine
        self._reduce = ReduceScatter(capacity_mb=max(bucket_cap_mb, 0), timeout=timeout)
        self._enqueue = self._reduce._core.reduce_scatter  # for tensors on the CPU
        # Weak keys, because a later group of the same ranks is a different group.
        self._joined: weakref.WeakKeyDictionary[Any, Membership] = weakref.WeakKeyDictionary()
        self._ranks: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._buckets: weakref.WeakKeyDictionary[Any, set[tuple[Any, Any]]] = weakref.WeakKeyDictionary()

    @property
    def buckets(self) -> dict[tuple[Any, Any, Any], Bucket]:
        """An entry for each (dtype, device, group) for which an input was collected."""
        return {(*each, group): Bucket(group) for group, kinds in self._buckets.items() for each in kinds}

    def reduce_scatter_async(
        self, input_list: Sequence[Any], group: Any, callback_fn: Callable[[Any], object] | None = None
    ) -> None:
        """Enqueues group.size() tensors of the same shape, dtype and device. Calls `callback_fn` with the sum of all
        ranks' input_list[rank], in flush() at the latest, on this thread and without recording gradients. Nothing is
        recorded for tensors that require grad. Raises AssertionError, which is also a levada.InvalidArgument, for a
        list of the wrong length. Raises levada.InvalidArgument, naming position and values, for tensors that differ,
        and if this rank is not in the group."""
        size = size_of(group)
        if len(input_list) != size:
            raise Misuse(f"reduce_scatter received {len(input_list)} inputs, expected group.size() ({size})")
        callback = None if callback_fn is None else _without_grad(callback_fn)
        if on_cpu(input_list):
            joined = self._joined[group] if group in self._joined else self._membership(group)
            self._enqueue(joined, input_list, "sum", callback)
        else:
            self._reduce(input_list, callback, group=group)
        first = input_list[0]
        if 0 < first.nbytes * size <= self.bucket_cap_mb * 2**20:
            self._buckets.setdefault(group, set()).add((first.dtype, first.device))

    def flush(self) -> None:
        """Reduces all buckets. All callbacks have run when it returns. Raises the first exception of a callback."""
        self._reduce.flush()

    def teardown(self) -> None:
        """Releases the memory of buckets to the system. Raises AssertionError, which is also a levada.InvalidArgument,
        if work is pending."""
        try:
            self._reduce.teardown()
        except InvalidArgument as problem:
            raise Misuse(f"Incorrect call of teardown: {problem}") from None

    def _membership(self, group: Any) -> Membership:
        size_of(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        alike = (self._joined[other] for other, theirs in self._ranks.items() if theirs == ranks)
        membership = next(alike, None) or join(group, engine=self._engine)
        self._joined[group], self._ranks[group] = membership, ranks
        return membership


def _without_grad(callback: Callable[[Any], object]) -> Callable[[Any], object]:
    def called(result: Any) -> object:
        with torch.no_grad():
            return callback(result)

    return called
