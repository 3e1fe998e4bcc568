"""Runs docs/several-hosts.md, on hosts that are network namespaces. Run by `script/check hosts`."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import hosts as several
import pytest

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "several-hosts.md").read_text()
TOLD = sorted(f"rank {rank}: batch {step}" for rank in range(4) for step in range(rank // 2, 8, 2))
ENGINE = "engine shm+c10d: 4 ranks on 2 hosts"
WITHIN = 300.0
"""Seconds that a job may take; its processes import torch."""

SRUN = """\
import os, subprocess, sys
hosts = {hosts!r}
command = [word for word in sys.argv[1:] if not word.startswith("--")]
ranks = []
for rank in range(4):
    task = {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_NODEID": str(rank // 2)}}
    step = {{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}}
    ranks.append(subprocess.Popen([*hosts[rank // 2], *command], env={{**os.environ, **task, **step}}))
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
"""Acts like SLURM's srun with two tasks on each of two nodes."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)  # hosts run their commands in this folder
    (tmp_path / "train.py").write_text(blocks("python")[0])
    (tmp_path / "bin").mkdir()
    write(tmp_path / "bin/torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"')
    write(tmp_path / "bin/python", f'exec {sys.executable} "$@"')
    return tmp_path


def write(path: pathlib.Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_all(folder: pathlib.Path, commands: list[list[str]], **environment: str) -> str:
    """Runs the commands concurrently. Returns their standard output."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rest = {name: value for name, value in os.environ.items() if name not in names}
    env = {**rest, "PATH": path, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, cwd=folder, env=env, **pipes) for command in commands]  # type: ignore[call-overload]
    try:
        ended = [(*each.communicate(timeout=WITHIN), each.returncode) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    assert [status for _, _, status in ended] == [0] * len(ended), ended
    return "".join(out for out, _, _ in ended)


def expect_fed(told: str) -> None:
    # Lines that ranks print at the same time may be joined.
    assert sorted(re.findall(r"rank \d: batch \d", told)) == TOLD
    assert told.count(ENGINE) == 1


@pytest.mark.timeout(600)
def test_torchrun(hosts: several.Hosts, folder: pathlib.Path) -> None:
    lines = [line.partition("#")[0] for line in blocks("sh")[0].splitlines()]
    commands = [line.replace("node0", hosts[0].address) for line in lines]
    expect_fed(run_all(folder, [host.command(["sh", "-c", each]) for host, each in zip(hosts, commands, strict=True)]))
    assert hosts.left() == []


@pytest.mark.timeout(600)
def test_slurm(hosts: several.Hosts, folder: pathlib.Path) -> None:
    batch = folder / "train.sbatch"
    batch.write_text(blocks("bash")[0])
    (folder / "srun.py").write_text(SRUN.format(hosts=[host.command([]) for host in hosts]))
    write(folder / "bin/srun", f'exec {sys.executable} {folder / "srun.py"} "$@"')
    write(folder / "bin/scontrol", 'shift 2\necho "$1" | tr , "\\n"')
    nodes = ",".join(host.address for host in hosts)
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": nodes, "SLURM_NTASKS": "4"}
    expect_fed(run_all(folder, [["bash", str(batch)]], **job))
    assert hosts.left() == []


@pytest.mark.timeout(600)
def test_mpirun(hosts: several.Hosts, folder: pathlib.Path) -> None:
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("Open MPI is not installed")
    hosts.write_agent(folder / "agent")
    command = next(block for block in blocks("sh") if block.startswith("mpirun ")).strip()
    for host in hosts:
        command = command.replace(f"node{host.number}", host.address)
    options = f"--mca plm_rsh_agent {folder / 'agent'} --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0"
    command = command.replace("mpirun ", f"{mpirun} {options} ", 1)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    exported = " ".join(f"-x {name}" for name in ("PATH", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"))
    command = command.replace(" sh -c", f" {exported} --wdir {folder} sh -c", 1)
    expect_fed(run_all(folder, [hosts[0].command(["sh", "-c", command])], **allowed))
    assert hosts.left() == []


@pytest.mark.timeout(600)
def test_kubernetes(hosts: several.Hosts, folder: pathlib.Path) -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(blocks("yaml")[0])
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    first = f"{job['metadata']['name']}-0.{spec['subdomain']}"
    (argument,) = container["args"]
    assert first in argument and spec["subdomain"] == service["metadata"]["name"]
    command = [*container["command"], argument.replace(first, hosts[0].address)]
    pods = [host.command(["env", f"JOB_COMPLETION_INDEX={host.number}", *command]) for host in hosts]
    assert len(pods) == job["spec"]["completions"] == job["spec"]["parallelism"]
    expect_fed(run_all(folder, pods))
    assert hosts.left() == []
