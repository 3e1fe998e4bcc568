"""Values of all samples of a step, from the ranks that have them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from levada.base.errors import InvalidArgument


def first_rows(values: Any, count: int) -> Any:
    """Returns the values of the first `count` samples. dicts and tuples are containers; tensors, arrays and lists have a value
    for each sample. Tensors are moved to the CPU."""
    if isinstance(values, dict):
        return {key: first_rows(each, count) for key, each in values.items()}
    if isinstance(values, tuple):
        return tuple(first_rows(each, count) for each in values)
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0:
        raise InvalidArgument(f"gather() takes tensors, arrays and lists with a value for each sample, got {str(values)[:60]!r}")
    if len(values) < count:
        raise InvalidArgument(f"gather() was given {len(values)} values, and {count} samples of the batch count")
    torch = sys.modules.get("torch")
    return (values.detach().cpu() if torch is not None and isinstance(values, torch.Tensor) else values)[:count]


def concatenated(parts: Sequence[Any], like: Any) -> Any:
    """Returns the parts one after the other, on the device of `like`."""
    if isinstance(like, dict):
        return {key: concatenated([part[key] for part in parts], each) for key, each in like.items()}
    if isinstance(like, tuple):
        return tuple(concatenated([part[at] for part in parts], each) for at, each in enumerate(like))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.cat([torch.as_tensor(part) for part in parts]).to(like.device)
    if hasattr(like, "dtype"):
        import numpy as np

        return np.concatenate(parts)
    return [value for part in parts for value in part]
