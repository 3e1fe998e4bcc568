"""The samples that a rank reads for a step of Megatron-LM's sequence packing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from levada.base.errors import InvalidArgument, SourceError
from levada.base.exception_texts import report_of

INPUTS = ("tokens", "position_ids")
TARGETS = ("labels", "loss_mask")
KEYS = ("tokens", "labels", "loss_mask", "position_ids")
_DTYPES = {"tokens": "int64", "labels": "int64", "loss_mask": "float32", "position_ids": "int64"}


class Sample(NamedTuple):
    """One sequence."""

    original: int
    """Number of tokens without padding."""
    padded: int
    """Number of elements in each field."""
    fields: dict[str, Any]
    """A contiguous one-dimensional CPU tensor for each key of KEYS. The tensors share the memory of the item that was
    read."""


def read(data_iterator: Iterator[Any], count: int) -> list[Sample]:
    """Reads `count` items, each a mapping or a list of mappings, and returns their samples in order.

    A mapping is one sample if it has padded_seq_len, and original_seq_len if that is smaller. Otherwise it has several
    samples between the boundaries in its cu_seqlens; empty ones are left out. Keys other than these and KEYS are
    ignored.

    Raises StopIteration if the iterator ends early; SourceError, with the traceback, if it raises; and InvalidArgument,
    naming item and key, for an invalid item.
    """
    if not hasattr(data_iterator, "__next__"):
        raise InvalidArgument(f"the data iterator has type {type(data_iterator).__name__}, which is no iterator; pass iter() of it")
    samples = []
    for number in range(count):
        try:
            item = next(data_iterator)
        except StopIteration:
            raise
        except Exception as error:
            raise SourceError(f"the data iterator raised at item {number} of a step: {report_of(error)}") from error
        for at, each in enumerate(item if isinstance(item, list) else [item]):
            where = f"item {number} of the data iterator" + (f", sample {at} of it" if isinstance(item, list) else "")
            if not isinstance(each, Mapping):
                raise InvalidArgument(f"{where} has type {type(each).__name__}; it must be a dict, or a list of dicts")
            samples += _samples_of(each, where)
    return samples


def _samples_of(item: Mapping[str, Any], where: str) -> list[Sample]:
    if lacking := [key for key in KEYS if item.get(key) is None]:
        raise InvalidArgument(f"{where} has no {lacking[0]}, which packing needs; it has {', '.join(map(str, item))}")
    if ("padded_seq_len" in item) == ("cu_seqlens" in item):
        raise InvalidArgument(
            f"{where} must have either padded_seq_len, if it is one sample, or cu_seqlens, if it is several; it has "
            f"{', '.join(map(str, item))}"
        )
    fields = {key: _flat(item[key], key, where) for key in KEYS}
    if "padded_seq_len" in item:
        padded = _number(item["padded_seq_len"], "padded_seq_len", where)
        original = _number(item["original_seq_len"], "original_seq_len", where) if "original_seq_len" in item else padded
        if not 0 < original <= padded:
            raise InvalidArgument(
                f"{where} has an original_seq_len of {original} and a padded_seq_len of {padded}; they must be positive, "
                "and the former at most the latter"
            )
        _check_lengths(fields, padded, "padded_seq_len", where)
        return [Sample(original, padded, fields)]
    # A data set may repeat the last boundary, so that all of its items have the same size.
    given = item["cu_seqlens"]
    if not hasattr(given, "unique_consecutive") or given.is_floating_point():
        raise InvalidArgument(f"{where} has cu_seqlens {given!r:.80}; it must be a torch tensor of whole numbers")
    bounds: list[int] = given.reshape(-1).unique_consecutive().tolist()
    if not bounds or bounds[0] < 0 or any(end < begin for begin, end in itertools.pairwise(bounds)):
        raise InvalidArgument(f"{where} has cu_seqlens {bounds}; they must be 0 or more and never fall")
    _check_lengths(fields, bounds[-1], "the last of cu_seqlens", where)
    return [
        Sample(end - begin, end - begin, {key: field[begin:end] for key, field in fields.items()})
        for begin, end in itertools.pairwise(bounds)
    ]


def _flat(value: Any, key: str, where: str) -> Any:
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype != _DTYPES[key] or not hasattr(value, "is_contiguous"):
        raise InvalidArgument(f"{where} has {key} of {dtype}; it must be a torch tensor of {_DTYPES[key]}")
    if value.dim() not in (1, 2) or (value.dim() == 2 and value.size(0) != 1):
        raise InvalidArgument(
            f"{where} has {key} of shape {list(value.shape)}; it must be [tokens] or [1, tokens], so use a micro-batch size "
            "of 1, or a collate_fn that returns a list of samples"
        )
    return value.detach().reshape(-1).cpu().contiguous()


def _number(value: Any, key: str, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several elements
        raise InvalidArgument(f"{where} has {key} {value!r}; it must be one whole number") from None


def _check_lengths(fields: Mapping[str, Any], length: int, name: str, where: str) -> None:
    for key, field in fields.items():
        if field.numel() < length or (name == "padded_seq_len" and field.numel() != length):
            raise InvalidArgument(f"{where} has {field.numel()} elements of {key}, but {name} is {length}; they must fit")


def lengths_of(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Returns the original and the padded lengths of the samples."""
    return [sample.original for sample in samples], [sample.padded for sample in samples]
