"""Many small reduce-scatters become few large ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from levada import _levada
from levada._device_reduce import DeviceHandle, DeviceReduce
from levada._errors import InvalidArgument, Unsupported
from levada._job import close_at_exit, join
from levada._levada import Membership, ReduceHandle

Callback = Callable[[Any], object]


class ReduceScatter:
    """Sums of all ranks' tensors, a part of each on each rank, made in buckets in the background.

        with levada.ReduceScatter() as reduce:
            for gradient in gradients:
                reduce(gradient, callback=keep)    # returns when the gradient may be used again
                                                   # all callbacks have run by here

    All ranks of a group enqueue the same inputs in the same order. Callbacks run on the caller's thread, once each, in the
    order of enqueueing within a bucket: those of a group's bucket n at the end of the call that launches its bucket
    n + in_flight, or before wait() for a later one or flush() returns; that of an input larger than a bucket in the call
    that enqueues it. So they run at the same place on every rank, whatever the timing, and may enqueue. One that raises
    does not keep the others from running: flush() raises the first such exception. One thread at a time: a call raises
    InvalidArgument while another thread is inside one.

    - `group`: a process group of torch.distributed, a Membership, or None for the whole job; each call may name another.
      Groups of the same ranks share buckets where they are the same object or Membership.
    - `capacity_mb`: MiB of a bucket, of all ranks' pieces together. Larger inputs are reduced by themselves before the
      call returns, and close no bucket; 0: all are.
    - `in_flight`: launched buckets of a group whose callbacks have not run; the call that launches one more waits for the
      oldest. All-reduces and all-gathers count as buckets.
    - `timeout`: seconds of one wait: by default 30 minutes, for another rank may be saving a checkpoint.

    Sums are made in the order of ranks, which gives the same bits on every run. float16 and bfloat16 are added up in
    float32 and rounded once.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        capacity_mb: float = 25.0,
        in_flight: int = 2,
        timeout: float = 1800.0,
    ) -> None:
        self.group = group
        self._joined: Membership | None = None  # in `group`
        self._devices: DeviceReduce | None = None
        self._limits = (capacity_mb, in_flight, timeout)
        self._core = _levada.Bucketer(capacity_mb=capacity_mb, in_flight=in_flight, timeout=timeout)
        close_at_exit(self)  # what it holds keeps its group from being left

    def __call__(
        self, inputs: Any | Sequence[Any], callback: Callback | None = None, *, op: str = "sum", group: Any = None
    ) -> ReduceHandle | DeviceHandle:
        """Enqueues tensors of torch or numpy, on the CPU, or of torch on a device: these have buckets there, which the
        backend of that device reduces (nccl for cuda) on a group of its own, ordered with the current stream, in an order
        and with a precision of its own; `group` must then be a process group.

        inputs: one tensor for each rank of the group, all of one shape and dtype; rank r's result is the sum of all
        ranks' inputs[r], of that shape. Or one tensor, of which each rank gets a part along dim 0, ceil(extent / ranks)
        long; zeros stand for what is missing at the end. They may be used again when the call returns, but for what
        empty() gave. op: "sum", or "average", which divides once.

        Raises InvalidArgument, naming position and values, for a list of another length and tensors that differ, and,
        from wait() and flush(), where ranks disagree, naming ranks, position and shapes; Unsupported for a dtype;
        TypeError for what is no tensor on the CPU; Timeout, PeerLost.
        """
        if not on_cpu(inputs):
            return self._on_devices().reduce_scatter(self._process_group(group), inputs, op, callback)
        job = group if isinstance(group, Membership) else self._job(group)
        return self._core.reduce_scatter(job, inputs, op, callback)

    def all_reduce(
        self, input: Any, callback: Callback | None = None, *, op: str = "sum", group: Any = None
    ) -> ReduceHandle:
        """The sum, or average, of all ranks' inputs on the CPU, of the same shape, on every rank; not in a bucket."""
        _expect_cpu(input, "all_reduce")
        return self._core.all_reduce(self._job(group), input, op, callback)

    def all_gather(self, input: Any, callback: Callback | None = None, *, group: Any = None) -> ReduceHandle:
        """All ranks' inputs on the CPU, of the same shape, side by side along a new first dimension; not in a bucket."""
        _expect_cpu(input, "all_gather")
        return self._core.all_gather(self._job(group), input, callback)

    def empty(self, *shape: int, dtype: Any = "float32", group: Any = None) -> Any:
        """A tensor to be filled and given to this object, which does not copy it. It belongs to the reduction from then
        on: it must not be touched any more. dtype: of torch, for a torch tensor; of numpy or a name, for an array. Raises
        InvalidArgument unless the extent along dim 0 divides by the number of ranks.
        """
        torch = sys.modules.get("torch")
        is_torch = torch is not None and isinstance(dtype, torch.dtype)
        name = str(dtype).removeprefix("torch.") if is_torch else getattr(dtype, "__name__", None) or str(dtype)
        return self._core.empty(self._job(group), shape, name, is_torch)

    def flush(self) -> None:
        """Launches what is open, also by callbacks that it runs, and waits for everything. Raises the first exception of
        a reduction or a callback since the last flush()."""
        if self._devices is not None:
            self._devices.flush()
        self._core.flush()

    def teardown(self) -> None:
        """Gives memory back to the system; the next call takes some anew. Raises InvalidArgument while work is pending."""
        if self._devices is not None and self._devices.pending():
            raise InvalidArgument(f"{self._devices.pending()} inputs are not reduced yet: flush() before teardown()")
        self._core.teardown()

    @property
    def stats(self) -> dict[str, Any]:
        """inputs, buckets (launched), alone (inputs larger than a bucket), flushes, bytes, bytes_copied,
        waited_seconds."""
        return self._core.stats

    def close(self) -> None:
        """Gives up what has not been reduced, and leaves its groups. Callbacks do not run any more."""
        self._core.close()
        self._devices = None

    def __enter__(self) -> ReduceScatter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def average_on_device(self, tensor: Any) -> Any:
        """The torch.futures.Future of the average of a torch tensor on a device over this object's group, in the tensor's
        own memory, made by the device's backend over a group of its own. For communication hooks."""
        return self._on_devices().average(self._process_group(None), tensor)

    def _on_devices(self) -> DeviceReduce:
        if self._devices is None:
            capacity_mb, in_flight, timeout = self._limits
            self._devices = DeviceReduce(int(max(capacity_mb, 0) * 2**20), in_flight, timeout)
        return self._devices

    def _process_group(self, group: Any) -> Any:
        named = self.group if group is None else group
        distributed = sys.modules.get("torch.distributed")
        if named is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.group.WORLD
        if named is None or isinstance(named, Membership):
            raise Unsupported("tensors on a device are reduced over a process group of torch.distributed; name one")
        return named

    def _job(self, group: Any) -> Membership:
        if group is not None:
            return join(group)
        if self._joined is None:
            self._joined = join(self.group)
        return self._joined


def _expect_cpu(input: Any, name: str) -> None:
    if not on_cpu(input):
        raise Unsupported(f"{name}() takes a tensor on the CPU, got one on {input.device}; use torch.distributed's own")


def on_cpu(inputs: Any) -> bool:
    """Whether tensors, or the first of them, lie in this machine's memory."""
    first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs
    return bool(getattr(first, "is_cpu", True))
