"""Measures steps of 10 ms of matrix products with a 64 MiB batch: already on the device, and copied to it in four
ways."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import device
import levada
import torch

SIZE = (2 if device.IS_STUB else 64) << 20
STEPS = 12 if device.IS_STUB else 40


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that exist in advance, so that only their copies to the device are measured."""

    def __init__(self) -> None:
        self.made = [torch.full((SIZE,), value, dtype=torch.uint8) for value in range(4)]

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, item: int) -> torch.Tensor:
        if item >= STEPS:
            raise IndexError(item)  # ends the iteration by index
        return self.made[item % len(self.made)]


def products() -> Callable[[], object]:
    """Returns a call that keeps the device busy for about 10 ms."""
    if device.IS_STUB:
        return lambda: device.launch(lambda: time.sleep(0.01))
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(a, a)

    multiply(20)
    device.synchronize()
    began = time.perf_counter()
    multiply(100)
    device.synchronize()
    times = max(round(100 * 0.010 / (time.perf_counter() - began)), 1)
    return lambda: multiply(times)


def step_ms(batches: Iterable[Any], compute: Callable[[], object]) -> float:
    """Returns the median time between steps. Each step touches its batch and waits for the device, as reading a loss
    does."""
    took: list[float] = []
    began = time.perf_counter()
    for batch in batches:
        device.launch(lambda tensor: tensor[:1] + 1, batch)
        compute()
        device.synchronize()
        now = time.perf_counter()
        took.append(now - began)
        began = now
    return round(1e3 * statistics.median(took[4:]), 3)


def main() -> None:
    compute, items = products(), Items()
    resident = device.on_device(items[0])

    def loader() -> Iterable[Any]:
        workers: dict[str, Any] = {} if device.IS_STUB else {"num_workers": 2, "prefetch_factor": 4}
        made = torch.utils.data.DataLoader(items, batch_size=None, pin_memory=not device.IS_STUB, **workers)
        return (batch.to("cuda", non_blocking=True) for batch in made)

    arms: dict[str, Callable[[], Iterable[Any]]] = {
        "resident": lambda: (resident for _ in range(STEPS)),
        "device": lambda: levada.Feed(items, device="cuda"),
        "prefetch_to_device": lambda: levada.Feed(items, device="cuda", prefetch_to_device=True),
        "DataLoader(pin_memory)": loader,
    }
    rounds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(1 if device.IS_STUB else 3):
        for name, batches in arms.items():
            rounds[name].append(step_ms(batches(), compute))
    figures = {name: statistics.median(each) for name, each in rounds.items()}
    ratio = figures["prefetch_to_device"] / figures["resident"]
    device.tell(ratio <= (1.5 if device.IS_STUB else 1.03), step_ms=figures, prefetch_over_resident=round(ratio, 3), bytes=SIZE)


if __name__ == "__main__":
    main()
