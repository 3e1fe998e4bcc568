"""Takes instances of data classes and mappings apart into fields, keys and attributes, and makes them again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from levada.base.errors import CorruptMessage
from levada.batch.leaves import PLAIN, expect

Key = str | int

FACTORIES = {
    f"{cls.__module__}:{cls.__qualname__}": cls
    for cls in (list, dict, set, frozenset, tuple, int, float, complex, bool, str, bytes, bytearray, OrderedDict, Counter)
}
"""Possible factories of a defaultdict, by name."""


def is_dataclass(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


def key_names(keys: Iterable[Any]) -> tuple[list[Key], list[tuple[str, Any]]]:
    """Returns the keys as strings and integers, the form in which they are sent, and the names that represent other
    keys, with these keys."""
    given = list(keys)
    taken = {key for key in given if type(key) is str}
    names: list[Key] = []
    others: list[tuple[str, Any]] = []
    for key in given:
        if type(key) is str or (type(key) is int and -(2**63) <= key < 2**63):
            names.append(key)
            continue
        name = repr(key)
        while name in taken:
            name += "'"
        taken.add(name)
        names.append(name)
        others.append((name, key))
    return names, others


@functools.lru_cache(1024)
def field_names(cls: Any) -> list[str]:
    """Returns the names of a data class's fields. The caller must not change the list."""
    return [field.name for field in dataclasses.fields(cls)]


def notes_of(value: Any, names: list[str]) -> dict[str, Any] | None:
    """Returns the plain values that a data class stores in addition to its fields. Leaves out other attributes, and
    those computed on demand: they may describe the whole batch, of which a rank gets only a part."""
    attributes = getattr(value, "__dict__", {})
    if len(attributes) == len(names):
        return None
    cls = type(value)
    return {name: each for name, each in attributes.items() if _is_note(cls, name, each, names)} or None


def _is_note(cls: type, name: Any, value: Any, names: list[str]) -> bool:
    """Returns whether an attribute is a plain value that is not a field and shadows no method or property."""
    is_plain = type(name) is str and type(value) in PLAIN and name not in names
    return is_plain and not is_special(cls, name)


def is_reserved(name: Key) -> bool:
    """Returns whether packages may look an attribute of this name up on any object: numpy and torch read the memory at
    the address in `__array_interface__`, and ctypes passes `_as_parameter_` on."""
    return isinstance(name, str) and len(name) > 2 and name[0] == name[-1] == "_"


def is_special(cls: Any, name: str) -> bool:
    """Returns whether an object's attribute of this name would change what programs do with it: it is reserved, or hides
    a method, a property or another callable of the class."""
    found = inspect.getattr_static(cls, name, None)
    return is_reserved(name) or hasattr(type(found), "__get__") or callable(found)


def reserved_keys(cls: Any, keys: Iterable[Key], values: Iterable[Any]) -> list[Key]:
    """Returns the keys that are reserved names and whose values the class's own code may return as attributes. Columns
    such as `__key__` or `__index_level_0__` are left out if they are lists or tensors."""
    if not hasattr(cls, "__getattr__"):
        return []
    reserved = [(key, value) for key, value in zip(keys, values, strict=True) if is_reserved(key)]
    return [key for key, value in reserved if key in _PROTOCOLS or not (type(value) is list or hasattr(type(value), "shape"))]


_PROTOCOLS = {"__array__", "__array_interface__", "__array_struct__", "__cuda_array_interface__", "__dlpack__", "_as_parameter_"}


def is_computed(cls: Any, name: str) -> bool:
    """Returns whether an attribute is the value of a cached property, which the receiver computes again."""
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def name_of_factory(factory: Any, path: str) -> str:
    for name, each in FACTORIES.items():
        if each is factory:
            return name
    raise TypeError(
        f"{path} cannot cross between ranks: {factory!r} is not one of {', '.join(cls.__name__ for cls in FACTORIES.values())}"
    )


def make_record(cls: Any, name: str, keys: list[Key], children: list[Any], notes: Any) -> Any:
    names = field_names(cls)
    if keys != names or len(children) != len(names):
        raise CorruptMessage(f"the message has a {name} with the fields {keys}, but on this rank the class has {names}")
    try:
        made = object.__new__(cls)
    except TypeError as error:  # a base class in C has its own memory
        raise CorruptMessage(f"the message has a {name}, which cannot be made from its fields: {error}") from error
    for field, child in zip(names, children, strict=True):
        object.__setattr__(made, field, child)
    if notes is not None:
        expect(type(notes) is dict and all(_is_note(cls, each, notes[each], names) for each in notes), name)
        _set_attributes(made, name, notes)
    return made


def _set_attributes(made: Any, name: str, attributes: dict[str, Any]) -> None:
    try:
        own = object.__getattribute__(made, "__dict__")
    except AttributeError:
        raise CorruptMessage(f"the message has attributes for a {name}, which can have none") from None
    own.update(attributes)


def make_mapping(cls: Any, form: Any, name: str, factory: Any, attributes: dict[str, Any], items: dict[Any, Any]) -> Any:
    if form is Mapping and is_dataclass(cls):
        return cls(**{str(key): value for key, value in items.items()})
    if form is UserDict:
        made = object.__new__(cls)
        _set_attributes(made, name, {**attributes, "data": items})
        return made
    made = cls(items) if form is Mapping else _dict(cls, form, name, factory, items)
    if attributes:
        _set_attributes(made, name, attributes)
    return made


def _dict(cls: Any, base: Any, name: str, factory: Any, items: dict[Any, Any]) -> Any:
    made = base.__new__(cls)
    if base is defaultdict and factory is not None:
        expect(type(factory) is str and factory in FACTORIES, f"default_factory of a {name}")
        base.__init__(made, FACTORIES[factory])
    for key, value in items.items():
        base.__setitem__(made, key, value)
    return made
