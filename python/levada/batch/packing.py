"""Packs samples of different lengths into one row."""

from __future__ import annotations

import array
import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

from levada._levada import pack_field
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument
from levada.batch.labels import NO_LOSS, mask_first_labels, shift_labels as shifted
from levada.batch.memory import as_array, begin_batch, empty, expect_plain, plain_form

_LENGTHS = ("tokens", "input_ids")
_MADE = ("cu_seqlens", "max_seqlen")
_IGNORED = {"labels": NO_LOSS, "shift_labels": NO_LOSS}
"""Padding value by field name; 0 for other fields."""


def length_of(sample: Any) -> int:
    """Returns the number of tokens of a sample: the length of its field `tokens` or `input_ids`, or of the sample
    itself. Raises InvalidArgument if it has none, or if its length is not a number of tokens."""
    name = _tokens_field(sample)
    tokens = sample if name is None else sample[name]
    if isinstance(tokens, tuple) and not all(issubclass(each, Number) for each in set(map(type, tokens))):
        what = f"a sample is a {type(tokens).__name__}" if name is None else f"{name} of a sample is a tuple"
        raise InvalidArgument(f"{what} of {len(tokens)} parts that are not all numbers; pass Balance(length=...)")
    first = tokens[0] if isinstance(tokens, list) and len(tokens) == 1 else None
    shape: Any = (1, len(first)) if isinstance(first, (list, tuple)) else getattr(tokens, "shape", ())
    if len(shape) == 2 and shape[0] == 1 < shape[1]:
        raise InvalidArgument(
            f"{name or 'a sample'}{' of a sample' if name else ''} has the shape {list(shape)}, as of a batch of one; pass "
            f"its first row, [{shape[1]}], or Balance(length=...)"
        )
    try:
        return len(tokens)
    except TypeError:
        what = "a sample" if name is None else f"{name} of a sample"
        raise InvalidArgument(f"{what} has type {type(tokens).__name__}, which has no length; pass Balance(length=...)") from None


def _tokens_field(sample: Any) -> str | None:
    """Returns the name of the field with a sample's tokens; None if the sample itself is its tokens. Raises
    InvalidArgument for a mapping without such a field."""
    if not isinstance(sample, Mapping):
        return None
    for name in _LENGTHS:
        if name in sample:
            return name
    raise InvalidArgument("a sample has neither tokens nor input_ids; pass Balance(length=...)")


class Packing(NamedTuple):
    """How samples become a batch."""

    collate: Callable[[list[Any]], Any]
    length: Callable[[Any], int]
    pad_to: int
    """The length of each sample in a row is rounded up to a multiple of this."""
    is_packed: bool
    """Whether `collate` is collate_packed with these options, rather than a function of the caller."""


def packing_of(collate: Callable[[list[Any]], Any] | None, length: Callable[[Any], int] | None, pad_to: int) -> Packing:
    """Returns how samples become a batch. None, collate_packed itself, and a functools.partial() of it use `length` and
    `pad_to`, too. A partial's own length replaces `length`. Raises InvalidArgument for a partial's invalid pad_to."""
    is_partial = isinstance(collate, functools.partial) and collate.func is collate_packed and not collate.args
    if not is_partial and collate not in (None, collate_packed):
        assert collate is not None
        return Packing(collate, length or length_of, pad_to, False)
    given: dict[str, Any] = collate.keywords if isinstance(collate, functools.partial) else {}
    multiple = math.lcm(pad_to, positive("pad_to", given.get("pad_to", 1)))
    of_sample = given.get("length") or length or length_of
    return Packing(functools.partial(collate_packed, **{**given, "pad_to": multiple, "length": of_sample}), of_sample, multiple, True)


def positive(name: str, number: Any) -> int:
    """Returns `number` as an int. Raises InvalidArgument unless it is a whole number of 1 or more."""
    counted = whole_number(name, number)
    if counted < 1:
        raise InvalidArgument(f"{name} must be a whole number of 1 or more, got {counted}")
    return counted


