"""A device stub for machines without a GPU: torch.accelerator, streams, events and the caching allocator, as far as
Levada uses them, on threads and ordinary memory.

It is as unforgiving as a GPU. Copies and kernels run later, on the thread of their stream, and read and write memory as
it is at that time. Memory that a tensor has freed is reused at once for the next tensor of its stream, unless
record_stream() named another stream that is not done. A copy from memory that is not pinned has read its source when
the call returns.
"""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from levada.batch import host_memory

_to, _copy, _empty_like, _new_empty = torch.Tensor.to, torch.Tensor.copy_, torch.empty_like, torch.Tensor.new_empty
_delays = random.Random(11)
copy_seconds, kernel_seconds = 1e-3, 2e-3
"""The maximum duration of a copy and of a kernel."""


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's memory without a reference to it, since a kernel has none either."""
    if tensor.numel() == 0:
        return _empty_like(tensor)
    size = tensor.untyped_storage().nbytes()
    raw = (ctypes.c_ubyte * size).from_address(tensor.untyped_storage().data_ptr())
    whole = torch.frombuffer(raw, dtype=torch.uint8).view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Stream:
    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device = torch.device("cuda", 0) if device is None else torch.device(device)
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()

    def do(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def wait_event(self, event: Event) -> None:
        self.do(event.passed.wait)

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        event = Event()
        event.record(self)
        event.synchronize()


class Event:
    def __init__(self, device: Any = None, **_: Any) -> None:
        self.passed = threading.Event()
        self.passed.set()

    def record(self, stream: Stream | None = None) -> None:
        self.passed = threading.Event()
        (current_stream() if stream is None else stream).do(self.passed.set)

    def synchronize(self) -> None:
        if not self.passed.wait(30):
            raise RuntimeError("a stream of the stand-in has not reached an event for 30 s")

    def query(self) -> bool:
        return self.passed.is_set()


class _Block:
    """Device memory, and the streams that record_stream() named since it was allocated."""

    def __init__(self, size: int, stream: Stream) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8)
        self._alone = self._references()
        self.stream = stream
        self.recorded: list[Stream] = []
        self._freed: list[Event] | None = None

    def _references(self) -> int:
        return torch._C._storage_Use_Count(self.memory.untyped_storage()._cdata)

    def is_free(self) -> bool:
        if self._references() > self._alone:
            return False
        if self._freed is None:
            self._freed = [Event() for _ in self.recorded]
            for event, stream in zip(self._freed, self.recorded, strict=True):
                event.record(stream)
        return all(event.query() for event in self._freed)

    def take(self, size: int) -> torch.Tensor:
        self.recorded, self._freed = [], None
        return self.memory[:size]


class Driver:
    """Registers memory. Refuses private mappings of files, since a driver would pin a copy of them."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}  # end of each range, by its beginning

    def register(self, address: int, size: int) -> bool:
        with open("/proc/self/maps") as maps:
            for line in maps:
                begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
                if begin <= address and address + size <= end:
                    _, permissions, _, _, inode, *_ = line.split()
                    if permissions[3] == "p" and inode != "0":
                        raise RuntimeError("memory of a private mapping was registered")
                    self.ranges[address] = address + size
                    return True
        raise RuntimeError("memory beyond a mapping was registered")

    def unregister(self, address: int) -> None:
        del self.ranges[address]

    def has(self, tensor: torch.Tensor) -> bool:
        return any(begin <= tensor.data_ptr() < end for begin, end in self.ranges.items())


driver = Driver()
_local = threading.local()
_default = Stream()
_blocks: dict[int, _Block] = {}  # by the address of the memory
_pinned: dict[int, torch.Tensor] = {}  # never freed
_lock = threading.Lock()


def current_stream(device: Any = None) -> Stream:
    return getattr(_local, "stream", _default)


def set_stream(stream: Stream) -> None:
    _local.stream = stream


def launch(kernel: Callable[..., object], *tensors: torch.Tensor) -> None:
    """Enqueues a call of `kernel` on the current stream. The kernel sees the tensors' memory as it is at that time."""
    memory, delay = [_memory(tensor) for tensor in tensors], _delays.random() * kernel_seconds

    def run() -> None:
        time.sleep(delay)  # so that work piles up, as in front of a GPU's kernels
        kernel(*memory)

    current_stream().do(run)


def synchronize() -> None:
    current_stream().synchronize()


def is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _blocks


def _allocate(like: torch.Tensor) -> torch.Tensor:
    stream, size = current_stream(), max(-(-like.nbytes // 64) * 64, 64)
    with _lock:
        fitting = (block for block in _blocks.values() if block.stream is stream and block.memory.nbytes >= size)
        block = next((block for block in fitting if block.is_free()), None)
        if block is None:
            block = _Block(size, stream)
            _blocks[block.memory.untyped_storage().data_ptr()] = block
        memory = block.take(like.nbytes).view(like.dtype)
    laid_out = _empty_like(like)  # with the strides that torch chooses
    return memory.as_strided(laid_out.shape, laid_out.stride()) if laid_out.nbytes == like.nbytes else memory.view(like.shape)


def _send(there: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    is_pinned = is_on_device(source) or driver.has(source) or source.untyped_storage().data_ptr() in _pinned
    read = _memory(source) if is_pinned else source.detach().clone()
    place, delay = _memory(there), _delays.random() * copy_seconds

    def copy() -> None:
        time.sleep(delay)
        _copy(place, read)

    current_stream().do(copy)
    return there


def _is_device(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"


def _tensor_to(tensor: torch.Tensor, *to: Any, **given: Any) -> torch.Tensor:
    device = given.get("device", to[0] if to else None)
    if not _is_device(device) or is_on_device(tensor):
        return _to(tensor, *to, **given)
    return _send(_allocate(tensor), tensor)


def _tensor_copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _send(tensor, source) if is_on_device(tensor) else _copy(tensor, source)


def _tensor_new_empty(tensor: torch.Tensor, *size: Any, pin_memory: bool = False, **given: Any) -> torch.Tensor:
    made = _new_empty(tensor, *size, **given)
    if pin_memory and made.nbytes:
        _pinned[made.untyped_storage().data_ptr()] = made
    return made


def _tensor_pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    return _copy(_tensor_new_empty(tensor, tensor.shape, pin_memory=True), tensor)


def _record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    block = _blocks.get(tensor.untyped_storage().data_ptr())
    if block is not None and stream is not block.stream:
        block.recorded.append(stream)


def _empty_like_on(tensor: torch.Tensor, *given: Any, device: Any = None, **options: Any) -> torch.Tensor:
    if _is_device(device):
        return _allocate(tensor)
    return _empty_like(tensor, *given, **options) if device is None else _empty_like(tensor, *given, device=device, **options)


def install(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Replaces torch's functions with the stub; `patch` is setattr() or pytest's monkeypatch.setattr()."""
    for name, function in {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda index: None,
        "current_stream": current_stream,
        "set_stream": set_stream,
    }.items():
        patch(torch.accelerator, name, function)
    for owner, name, replacement in (
        (torch, "Event", Event),
        (torch, "Stream", Stream),
        (torch, "empty_like", _empty_like_on),
        (torch.Tensor, "to", _tensor_to),
        (torch.Tensor, "copy_", _tensor_copy),
        (torch.Tensor, "new_empty", _tensor_new_empty),
        (torch.Tensor, "pin_memory", _tensor_pin_memory),
        (torch.Tensor, "record_stream", _record_stream),
    ):
        patch(owner, name, replacement)
    host_memory.driver_of.cache_clear()
    patch(host_memory, "drivers", {"cuda": lambda: driver})
