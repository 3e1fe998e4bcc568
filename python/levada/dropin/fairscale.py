"""fairscale's ReduceScatterBucketer: many small reduce-scatters become few large ones.

    from levada.dropin.fairscale import ReduceScatterBucketer
    # was: from fairscale.internal.reduce_scatter_bucketer import ReduceScatterBucketer

In fairscale                                      Here
------------------------------------------------  ------------------------------------------------------------------
a full bucket is reduced while the caller waits   it is reduced in the background while the next one is filled
each result is a view of a whole shard            small results share 64 KiB at most
an exception of a callback keeps the others from  the others run; flush() raises the first
running
shapes that differ between ranks give wrong sums  ranks, position and shapes are named
or hang
groups of the same ranks have buckets each        they share them
the order of summation is the backend's           that of the ranks: the same bits on every run; halves in float32.
                                                  On accelerators the backend's still

Tensors on accelerators have buckets there, which the backend reduces on a process group of its own, as levada.ReduceScatter
says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada._levada import Membership
from levada._groups import size_of
from levada._job import join
from levada._reduce import ReduceScatter, on_cpu


class ReduceScatterBucketer:
    """Collects reduce-scatters into buckets, one for each device, dtype and set of ranks, of `bucket_cap_mb` MiB over all
    ranks; 0 or less: none are collected. Inputs that are larger than a bucket are reduced before the call returns. All
    ranks of a group enqueue the same in the same order. `engine`: as in levada.join(); `order`: as in
    levada.ReduceScatter.
    """

    def __init__(self, bucket_cap_mb: int = 25, *, engine: str = "auto", order: str = "ranks") -> None:
        self.bucket_cap_mb = bucket_cap_mb
        self._engine = engine
        self._reduce = ReduceScatter(capacity_mb=bucket_cap_mb, order=order)
        self._enqueue = self._reduce._core.reduce_scatter  # of tensors on the CPU
        # Weakly, as a group that comes after one of the same ranks is another.
        self._joined: weakref.WeakKeyDictionary[Any, Membership] = weakref.WeakKeyDictionary()
        self._ranks: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()

    def reduce_scatter_async(
        self, input_list: Sequence[Any], group: Any, callback_fn: Callable[[Any], object] | None = None
    ) -> None:
        """Enqueues group.size() tensors of one shape, dtype and device. `callback_fn` is called with the sum of all
        ranks' input_list[rank], by flush() at the latest, on this thread. Nothing is recorded of tensors that require
        grad. Raises levada.InvalidArgument, naming position and values, for a list of another length and tensors that
        differ, and where this rank is not in the group."""
        if on_cpu(input_list):
            joined = self._joined[group] if group in self._joined else self._membership(group)
            self._enqueue(joined, input_list, "sum", callback_fn)
        else:
            self._reduce(input_list, callback_fn, group=group)

    def flush(self) -> None:
        """Reduces what is in buckets; all callbacks have run when it returns. Raises the first exception of one."""
        self._reduce.flush()

    def teardown(self) -> None:
        """Gives the memory of buckets back to the system. Raises levada.InvalidArgument while work is pending."""
        self._reduce.teardown()

    def _membership(self, group: Any) -> Membership:
        size_of(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        alike = (self._joined[other] for other, theirs in self._ranks.items() if theirs == ranks)
        membership = next(alike, None) or join(group, engine=self._engine)
        self._joined[group], self._ranks[group] = membership, ranks
        return membership
