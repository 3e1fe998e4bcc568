"""Makes batches in the memory that feeds send from, so that they need not be copied."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from levada._levada import Membership
from levada.base.errors import InvalidArgument

_ALIGNMENT = 64
_job: Membership | None = None  # the job for whose feeds this process makes batches
_is_levada_worker = False


def note_levada_worker() -> None:
    """Makes collate() allocate ordinary memory in this worker process of Levada, where torch's get_worker_info() works,
    too."""
    global _is_levada_worker
    _is_levada_worker = True


def make_batches_for(job: Membership) -> None:
    """Makes empty() allocate memory that the feeds of `job` send from."""
    global _job
    _job = job


def empty(shape: int | Sequence[int], dtype: Any = "float64") -> Any:
    """Returns an uninitialized tensor in the memory that the running feed sends from: a torch tensor for a torch.dtype,
    or a numpy array for any other dtype that numpy accepts.

    Meant for loaders. A batch is sent without a copy if empty() made all of its tensors, one after the other on one
    thread, and only the batch refers to them when it is yielded. A tensor with another reference, such as a generator's
    variable, a cache or a reused buffer, is copied; so are tensors made elsewhere. The first batch shows how much
    memory a batch takes. If there is not enough memory, in worker processes, and outside a feed, empty() returns
    ordinary memory.

    Raises InvalidArgument for an invalid shape and for a dtype that no tensor has.
    """
    import numpy as np

    sizes = [int(shape)] if isinstance(shape, (int, np.integer)) else [int(size) for size in shape]
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(dtype, torch.dtype)
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"no tensor has the shape {tuple(sizes)}")
    if _job is not None:
        name = str(dtype).removeprefix("torch.") if is_torch else np.dtype(dtype).name
        return _job.empty(sizes, name, is_torch)
    return torch.empty(sizes, dtype=dtype) if torch is not None and is_torch else np.empty(sizes, dtype)


def begin_batch(size: int) -> None:
    """Begins a batch on this thread. The tensors that empty() makes for it have `size` bytes in total, each rounded up
    to a multiple of 64."""
    if _job is not None:
        _job.begin_batch(size)


def collate(samples: Sequence[Any]) -> Any:
    """Makes one batch from samples of the same structure, in the memory that the running feed sends from. Meant as the
    collate_fn of a DataLoader.

    Stacks tensors, arrays and numbers along a new first dimension; keeps mappings, named tuples and sequences, but
    turns tuples into lists; and turns strings and bytes into lists of them, as torch.utils.data.default_collate does.
    Numbers and arrays of several dtypes get the dtype that numpy.result_type() returns. If torch is not imported, the
    results are numpy arrays. In a worker process of torch, tensors are made in memory that torch shares.

    Raises TypeError for values that cannot be stacked, InvalidArgument for arrays of classes derived from numpy's, and
    RuntimeError or ValueError if samples differ in structure or shape."""
    if not samples:
        raise InvalidArgument("a batch has at least one sample")
    torch = sys.modules.get("torch")
    if not _is_in_torch_worker():
        begin_batch(len(samples) * _bytes_of(samples[0], torch) + _ALIGNMENT * _leaves_of(samples[0]))
    return _batch(samples, torch)


def expect_plain(value: Any) -> None:
    """Raises InvalidArgument for a tensor or array of a class derived from torch's or numpy's. A batch keeps only the
    elements, but such a class adds meaning to them."""
    import numpy as np

    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        is_plain = type(value) in (np.ndarray, np.memmap)
    elif torch is not None and isinstance(value, torch.Tensor):
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    else:
        return
    if not is_plain:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InvalidArgument(
            f"a {kind} is more than its elements, and a batch would keep only those; pass {plain_form(value)}"
        )


def plain_form(value: Any) -> str:
    """Returns the text of an error's remedy: how to make a plain array or tensor from one of a derived class."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        return "its .filled(VALUE), which replaces masked elements, or its .data and .mask as two fields"
    return "numpy.asarray() of it" if isinstance(value, np.ndarray) else "its .as_subclass(torch.Tensor)"


def as_array(value: Any) -> Any:
    """Calls numpy.asarray(). Raises InvalidArgument for lists of integers that numpy would convert to floats, and for
    classes derived from numpy's arrays."""
    import numpy as np

    expect_plain(value)
    array = np.asarray(value)
    if array.dtype.kind == "f" and array.size and isinstance(value, (list, tuple)) and _are_integers(value):
        raise InvalidArgument(
            "no dtype of tensors holds all integers of a list, some from 2**63 on and some less; pass an array of one dtype"
        )
    return array


def _are_integers(values: Sequence[Any]) -> bool:
    return all(_are_integers(each) if isinstance(each, (list, tuple)) else isinstance(each, int) for each in values)


