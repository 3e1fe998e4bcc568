"""Objects of classes of one's own as containers, and back.

A class crosses between ranks by name, "module:qualified.name". It is looked up among the classes that are registered
and in the modules that are imported; nothing is imported or unpickled for it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from levada._errors import InvalidArgument, Unsupported

Key = str | int
Parts = tuple[str, str, list[Key], list[Any], Any]
"""Kind ("dict" loses keys that a rank does not get, "record" has None there), class, keys, children, what else."""


_PLAIN = (bool, int, float, str, bytes, type(None))


class Registration(NamedTuple):
    cls: type
    flatten: Callable[[Any], tuple[Any, ...]]
    unflatten: Callable[[Any, list[Any]], Any]


_registered: dict[str, Registration] = {}


def register(
    cls: type,
    flatten: Callable[[Any], tuple[Any, ...]],
    unflatten: Callable[[Any, list[Any]], Any],
) -> None:
    """Lets objects of `cls` (of this very class) be part of batches, by the conventions of optree.

    `flatten(object)` gives (children, state) or (children, state, names): an iterable of trees, a tree of whatever else
    the object needs, and the children's names in paths (otherwise "0", "1", ...). `unflatten(state, children)` makes an
    object of them; a child that a rank's layout leaves out is None. To be called on every rank alike. Raises
    InvalidArgument where another class of that name is registered.
    """
    name = name_of(cls)
    if _registered.get(name, Registration(cls, flatten, unflatten)).cls is not cls:
        raise InvalidArgument(f"another class is registered as {name}")
    _registered[name] = Registration(cls, flatten, unflatten)


def name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str) -> Any:
    """What `name` names in the modules that are imported. Raises Unsupported, saying which import is missing."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        raise Unsupported(f"a batch holds a {name}; import {module} on every rank")
    for step in path.split("."):
        found = getattr(found, step, None)
    if found is None:
        raise Unsupported(f"a batch holds a {name}, which {module} does not have on this rank; levada.register() it")
    return found


def find_registration(cls: type) -> Registration | None:
    own = _registered.get(name_of(cls))
    if own is not None and own.cls is cls:
        return own
    optree = sys.modules.get("optree")
    if optree is None:
        return None
    entry = optree.register_pytree_node.get(cls)
    if entry is None or entry.kind != optree.PyTreeKind.CUSTOM:
        return None
    return Registration(cls, entry.flatten_func, entry.unflatten_func)


def _findable(cls: Any, path: str) -> str:
    """The name of `cls`, by which every rank finds it."""
    if not hasattr(cls, "__qualname__"):
        raise TypeError(f"{path} cannot cross between ranks: {cls!r} has no name; define a function at the top of a module")
    name = name_of(cls)
    try:
        found = find(name)
    except Unsupported:
        found = None
    if found is not cls:
        raise TypeError(
            f"{path} cannot cross between ranks: its class {name} is not found by that name; "
            "define it at the top of a module, or levada.register() it"
        )
    return name


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make")


def _is_dataclass(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


def take_apart(value: Any, path: str, allow_pickle: bool) -> Parts | None:
    """The parts of an object that is no plain container; None for one of a class that is not known. Of pickles alone a
    part may be what can cross no other way."""
    cls = type(value)
    registration = find_registration(cls)
    if registration is not None:
        return _flattened(value, cls, registration)
    if is_named_tuple(cls):
        return "record", _findable(cls, path), list(cls._fields), list(value), None
    if isinstance(value, Mapping):
        keys, children = list(value.keys()), list(value.values())
        return "dict", _findable(cls, path), keys, children, _state_of(value, path, allow_pickle)
    if _is_dataclass(cls):
        names: list[Key] = [field.name for field in dataclasses.fields(cls)]
        return "record", _findable(cls, path), names, [getattr(value, str(name)) for name in names], _notes_of(value, names)
    return None


def _notes_of(value: Any, names: list[Key]) -> dict[str, Any] | None:
    """Plain values that a data class keeps besides its fields. Others, and what it works out on demand, may be of the
    whole batch, of which a rank gets a part."""
    cls = type(value)
    notes = {
        name: each
        for name, each in getattr(value, "__dict__", {}).items()
        if name not in names
        and type(each) in _PLAIN
        and not isinstance(getattr(cls, name, None), functools.cached_property)
    }
    return notes or None


def _flattened(value: Any, cls: type, registration: Registration) -> Parts:
    parts = registration.flatten(value)
    children = list(parts[0])
    names = parts[2] if len(parts) > 2 and parts[2] is not None else range(len(children))
    return "record", name_of(cls), [str(name) for name in names], children, [parts[1]]


def _state_of(value: Any, path: str, allow_pickle: bool) -> Any:
    """What a mapping needs besides its items: a defaultdict's factory by name, attributes of its own."""
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, UserDict):
        attributes.pop("data", None)
    if _is_dataclass(value):
        attributes = {}  # its fields are its items
    if not allow_pickle and "_encodings" in attributes and _is_batch_encoding(value):
        attributes["_encodings"] = None  # as of a tokenizer in Python, which has none either
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if factory is None and not attributes:
        return None
    return [None if factory is None else _findable(factory, f"{path}.default_factory"), attributes]


def _is_batch_encoding(value: Any) -> bool:
    tokenizers = sys.modules.get("transformers.tokenization_utils_base")
    return tokenizers is not None and isinstance(value, tokenizers.BatchEncoding)


def put_together(name: str, keys: list[Key], children: list[Any], state: Any) -> Any:
    """The object whose parts these are."""
    registration = _registered.get(name)
    if registration is None:
        cls = find(name)
        if not isinstance(cls, type):
            raise Unsupported(f"{name} is no class")
        registration = find_registration(cls)
    if registration is not None:
        return registration.unflatten(state[0], children)
    return _instance(cls, name, keys, children, state)


def _instance(cls: Any, name: str, keys: list[Key], children: list[Any], state: Any) -> Any:
    if is_named_tuple(cls):
        return cls(*children)
    if issubclass(cls, Mapping):
        return _mapping(cls, dict(zip(keys, children, strict=True)), state)
    if _is_dataclass(cls):
        made = cls.__new__(cls)
        for key, child in zip(keys, children, strict=True):
            object.__setattr__(made, str(key), child)
        if state:
            made.__dict__.update(state)
        return made
    raise Unsupported(f"a batch holds a {name}, which is neither a container nor registered on this rank")


def _mapping(cls: Any, items: dict[Key, Any], state: Any) -> Any:
    factory, attributes = state or (None, {})
    if _is_dataclass(cls):
        return cls(**{str(key): value for key, value in items.items()})
    made: Any = cls.__new__(cls)
    if issubclass(cls, UserDict):
        made.data = items
    elif issubclass(cls, dict):
        base = OrderedDict if issubclass(cls, OrderedDict) else dict
        if issubclass(cls, defaultdict):
            made.default_factory = None if factory is None else find(factory)
        for key, value in items.items():
            base.__setitem__(made, key, value)
    else:
        made = cls(items)
    if attributes:
        made.__dict__.update(attributes)
    return made
