"""Rows of a batch in lists next to its tensors, such as the texts that default_collate() leaves in a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from levada import _levada
from levada.batch.classes import register

_BYTES_OF_LENGTH = 8


class InvalidItem(Exception):
    """An item that a feed cannot divide. The text is for users."""


class Rows:
    """A list with an element for each row of a batch. It crosses as a matrix, which is cut along its rows."""

    def __init__(self, values: Any) -> None:
        self.values = values


def _flatten(rows: Rows) -> tuple[list[Any], str, list[str]]:
    import numpy

    packed = [_levada.pack_state(value) for value in rows.values]
    longest = max(map(len, packed), default=0)
    matrix = numpy.zeros((len(packed), _BYTES_OF_LENGTH + longest), numpy.uint8)
    for row, each in zip(matrix, packed, strict=True):
        row[:_BYTES_OF_LENGTH] = numpy.frombuffer(len(each).to_bytes(_BYTES_OF_LENGTH, "little"), numpy.uint8)
        row[_BYTES_OF_LENGTH : _BYTES_OF_LENGTH + len(each)] = numpy.frombuffer(each, numpy.uint8)
    return [matrix], "tuple" if isinstance(rows.values, tuple) else "list", ["rows"]


def _unflatten(kind: Any, children: list[Any]) -> Any:
    values = []
    for row in children[0]:
        length = int.from_bytes(row[:_BYTES_OF_LENGTH].tobytes(), "little")
        values.append(_levada.unpack_state(row[_BYTES_OF_LENGTH : _BYTES_OF_LENGTH + length].tobytes()))
    return tuple(values) if kind == "tuple" else values


register(Rows, _flatten, _unflatten)


def _is_tensor(value: Any) -> bool:
    return hasattr(type(value), "shape") and hasattr(type(value), "dtype")  # an object's attributes may raise


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors and arrays with rows in nested containers."""
    if _is_tensor(value):
        if len(value.shape) > 0:
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def num_rows(item: Any) -> int | None:
    """Returns the number of rows of a batch: the extent of its first tensor along dim 0. None without a tensor."""
    return next((int(tensor.shape[0]) for tensor in _tensors(item)), None)


def lists_as_rows(item: Any, name: str) -> Any:
    """Returns a batch with its lists of one element per row as Rows. Raises InvalidItem for a list of another
    length."""
    rows = num_rows(item)
    return item if rows is None else _map_lists(item, rows, Rows, name, "")


def without_rows(item: Any) -> Any:
    """Returns a batch whose lists have no rows; the core cuts its tensors."""
    rows = num_rows(item)
    return item if rows is None else _map_lists(item, rows, lambda values: type(values)(), None, "")


def _map_lists(value: Any, rows: int, make: Any, name: str | None, path: str) -> Any:
    if type(value) is dict:
        return {key: _map_lists(each, rows, make, name, f"{path}.{key}" if path else str(key)) for key, each in value.items()}
    if type(value) not in (list, tuple):
        return value
    has_batches = any(tensor.shape[0] == rows for tensor in _tensors(value))
    if not has_batches and len(value) == rows:
        return make(value)
    if not has_batches and value and not any(isinstance(each, (list, tuple, Mapping)) or _is_tensor(each) for each in value):
        if name is None:
            return value
        raise InvalidItem(
            f'{path} of {name} is a list of {len(value)}, but the batch has {rows} rows, which divide="split" divides over the '
            f'ranks: name the placement of every field, such as layout={{"{path}*": "replicate(dp)"}}, or give {path} {rows} '
            "elements"
        )
    return type(value)(_map_lists(each, rows, make, name, f"{path}[{i}]") for i, each in enumerate(value))
