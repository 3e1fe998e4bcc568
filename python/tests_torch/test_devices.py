"""Batches on a device, with the stand-in of bench/gpu in its place: script/gpu runs the same checks on a GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import levada
import pytest

GPU = pathlib.Path(__file__).parents[2] / "bench" / "gpu"

PRELUDE = """
import sys
import device, stand_in, levada.batch.devices as devices, levada.batch.host_memory as host_memory
{mutation}
import stamps
sys.argv[1:] = {arguments!r}
stamps.main()
"""


def stamps(folder: pathlib.Path, *arguments: str, mutation: str = "", ranks: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Runs bench/gpu/stamps.py on the stand-in; returns what its ranks told, and all output."""
    script = folder / "job.py"
    script.write_text(PRELUDE.format(mutation=mutation, arguments=[*arguments, "--steps", "60", "--largest", "65536"]))
    environment = {**os.environ, "LEVADA_GPU": "stub", "PYTHONPATH": str(GPU), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "levada", "run", "-n", str(ranks), str(script)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
    )
    told = [json.loads(line.removeprefix("RESULT ")) for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    return told, ran.stdout


NO_DRIVER = "host_memory.drivers = {}; host_memory.driver_of.cache_clear()"


@pytest.mark.parametrize("memory", ["registered", "pinned"])
@pytest.mark.parametrize(
    "arguments",
    [[], ["--prefetch"], ["--overwrite", "--leave", "--prefetch"], ["--prefetch", "--buffers", "3"], ["--buffers", "2"], ["--pin"]],
    ids=" ".join,
)
def test_a_device_sees_every_byte_of_every_batch(tmp_path: pathlib.Path, arguments: list[str], memory: str) -> None:
    told, output = stamps(tmp_path, *arguments, mutation=NO_DRIVER if memory == "pinned" else "")
    assert len(told) == 2 and all(each["pass"] for each in told), output


MUTANTS = {
    "the event of a copy is recorded on a stream that does not copy": (
        "devices._Stage.sent = lambda stage: (stage.copied.record(stand_in._default), setattr(stage, '_is_sent', True))",
        ["--prefetch"],
    ),
    "pinned memory is filled again before the device has read it": (
        f"{NO_DRIVER}; devices._Stage.wait = lambda stage: stage._held.clear()",
        [],
    ),
    "shared memory goes back to its sender before the device has read it": (
        "devices._Stage.wait = devices._Stage.release = lambda stage: stage._held.clear()",
        [],
    ),
    "the current stream does not wait for a copy": ("stand_in.Stream.wait_event = lambda stream, event: None", ["--prefetch"]),
    "tensors are not recorded on the stream that uses them": (
        "import torch; torch.Tensor.record_stream = lambda tensor, stream: None",
        ["--prefetch"],
    ),
    "a device buffer is filled while a step still reads it": (
        "devices._Buffer.begin = lambda buffer, batch, stream: setattr(buffer, '_filled', 0)",
        ["--prefetch", "--buffers", "3"],
    ),
    "a private view is registered": (
        "devices._DeviceCopies.reads_shared = False; "
        "host_memory.RegisteredMemory._is_shared = lambda memory, tensor: tensor.is_contiguous()",
        [],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_stand_in_finds_each_mistake_that_a_gpu_would_punish(tmp_path: pathlib.Path, name: str) -> None:
    mutation, arguments = MUTANTS[name]
    told, output = stamps(tmp_path, *arguments, mutation=mutation)
    assert not (len(told) == 2 and all(each["pass"] for each in told)), output


def test_device_buffers_are_refused_where_a_loop_would_overwrite_the_batch_it_holds() -> None:
    with pytest.raises(levada.InvalidArgument, match="device is None"):
        levada.Feed([1], device_buffers=2)
    with pytest.raises(levada.InvalidArgument, match="at least 3 with prefetch_to_device=True, got 2"):
        levada.Feed([1], device="cuda", prefetch_to_device=True, device_buffers=2)
    with pytest.raises(levada.InvalidArgument, match="at least 2, got 1"):
        levada.Feed([1], device="cuda", device_buffers=1)


@pytest.mark.parametrize("check", ["floor", "overlap", "next", "graphs", "reductions", "death", "training"])
def test_a_check_of_script_gpu_runs_on_the_stand_in(check: str) -> None:
    environment = {**os.environ, "LEVADA_GPU": "stub"}
    ran = subprocess.run(
        [sys.executable, str(GPU / "run.py"), check],
        env=environment, capture_output=True, text=True, timeout=250,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
