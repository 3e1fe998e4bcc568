"""Treats lists in a batch, such as the texts that default_collate() leaves in a list, as rows that can be divided."""

from __future__ import annotations

import copy
import dataclasses
import math
import types
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from levada import _levada
from levada.batch.classes import REGISTERED, find_registration, is_named_tuple, name_of, put_together, register

_BYTES_OF_LENGTH = 8
_PLAIN = (str, bytes, int, float, bool, type(None))
_TEXT_AND_TIME = "USMm"
"""The `kind`s of numpy dtypes whose arrays are sent as plain values, which the core does not cut."""


class InvalidItem(Exception):
    """A feed cannot divide the item. The text is shown to users."""


class Rows:
    """A list, tuple or text array that has one element for each row of a batch. It is sent as a matrix of bytes, which
    the core cuts along its rows."""

    def __init__(self, kind: Any, matrix: Any) -> None:
        """`kind`: "list", "tuple", or for an array its dtype and the shape of one of its rows. `matrix`: uint8, one row
        for each element."""
        self.kind, self.matrix = kind, matrix


def _rows(values: Any, place: str) -> Rows:
    import numpy

    if _is_tensor(values):
        size = values.dtype.itemsize * math.prod(values.shape[1:])
        content = numpy.frombuffer(values.tobytes(), numpy.uint8)
        return Rows([values.dtype.str, list(values.shape[1:])], content.reshape(len(values), size))
    packed = [_packed(value, f"element {at} of {place}") for at, value in enumerate(values)]
    longest = max(map(len, packed), default=0)
    matrix = numpy.zeros((len(packed), _BYTES_OF_LENGTH + longest), numpy.uint8)
    for row, each in zip(matrix, packed, strict=True):
        row[:_BYTES_OF_LENGTH] = numpy.frombuffer(len(each).to_bytes(_BYTES_OF_LENGTH, "little"), numpy.uint8)
        row[_BYTES_OF_LENGTH : _BYTES_OF_LENGTH + len(each)] = numpy.frombuffer(each, numpy.uint8)
    return Rows("tuple" if isinstance(values, tuple) else "list", matrix)


def _packed(value: Any, place: str) -> bytes:
    try:
        return _levada.pack_state(value)
    except TypeError as error:
        raise InvalidItem(
            f'{place} has type {type(value).__name__}, and divide="split" divides lists of plain values and registered classes '
            "only, even with allow_pickle=True: levada.register() the classes in it, or name the placement of every field "
            "with layout="
        ) from error


def _flatten(rows: Rows) -> tuple[list[Any], Any, list[str]]:
    return [rows.matrix], rows.kind, ["rows"]


def _unflatten(kind: Any, children: list[Any]) -> Any:
    matrix = children[0]
    if isinstance(kind, list):
        dtype, shape = kind
        return put_together("numpy:ndarray", [], [[dtype, [len(matrix), *shape], matrix.tobytes()]], None, REGISTERED)
    values = []
    for row in matrix:
        length = int.from_bytes(row[:_BYTES_OF_LENGTH].tobytes(), "little")
        values.append(_levada.unpack_state(row[_BYTES_OF_LENGTH : _BYTES_OF_LENGTH + length].tobytes()))
    return tuple(values) if kind == "tuple" else values


register(Rows, _flatten, _unflatten)


def _is_tensor(value: Any) -> bool:
    return hasattr(type(value), "shape") and hasattr(type(value), "dtype")  # an instance's attributes may raise


def _is_list(value: Any) -> bool:
    return type(value) in (list, tuple)


def _is_array_of(kinds: str, value: Any) -> bool:
    return _is_tensor(value) and len(value.shape) > 0 and getattr(value.dtype, "kind", "-") in kinds


def _is_whole(value: Any) -> bool:
    """Returns whether `value` has elements but can only be sent as one pickle."""
    if isinstance(value, (list, tuple)):
        return not _is_list(value) and not is_named_tuple(type(value)) and name_of(type(value)) != "torch:Size"
    return _is_array_of("OT", value) or (_is_array_of("V", value) and value.dtype.names is not None)