def collate_packed(
    samples: Sequence[Any],
    *,
    pad_to: int = 1,
    length: Callable[[Any], int] = length_of,
    row_length: int | None = None,
    max_segments: int | None = None,
    shift_labels: bool = False,
) -> dict[Any, Any]:
    """Packs samples of different lengths into one row with a segment for each, in the memory of the running feed.

    samples: mappings with the same keys, or bare sequences of tokens. A field whose first dimension is the sample's
    length (a tensor, an array or a list of numbers) becomes [1, n, ...]. n is the sum of the lengths, each rounded up
    to a multiple of `pad_to`; padding is 0, and -100 in `labels`. Any other field becomes the list of the samples'
    values. The row also gets `cu_seqlens`, int32 [1, segments + 1], the start of each segment followed by n;
    `max_seqlen`, int32 [1]; and, if the samples lack them, `position_ids`, int64 [1, n], counted from 0 in each
    segment. Torch tensors remain torch tensors; other fields become numpy arrays.

    `labels` belong to the token at the same position, with -100 for no loss, as in transformers. If they equal the
    tokens, a causal model compares each with the prediction at the previous position. The first label of each sample
    then becomes -100, so that no sample predicts the next one. Labels that are the next tokens belong with `tokens`, as
    in Megatron-LM, and stay as they are; with `input_ids`, pass them as `shift_labels`.

    shift_labels=True adds `shift_labels`, transformers' name for labels at the positions that predict them. Context
    parallelism needs it, because a position and the next one may be on different ranks.

    row_length and max_segments give all rows the same shapes, as CUDA graphs require. The padding from n to row_length
    is a separate segment, and the last entry of `cu_seqlens` is repeated until there are max_segments + 1.

    Raises InvalidArgument, naming the field, if samples differ in keys, dtypes or further dimensions, if the tokens
    cannot be packed, if an array holds more than its elements, as a masked array does, or if the samples do not fit
    into row_length or max_segments. Also raises it if `labels` are the next tokens although there are input_ids or
    shift_labels requires otherwise, or if they are not numbers although shift_labels requires them.
    """
    import numpy as np

    pad_to = positive("pad_to", pad_to)
    row_length = None if row_length is None else positive("row_length", row_length)
    max_segments = None if max_segments is None else positive("max_segments", max_segments)
    if len(samples) == 0:
        raise InvalidArgument("a packed row has at least one sample")
    mappings = [sample if isinstance(sample, Mapping) else {"tokens": sample} for sample in samples]
    keys = list(mappings[0])
    for at, sample in enumerate(mappings):
        if list(sample) != keys and set(sample) != set(keys):
            fields, first = (sorted(map(str, each)) for each in (sample, keys))
            raise InvalidArgument(f"sample {at} of a packed row has fields {fields}, the first has {first}")
    if taken := [key for key in _MADE if key in keys]:
        raise InvalidArgument(f"samples have a field {taken[0]}, which the packed row adds itself; remove it from the samples")
    lengths = [_length(at, length(sample)) for at, sample in enumerate(samples)]
    ends = list(itertools.accumulate(-(-each // pad_to) * pad_to for each in lengths))
    bounds = _bounds(ends, row_length, max_segments)
    begin_batch(_expected_bytes(mappings[0], lengths[0], bounds, shift_labels))
    begins = [0, *ends[:-1]]
    row: dict[Any, Any] = {
        key: _packed(key, [sample[key] for sample in mappings], lengths, begins, bounds[-1]) for key in keys
    }
    of_tokens = _tokens_field(mappings[0]) if length is length_of or not isinstance(samples[0], Mapping) else None
    if of_tokens is not None and isinstance(row[of_tokens], list):
        _check_tokens(of_tokens, row[of_tokens], lengths)
    torch = sys.modules.get("torch")
    as_torch = torch is not None and any(isinstance(value, torch.Tensor) for value in row.values())

    def made(values: Any, dtype: str) -> Any:
        field = empty(values.shape, getattr(torch, dtype) if as_torch else dtype)
        (field.numpy() if as_torch else field)[...] = values
        return field

    labels = _array(row.get("labels"))
    tokens = _array(row.get("input_ids", row.get("tokens")))
    if labels is not None and tokens is not None and labels.shape == tokens.shape:
        mask_first_labels(labels, tokens, lengths, begins, may_be_next="input_ids" not in keys and not shift_labels)
    if shift_labels:
        if labels is None or "shift_labels" in keys:
            raise InvalidArgument("shift_labels=True makes them of a field `labels` with a number for each token; samples have none")
        row["shift_labels"] = made(shifted(labels, bounds), labels.dtype.name)
    if "position_ids" not in keys:
        positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))
        row["position_ids"] = made(positions[None], "int64")
    row["cu_seqlens"] = made(np.asarray([bounds]), "int32")
    row["max_seqlen"] = made(np.diff(bounds).max(keepdims=True), "int32")
    return row


def _length(at: int, value: Any) -> int:
    length = whole_number(f"the length of sample {at} of a packed row", value)
    if length < 0:
        raise InvalidArgument(f"the length of sample {at} of a packed row is {length}; it must be 0 or more")
    return length


def _check_tokens(name: str, values: list[Any], lengths: list[int]) -> None:
    """Raises InvalidArgument, naming the sample, for tokens that a row cannot hold."""
    for at, (value, length) in enumerate(zip(values, lengths, strict=True)):
        if _converted(value) is None:
            found = f"a {type(value).__name__}"
            if isinstance(value, (list, tuple)):
                found = f"a list of {type(value[0]).__name__}" if value else "an empty list, whose dtype is unknown"
        elif len(value) != length:
            found = f"{len(value)} long, and length= returned {length}"
        else:
            continue
        raise InvalidArgument(
            f"{name} of sample {at} of a packed row is {found}; it must be a tensor, an array or a list of numbers, one "
            "for each token: convert it, or pass collate_fn="
        )


def _array(field: Any) -> Any:
    """Returns a view of a packed field as a numpy array; None for a list, and for a dtype that numpy lacks."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(field, torch.Tensor):
        try:
            return field.numpy()
        except TypeError:
            return None
    return None if isinstance(field, list) else field


def _bounds(ends: list[int], row_length: int | None, max_segments: int | None) -> list[int]:
    """Returns the starts of a row's segments, followed by the length of the row."""
    bounds = [0, *ends]
    if row_length is not None and bounds[-1] > row_length:
        raise InvalidArgument(f"{len(ends)} samples have {bounds[-1]} tokens, which row_length={row_length} does not hold")
    if row_length is not None and bounds[-1] < row_length:
        bounds.append(row_length)
    if max_segments is not None:
        if len(bounds) - 1 > max_segments:
            padding = " and one of padding" if len(bounds) - 1 > len(ends) else ""
            raise InvalidArgument(f"a row has {len(ends)} segments{padding}, more than max_segments={max_segments}")
        bounds += [bounds[-1]] * (max_segments + 1 - len(bounds))
    return bounds


def _expected_bytes(first: Mapping[Any, Any], length: int, bounds: list[int], shift_labels: bool) -> int:
    """Returns the number of bytes of a packed row's tensors, assuming that all samples have the fields of the first."""
    per_position = 16 if shift_labels else 8  # for position_ids, and shift_labels
    for value in first.values():
        if isinstance(value, (list, tuple)):
            per_position += 8 if len(value) == length else 0
        elif getattr(value, "ndim", 0) > 0 and len(value) == length:
            per_position += -(-getattr(value, "nbytes", 0) // max(length, 1))
    return bounds[-1] * per_position + 4 * (len(bounds) + 1) + 64 * (len(first) + 3)


def _packed(key: Any, values: list[Any], lengths: list[int], begins: list[int], size: int) -> Any:
    """Returns a field of a packed row: one tensor, or the values unchanged."""

    def make(shape: list[int], dtype: str) -> tuple[Any, Any]:
        torch = sys.modules.get("torch")
        row = empty(shape, values[0].dtype if torch is not None and isinstance(values[0], torch.Tensor) else dtype)
        value = _IGNORED.get(key, 0)
        return row, None if value == 0 or sum(lengths) == size else _element(key, row, value)

    values = alike(values)
    row = pack_field(str(key), values, lengths, begins, size, _converted, make)
    if row is not None:
        return row
    for value, length in zip(values, lengths, strict=True):
        if _is_more_than_elements(value) and value.ndim > 0 and len(value) == length:
            raise InvalidArgument(
                f"field {key} has type {type(value).__name__}, which is more than its elements; pass {plain_form(value)}"
            )
    return values


def alike(values: list[Any]) -> list[Any]:
    """Returns the values with arrays and lists of numbers as tensors if others are tensors of torch."""
    torch = sys.modules.get("torch")
    tensors = [] if torch is None else [value for value in values if isinstance(value, torch.Tensor)]
    if torch is None or len(tensors) in (0, len(values)):
        return values
    made: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)) and not value:
            value = tensors[0].new_empty(0)  # a list without elements has no dtype
        elif not isinstance(value, torch.Tensor) and (value := _converted(value)) is not None:
            value = torch.from_numpy(value.copy())
        made.append(value)
    return values if any(value is None for value in made) else made


