"""Balanced steps: computes the cost of samples, and takes and cuts the samples of a step."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from levada._levada import BalancedBy, ItemTraits, digest_of
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument, InvalidType
from levada.batch.packing import collate_packed, is_of_numbers, length_of, packing_of

Cost = str | Callable[[Any], int | Sequence[int]]
Size = tuple[int, int, int, int, int]
"""Number of positions in a row, the square of that, two weights, and the number of padding positions."""

_A_COST = "it must return a whole number of 0 or more, or two of them"
_A_LENGTH = "it must return a whole number of 1 or more"
_PLAIN = (bool, int, float, str, type(None))
"""Types whose repr() is the same in every process; other objects' may differ."""
_FIELD = re.compile(r"field\((.+)\)")


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
      `tokens` or `input_ids`, or of the sample itself; a tuple whose parts are not all numbers is refused.
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
        if self.length is not None and not callable(self.length):
            raise InvalidType(
                f'length is {self.length!r}; it must be a function of a sample, such as lambda sample: len(sample["tokens"])'
            )
        for name, smallest, what in (("pad_to", 1, "whole number"), ("max_delay", 0, "number of steps"), ("max_cp", 1, "number of ranks")):
            object.__setattr__(self, name, _count(name, getattr(self, name), smallest, what))
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


def _count(name: str, number: Any, smallest: int, what: str) -> int:
    try:
        counted = whole_number(name, number)
    except InvalidType:
        raise InvalidType(f"{name} must be a {what}, {smallest} or more, got {number!r}") from None
    if not smallest <= counted < 2**31:
        raise InvalidArgument(f"{name} must be a {what}, {f'{smallest} or more' if counted < smallest else 'below 2**31'}, got {counted}")
    return counted


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
        self._packing = packing_of(collate, balance.length, balance.multiple)
        self._limit = None
        if balance.too_long == "cut" and max_tokens is not None:
            self._limit = max_tokens * balance.max_cp // self._packing.pad_to * self._packing.pad_to
        self._length = self._packing.length
        self._weight = balance.weight
        self._traits = ItemTraits()
        self._taken: list[_Taken] = []

    def take(self, iterator: Iterator[Any], count: int) -> list[Size]:
        """Takes the next `count` samples, or fewer at the end, and returns their sizes."""
        self._taken.clear()
        sizes = []
        for number in range(count):  # islice() would call iter(), which may restart the iterator
            try:
                sample, is_own = self._traits.detached(_expect_sample(next(iterator), number))
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
        try:
            return self._packing.collate(samples)
        except InvalidArgument as error:
            if not self._packing.is_packed:
                raise
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
        length, pad = self._tokens(sample), self._packing.pad_to
        tokens = -(-length // pad) * pad
        if self._weight is None:
            return tokens, tokens * tokens, 0, 0, tokens - length
        cost = _call(self._weight, "cost", sample)
        parts = [cost] if not isinstance(cost, (tuple, list)) else cost
        if not 1 <= len(parts) <= 2:
            raise RefusedSample(f"the cost of a sample is {_shown(cost)}; {_A_COST}: {_shown(sample)}")
        first, second = (_whole(part, "cost", sample) for part in (*parts, 0)[:2])
        return tokens, tokens * tokens, first, second, tokens - length


def _expect_sample(sample: Any, number: int) -> Any:
    """Returns the sample. It is passed on without a variable, which would be a reference that makes detached() copy."""
    if sample is None:
        raise RefusedSample(f"sample {number} of the step is None; yield mappings or sequences of tokens, or skip it")
    return sample


def _is_as_long(value: Any, length: int) -> bool:
    """Returns whether `value` has one element for each token of a sample."""
    if not is_of_numbers(value) and not hasattr(value, "ndim"):
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
