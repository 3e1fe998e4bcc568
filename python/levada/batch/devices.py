"""Moves batches to devices."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from levada.base.errors import Unsupported
from levada.batch.classes import find_registration, is_named_tuple

_ALIGNMENT = 512  # bytes, of a tensor that is copied


def accelerator() -> Any:
    """This process's current accelerator, a torch.device; None where torch has none, or was built for one that is not
    there."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


Arrive = Callable[[], Any]
"""Returns a batch that is on its way: work that is given to the current stream from then on finds it there."""
Send = Callable[[Any], Arrive]
"""Starts moving a batch. What it is given may be dropped as soon as it has returned."""


def sender(device: Any, *, pin_memory: bool = False, own_stream: bool = False) -> Send | None:
    """What moves the batches of a feed to `device`, on a GPU through pinned memory, and with `own_stream` on a stream of
    their own; without a device into pinned memory, with `pin_memory`. None where there is nothing to do. A device without an
    index is the one that is current when the first batch is moved. Raises Unsupported without torch, RuntimeError where torch
    knows no such device."""
    if device is None:
        return _pinner() if pin_memory else None
    target = _torch(f"device is {device}").device(device)
    if target.type == "cpu":
        return None
    if target.type == "meta":
        return lambda batch: _there(to_device(batch, target))
    torch: Any = sys.modules["torch"]
    if not hasattr(torch, "accelerator"):
        raise Unsupported(f"device is {device}, which takes PyTorch 2.6 or later; this is {torch.__version__}")
    return _Staging(target, own_stream=own_stream).send


def mover(device: Any) -> Callable[[Any], Any] | None:
    """What moves a batch to `device` at once, as sender() does on the current stream; None where there is nothing to do."""
    send = sender(device)
    return None if send is None else lambda batch: send(batch)()


def _torch(wanted: str) -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise Unsupported(f"{wanted}, but torch, whose tensors would be moved, is not installed") from None


def _there(batch: Any) -> Arrive:
    return lambda: batch


def _pinner() -> Send | None:
    _torch("pin_memory is True")
    if accelerator() is None:
        warnings.warn("pin_memory=True, but torch finds no accelerator: batches stay in memory that is not pinned", stacklevel=4)
        return None
    return lambda batch: _there(_map_tensors(batch, lambda tensor: _as(tensor, _detached(tensor).pin_memory())))


def to_device(batch: Any, device: Any) -> Any:
    """The batch with its torch tensors on `device`; its containers are new, of the same classes. A tensor that stands in
    two places is moved once. Does not change the batch that it is given."""
    return _map_tensors(batch, lambda tensor: _as(tensor, _detached(tensor).to(device=device)))


def _detached(tensor: Any) -> Any:
    return tensor.detach() if tensor.requires_grad else tensor


def _as(like: Any, tensor: Any) -> Any:
    """The same as a parameter, or requiring gradients, where `like` does."""
    torch: Any = sys.modules["torch"]
    if type(like) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, like.requires_grad)
    return tensor.requires_grad_() if like.requires_grad else tensor


class _Staging:
    """Pinned memory on the way from this machine's memory to a device, so that a copy runs beside what the device and the
    caller do; on a stream of its own also beside what the device does of the step before."""

    def __init__(self, device: Any, *, own_stream: bool) -> None:
        self._device = device
        self._own_stream = own_stream
        self._stream: Any = None  # one for all passes: what is freed on a stream is used again on that stream alone
        self._stages: list[_Stage] = []  # one is filled while the device copies from the other

    def send(self, batch: Any) -> Arrive:
        if not self._stages:
            self._start()
        stage = self._stages[0]
        self._stages.reverse()
        sizes: list[int] = []
        sent: list[Any] = []

        def measure(tensor: Any) -> Any:
            if tensor.is_cpu:
                sizes.append(_aligned(tensor.nbytes))
            return tensor

        def send(tensor: Any) -> Any:
            own = _detached(tensor)
            held = stage.hold(own) if tensor.is_cpu else own
            sent.append(_as(tensor, held.to(self._device, non_blocking=True)))
            return sent[-1]

        _map_tensors(batch, measure)
        stage.reserve(sum(sizes))
        with contextlib.nullcontext() if self._stream is None else _current(self._stream):
            moved = _map_tensors(batch, send)
            stage.sent()
        return _there(moved) if self._stream is None else functools.partial(self._arrive, moved, sent, stage)

    def _start(self) -> None:
        torch: Any = sys.modules["torch"]
        self._device = _with_index(self._device)
        self._stream = torch.Stream(self._device) if self._own_stream else None
        self._stages = [_Stage(self._device), _Stage(self._device)]

    def _arrive(self, batch: Any, tensors: list[Any], stage: _Stage) -> Any:
        torch: Any = sys.modules["torch"]
        current = torch.accelerator.current_stream(self._device)
        current.wait_event(stage.copied)
        for tensor in tensors:
            tensor.record_stream(current)  # which may still read it when the caller has dropped it
        return batch