def _children(value: Any) -> list[tuple[Any, Any]]:
    """Returns the keys and children of a container, in the order in which they are sent; empty for any other value."""
    cls = type(value)
    if cls is dict:
        return list(value.items())
    if cls in (list, tuple):
        return list(enumerate(value))
    registration = find_registration(cls)
    if registration is not None:
        children, _, *names = registration.flatten(value)
        children = list(children)
        return list(zip(names[0] if names and names[0] is not None else range(len(children)), children, strict=True))
    if isinstance(value, Mapping):
        return list(value.items())
    if is_named_tuple(cls):
        return list(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(cls):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(cls)]
    return list(vars(value).items()) if isinstance(value, types.SimpleNamespace) else []


def _with_children(value: Any, children: dict[Any, Any]) -> Any:
    """Returns a copy of a container with these children, or None if only the class's own code can make one."""
    cls = type(value)
    if cls is dict:
        return children
    if cls in (list, tuple):
        return cls(children.values())
    if find_registration(cls) is not None:
        return None
    if is_named_tuple(cls):
        return tuple.__new__(cls, children.values())
    if isinstance(value, Mapping) and not isinstance(value, (dict, UserDict)):
        return None
    made: Any = copy.copy(value)
    if isinstance(value, UserDict):
        made.data.update(children)
    elif isinstance(value, dict):
        dict.update(made, children)
    else:
        for name, child in children.items():
            object.__setattr__(made, name, child)
    return made


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors and arrays that have at least one dimension, from nested containers."""
    children = _children(value)
    if not children and _is_tensor(value) and len(value.shape) > 0:
        yield value
    for _, each in children:
        yield from _tensors(each)


def _lists(value: Any) -> Iterator[Any]:
    """Yields the nonempty lists in nested containers, but not the lists within those."""
    if _is_list(value):
        if value:
            yield value
        return
    for _, each in _children(value):
        yield from _lists(each)


def num_rows(item: Any) -> int | None:
    """Returns the number of rows of a batch: the size of dim 0 of its first tensor or, without a tensor, the length of
    its first list. A list of equally long lists holds the rows as columns, as default_collate() makes it. Returns None
    if the batch has neither."""
    tensor = next(_tensors(item), None)
    if tensor is not None:
        return int(tensor.shape[0])
    if _is_list(item) and item and all(map(_is_list, item)) and len(set(map(len, item))) == 1:
        return len(item[0])
    return next(map(len, _lists(item)), None)


class Forms(dict[str, bool]):
    """Whether the elements of a list are its rows, or else fields whose elements are, by the list's path in a batch. A
    list with as many elements as they have themselves may be either, and then has the form that it had in an earlier
    batch."""


def lists_as_rows(item: Any, name: str, forms: Forms) -> Any:
    """Returns a batch in which the lists and text arrays with one element per row are replaced by Rows. Adds the lists'
    forms to `forms`. Raises InvalidItem for a list of another length, of unknown form, or that cannot be cut."""
    rows = num_rows(item)
    if rows is None:
        return item
    if _is_list(item) and next(_tensors(item), None) is None and any(True for each in item for _ in _lists(each)):
        raise InvalidItem(
            f'{name} is a {type(item).__name__} of lists without a tensor, and divide="split" cannot tell whether the outer or '
            "the inner ones have an element for each row: use a dict of lists"
        )
    if _is_list_of_samples(item):
        raise InvalidItem(
            f'{name} is a {type(item).__name__} of samples, and divide="split" divides batches: collate the samples, or name the '
            "placement of every field with layout="
        )
    return _Cut(rows, _rows, name, forms).apply(item, "")


def _is_list_of_samples(item: Any) -> bool:
    """Returns whether a batch with a tensor is a list of mappings that are no parts of a batch: they have numbers or
    text, or tensors of several lengths."""
    if not _is_list(item) or len(item) < 2 or not all(isinstance(each, Mapping) for each in item):
        return False
    lengths = {int(tensor.shape[0]) for tensor in _tensors(item)}
    values = [value for each in item for value in each.values()]
    has_scalar = any(not _children(value) and not _is_list(value) and not getattr(value, "shape", ()) for value in values)
    return len(lengths) > 1 or (len(lengths) == 1 and has_scalar)


def without_rows(item: Any) -> Any:
    """Returns a batch whose lists have no elements. The core cuts its tensors."""
    rows = num_rows(item)
    return item if rows is None else _Cut(rows, lambda values, _: values[:0], None, Forms()).apply(item, "")


class LastRow(NamedTuple):
    """The last row of a batch."""

    shape: list[tuple[str, str]]
    """Path of each part, with its type and shape."""
    content: list[Any]


def last_row(item: Any) -> LastRow:
    """Returns the last row of a batch: of its tensors, and of its lists of plain values with one element per row."""
    row = LastRow([], [])
    rows = num_rows(item)
    if rows:
        _add_last(row, item, rows, "")
    return row


def _add_last(row: LastRow, value: Any, rows: int, path: str) -> None:
    if _is_tensor(value) and len(value.shape) > 0:
        if value.shape[0] == rows and not _is_whole(value):
            row.shape.append((path, f"{value.dtype} {tuple(value.shape[1:])}"))
            row.content.append(value[-1:])
    elif _is_list(value) and len(value) == rows and type(value[-1]) in _PLAIN:
        row.shape.append((path, type(value[-1]).__name__))
        row.content.append(value[-1])
    else:
        for key, child in _children(value):
            _add_last(row, child, rows, f"{path}/{key}")


class _Cut:
    """Replaces the lists and text arrays that have one element for each row."""

    def __init__(self, rows: int, make: Callable[[Any, str], Any], name: str | None, forms: Forms) -> None:
        """`name`: the item's name in error messages, or None to keep everything that cannot be cut."""
        self._rows, self._make, self._name, self._forms = rows, make, name, forms

    def apply(self, value: Any, path: str) -> Any:
        if _is_whole(value):
            what = f"an object of class {type(value).__name__} that crosses only as a whole"
            return self._refuse(value, path, what, "elements in a plain list")
        if _is_array_of(_TEXT_AND_TIME, value):
            return self._cut(value, path)
        if _is_list(value) and value:
            has_batches = any(tensor.shape[0] == self._rows for tensor in _tensors(value))
            has_fields = has_batches or all(_is_list(each) and len(each) == self._rows for each in value)
            if path and has_fields != (len(value) == self._rows):
                self._forms[path] = not has_fields
            elif path and has_fields and self._rows > 1:
                if path not in self._forms:
                    return self._refuse_square(value, path)
                has_batches = not self._forms[path]
            if not has_batches and (len(value) == self._rows or not any(_children(each) or _is_tensor(each) for each in value)):
                return self._cut(value, path)
        children = _children(value)
        made = [(key, self.apply(each, self._path_of(value, path, key))) for key, each in children]
        if all(new is old for (_, new), (_, old) in zip(made, children, strict=True)):
            return value
        replaced = _with_children(value, dict(made))
        if replaced is None:
            what = f"an object of class {type(value).__name__} with lists or text that only its own code can replace"
            return self._refuse(value, path, what, "lists outside of it")
        return replaced

    def _refuse_square(self, value: Any, path: str) -> Any:
        if self._name is None:
            return value
        raise InvalidItem(
            f"{self._place(path)} is a {type(value).__name__} of {len(value)} whose elements have a length of {len(value)}, too, and "
            f'divide="split" cannot tell whether the outer or the inner ones are the rows: name the placement of every field '
            f'with layout=, or give {path} a tensor for each field'
        )

    def _cut(self, values: Any, path: str) -> Any:
        if len(values) == self._rows:
            return self._make(values, self._place(path))
        kind = "an array" if _is_tensor(values) else f"a {type(values).__name__}"
        return self._refuse(values, path, f"{kind} of {len(values)}", f"{self._rows} elements")

    def _refuse(self, value: Any, path: str, what: str, remedy: str) -> Any:
        if self._name is None:
            return value
        raise InvalidItem(
            f'{self._place(path)} is {what}, but the batch has {self._rows} rows, which divide="split" divides over the '
            f'ranks: name the placement of every field, such as layout={{"{path}*": "replicate(dp)"}}, or give '
            f"{path or 'it'} {remedy}"
        )

    def _place(self, path: str) -> str:
        return f"{path} of {self._name}" if path else f"{self._name}"

    @staticmethod
    def _path_of(value: Any, path: str, key: Any) -> str:
        if _is_list(value):
            return f"{path}[{key}]"
        return f"{path}.{key}" if path else str(key)
