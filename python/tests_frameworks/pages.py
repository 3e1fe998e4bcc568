"""Runs the code blocks of pages in docs/frameworks on real ranks."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import ranks

DOCS = pathlib.Path(__file__).parents[2] / "docs"

PREPARE = """
import os
os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "{size}", "LOCAL_WORLD_SIZE": "{size}"}}
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}}
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size={size})
folder = "{folder}/checkpoint"
dataset = [{{"x": torch.full((3,), float(i)), "labels": torch.tensor(2.0 * i)}} for i in range(48)]
seen = []
def train(batch):
    seen.append(batch["x"][:, 0].int().tolist())
def numbers():
    got = seen[:]
    seen.clear()
    return got
"""


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def is_program(block: str) -> bool:
    """Returns whether a block is a whole program, which is run separately."""
    return block.startswith("# train.py\n")


def run(folder: pathlib.Path, page: str | None, size: int, body: str) -> list[list[dict[str, Any]]]:
    """Returns each rank's reports. `body` must run all blocks of `page`, if one is given, except a program."""
    blocks = [] if page is None else [block for block in blocks_of(page) if not is_program(block)]
    prepare = PREPARE.format(folder=folder, size=size) + ranks.BLOCKS.format(blocks=blocks)
    script = prepare + body + ranks.BLOCKS_END
    outcome = ranks.run(folder, size, script, within=240)
    assert outcome.status == 0, outcome.errors
    return outcome.told


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]
