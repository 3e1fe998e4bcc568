"""Runs docs/frameworks/transferqueue.md with a driver and a worker of Ray. Run by `script/check frameworks`."""

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
import ray, torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
before, after = {blocks!r}
samples = TensorDict({{"ids": torch.arange(6).reshape(2, 3), "text": NonTensorStack("x", "yy")}}, batch_size=2)
@ray.remote(max_calls=1)  # a process for each call
def read(keys):
    import levada_store
    tq.init()
    got = tq.kv_batch_get(keys=keys, partition_id="train")
    return [row.tolist() for row in got["ids"]], list(got["text"])
ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1",
         _temp_dir={sessions!r})
try:
    with tempfile.TemporaryDirectory(prefix="levada-", dir="/dev/shm") as folder:
        for block in (before, after):
            exec(block)
            got, kept = ray.get(read.remote(["b", "a"])), sorted(os.listdir(folder))
            tq.kv_clear(keys=["a", "b"], partition_id="train")
            print("told", json.dumps([got, kept, os.listdir(folder)]))
            tq.close()
finally:
    ray.shutdown()
"""


@pytest.mark.timeout(420)
def test_a_process_gets_what_another_put_with_levada_as_with_the_default_storage(tmp_path: pathlib.Path) -> None:
    before, backend, after = pages.blocks_of("frameworks/transferqueue.md")
    (tmp_path / "levada_store.py").write_text(backend)
    program = tmp_path / "program.py"
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="ray") as sessions:  # Ray's socket paths have to be short
        program.write_text(PROGRAM.format(blocks=[before, after], sessions=sessions))
        ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment, timeout=400)
    assert ran.returncode == 0, ran.stderr
    lines = [line.removeprefix("told ") for line in ran.stdout.splitlines() if line.startswith("told ")]
    (plain, _, _), (got, kept, left) = map(json.loads, lines)
    assert got == plain == [[[3, 4, 5], [0, 1, 2]], ["yy", "x"]]
    assert kept == ["0@ids", "0@text", "1@ids", "1@text"] and left == []
