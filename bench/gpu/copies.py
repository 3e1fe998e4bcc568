"""Measures copies to the device without Levada, and the trainer's time in next() with it.

    copies.py floor                  recorded: pinned and pageable memory, registered shared memory
    copies.py next                   four ranks: time of next() for 1, 8 and 64 MiB
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import sys
import time
from typing import Any

import device
import levada
import torch

SIZES = (1 << 20, 8 << 20, 64 << 20)
READ_ONLY = 8  # cudaHostRegisterReadOnly


def rates(size: int) -> dict[str, Any]:
    there = torch.empty(size, dtype=torch.uint8).to("cuda")
    pageable = torch.ones(size, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    return {
        "pinned": device.milliseconds(lambda: there.copy_(pinned, non_blocking=True)),
        "pageable": device.milliseconds(lambda: there.copy_(pageable)),
        "staged": device.milliseconds(lambda: (pinned.copy_(pageable), there.copy_(pinned, non_blocking=True))),
        "pin_memory": device.milliseconds(lambda: pageable.pin_memory()),
        "to": device.milliseconds(lambda: pageable.to("cuda")),
    }


def registered(size: int) -> dict[str, Any]:
    """Returns whether the driver registers shared memory read-only, as an engine's receiver maps it, and as its owner
    maps it."""
    if device.IS_STUB:
        return {}
    cudart = torch.cuda.cudart()
    file = os.memfd_create("levada gpu check")
    os.ftruncate(file, size)
    readable = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    told: dict[str, Any] = {}
    for name, descriptor, protection, flags in (
        ("shared, read-only", readable, mmap.PROT_READ, READ_ONLY),
        ("shared, read-only, default flags", readable, mmap.PROT_READ, 0),
        ("shared, writable", file, mmap.PROT_READ | mmap.PROT_WRITE, 0),
    ):
        at = libc.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
        began = time.perf_counter()
        error = int(cudart.cudaHostRegister(at, size, flags))
        told[name] = {"error": error, "ms": round(1e3 * (time.perf_counter() - began), 2)}
        if error == 0:
            there = torch.empty(size, dtype=torch.uint8, device="cuda")
            source = torch.frombuffer((ctypes.c_ubyte * size).from_address(at), dtype=torch.uint8)
            told[name] |= device.milliseconds(lambda: there.copy_(source, non_blocking=True))
            cudart.cudaHostUnregister(at)
    return told


def floor() -> None:
    attributes = {}
    if not device.IS_STUB:
        torch.ones(1, device="cuda")
        paths = {line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}
        value = ctypes.c_int()
        library = ctypes.CDLL(min(paths))
        for name, number in (("HostRegisterSupported", 99), ("HostRegisterReadOnlySupported", 113)):
            library.cudaDeviceGetAttribute(ctypes.byref(value), number, 0)
            attributes[name] = value.value
    sizes = SIZES[:2] if device.IS_STUB else SIZES
    device.tell(
        None,
        **{f"{size >> 20} MiB": rates(size) for size in sizes},
        attributes=attributes,
        registered_64_MiB=registered(64 << 20),
        threads=torch.get_num_threads(),
    )


def next_times(size: int, **where: Any) -> float:
    """Returns the median time of next(), in ms, in a loop whose steps take 40 ms, so that the next batch always arrives
    in time."""
    steps = 6 if device.IS_STUB else 16
    made = [torch.full((size,), value, dtype=torch.uint8) for value in range(4)]
    items = (made[item % len(made)] for item in range(steps))
    took = []
    batches = iter(levada.Feed(items, mesh=levada.Mesh(tp=levada.world_size()), **where))
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)
        if "device" not in where:
            batch = batch.to("cuda")
        took.append(time.perf_counter() - began)
        device.synchronize()
        time.sleep(0.04)
    return round(1e3 * statistics.median(took[3:]), 3)


def trainer() -> None:
    figures: dict[str, Any] = {}
    for size in SIZES[:2] if device.IS_STUB else SIZES:
        figures[f"{size >> 20} MiB"] = {
            "to": next_times(size),
            "device": next_times(size, device="cuda"),
            "prefetch": next_times(size, device="cuda", prefetch_to_device=True),
            "buffers": next_times(size, device="cuda", prefetch_to_device=True, device_buffers=3),
        }
    largest = figures[max(figures, key=lambda name: int(name.split()[0]))]
    device.tell(device.IS_STUB or largest["prefetch"] < largest["device"], next_ms=figures)


if __name__ == "__main__":
    {"floor": floor, "next": trainer}[sys.argv[1]]()