def _is_more_than_elements(value: Any) -> bool:
    """Returns whether `value` is an array of numbers whose class derives from numpy's. A packed row drops the class."""
    import numpy as np

    if not isinstance(value, np.ndarray) or value.dtype.kind in _NO_NUMBERS:
        return False
    return type(value) not in (np.ndarray, np.memmap)


_NO_NUMBERS = "OSUMm"
"""The `kind`s of numpy dtypes that become lists: objects, bytes, strings, dates and durations."""


def _element(key: Any, row: Any, value: int) -> Any:
    """Returns a tensor like `row` with the single element `value`."""
    import numpy as np

    refusal = InvalidArgument(f"field {key} has the dtype {row.dtype} and cannot be padded with {value}; use another dtype")
    try:
        element = np.full(1, value, row.dtype) if isinstance(row, np.ndarray) else row.new_full((1,), value)
    except (OverflowError, RuntimeError) as error:
        raise refusal from error
    (held,) = element.tolist()
    if not isinstance(held, float) and held != value:
        raise refusal
    return element


def _converted(value: Any) -> Any:
    """Returns a contiguous tensor or array for a tensor that is not contiguous or a list of numbers; otherwise None."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        expect_plain(value)
        return value.detach().cpu()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in _NO_NUMBERS or _is_more_than_elements(value):
            return None
        return np.asarray(value, value.dtype.newbyteorder("="))
    return as_array(value) if is_of_numbers(value) else None


def is_of_numbers(value: Any) -> bool:
    """Returns whether `value` is an array, or a list of numbers."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return True
    kinds = (int, float, np.number, np.bool_)
    return isinstance(value, (list, tuple, range, array.array)) and len(value) > 0 and all(isinstance(each, kinds) for each in value)
