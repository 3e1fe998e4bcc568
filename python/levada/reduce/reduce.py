"""Reduce-scatters of many small tensors, executed as few large ones."""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from levada import _levada
from levada._levada import Membership, ReduceHandle
from levada.base.errors import InvalidArgument, Unsupported
from levada.job.job import close_at_exit, group_key, join, rank, world_size
from levada.reduce.device import DeviceHandle, DeviceReduce

Callback = Callable[[Any], object]


@dataclass(frozen=True)
class ReduceStats:
    """Counts of a ReduceScatter on one rank."""

    inputs: int
    buckets: int
    """Number of buckets launched."""
    alone: int
    """Number of inputs larger than a bucket."""
    flushes: int
    """Number of completed flushes."""
    bytes: int
    """Number of bytes in all inputs."""
    bytes_copied: int
    """Number of these bytes in inputs that were not made with empty()."""
    waited_seconds: float
    """Seconds spent waiting for launched buckets."""


class ReduceScatter:
    """Sums all ranks' tensors in buckets, in the background. Each rank receives a part of each sum.

        with levada.ReduceScatter() as reduce:
            for gradient in gradients:
                reduce(gradient, callback=keep)    # returns when the gradient may be reused
                                                   # all callbacks have run by here

    All ranks of a group must enqueue the same inputs in the same order, and call flush() equally often at the same
    points between them. If a rank omits one, all ranks get InvalidArgument at the first collective or flush() that
    reveals it. One thread at a time: a call raises InvalidArgument while another thread is inside one.

    Each callback runs once, on the caller's thread, and in the order of enqueueing within a bucket. Callbacks of a
    group's bucket n run at the end of the call that launches bucket n + in_flight, or before flush() or a wait() for a
    later bucket returns. The callback of an input larger than a bucket runs in the call that enqueues it. Callbacks
    thus run at the same point on every rank, regardless of timing, and may enqueue inputs. If a callback raises, the
    others still run, and flush() raises the first such exception.

    - `group`: a process group of torch.distributed, a Membership, or None for the whole job. Each call may name
      another. Groups of the same ranks share buckets if they are the same object or Membership.
    - `capacity_mb`: size of a bucket in MiB, including all ranks' pieces. Larger inputs are reduced separately before
      the call returns, and close no bucket. 0 reduces all inputs separately.
    - `in_flight`: maximum number of a group's launched buckets whose callbacks have not run. The call that launches one
      more waits for the oldest. All-reduces and all-gathers count as buckets.
    - `timeout`: seconds that one wait may take. The default of 30 minutes lets another rank save a checkpoint. May
      differ between ranks.
    - `name`: identifies this object to the other ranks of the group, regardless of the order in which each rank first
      uses its objects. Defaults to "reduce-scatter 1", "reduce-scatter 2", ... in the order in which this process makes
      them for the group. Names must be passed if ranks make different objects. A name that was used before for the
      group gets a number, too.

    Sums are computed in rank order, so every run gets the same bits. float16 and bfloat16 are summed in float32 and
    rounded once.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        capacity_mb: float = 25.0,
        in_flight: int = 2,
        timeout: float = 1800.0,
        name: str | None = None,
    ) -> None:
        self.group = group
        self.name = _distinct(group, name)
        self._joined: Membership | None = None  # the membership in `group`
        self._devices: DeviceReduce | None = None
        self._limits = (capacity_mb, in_flight, timeout)
        self._core = _levada.Bucketer(
            capacity_mb=capacity_mb,
            in_flight=in_flight,
            timeout=timeout,
            name=self.name,
            job_rank=rank() if world_size() > 1 else -1,
        )
        close_at_exit(self)  # an open Bucketer keeps its group from being left

    def __call__(
        self, inputs: Any | Sequence[Any], callback: Callback | None = None, *, op: str = "sum", group: Any = None
    ) -> ReduceHandle | DeviceHandle:
        """Enqueues tensors of torch or numpy on the CPU, or of torch on a device. Tensors on a device have buckets on
        that device. torch reduces these over `group`, which must then be a process group, through its backend for the
        device (nccl for cuda), ordered with the current stream, and with the summation order and precision of that
        backend.

        inputs: one tensor for each rank of the group, all of the same shape and dtype; the result on rank r is the sum
        of all ranks' inputs[r]. Or one tensor, of which each rank gets a part along dim 0, ceil(extent / ranks) long,
        padded with zeros at the end. Inputs may be reused when the call returns, except tensors of empty(). op: "sum",
        or "average", which divides the sum once; on a device, it divides the inputs before they are summed.

        Raises InvalidArgument, naming position and values, for a list of the wrong length and for tensors that differ.
        wait() and flush() raise it, naming ranks, position and shapes, if ranks disagree. Raises Unsupported for a
        dtype that cannot be summed, TypeError for an input that is not a tensor or not on the CPU like the first one,
        Timeout, and PeerLost.
        """
        if not on_cpu(inputs):
            return self._on_devices().reduce_scatter(self.process_group(group), inputs, op, callback)
        job = group if isinstance(group, Membership) else self._job(group)
        return self._core.reduce_scatter(job, inputs, op, callback)

    def all_reduce(
        self, input: Any, callback: Callback | None = None, *, op: str = "sum", group: Any = None
    ) -> ReduceHandle:
        """Sums or averages the inputs of all ranks, which must have the same shape and be on the CPU. Every rank
        receives the result. Uses no bucket. Raises Unsupported for a tensor on a device."""
        _expect_cpu(input, "all_reduce")
        return self._core.all_reduce(self._job(group), input, op, callback)

    def all_gather(self, input: Any, callback: Callback | None = None, *, group: Any = None) -> ReduceHandle:
        """Gathers the inputs of all ranks, which must have the same shape and be on the CPU, stacked along a new first
        dimension. Uses no bucket. Raises Unsupported for a tensor on a device."""
        _expect_cpu(input, "all_gather")
        return self._core.all_gather(self._job(group), input, callback)

    def empty(self, *shape: int, dtype: Any = "float32", group: Any = None) -> Any:
        """Returns a tensor to fill and enqueue, which must not be used afterwards. It is not copied if the tensors of
        one group and dtype are enqueued in the order in which they were made. dtype: a torch.dtype for a torch tensor;
        a numpy dtype or a name for an array. Raises InvalidArgument unless the extent along dim 0 is a multiple of the
        number of ranks.
        """
        torch = sys.modules.get("torch")
        is_torch = torch is not None and isinstance(dtype, torch.dtype)
        name = str(dtype).removeprefix("torch.") if is_torch else getattr(dtype, "__name__", None) or str(dtype)
        return self._core.empty(self._job(group), shape, name, is_torch)

    def flush(self) -> None:
        """Launches all open buckets, including those that its callbacks open, and waits until everything is reduced.
        Raises the first exception of a reduction or a callback since the last flush()."""
        if self._devices is not None:
            try:
                self._devices.flush()
            except Exception:
                with contextlib.suppress(Exception):  # the first is raised; other ranks wait for this one's part of the rest
                    self._core.flush()
                raise
        self._core.flush()

    def teardown(self) -> None:
        """Releases cached memory to the system. The next call allocates again. Raises InvalidArgument if work is
        pending."""
        if self._devices is not None and self._devices.pending():
            raise InvalidArgument(f"{self._devices.pending()} inputs are not reduced yet; call flush() before teardown()")
        self._core.teardown()

    @property
    def stats(self) -> ReduceStats:
        """Counts of this rank so far."""
        return ReduceStats(**self._core.stats)

    def close(self) -> None:
        """Cancels pending reductions without running their callbacks, and leaves the groups."""
        self._core.close()
        self._devices = None

    def __enter__(self) -> ReduceScatter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def _on_devices(self) -> DeviceReduce:
        if self._devices is None:
            capacity_mb, in_flight, timeout = self._limits
            self._devices = DeviceReduce(int(capacity_mb * 2**20), in_flight, timeout, self.name)
        return self._devices

    def process_group(self, group: Any = None) -> Any:
        """Returns the process group that reduces tensors on devices: `group`, this object's own, or torch's world."""
        named = self.group if group is None else group
        distributed = sys.modules.get("torch.distributed")
        if named is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.group.WORLD
        if named is None or isinstance(named, Membership):
            raise Unsupported("tensors on a device are reduced over a process group of torch.distributed; pass one as group")
        return named

    def _job(self, group: Any) -> Membership:
        if group is not None:
            return join(group)
        if self._joined is None:
            self._joined = join(self.group)
        return self._joined


_made: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()  # names, by group
_made_guard = threading.Lock()


def _distinct(group: Any, name: str | None) -> str:
    """Returns a name that is unique among the ReduceScatters that this process makes for the group. The name depends on
    the order in which they are made, which is the same on all ranks, and not on the order of their first use, which
    threads may change."""
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidArgument(f"name must be a string that is not empty, got {name!r}")
    with _made_guard:
        try:
            of_group = _made.setdefault(group_key(group), collections.Counter())
        except TypeError:  # the object is not a group, and the first call will reject it
            return name or "reduce-scatter"
        of_group[name or ""] += 1
        number = of_group[name or ""]
    if name is not None:
        return name if number == 1 else f"{name} {number}"
    # The object may also be used in other groups, whose objects have their own numbers.
    return f"reduce-scatter {number}" + ("" if group is None else " of its group")


def _expect_cpu(input: Any, name: str) -> None:
    if not on_cpu(input):
        raise Unsupported(f"{name}() takes a tensor on the CPU, got one on {input.device}; use torch.distributed's own")


def on_cpu(inputs: Any) -> bool:
    """Returns whether a tensor, or the first of several, is on the CPU."""
    first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs
    return bool(getattr(first, "is_cpu", True))
