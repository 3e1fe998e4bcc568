"""Compares reductions with NCCL's, in a group of one rank: ReduceScatter on the device, levada.ddp and torch's default
hook, FSDP2 with batches of a feed."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import device
import levada
import levada.ddp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

STEPS, ROWS, WIDTH = (20, 16, 64) if device.IS_STUB else (200, 512, 2048)
HERE = "cpu" if device.IS_STUB else "cuda"


def batches() -> Iterator[dict[str, torch.Tensor]]:
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        yield {"x": torch.randn(ROWS, WIDTH, generator=draw)}


def fed(made: list[Any]) -> Iterable[dict[str, torch.Tensor]]:
    where: dict[str, Any] = {} if device.IS_STUB else {"device": "cuda", "prefetch_to_device": True}
    return levada.Feed(made, **where)


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))).to(HERE)


def train(wrapped: nn.Module, source: Iterable[dict[str, torch.Tensor]]) -> tuple[list[float], float]:
    """Returns the losses and the median time of a step, in ms."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    losses, took, began = [], [], time.perf_counter()
    for batch in source:
        loss = wrapped(batch["x"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        now = time.perf_counter()
        took.append(now - began)
        began = now
    return losses, 1e3 * statistics.median(took[len(took) // 4 :])


def sums_are_right() -> bool:
    """Reduces many small inputs of one rank. Returns whether each sum is the input, and callbacks run in order."""
    inputs = [torch.randn(1 + item % 977, 3, generator=torch.Generator().manual_seed(item)).to(HERE) for item in range(300)]
    results: list[torch.Tensor] = []
    with levada.ReduceScatter(dist.group.WORLD, capacity_mb=0.05) as reduce:
        for tensor in inputs:
            reduce(tensor.clone(), callback=results.append)
    return len(results) == len(inputs) and all(map(torch.equal, results, inputs))


def compare(
    ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module], made: list[Any], *, is_fed: bool = False
) -> dict[str, Any]:
    """Trains both in turn with batches that are on the device; with `is_fed` ours come from a feed."""
    resident = [{name: tensor.to(HERE) for name, tensor in batch.items()} for batch in made]
    rounds: dict[str, list[Any]] = {"ours": [], "theirs": []}
    for _ in range(1 if device.IS_STUB else 3):
        rounds["ours"].append(train(ours(), fed(made) if is_fed else resident))
        rounds["theirs"].append(train(theirs(), resident))
    same = all(ours[0] == theirs[0] for ours, theirs in zip(rounds["ours"], rounds["theirs"], strict=True))
    times = {name: round(statistics.median(step for _, step in each), 3) for name, each in rounds.items()}
    return {"same_losses": same, "step_ms": times, "ratio": round(times["ours"] / times["theirs"], 3)}


def with_hook(register: Callable[[Any], object]) -> nn.Module:
    made = nn.parallel.DistributedDataParallel(model())
    register(made)
    return made


def main() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo" if device.IS_STUB else "nccl")
    made = list(batches())
    hooks = compare(
        lambda: with_hook(lambda made: made.register_comm_hook(levada.ddp.State(), levada.ddp.average)),
        lambda: with_hook(lambda made: made.register_comm_hook(None, default_hooks.allreduce_hook)),
        made,
    )

    def sharded() -> nn.Module:
        made = copy.deepcopy(model())
        for layer in made:
            fully_shard(layer)
        fully_shard(made)
        return made

    fsdp = compare(sharded, sharded, made, is_fed=True)
    summed = sums_are_right()
    limit = 3.0 if device.IS_STUB else 1.05
    passed = summed and all(each["same_losses"] and each["ratio"] <= limit for each in (hooks, fsdp))
    device.tell(passed, reduce_scatter=summed, ddp=hooks, fsdp2=fsdp, backend=dist.get_backend())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