@contextlib.contextmanager
def _current(stream: Any) -> Iterator[None]:
    """Makes a stream the current one of its device, and leaves both that and the current device as they were."""
    torch: Any = sys.modules["torch"]
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)  # makes its device the current one, too
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def _with_index(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return device if device.index is not None else torch.device(device.type, torch.accelerator.current_device_index())


class _Stage:
    """Memory for one batch at a time: registered once, and again only for a larger batch."""

    def __init__(self, device: Any) -> None:
        torch: Any = sys.modules["torch"]
        self._device = device
        self.copied = torch.Event(device)  # when the device no longer needs the memory
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def sent(self) -> None:
        """All that is to be copied from here has been given to the device, on its current stream: another device may be
        the process's current one."""
        torch: Any = sys.modules["torch"]
        self.copied.record(torch.accelerator.current_stream(self._device))

    def reserve(self, size: int) -> None:
        if self._memory.numel() > 0:
            self.copied.synchronize()
        if size > self._memory.numel():
            self._memory = self._memory.new_empty(size, pin_memory=True)
        self._used = 0

    def hold(self, tensor: Any) -> Any:
        """Returns a copy of the tensor in this memory."""
        here = self._memory[self._used : self._used + tensor.nbytes].view(tensor.dtype)
        here = here.as_strided(tensor.shape, tensor.stride()) if is_dense(tensor) else here.view(tensor.shape)
        self._used += _aligned(tensor.nbytes)
        return here.copy_(tensor)


def is_dense(tensor: Any) -> bool:
    """Returns whether its elements fill their memory, in any order of dimensions."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    torch = sys.modules.get("torch")
    return batch if torch is None else _TensorMap(torch.Tensor, change)(batch)


class _TensorMap:
    """No nested function, which would refer to itself and so keep the tensors until garbage is collected."""

    def __init__(self, cls: type, change: Callable[[Any], Any]) -> None:
        self._cls = cls
        self._change = change
        # By id, with the tensor itself: the id of one that is gone could become another's.
        self._changed: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, self._cls):
            return _map_children(value, self)
        if id(value) not in self._changed:
            self._changed[id(value)] = value, self._change(value)
        return self._changed[id(value)][1]


def _map_children(value: Any, function: Any) -> Any:
    cls: Any = type(value)
    if is_named_tuple(cls):
        return cls._make(map(function, value))
    if isinstance(value, (list, tuple)):
        return cls(map(function, value))
    registration = find_registration(cls)
    if registration is not None:
        parts = registration.flatten(value)
        return registration.unflatten(parts[1], [function(child) for child in parts[0]])
    if isinstance(value, MutableMapping):
        made: Any = copy.copy(value)
        for key, child in value.items():
            made[key] = function(child)
        return made
    if isinstance(value, Mapping):
        return cls({key: function(child) for key, child in value.items()})
    if cls is types.SimpleNamespace:
        return cls(**{name: function(child) for name, child in vars(value).items()})
    if dataclasses.is_dataclass(cls):
        made = copy.copy(value)
        for field in dataclasses.fields(cls):
            object.__setattr__(made, field.name, function(getattr(value, field.name)))
        return made
    return value
