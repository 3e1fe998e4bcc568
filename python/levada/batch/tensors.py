"""Pickles torch tensors between the processes of a pipeline. Their memory is sent out of band, not through files of
shared memory as in torch."""

from __future__ import annotations

from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from levada import _levada
from levada.batch.devices import is_dense

_names: dict[Any, str] = {}
_dtypes: dict[str, Any] = {}


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Returns the entries for a pickler's dispatch_table."""
    return {torch.Tensor: reduce_tensor}


def reduce_tensor(tensor: Any) -> Any:
    if not tensor.is_cpu or tensor.layout is not torch.strided or not _is_plain(tensor):
        return tensor.__reduce_ex__(5)
    strides = None
    if not tensor.is_contiguous():
        if is_dense(tensor):
            strides = tensor.stride()
        else:
            tensor = tensor.contiguous()
    size = tensor.nbytes
    held: Any = _levada.memory_at(tensor.data_ptr(), size, tensor) if size else None
    memory = None if held is None else PickleBuffer(held)
    name = _names.get(tensor.dtype) or _names.setdefault(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return rebuild_tensor, (memory, name, tuple(tensor.shape), strides, tensor.requires_grad)


def rebuild_tensor(
    memory: Any, name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, requires_grad: bool
) -> Any:
    dtype = _dtypes.get(name)
    if dtype is None:
        dtype = _dtypes[name] = getattr(torch, name)
    if memory is None:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        tensor = torch.frombuffer(memory, dtype=dtype)
        tensor = tensor.view(shape) if strides is None else tensor.as_strided(shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _is_plain(tensor: Any) -> bool:
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
