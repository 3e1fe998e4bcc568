"""Programs that only know torchrun's variables start under `levada run`. Run by `script/check python-torch`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

DDP = """
import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.tensor([[float(2 * rank)]])).sum().backward()
print(f"rank {rank} of {torch.distributed.get_world_size()}: gradient {model.module.weight.grad.item()}")
"""
FSDP = """
import os
import torch
import torch.distributed
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo")
mesh = torch.distributed.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(4, 1, bias=False), mesh=mesh)
rank = int(os.environ["LOCAL_RANK"])
model(torch.full((1, 4), 2.0 * rank)).sum().backward()
print(f"rank {rank} of {mesh.size()}: gradient {model.weight.grad.full_tensor()[0, 0].item()}")
"""
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
accelerator.backward(model(torch.tensor([[2.0 * accelerator.process_index]])).sum())
gradient = accelerator.unwrap_model(model).weight.grad.item()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: gradient {gradient}")
"""
END = """
import os, sys
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""
"""Exits without finalization, since gloo may abort: one of its threads may release tensors while the interpreter
ends."""
JOINING = """
import sys
import levada
job = levada.join()
sys.stdout.write(f"{sys.argv[1]} {job.rank} {job.size}\\n")  # at once: ranks of both jobs share a pipe
"""
WITHIN = f"""
import os, subprocess, sys
if os.environ["RANK"] == "0":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    subprocess.run([*torchrun, "joining.py", "inner"], check=True)
{JOINING}
"""


def run(folder: pathlib.Path, command: list[str], script: str, *arguments: str) -> list[str]:
    """Returns the lines that all ranks of a script print, sorted."""
    (folder / "script.py").write_text(script)
    variables = {"OMP_NUM_THREADS": "1", "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [*command, "script.py", *arguments], cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.splitlines())


PACKAGE = [sys.executable, "-m", "levada", "run", "-n", "2"]
CORE = [os.environ["LEVADA_COMMAND"], "run", "-n", "2"] if "LEVADA_COMMAND" in os.environ else PACKAGE


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [PACKAGE, CORE], ids=["package", "core"])
@pytest.mark.parametrize("script", [DDP, FSDP, ACCELERATE], ids=["ddp", "fsdp", "accelerate"])
def test_an_unchanged_program_trains(tmp_path: pathlib.Path, command: list[str], script: str) -> None:
    assert run(tmp_path, command, script + END) == ["rank 0 of 2: gradient 1.0", "rank 1 of 2: gradient 1.0"]


@pytest.mark.timeout(300)
def test_ranks_of_torchrun_within_a_rank_join_torchruns_job(tmp_path: pathlib.Path) -> None:
    (tmp_path / "joining.py").write_text(JOINING)
    assert run(tmp_path, PACKAGE, WITHIN, "outer") == ["inner 0 3", "inner 1 3", "inner 2 3", "outer 0 2", "outer 1 2"]


@pytest.mark.timeout(300)
def test_a_rank_of_torchrun_may_start_its_own_job(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ddp.py").write_text(DDP + END)
    starting = f"import os, subprocess\nif os.environ['RANK'] == '1': subprocess.run({[*PACKAGE, 'ddp.py']}, check=True)\n"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert run(tmp_path, torchrun, starting) == ["rank 0 of 2: gradient 1.0", "rank 1 of 2: gradient 1.0"]
