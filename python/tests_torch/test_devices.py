"""Batches on a device, with the stub of bench/gpu in its place; script/gpu runs the same checks on a GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import levada
import pytest
import torch
from levada.batch.host_memory import RegisteredMemory

GPU = pathlib.Path(__file__).parents[2] / "bench" / "gpu"

PRELUDE = """
import sys
import device, stand_in, levada.batch.devices as devices, levada.batch.host_memory as host_memory
{mutation}
import stamps
for arguments in {runs!r}:
    sys.argv[1:] = [*arguments, "--steps", "40", "--largest", "65536"]
    stamps.main()
"""


def stamps(folder: pathlib.Path, runs: list[list[str]], mutation: str = "", ranks: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Runs bench/gpu/stamps.py on the stub with each list of arguments. Returns its ranks' results, and all output."""
    script = folder / "job.py"
    script.write_text(PRELUDE.format(mutation=mutation, runs=runs))
    environment = {**os.environ, "LEVADA_GPU": "stub", "PYTHONPATH": str(GPU), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "levada", "run", "-n", str(ranks), str(script)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
    )
    told = [json.loads(line.removeprefix("RESULT ")) for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    return told, ran.stdout


NO_DRIVER = "host_memory.drivers = {}; host_memory.driver_of.cache_clear()"


@pytest.mark.parametrize("memory", ["registered", "pinned"])
def test_a_device_sees_every_byte_of_every_batch(tmp_path: pathlib.Path, memory: str) -> None:
    runs = [[], ["--prefetch"], ["--overwrite", "--leave", "--prefetch"], ["--prefetch", "--buffers", "3"], ["--buffers", "2"]]
    told, output = stamps(tmp_path, runs, NO_DRIVER if memory == "pinned" else "")
    assert len(told) == 2 * len(runs) and all(each["pass"] for each in told), output


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
    "tensors are not recorded on the stream that uses them": (
        "import torch; torch.Tensor.record_stream = lambda tensor, stream: None",
        ["--prefetch"],
    ),
    "a device buffer is filled while a step still reads it": (
        "devices._Buffer.begin = lambda buffer, batch, stream: setattr(buffer, '_filled', 0)",
        ["--prefetch", "--buffers", "3"],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_stand_in_finds_each_mistake_that_a_gpu_would_punish(tmp_path: pathlib.Path, name: str) -> None:
    mutation, arguments = MUTANTS[name]
    # Slow enough that even on a busy machine the device has not read memory before it is overwritten.
    mutation += "; stand_in.copy_seconds = stand_in.kernel_seconds = 0.02"
    told, output = stamps(tmp_path, [arguments], mutation)
    assert not (len(told) == 2 and all(each["pass"] for each in told)), output


def test_device_buffers_are_refused_if_a_loop_would_overwrite_its_own_batch() -> None:
    with pytest.raises(levada.InvalidArgument, match="device is None"):
        levada.Feed([1], device_buffers=2)
    with pytest.raises(levada.InvalidArgument, match="at least 3 with prefetch_to_device=True, got 2"):
        levada.Feed([1], device="cuda", prefetch_to_device=True, device_buffers=2)
    with pytest.raises(levada.InvalidArgument, match="at least 2, got 1"):
        levada.Feed([1], device="cuda", device_buffers=1)


@pytest.mark.parametrize("device", [True, 1.5, [], torch.float32])
def test_a_device_of_another_type_is_refused_by_name(device: Any) -> None:
    with pytest.raises(levada.InvalidArgument, match=r'device must be a name such as "cuda" or "cuda:1", or a torch.device, got ') as error:
        levada.Feed([1], device=device)
    assert isinstance(error.value, TypeError)


def test_a_device_that_torch_lacks_is_refused_by_name() -> None:
    for name in ("gpu", "cuda:x", ""):
        with pytest.raises(levada.InvalidArgument, match=f"device is '{name}', which torch refuses"):
            levada.Feed([1], device=name)
    if torch.accelerator.is_available():
        return
    for options in ({}, {"prefetch_to_device": True}, {"device_buffers": 2}):
        feed = levada.Feed([{"x": torch.ones(1)}], device="cuda", **options)
        with pytest.raises(levada.Unsupported, match='device is cuda, and torch .* finds no accelerator on this machine; pass device="cpu"'):
            next(iter(feed))


@pytest.mark.parametrize("check", ["graphs"])
def test_a_check_of_script_gpu_runs_on_the_stand_in(check: str) -> None:
    environment = {**os.environ, "LEVADA_GPU": "stub"}
    ran = subprocess.run(
        [sys.executable, str(GPU / "run.py"), check],
        env=environment, capture_output=True, text=True, timeout=250,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


class Tensor:
    """The part of a tensor that RegisteredMemory uses."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return True


class Job:
    """A job whose shared memory is below address 2**20."""

    def keep_pages(self, address: int, size: int) -> bool:
        return address + size <= 2**20


class Driver:
    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.ranges: dict[int, int] = {}
        self.calls = 0

    def register(self, address: int, size: int) -> bool:
        self.calls += 1
        assert all(end <= address or address + size <= begin for begin, end in self.ranges.items()), "a driver refuses overlaps"
        if not self.refuses:
            self.ranges[address] = address + size
        return not self.refuses

    def unregister(self, address: int) -> None:
        del self.ranges[address]


def test_the_pages_of_a_message_are_registered_once_and_grow_with_larger_messages() -> None:
    driver, waits = Driver(), []
    memory = RegisteredMemory(Job(), driver)  # type: ignore[arg-type]
    first = [Tensor(8192, 100), Tensor(8400, 5000)]
    for _ in range(3):
        memory.add(first, lambda: waits.append(1))
    assert driver.ranges == {8192: 16384} and driver.calls == 1 and not waits and all(map(memory.covers, first))
    memory.add([Tensor(40960, 10)], lambda: waits.append(1))
    memory.add([Tensor(4096, 9000)], lambda: waits.append(2))
    assert driver.ranges == {4096: 16384, 40960: 45056} and waits == [2], "copies end before a range is replaced"
    memory.add([Tensor(2**20, 10), Tensor(4096, 0)], lambda: None)
    assert not memory.covers(Tensor(2**20, 10)), "memory of this process alone"
    memory.close()
    memory.close()
    assert not driver.ranges


def test_a_driver_that_refuses_is_called_once() -> None:
    driver = Driver(refuses=True)
    memory = RegisteredMemory(Job(), driver)  # type: ignore[arg-type]
    for address in (4096, 65536):
        memory.add([Tensor(address, 100)], lambda: None)
        assert not memory.covers(Tensor(address, 100))
    assert driver.calls == 1
