"""Checks on every rank each byte of each batch on the device against its step and rank.

    stamps.py [--steps N] [--largest BYTES] [--prefetch] [--buffers K] [--overwrite] [--leave] [--without-kernels]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import device
import levada
import numpy as np
import torch

FIELDS = ("a", "b", "c")
SMALLEST = 1024
MARGIN = 256


def stamp(item: int, field: int) -> int:
    return (item * 37 + field * 101) % 251


def size_of(item: int, field: int, largest: int, *, fixed: bool) -> int:
    if fixed:
        return largest >> field
    spread = random.Random(item * 8 + field).random()
    return int(SMALLEST * (largest / SMALLEST) ** (spread * spread))


class Batches:
    """In item i, byte k of field f is k + stamp(i, f), modulo 256."""

    def __init__(self, items: int, largest: int, *, fixed: bool, overwrite: bool) -> None:
        self.items, self.largest, self.fixed, self.overwrite = items, largest, fixed, overwrite
        self.ramp = np.arange(largest + MARGIN, dtype=np.int64).astype(np.uint8)

    def __len__(self) -> int:
        return self.items

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        scratch = {name: np.empty(self.largest, np.uint8) for name in FIELDS}
        for item in range(self.items):
            views = {}
            for field, name in enumerate(FIELDS):
                size, first = size_of(item, field, self.largest, fixed=self.fixed), stamp(item, field)
                if self.overwrite:  # one buffer, which each batch overwrites
                    scratch[name][:size] = self.ramp[first : first + size]
                    views[name] = torch.from_numpy(scratch[name][:size])
                else:
                    views[name] = torch.from_numpy(self.ramp[first : first + size].copy())
            yield views
            if self.overwrite:
                for memory in scratch.values():
                    memory.fill(0xEE)


class Checker:
    def __init__(self, largest: int, *, without_kernels: bool) -> None:
        ramp = torch.arange(largest + MARGIN, dtype=torch.int64).to(torch.uint8)
        self.on_host = ramp if without_kernels else None
        self.ramp = device.on_device(ramp)
        self.wrong = torch.zeros(1, dtype=torch.int64)
        if not without_kernels:
            self.wrong = device.on_device(self.wrong)

    def check(self, batch: dict[str, torch.Tensor], item: int, size: list[int]) -> int:
        """Makes the device compare the batch. Returns the number of fields that have another size."""
        misfits = 0
        for field, name in enumerate(FIELDS):
            tensor, first = batch[name], stamp(item, field)
            misfits += tensor.numel() != size[field]
            if self.on_host is not None:
                self.wrong += int((tensor.cpu() != self.on_host[first : first + tensor.numel()]).sum())
                continue

            def compare(ramp: torch.Tensor, tensor: torch.Tensor, wrong: torch.Tensor, first: int = first) -> None:
                wrong.add_((tensor != ramp[first : first + tensor.numel()]).sum())

            device.launch(compare, self.ramp, tensor, self.wrong)
        return misfits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--largest", type=int, default=1 << 20)
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--buffers", type=int, default=None)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--leave", action="store_true", help="leave in mid epoch, begin again, hold the last batch")
    parser.add_argument("--without-kernels", action="store_true", help="compare on the host, with copies alone")
    options = parser.parse_args()

    mesh = levada.Mesh(dp=max(levada.world_size() // 2, 1), tp=min(levada.world_size(), 2))
    job = levada.join()
    dp, width = mesh.coordinate(job.rank, "dp"), mesh.data_size
    fixed = options.buffers is not None
    source = Batches(options.steps * width, options.largest, fixed=fixed, overwrite=options.overwrite)
    feed = levada.Feed(
        source, mesh=mesh, device="cuda", prefetch_to_device=options.prefetch, device_buffers=options.buffers
    )
    checker, draw = Checker(options.largest, without_kernels=options.without_kernels), random.Random(job.rank)
    misfits = checked = 0
    held: list[tuple[dict[str, torch.Tensor], int, list[int]]] = []
    churn: list[torch.Tensor] = []

    def take(batch: dict[str, torch.Tensor], step: int) -> None:
        nonlocal misfits, checked
        item = step * width + dp
        sizes = [size_of(item, field, options.largest, fixed=fixed) for field in range(len(FIELDS))]
        misfits += checker.check(batch, item, sizes)
        checked += sum(sizes)
        if not fixed and draw.random() < 0.3:  # a random one of several held batches is released
            held.append((batch, item, sizes))
        if len(held) > 3:
            old = held.pop(draw.randrange(len(held)))
            misfits += checker.check(*old)
        churn.append(torch.ones(draw.randrange(1, 1 << 18), dtype=torch.uint8).to("cuda"))
        if len(churn) > 8:
            del churn[draw.randrange(8)]

    last = None
    if options.leave:
        for step, batch in enumerate(feed):
            take(batch, step)
            if step == options.steps // 3:
                last = (batch, step * width + dp) if not fixed else None
                break
        del batch
    for step, batch in enumerate(feed):
        take(batch, step)
    steps = feed.step
    if not fixed:
        for old in [*held, (batch, (steps - 1) * width + dp, [batch[name].numel() for name in FIELDS])]:
            misfits += checker.check(*old)
    if last is not None:
        misfits += checker.check(last[0], last[1], [last[0][name].numel() for name in FIELDS])
    device.synchronize()
    wrong = int(checker.wrong[0])
    device.tell(
        wrong == 0 and misfits == 0 and steps == options.steps,
        wrong_bytes=wrong, misfits=misfits, steps=steps, megabytes_checked=round(checked / 1e6),
    )


if __name__ == "__main__":
    main()
