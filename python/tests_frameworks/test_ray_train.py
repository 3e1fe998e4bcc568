"""Runs docs/frameworks/ray-train.md with Ray's workers on this machine. Run by `script/check frameworks`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pages
import pytest

PROGRAM = """
import json, os, tempfile
import levada, ray, ray.train, torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, DistributedSampler
def train(batch):
    told = os.path.join(storage, f"rank{{ray.train.get_context().get_world_rank()}}")
    with open(told, "a") as file:
        print(json.dumps(batch["x"][:, 0].int().tolist()), file=file)
    with open(told) as file:
        if len(file.readlines()) == fails_at:
            raise InterruptedError
dataset = [{{"x": torch.full((3,), float(i))}} for i in range(24)]
before, after = {blocks!r}
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1",
         _temp_dir={sessions!r})
try:
    storage, fails_at = {folder!r} + "/before", 0
    os.mkdir(storage)
    exec(before)
    TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=storage)).fit()
    storage, fails_at = {folder!r} + "/after", 9
    os.mkdir(storage)
    exec(after)
finally:
    ray.shutdown()
"""


@pytest.mark.timeout(420)
def test_each_sample_is_read_once_even_if_workers_resume_after_a_failure(tmp_path: pathlib.Path) -> None:
    blocks = pages.blocks_of("frameworks/ray-train.md")
    program = tmp_path / "program.py"
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    with tempfile.TemporaryDirectory(prefix="ray") as sessions:  # Ray's socket paths have to be short
        program.write_text(PROGRAM.format(folder=str(tmp_path), sessions=sessions, blocks=blocks))
        ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment, timeout=400)
    assert ran.returncode == 0, ran.stderr
    for name in ("before", "after"):
        files = [tmp_path / name / f"rank{rank}" for rank in (0, 1)]
        told = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        if name == "after":
            # The ninth step raised, after a checkpoint at the eighth, which is the second of epoch 1.
            assert [mine[8] for mine in told] == [mine[9] for mine in told]
            told = [mine[:8] + mine[9:] for mine in told]
        epochs = [[pages.flat(mine[half]) for mine in told] for half in (slice(0, 6), slice(6, 12))]
        assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(24))] * 2
        assert epochs[0] != epochs[1]
