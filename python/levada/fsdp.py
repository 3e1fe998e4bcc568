"""Reduce-scatters of torch's FSDP2 (fully_shard), through Levada:

    module.set_custom_reduce_scatter(levada.fsdp.ReduceScatter())    # of each module that fully_shard() has sharded
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada.reduce.reduce import ReduceScatter as Reduce

_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before 2.13
_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "average"}


class ReduceScatter:
    """An argument for set_custom_reduce_scatter(). Levada sums gradients on the CPU in rank order, so every run gets
    the same bits, and sums float16 and bfloat16 in float32. torch reduces gradients on other devices, and those that it
    scales by a factor. `timeout`: seconds that one wait may take. Several modules may share one object if only one
    thread uses it."""

    def __init__(self, *, timeout: float = 1800.0) -> None:
        self._reduce = Reduce(capacity_mb=0, timeout=timeout)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for an input or an output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Sums or averages the inputs of all ranks of `group`, of which each rank gets its part. Raises the exceptions
        of levada.ReduceScatter."""
        name = next((name for known, name in _OPS.items() if op == known), None)
        if name is None or not input_tensor.is_cpu:
            return _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        output_tensor.copy_(self._reduce(input_tensor, op=name, group=group).wait())
        return _done(output_tensor) if async_op else None


def _done(result: torch.Tensor) -> Any:
    """Returns a completed Work."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([result])
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined, unused-ignore]
