"""Gradients of torch's DistributedDataParallel, averaged through Levada:

    model.register_comm_hook(levada.ddp.State(), levada.ddp.average)
"""

import queue
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (  # type: ignore[import-not-found, unused-ignore]
    allreduce_hook,
)

from levada._levada import ReduceHandle
from levada.base.threads import start_thread
from levada.reduce.reduce import ReduceScatter, on_cpu

UnderWay = queue.SimpleQueue[tuple[ReduceHandle, Any] | None]


class State:
    """The state of average(), one for each model. `group`: the ranks whose gradients are averaged, by default the whole
    job. `timeout`: seconds that one wait may take."""

    def __init__(self, group: Any = None, *, timeout: float = 1800.0) -> None:
        self.reduce = ReduceScatter(group, capacity_mb=0, timeout=timeout)
        self.under_way: UnderWay = queue.SimpleQueue()
        start_thread("averages under way", "levada ddp", _complete, self.under_way)

    def __del__(self) -> None:
        if hasattr(self, "under_way"):
            self.under_way.put(None)


# torch compares these annotations, which therefore must not be strings.
def average(
    state: State,
    bucket: dist.GradBucket,  # type: ignore[name-defined, unused-ignore]
) -> torch.futures.Future[torch.Tensor]:
    """Averages one of the model's buckets over all ranks, in the background of the backward pass. A hook for
    register_comm_hook(). Gradients on the CPU are summed in rank order, with float16 and bfloat16 in float32, and
    divided once. Gradients on a GPU are averaged by torch's own default_hooks.allreduce_hook."""
    if not on_cpu(bucket.buffer()):
        return allreduce_hook(state.reduce.process_group(), bucket)  # type: ignore[no-any-return, unused-ignore]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    state.under_way.put((state.reduce.all_reduce(bucket.buffer(), op="average"), future))
    return future


def _complete(under_way: UnderWay) -> None:
    """Sets the results of the futures, which complete in the order in which they began."""
    while (next_one := under_way.get()) is not None:
        handle, future = next_one
        try:
            future.set_result(handle.get())
        except Exception as error:
            future.set_exception(error)  # type: ignore[no-untyped-call, unused-ignore]
        del next_one, handle, future  # a thread that drops tensors during interpreter exit aborts the process
