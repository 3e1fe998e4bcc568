"""The device that the checks run on: CUDA's, or the stub with LEVADA_GPU=stub."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

IS_STUB = os.environ.get("LEVADA_GPU") == "stub"

if IS_STUB:
    import stand_in

    stand_in.install()


def launch(kernel: Callable[..., object], *tensors: torch.Tensor) -> None:
    """Calls `kernel`, which enqueues work on the device's current stream."""
    if IS_STUB:
        stand_in.launch(kernel, *tensors)
    else:
        kernel(*tensors)


def synchronize() -> None:
    if IS_STUB:
        stand_in.synchronize()
    else:
        torch.cuda.synchronize()


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the tensor on the device, after waiting for it."""
    there = tensor.to("cuda")
    synchronize()
    return there


def milliseconds(call: Callable[[], object], rounds: int = 9) -> dict[str, float]:
    """Returns medians: the time of `call` on this thread, and the time until the device is done."""
    called, done = [], []
    for _ in range(rounds):
        synchronize()
        began = time.perf_counter()
        call()
        called.append(time.perf_counter() - began)
        synchronize()
        done.append(time.perf_counter() - began)
    return {"call_ms": round(1e3 * statistics.median(called), 3), "done_ms": round(1e3 * statistics.median(done), 3)}


def tell(passed: bool | None, **figures: Any) -> None:
    """Prints a rank's result, the last line that the runner reads. None: the figures are recorded, with nothing to
    pass."""
    os.write(1, f"RESULT {json.dumps({'pass': passed, **figures})}\n".encode())  # in one write: ranks share the pipe
