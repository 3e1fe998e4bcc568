"""Batches on devices."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from levada._classes import find_registration, is_named_tuple


def accelerator() -> Any:
    """This process's current accelerator, a torch.device; None where torch has none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator()
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def to_device(batch: Any, device: Any) -> Any:
    """The batch with its torch tensors on `device`; its containers are new, of the same classes. A tensor that stands in
    two places is moved once. Does not change the batch that it is given."""
    torch = sys.modules.get("torch")
    if torch is None:
        return batch
    moved: dict[int, Any] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in moved:
                moved[id(value)] = value.to(device=device)
            return moved[id(value)]
        return _map_children(value, move)

    return move(batch)


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
