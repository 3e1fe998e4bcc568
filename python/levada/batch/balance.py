"""Balanced steps: computes the cost of samples and packs several samples into one row."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from levada._levada import BalancedBy, ItemTraits, digest_of, pack_field
from levada.base.errors import InvalidArgument, InvalidType
from levada.batch.labels import NO_LOSS, mask_first_labels, shift_labels as shifted
from levada.batch.memory import as_array, begin_batch, empty, expect_plain, plain_form

Cost = str | Callable[[Any], int | Sequence[int]]
Size = tuple[int, int, int, int, int]
"""Number of positions in a row, the square of that, two weights, and the number of padding positions."""

_A_COST = "it must return a whole number of 0 or more, or two of them"
_A_LENGTH = "it must return a whole number of 1 or more"
_PLAIN = (bool, int, float, str, type(None))
"""Types whose repr() is the same in every process; other objects' may differ."""
_LENGTHS = ("tokens", "input_ids")
_MADE = ("cu_seqlens", "max_seqlen")
_FIELD = re.compile(r"field\((.+)\)")
_IGNORED = {"labels": NO_LOSS, "shift_labels": NO_LOSS}
"""Padding value by field name; 0 for other fields."""


@dataclasses.dataclass(frozen=True)
class Balance:
    """Describes how to divide the samples of each step among the data-parallel ranks, so that their work is about
    equal.

    - `cost`: the cost of a sample. "tokens" is its length. "flops" is a cost with a quadratic term, as attention has,
      for a model of hidden size 4096; "flops(hidden=8192)" and "flops(linear=24576,quadratic=1)" set other
      coefficients. For samples of an iterable, "field(weight)" is the integer in their field `weight`. A function of a
      sample returns an integer, or two for two parts of a model, of which the worse one counts.
    - `counts`: "equal" puts the same number of samples on each rank; "free" lets the number vary for the best balance.
      None means "free" with micro-batches, otherwise "equal".
    - `order`: the order of a rank's micro-batches: "as-read", "long-first", or "paired", which puts a costly one next
      to a cheap one.
    - `wait`: when ranks wait for each other. "step": at the end of the step, as with DDP; minimizes the work of the
      busiest rank. "micro": in each micro-batch, as with FSDP and with experts; minimizes the sum, over micro-batches,
      of the largest work of any rank. Without max_tokens, a step is one micro-batch and both are the same.
    - `max_cp`: maximum number of context-parallel ranks that share a sequence, a power of two that divides dp x cp. If
      it is more than 1, each sequence is cut over as many ranks as it needs (1, 2, 4, ...), whatever the mesh's cp.
      `max_tokens` then counts the tokens of one rank, and the fields that the layout cuts by zigzag(cp,1) are cut over
      the `cp_size` ranks of each batch. Requires a "flops" cost. Samples must be padded to a multiple of 2 * max_cp, by
      pad_to of a Corpus or by the collate_fn; without a collate_fn, those of an iterable are padded.
    - `max_delay`: maximum number of steps that a sample of a Corpus waits for similar ones if it would make a step long
      on its own, so that each rank gets one. Steps then have different samples than without `max_delay`.
    - `length`: a function that returns the number of tokens of a sample of an iterable. None means the length of its
      `tokens` or `input_ids`, or of the sample itself.
    - `too_long`: how to handle a sample of an iterable with more than max_tokens tokens. "error" raises. "cut" drops
      the end of the fields that are as long as the sample. A Corpus cuts documents at its own sequence length.
    - `pad_to`: rounds lengths in a packed row up to a multiple of this, as context parallelism and fp8 require. A
      Corpus has its own option for this.
    """

    cost: Cost = "tokens"
    _: dataclasses.KW_ONLY
    counts: str | None = None
    order: str = "as-read"
    wait: str = "step"
    max_cp: int = 1
    max_delay: int = 0
    length: Callable[[Any], int] | None = None
    too_long: str = "error"
    pad_to: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.cost, str) and not callable(self.cost):
            raise InvalidType(f"cost is {self.cost!r}; it must be a name, such as \"flops\", or a function of a sample")
        if self.cost == "weights":
            raise InvalidArgument(
                'cost is "weights"; name the field that holds a sample\'s weight, as in "field(weight)", or pass a function '
                "of a sample that returns it"
            )
        for name in ("order", "wait"):
            if not isinstance(getattr(self, name), str):
                raise InvalidType(f"{name} is {getattr(self, name)!r}; it must be a name, such as {Balance.__dict__[name]!r}")
        if self.counts is not None and not isinstance(self.counts, str):
            raise InvalidType(f'counts is {self.counts!r}; it must be "free", "equal" or None')
        if isinstance(self.pad_to, bool) or not isinstance(self.pad_to, int) or self.pad_to < 1:
            raise InvalidArgument(f"pad_to must be a whole number of 1 or more, got {self.pad_to!r}")
        if isinstance(self.max_delay, bool) or not isinstance(self.max_delay, int) or not 0 <= self.max_delay < 2**31:
            raise InvalidArgument(f"max_delay must be a number of steps, 0 or more, got {self.max_delay!r}")
        if isinstance(self.max_cp, bool) or not isinstance(self.max_cp, int) or not 1 <= self.max_cp < 2**31:
            raise InvalidArgument(f"max_cp must be a number of ranks, 1 or more, got {self.max_cp!r}")
        if self.too_long not in ("error", "cut"):
            raise InvalidArgument(f'too_long is {self.too_long!r}; it must be "error" or "cut"')
        self.resolved(1 if self.max_cp > 1 else 0)

    @property
    def multiple(self) -> int:
        """The length of each packed sample of an iterable is a multiple of this number of tokens."""
        return self.pad_to if self.max_cp == 1 else math.lcm(self.pad_to, 2 * self.max_cp)

    @property
    def weight(self) -> Callable[[Any], Any] | None:
        """The cost as a function of a sample; None if the cost follows from the sample's length."""
        if not isinstance(self.cost, str):
            return self.cost
        field = _FIELD.fullmatch(self.cost)
        return None if field is None else operator.itemgetter(field[1])

    def resolved(self, max_tokens: int, collate: Callable[[list[Any]], Any] | None = None) -> BalancedBy:
        """Returns the options of the C++ core, which ranks compare. Raises InvalidArgument if they are invalid."""
        counts = self.counts or ("free" if max_tokens else "equal")
        cost = self.cost if isinstance(self.cost, str) and self.weight is None else "weights"
        return BalancedBy(cost, counts, self.order, max_tokens, self.wait, self.max_delay, self.max_cp, self._label(collate))

    def _label(self, collate: Callable[[list[Any]], Any] | None) -> str:
        """Returns a text that identifies the options unknown to the core."""
        label = []
        if self.weight is not None:
            label.append(f"cost {self.cost if isinstance(self.cost, str) else name_of(self.cost)}")
        if self.length is not None:
            label.append(f"length {name_of(self.length)}")
        if self.too_long != "error":
            label.append(f"too_long {self.too_long}")
        if self.pad_to != 1:
            label.append(f"pad_to {self.pad_to}")
        if collate not in (None, collate_packed):
            label.append(f"collate_fn {name_of(collate)}")
        return ", ".join(label)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, with file and line if it is written in Python. Every process that runs the same
    program gets the same name."""
    if isinstance(function, functools.partial):
        given = [repr(each) for each in function.args if isinstance(each, _PLAIN)]
        given += [f"{name}={each!r}" for name, each in function.keywords.items() if isinstance(each, _PLAIN)]
        return f"partial of {name_of(function.func)} with ({', '.join(given)})"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    # The folder is left out: hosts may keep the program in different ones.
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


class RefusedSample(InvalidArgument):
    """A sample cannot be balanced, or some samples cannot be made into a batch."""


class _Taken(NamedTuple):
    sample: Any
    digest: int | None
    """None if the iterator cannot change the sample."""


def _kept(sample: Any) -> _Taken:
    """Returns a sample that the iterator may change with its digest, or a copy of a sample that has none."""
    if (digest := _digest(sample)) is not None:
        return _Taken(sample, digest)
    try:
        return _Taken(copy.deepcopy(sample), None)
    except Exception as error:
        raise RefusedSample(
            f"a sample has a part that can be neither compared nor copied until its step is made ({type(error).__name__}: {error}): "
            f"open it in collate_fn, or yield its name: {_shown(sample)}"
        ) from error


def _digest(sample: Any) -> int | None:
    """Returns the digest of a sample; None if a part of it has none."""
    try:
        return digest_of(sample)
    except TypeError:
        return None


class Samples:
    """Takes the samples of a step from an iterator, and makes batches from some of them."""

    def __init__(self, balance: Balance, max_tokens: int | None, collate: Callable[[list[Any]], Any] | None) -> None:
        self._balance = balance
        self._limit = None
        if balance.too_long == "cut" and max_tokens is not None:
            self._limit = max_tokens * balance.max_cp // balance.multiple * balance.multiple
        self._length = balance.length or length_of
        self._weight = balance.weight
        self._collate = None if collate is collate_packed else collate
        self._traits = ItemTraits()
        self._taken: list[_Taken] = []

    def take(self, iterator: Iterator[Any], count: int) -> list[Size]:
        """Takes the next `count` samples, or fewer at the end, and returns their sizes."""
        self._taken.clear()
        sizes = []
        for number in range(count):  # islice() would call iter(), which may restart the iterator
            try:
                sample, is_own = self._traits.detached(next(iterator))
            except StopIteration:
                break
            try:
                sample = self._cut(sample)
                self._taken.append(_Taken(sample, None) if is_own else _kept(sample))
                sizes.append(self._size(sample))
            except RefusedSample as error:
                raise RefusedSample(f"sample {number} of the step: {error}") from error.__cause__
        return sizes

    def gather(self, places: list[int]) -> Any:
        """Returns one batch made from the last samples taken, at the positions `places`."""
        taken = [self._taken[place] for place in places]
        if any(each.digest is not None and each.digest != _digest(each.sample) for each in taken):
            raise RefusedSample(
                "a sample has been changed since it was read, before its step was made: let the iterator yield new objects"
            )
        samples = [each.sample for each in taken]
        if self._collate is not None:
            return self._collate(samples)
        try:
            return collate_packed(samples, pad_to=self._balance.multiple, length=self._length)
        except InvalidArgument as error:
            raise RefusedSample(str(error)) from None

    def _cut(self, sample: Any) -> Any:
        """Returns the sample, cut to the size of a micro-batch if necessary."""
        if self._limit is None or (length := self._tokens(sample)) <= self._limit:
            return sample
        if isinstance(sample, Mapping):
            cut = {key: value[: self._limit] if _is_as_long(value, length) else value for key, value in sample.items()}
        else:
            cut = sample[: self._limit]
        if (left := self._tokens(cut)) > self._limit:
            raise RefusedSample(
                f"a sample of {length} tokens was cut to {self._limit}, but length= still returns {left}; return the "
                f"length of a field that is cut, or omit such samples: {_shown(sample)}"
            )
        return cut

    def _tokens(self, sample: Any) -> int:
        length = _whole(_call(self._length, "length", sample), "length", sample)
        if length < 1:
            raise RefusedSample(f"a sample has a length of {length}; it must have a token: {_shown(sample)}")
        return length

    def _size(self, sample: Any) -> Size:
        length, pad = self._tokens(sample), self._balance.multiple
        tokens = -(-length // pad) * pad
        if self._weight is None:
            return tokens, tokens * tokens, 0, 0, tokens - length
        cost = _call(self._weight, "cost", sample)
        parts = [cost] if not isinstance(cost, (tuple, list)) else cost
        if not 1 <= len(parts) <= 2:
            raise RefusedSample(f"the cost of a sample is {_shown(cost)}; {_A_COST}: {_shown(sample)}")
        first, second = (_whole(part, "cost", sample) for part in (*parts, 0)[:2])
        return tokens, tokens * tokens, first, second, tokens - length


def _is_as_long(value: Any, length: int) -> bool:
    """Returns whether `value` has one element for each token of a sample."""
    if not _is_of_numbers(value) and not hasattr(value, "ndim"):
        return False
    return getattr(value, "ndim", 1) > 0 and len(value) == length


def _call(function: Callable[[Any], Any], name: str, sample: Any) -> Any:
    try:
        return function(sample)
    except Exception as error:
        what = str(error) if isinstance(error, InvalidArgument) else f"{type(error).__name__}: {error}"
        if isinstance(function, operator.itemgetter) or function is length_of:
            called, remedy = "", ""
        else:
            called, remedy = f"{name_of(function)} raised ", f"; {_A_COST if name == 'cost' else _A_LENGTH}"
        raise RefusedSample(
            f"the {name} of a sample is not known: {called}{what}{remedy}; the sample is {_shown(sample)}"
        ) from error


def _shown(sample: Any) -> str:
    text = repr(sample)
    return text if len(text) <= 200 else text[:200] + "..."


def _whole(value: Any, name: str, sample: Any) -> int:
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        number = -1
    if 0 <= number < 2**62:
        return number
    raise RefusedSample(
        f"the {name} of a sample is {value!r}; it must be a whole number of 0 or more, below 2**62: {_shown(sample)}"
    )


def length_of(sample: Any) -> int:
    """Returns the number of tokens of a sample: the length of its field `tokens` or `input_ids`, or of the sample
    itself. Raises InvalidArgument if it has none."""
    if isinstance(sample, Mapping):
        for name in _LENGTHS:
            if name in sample:
                return len(sample[name])
        raise InvalidArgument("a sample has neither tokens nor input_ids; pass Balance(length=...)")
    return len(sample)


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

    Raises InvalidArgument, naming the field, if samples differ in keys, dtypes or further dimensions, if an array holds
    more than its elements, as a masked array does, or if the samples do not fit into row_length or max_segments. Also
    raises it if `labels` are the next tokens although there are input_ids or shift_labels requires otherwise, or if
    they are not numbers although shift_labels requires them.
    """
    import numpy as np

    if not samples:
        raise InvalidArgument("a packed row has at least one sample")
    mappings = [sample if isinstance(sample, Mapping) else {"tokens": sample} for sample in samples]
    keys = list(mappings[0])
    for at, sample in enumerate(mappings):
        if list(sample) != keys and set(sample) != set(keys):
            fields, first = (sorted(map(str, each)) for each in (sample, keys))
            raise InvalidArgument(f"sample {at} of a packed row has fields {fields}, the first has {first}")
    if taken := [key for key in _MADE if key in keys]:
        raise InvalidArgument(f"samples have a field {taken[0]}, which the packed row adds itself; remove it from the samples")
    lengths = [length(sample) for sample in samples]
    ends = list(itertools.accumulate(-(-each // pad_to) * pad_to for each in lengths))
    bounds = _bounds(ends, row_length, max_segments)
    begin_batch(_expected_bytes(mappings[0], lengths[0], bounds, shift_labels))
    begins = [0, *ends[:-1]]
    row: dict[Any, Any] = {
        key: _packed(key, [sample[key] for sample in mappings], lengths, begins, bounds[-1]) for key in keys
    }
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


def _array(field: Any) -> Any:
    """Returns a view of a packed field as a numpy array; None for a list."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(field, torch.Tensor):
        return field.numpy()
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

    row = pack_field(str(key), values, lengths, begins, size, _converted, make)
    if row is not None:
        return row
    for value, length in zip(values, lengths, strict=True):
        if _is_more_than_elements(value) and value.ndim > 0 and len(value) == length:
            raise InvalidArgument(
                f"field {key} has type {type(value).__name__}, which is more than its elements; pass {plain_form(value)}"
            )
    return values


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
    return as_array(value) if _is_of_numbers(value) else None


def _is_of_numbers(value: Any) -> bool:
    import numpy as np

    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, (int, float)) for each in value)
