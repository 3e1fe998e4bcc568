"""Generates the seeds of an epoch."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

from levada.job.arrivals import arrivals_at

__all__ = ["SeedGenerator", "dist_share_seed"]


class SeedGenerator:
    """Draws two sequences of seeds: seeds that all ranks and workers share, and seeds for this rank or worker only."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Restarts from `seed`. Without one, restarts from a seed that torch's CPU generator draws, which differs each
        time."""
        if seed is None:
            seed = int(torch.randint(2**63 - 1, (), device="cpu").item())
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
        self._name = str(seed)
        self._shared = random.Random(f"shared {seed}")
        self._own = random.Random(self._name)

    def generate_shared_seed(self) -> int:
        return self._shared.getrandbits(64)

    def generate_seed(self) -> int:
        return self._own.getrandbits(64)

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Returns a generator whose own seeds are those of rank or worker `worker_id`. `inplace`: changes and returns
        this one."""
        if worker_id < 0:
            raise ValueError(f"worker_id must be at least 0, got {worker_id}")
        made = self if inplace else copy.deepcopy(self)
        made._name = f"{self._name}, {worker_id}"
        made._own = random.Random(made._name)
        return made


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Returns rank 0's seed on every rank of the group. Collective. After 30 s, a line on standard error names the
    ranks that have not called it."""
    shared = torch.tensor(seed - 2**63, dtype=torch.int64)
    with arrivals_at(dist.group.WORLD if process_group is None else process_group, "to share a seed in its group"):
        dist.broadcast(shared, src=0, group=process_group)
    return int(shared.item()) + 2**63
