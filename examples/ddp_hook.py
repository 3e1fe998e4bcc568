"""Trains a small model on four ranks twice: once with torch's DistributedDataParallel only, and once with Levada
averaging its gradients, which takes one more line.

    torchrun --nproc-per-node 4 examples/ddp_hook.py --steps 30

Rank 0 prints the losses of both runs, which differ only in the order in which gradients are summed, and their times.
"""

from __future__ import annotations

import argparse
import time

import levada.ddp
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, width: int, *, through_levada: bool) -> tuple[list[float], float]:
    """Returns the loss of each step, averaged over ranks, and the seconds that all steps took."""
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 1)), bucket_cap_mb=1)
    if through_levada:
        model.register_comm_hook(levada.ddp.State(), levada.ddp.average)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    began = time.monotonic()
    for _ in range(steps):
        x = torch.randn(64, width, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Average gradients by torch, and by Levada.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(3, options.width, through_levada=False)  # warm-up, before the clock starts
    theirs, their_seconds = train(options.steps, options.width, through_levada=False)
    ours, our_seconds = train(options.steps, options.width, through_levada=True)
    if dist.get_rank() == 0:
        print(" step         gloo       levada")
        for step, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            print(f"{step:5} {a:12.8f} {b:12.8f}")
        largest = max(abs(a - b) / abs(a) for a, b in zip(theirs, ours, strict=True))
        print(f"largest relative difference {largest:.1e}")
        print(f"ms a step: {1e3 * their_seconds / options.steps:.1f} over gloo, {1e3 * our_seconds / options.steps:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
