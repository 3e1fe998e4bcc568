"""Registers memory of an engine with a device's driver, so that the device copies from it without pinned memory."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from levada._levada import Membership

_PAGE = 4096


class Driver(Protocol):
    """A device's driver. Both functions take the address of whole pages."""

    def register(self, address: int, size: int) -> bool:
        """Pins pages that this process only reads. Returns whether the device can now copy from them."""

    def unregister(self, address: int) -> None: ...


class CudaDriver:
    """CUDA's driver API. The runtime is avoided, because its next call would report a failed registration."""

    _PORTABLE, _READ_ONLY = 1, 8  # CU_MEMHOSTREGISTER_...

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.cuMemHostRegister_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._library.cuMemHostUnregister.argtypes = (ctypes.c_void_p,)
        importlib.import_module("torch").empty(1, device="cuda")  # initializes CUDA's context on this thread

    def register(self, address: int, size: int) -> bool:
        return bool(self._library.cuMemHostRegister_v2(address, size, self._PORTABLE | self._READ_ONLY) == 0)

    def unregister(self, address: int) -> None:
        self._library.cuMemHostUnregister(address)


drivers: dict[str, Callable[[], Driver]] = {"cuda": CudaDriver}
"""Drivers by device type. Each function makes a driver, or raises OSError if this machine has none."""


@functools.cache
def driver_of(device_type: str) -> Driver | None:
    try:
        make = drivers.get(device_type)
        return None if make is None else make()
    except OSError:
        return None


class RegisteredMemory:
    """The memory of a job's engine that one pass has registered. It must be closed before this rank leaves the job;
    otherwise, the device would read the old pages in place of a later mapping at the same address."""

    def __init__(self, job: Membership, driver: Driver) -> None:
        self._job = job
        self._driver = driver
        self._ranges: list[tuple[int, int]] = []  # disjoint [begin, end)
        self._is_refused = False

    def add(self, tensors: Sequence[Any], wait: Callable[[], object]) -> None:
        """Registers the part of a message that contains the tensors of a batch. `wait`: waits for all copies from this
        memory; called if a range must be replaced by a larger one."""
        if self._is_refused:
            return
        received = [tensor for tensor in tensors if tensor.nbytes and self._is_received(tensor)]
        if all(self.covers(tensor) for tensor in received):
            return
        begin = min(tensor.data_ptr() for tensor in received) // _PAGE * _PAGE
        end = -(-max(tensor.data_ptr() + tensor.nbytes for tensor in received) // _PAGE) * _PAGE
        overlapped = [each for each in self._ranges if each[0] < end and begin < each[1]]
        if overlapped:
            wait()
        for each in overlapped:
            self._driver.unregister(each[0])
            self._ranges.remove(each)
            begin, end = min(begin, each[0]), max(end, each[1])
        if self._driver.register(begin, end - begin):
            self._ranges.append((begin, end))
        else:
            self._is_refused = True

    def _is_received(self, tensor: Any) -> bool:
        return tensor.is_contiguous() and self._job.keep_pages(tensor.data_ptr(), tensor.nbytes)

    def covers(self, tensor: Any) -> bool:
        """Returns whether a contiguous tensor is entirely registered."""
        begin = tensor.data_ptr()
        return any(first <= begin and begin + tensor.nbytes <= last for first, last in self._ranges)

    def close(self) -> None:
        """Unregisters all ranges. No copy may be in flight."""
        while self._ranges:
            self._driver.unregister(self._ranges.pop()[0])
