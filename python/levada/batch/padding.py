"""Makes padded batches from samples of different lengths."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from levada.base.errors import InvalidArgument
from levada.batch.memory import as_array, common_dtype, empty, expect_plain, stack
from levada.batch.packing import alike, positive

__all__ = ["collate_padded"]


def collate_padded(
    samples: Sequence[Any], *, pad_value: float | Mapping[str, float] = 0, pad_to: int = 1
) -> Any:
    """Makes one batch from samples whose arrays and tensors may differ in their first dimension; otherwise like
    collate(). A field of shape [L, ...], or a list of L numbers, becomes [samples, longest, ...]: each sample is padded
    at its end to the length of the longest, rounded up to a multiple of `pad_to`.

    pad_value: one value for all fields or, for samples that are mappings, a value by field, such as {"labels": -100},
    with 0 for the others. Raises InvalidArgument for a field that the samples lack, and for a value that the field's
    dtype cannot hold.

    Raises InvalidArgument if samples differ in fields, dtypes or further dimensions.
    """
    pad_to = positive("pad_to", pad_to)
    if len(samples) == 0:
        raise InvalidArgument("a batch has at least one sample")
    first = samples[0]
    if not isinstance(first, Mapping):
        if isinstance(pad_value, Mapping):
            raise InvalidArgument("pad_value has values by field, but the samples are not mappings")
        return _padded(samples, "the samples", pad_value, pad_to)
    if any(sample.keys() != first.keys() for sample in samples):
        raise InvalidArgument("the samples of a batch have different fields")
    values = pad_value if isinstance(pad_value, Mapping) else dict.fromkeys(first, pad_value)
    if unknown := values.keys() - first.keys():
        raise InvalidArgument(f"pad_value names {', '.join(sorted(unknown))}, which the samples lack")
    return {
        field: _padded([sample[field] for sample in samples], f"field {field}", values.get(field, 0), pad_to)
        for field in first
    }


def _padded(values: Sequence[Any], what: str, pad_value: float, pad_to: int) -> Any:
    torch = sys.modules.get("torch")
    for value in values:
        expect_plain(value)
    values = _arrays_of(alike(list(values)), what)
    first = values[0]
    if not (hasattr(first, "shape") and hasattr(first, "dtype") and len(first.shape) > 0):
        return stack(values)
    if any(not hasattr(value, "shape") or value.shape[1:] != first.shape[1:] or value.dtype != first.dtype for value in values):
        raise InvalidArgument(f"{what} have different dtypes, or shapes that differ in more than the first dimension")
    longest = -(-max(value.shape[0] for value in values) // pad_to) * pad_to
    batch = empty((len(values), longest, *first.shape[1:]), first.dtype)
    if torch is not None and not isinstance(batch, torch.Tensor):
        batch = torch.from_numpy(batch)
    for row, value in zip(batch, values, strict=True):
        count = value.shape[0]
        row[:count] = value if torch is None or isinstance(value, torch.Tensor) else torch.from_numpy(value)
        if count < longest:
            _pad(row[count:], pad_value, what)
    return batch


def _arrays_of(values: Sequence[Any], what: str) -> Sequence[Any]:
    """Returns lists of numbers as arrays of one dtype, and other values unchanged."""
    import numpy as np

    if not isinstance(values[0], (list, tuple)):
        return values
    try:
        numbers = [as_array(value) for value in values if len(value)]
    except InvalidArgument:
        raise
    except ValueError:
        raise InvalidArgument(
            f"{what} are lists or tuples whose parts differ in length or are not numbers; pass arrays, or mappings of fields"
        ) from None
    dtype = common_dtype(numbers) if numbers else np.dtype(np.int64)
    return [np.asarray(value, dtype) for value in values] if dtype.kind in "biuf" else values


def _pad(rest: Any, pad_value: float, what: str) -> None:
    refusal = InvalidArgument(f"{what} of {rest.dtype} cannot be padded with {pad_value}")
    try:
        rest[:] = pad_value
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise refusal from error
    held = rest.reshape(-1)[:1].tolist()
    if held and not isinstance(held[0], (float, complex)) and held[0] != pad_value:
        raise refusal
