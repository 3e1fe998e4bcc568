"""Moves batches to devices."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Mapping, MutableMapping
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


def mover(device: Any) -> Callable[[Any], Any] | None:
    """What moves the batches of a feed to `device`, on a GPU through pinned memory; None where there is nothing to do.
    A device without an index is the one that is current when the first batch is moved. Raises Unsupported without torch, RuntimeError where torch knows no such device."""
    if device is None:
        return None
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise Unsupported(f"device is {device}, but torch, whose tensors would go there, is not installed") from None
    target = torch.device(device)
    if target.type == "cpu":
        return None
    if target.type == "meta":
        return lambda batch: to_device(batch, target)
    if not hasattr(torch, "accelerator"):
        raise Unsupported(f"device is {device}, which takes PyTorch 2.6 or later; this is {torch.__version__}")
    return _Staging(target).move


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
    caller do."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stages: list[_Stage] = []  # one is filled while the device copies from the other

    def move(self, batch: Any) -> Any:
        if not self._stages:
            self._device = _with_index(self._device)
            self._stages = [_Stage(self._device), _Stage(self._device)]
        stage = self._stages[0]
        self._stages.reverse()
        sizes: list[int] = []

        def measure(tensor: Any) -> Any:
            if tensor.is_cpu:
                sizes.append(_aligned(tensor.nbytes))
            return tensor

        def send(tensor: Any) -> Any:
            own = _detached(tensor)
            held = stage.hold(own) if tensor.is_cpu else own
            return _as(tensor, held.to(self._device, non_blocking=True))

        _map_tensors(batch, measure)
        stage.reserve(sum(sizes))
        moved = _map_tensors(batch, send)
        stage.sent()
        return moved


def _with_index(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return device if device.index is not None else torch.device(device.type, torch.accelerator.current_device_index())


class _Stage:
    """Memory for one batch at a time: registered once, and again only for a larger batch."""

    def __init__(self, device: Any) -> None:
        torch: Any = sys.modules["torch"]
        self._device = device
        self._copied = torch.Event(device)  # when the device no longer needs the memory
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def sent(self) -> None:
        """All that is to be copied from here has been given to the device, on its current stream: another device may be
        the process's current one."""
        torch: Any = sys.modules["torch"]
        self._copied.record(torch.accelerator.current_stream(self._device))

    def reserve(self, size: int) -> None:
        if self._memory.numel() > 0:
            self._copied.synchronize()
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
    if torch is None:
        return batch
    changed: dict[int, Any] = {}

    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in changed:
                changed[id(value)] = change(value)
            return changed[id(value)]
        return _map_children(value, of)

    return of(batch)


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