def common_dtype(arrays: Sequence[Any]) -> Any:
    """Calls numpy.result_type(). Raises InvalidArgument for integers that numpy would convert to floats."""
    import numpy as np

    dtype = np.result_type(*arrays)
    if dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
        names = sorted({array.dtype.name for array in arrays})
        raise InvalidArgument(f"no dtype of tensors holds all integers of {' and '.join(names)}; pass arrays of one dtype")
    return dtype


def stack(samples: Sequence[Any]) -> Any:
    """Stacks samples as collate() does, but within a batch that has already begun."""
    return _batch(samples, sys.modules.get("torch"))


def _is_in_torch_worker() -> bool:
    data = None if _is_levada_worker else sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _empty(sizes: tuple[int, ...], dtype: Any, torch: Any) -> Any:
    """Calls empty(). In a worker process of torch, returns a tensor in memory that torch shares between processes, as
    default_collate does, so that sending the tensor copies nothing."""
    if not _is_in_torch_worker():
        return empty(sizes, dtype)
    tensor = torch.empty(0, dtype=dtype)
    shared = tensor.untyped_storage()._new_shared(math.prod(sizes) * tensor.element_size())
    return tensor.set_(shared, 0, sizes)


def _is_tensor(value: Any, torch: Any) -> bool:
    return torch is not None and isinstance(value, torch.Tensor)


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def _bytes_of(sample: Any, torch: Any) -> int:
    """Returns the number of bytes that a sample's tensors take in a batch, without rounding."""
    import numpy as np

    if _is_tensor(sample, torch):
        return int(sample.numel() * sample.element_size())
    if isinstance(sample, (np.ndarray, np.generic)):
        return int(sample.nbytes)
    if isinstance(sample, (int, float)):
        return 8
    return sum(_bytes_of(child, torch) for child in _children(sample))


def _leaves_of(sample: Any) -> int:
    return max(sum(_leaves_of(child) for child in _children(sample)), 1)


def _batch(samples: Sequence[Any], torch: Any) -> Any:
    import numpy as np

    first = samples[0]
    if _is_tensor(first, torch):
        return _stack_tensors(samples, torch)
    if isinstance(first, (str, bytes)):  # also of numpy
        return samples
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        return _stack_arrays(samples, torch)
    if isinstance(first, Mapping):
        return _mapping(first, {key: _batch([sample[key] for sample in samples], torch) for key in first})
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in samples):
            raise RuntimeError("the samples of a batch have sequences of different lengths")
        return _sequence(first, [_batch(children, torch) for children in zip(*samples, strict=True)])
    raise TypeError(
        f"samples hold a {type(first).__qualname__}; a batch is made of tensors, arrays, numbers, strings, mappings and "
        "sequences"
    )


def _stack_tensors(samples: Sequence[Any], torch: Any) -> Any:
    first = samples[0]
    plain = first.device.type == "cpu" and first.layout == torch.strided and not first.is_quantized
    if not plain or any(sample.dtype != first.dtype or sample.requires_grad for sample in samples):
        return torch.stack(list(samples))
    if any(sample.shape != first.shape for sample in samples):
        return torch.stack(list(samples))  # raises with torch's message
    return torch.stack(list(samples), out=_empty((len(samples), *first.shape), first.dtype, torch))


def _stack_arrays(samples: Sequence[Any], torch: Any) -> Any:
    """Stacks arrays, numpy scalars and numbers, into tensors if torch is imported."""
    import numpy as np

    arrays = [as_array(sample) for sample in samples]
    dtype = common_dtype(arrays)
    if dtype.kind not in "biufc" and dtype.type.__module__ == "numpy":
        raise TypeError(f"samples hold arrays of numpy's dtype {dtype}, which no tensor has")
    if torch is None:
        return np.stack(arrays, out=empty((len(arrays), *arrays[0].shape), dtype))
    batch = _empty((len(arrays), *arrays[0].shape), torch.as_tensor(np.empty(0, dtype)).dtype, torch)
    np.stack(arrays, out=batch.numpy())
    return batch


def _mapping(like: Any, items: dict[Any, Any]) -> Any:
    try:
        if isinstance(like, MutableMapping):
            made = copy.copy(like)
            made.update(items)
            return made
        return type(like)(items)
    except TypeError:
        return items


def _sequence(like: Any, children: list[Any]) -> Any:
    if isinstance(like, tuple):
        return type(like)(*children) if hasattr(like, "_fields") else children
    try:
        if isinstance(like, MutableSequence):
            made = copy.copy(like)
            for at, child in enumerate(children):
                made[at] = child
            return made
        return type(like)(children)
    except TypeError:
        return children
