"""Batches on devices."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from levada._classes import find_registration, is_named_tuple
from levada._errors import Unsupported

_ALIGNMENT = 512  # bytes, of a tensor on its way


def accelerator() -> Any:
    """This process's current accelerator, a torch.device; None where torch has none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator()
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def mover(device: Any) -> Callable[[Any], Any] | None:
    """What moves the batches of a feed to `device`, on a GPU through pinned memory; None where there is nothing to do.
    Raises Unsupported without torch, RuntimeError where torch knows no such device."""
    if device is None:
        return None
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise Unsupported(f"device is {device}, but torch, whose tensors would go there, is not installed") from None
    target = torch.device(device)
    if target.type == "cpu":
        return None
    return (lambda batch: to_device(batch, target)) if target.type == "meta" else _Staging(target).move


def to_device(batch: Any, device: Any) -> Any:
    """The batch with its torch tensors on `device`; its containers are new, of the same classes. A tensor that stands in
    two places is moved once. Does not change the batch that it is given."""
    return _map_tensors(batch, lambda tensor: tensor.to(device=device))


class _Staging:
    """Pinned memory on the way from this machine's memory to a device, so that a copy runs beside what the device and the
    caller do."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stages = [_Stage(device), _Stage(device)]  # one is filled while the device still copies from the other

    def move(self, batch: Any) -> Any:
        stage = self._stages[0]
        self._stages.reverse()
        sizes: list[int] = []

        def measure(tensor: Any) -> Any:
            if tensor.is_cpu:
                sizes.append(_aligned(tensor.nbytes))
            return tensor

        def send(tensor: Any) -> Any:
            held = stage.hold(tensor) if tensor.is_cpu else tensor
            return held.to(self._device, non_blocking=True)

        _map_tensors(batch, measure)
        stage.reserve(sum(sizes))
        moved = _map_tensors(batch, send)
        stage.copied.record()
        return moved


class _Stage:
    """Memory for one batch at a time: registered once, and again only for a larger batch."""

    def __init__(self, device: Any) -> None:
        torch: Any = sys.modules["torch"]
        self.copied = torch.Event(device)  # when the device needs the memory no more
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def reserve(self, size: int) -> None:
        if self._memory.numel() > 0:
            self.copied.synchronize()
        if size > self._memory.numel():
            self._memory = self._memory.new_empty(size, pin_memory=True)
        self._used = 0

    def hold(self, tensor: Any) -> Any:
        """The same tensor in this memory."""
        here = self._memory[self._used : self._used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self._used += _aligned(tensor.nbytes)
        return here.copy_(tensor)


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
    if dataclasses.is_dataclass(cls):
        made = copy.copy(value)
        for field in dataclasses.fields(cls):
            object.__setattr__(made, field.name, function(getattr(value, field.name)))
        return made
    return value
