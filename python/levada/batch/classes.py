"""Takes objects of users' classes apart as containers, and puts them together again.

A class crosses between ranks by name, "module:qualified.name". It is looked up among the classes that are registered
and in the modules that are imported; nothing is imported or unpickled for it unless pickles are allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pathlib
import sys
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from levada.base.errors import InvalidArgument, Unsupported

Key = str | int
Parts = tuple[str, str, list[Key], list[Any], Any]
"""Kind ("dict" loses keys that a rank does not get, "record" has None there, "leaf" crosses as one value), class, keys,
children, other state."""


_PLAIN = (bool, int, float, str, bytes, type(None))


class Leaf(NamedTuple):
    """How a plain value crosses for which a message has no leaf."""

    take_apart: Callable[[Any], Any]
    put_together: Callable[[Any], Any]


def _in_order(elements: Collection[Any]) -> list[Any]:
    """Returns the elements of a set in an order that is the same in every process."""
    kinds = set(map(type, elements))
    if len(kinds) == 1 and kinds < {str, int, bytes}:
        return sorted(elements)
    return list(elements) if len(elements) < 2 else sorted(elements, key=_canonical)


def _canonical(element: Any) -> str:
    """Returns a repr() that does not depend on the order in which this process iterates sets."""
    if isinstance(element, frozenset):
        return f"frozenset({sorted(map(_canonical, element))})"
    if isinstance(element, tuple):
        return f"{type(element).__name__}({list(map(_canonical, element))})"
    return f"{type(element).__name__} {element!r}"


_TEXT_AND_TIME = "SUMm"
"""Kinds of numpy's dtypes: bytes, strings, dates, durations."""


def _array_parts(value: Any) -> list[Any]:
    array = sys.modules["numpy"].asarray(value)
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _array(parts: list[Any]) -> Any:
    dtype, shape, elements = parts
    numpy = importlib.import_module("numpy")
    made = numpy.dtype(dtype)
    if made.kind not in _TEXT_AND_TIME:
        raise Unsupported(f"a batch holds an array of {dtype} as a plain value")
    return numpy.ndarray(shape, made, bytearray(elements))


def _scalar(parts: list[Any]) -> Any:
    return _array(parts)[()]


def _image_parts(image: Any) -> list[Any]:
    palette = image.palette
    colors = None if palette is None else [palette.mode, palette.tobytes()]
    return [image.mode, list(image.size), image.tobytes(), colors, image.info.get("transparency")]


def _image(parts: list[Any]) -> Any:
    mode, size, pixels, palette, transparency = parts
    made = importlib.import_module("PIL.Image").frombytes(mode, tuple(size), pixels)
    if palette is not None:
        made.putpalette(palette[1], palette[0])
    if transparency is not None:
        made.info["transparency"] = transparency
    return made


def _path(cls: type) -> Leaf:
    return Leaf(os.fsencode, lambda path: cls(os.fsdecode(path)))


_LEAVES = {
    "builtins:int": Leaf(
        lambda number: number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),
        lambda digits: int.from_bytes(digits, "little", signed=True),
    ),
    "builtins:complex": Leaf(lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    "builtins:range": Leaf(lambda numbers: [numbers.start, numbers.stop, numbers.step], lambda ends: range(*ends)),
    "builtins:set": Leaf(_in_order, set),
    "builtins:frozenset": Leaf(_in_order, frozenset),
    "builtins:bytearray": Leaf(bytes, bytearray),
    **{f"{cls.__module__}:{cls.__qualname__}": _path(cls) for cls in (pathlib.PosixPath, pathlib.PurePosixPath)},
    f"{pathlib.PureWindowsPath.__module__}:PureWindowsPath": Leaf(str, pathlib.PureWindowsPath),
    "numpy:ndarray": Leaf(_array_parts, _array),
    **{f"numpy:{name}": Leaf(_array_parts, _scalar) for name in ("str_", "bytes_", "datetime64", "timedelta64")},
    "PIL.Image:Image": Leaf(_image_parts, _image),
    "torch:Size": Leaf(list, lambda sizes: find("torch:Size")(sizes)),
    "torch:dtype": Leaf(lambda dtype: str(dtype).partition(".")[2], lambda name: find(f"torch:{name}")),
    "torch:device": Leaf(str, lambda name: find("torch:device")(name)),
}
"""By the class's name."""


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
    """Registers `cls`, so that its objects (not those of subclasses) can be part of batches, by the conventions of optree.

    `flatten(object)` returns (children, state) or (children, state, names): an iterable of trees, a tree of whatever else
    the object needs, and the children's names in paths (by default "0", "1", ...). `unflatten(state, children)` makes an
    object from them; a child that a rank's layout leaves out is None. Every rank has to register the same classes. Raises
    InvalidArgument if another class of that name is registered.
    """
    name = name_of(cls)
    if _registered.get(name, Registration(cls, flatten, unflatten)).cls is not cls:
        raise InvalidArgument(f"another class is registered as {name}")
    _registered[name] = Registration(cls, flatten, unflatten)


def name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str, may_import: bool = False) -> Any:
    """Returns the object of that name in the imported modules. Raises Unsupported, naming the missing import."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None and may_import:
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise Unsupported(f"a batch holds a {name}, which cannot be imported on this rank: {error}") from error
    if found is None:
        raise Unsupported(f"a batch holds a {name}; import {module} on every rank, or give allow_pickle=True")
    for step in path.split("."):
        found = getattr(found, step, None)
    if found is None:
        raise Unsupported(f"a batch holds a {name}, which {module} does not have on this rank; levada.register() it")
    return found


def find_registration(cls: type) -> Registration | None:
    own = _registered.get(name_of(cls))
    if own is not None and own.cls is cls:
        return own
    if _is_tensordict(cls):
        return Registration(cls, _flatten_tensordict, _unflatten_tensordict)
    optree = sys.modules.get("optree")
    if optree is None:
        return None
    entry = optree.register_pytree_node.get(cls)
    if entry is None or entry.kind != optree.PyTreeKind.CUSTOM:
        return None
    return Registration(cls, entry.flatten_func, entry.unflatten_func)


def _is_tensordict(cls: type) -> bool:
    return cls is getattr(sys.modules.get("tensordict"), "TensorDict", None)


def _flatten_tensordict(value: Any) -> tuple[Any, ...]:
    keys = list(value.keys())
    state = [keys, list(value.batch_size), list(value.names), value.device is not None]
    return [value[key] for key in keys], state, keys


def _unflatten_tensordict(state: Any, children: list[Any]) -> Any:
    """Makes a TensorDict of the keys that this rank got. A layout may have cut them along their batch dimensions."""
    keys, batch_size, names, has_device = state
    items = {key: child for key, child in zip(keys, children, strict=True) if child is not None}
    for child in items.values():
        if hasattr(child, "shape"):
            batch_size = child.shape[: len(batch_size)]
            device = getattr(child, "device", None) if has_device else None
            break
    else:
        device = None
    return find("tensordict:TensorDict")(items, batch_size=batch_size, names=names, device=device)


def _findable(cls: Any, path: str) -> str:
    """Returns the name by which every rank finds `cls`."""
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
    """Returns the parts of an object that is not a plain container; None for an object of an unknown class. With
    allow_pickle a part may be one that crosses only as a pickle."""
    cls = type(value)
    name = "PIL.Image:Image" if _is_image(value) else name_of(cls)
    leaf = _LEAVES.get(name)
    if leaf is not None:
        return "leaf", name, [], [leaf.take_apart(value)], None
    registration = find_registration(cls)
    if registration is not None:
        return _flattened(value, cls, registration)
    if is_named_tuple(cls):
        return "record", _findable(cls, path), list(cls._fields), list(value), None
    if isinstance(value, Mapping):
        keys, others = _names_of(value.keys())
        return "dict", _findable(cls, path), keys, list(value.values()), _state_of(value, others, path, allow_pickle)
    if cls is types.SimpleNamespace:
        return "record", name_of(cls), list(vars(value)), list(vars(value).values()), None
    if _is_dataclass(cls):
        names: list[Key] = [field.name for field in dataclasses.fields(cls)]
        return "record", _findable(cls, path), names, [getattr(value, str(name)) for name in names], _notes_of(value, names)
    return None


def _is_image(value: Any) -> bool:
    """Returns whether it is an image of PIL, also one of the classes for opened files."""
    images = sys.modules.get("PIL.Image")
    return images is not None and isinstance(value, images.Image)


def _names_of(keys: Iterable[Any]) -> tuple[list[Key], list[tuple[str, Any]]]:
    """Returns the keys as a message holds them, strings and integers; and which of these names replace another key."""
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


def _notes_of(value: Any, names: list[Key]) -> dict[str, Any] | None:
    """Returns the plain values that a data class keeps besides its fields. Other attributes, and those computed on demand, may
    describe the whole batch, of which a rank gets a part."""
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


def _state_of(value: Any, others: list[tuple[str, Any]], path: str, allow_pickle: bool) -> Any:
    """Returns what a mapping needs besides its items: the name of a defaultdict's factory, its attributes, its other keys."""
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, UserDict):
        attributes.pop("data", None)
    if _is_dataclass(value):
        attributes = {}  # its fields are its items
    if not allow_pickle and "_encodings" in attributes and _is_batch_encoding(value):
        attributes["_encodings"] = None  # as that of a tokenizer written in Python
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if factory is None and not attributes and not others:
        return None
    return [None if factory is None else _findable(factory, f"{path}.default_factory"), attributes, others]


def _is_batch_encoding(value: Any) -> bool:
    tokenizers = sys.modules.get("transformers.tokenization_utils_base")
    return tokenizers is not None and isinstance(value, tokenizers.BatchEncoding)


def put_together(name: str, keys: list[Key], children: list[Any], state: Any, may_import: bool) -> Any:
    """Returns the object that take_apart() took these parts from."""
    leaf = _LEAVES.get(name)
    if leaf is not None:
        return leaf.put_together(children[0])
    registration = _registered.get(name)
    if registration is None:
        cls = find(name, may_import)
        if not isinstance(cls, type):
            raise Unsupported(f"{name} is no class")
        registration = find_registration(cls)
    if registration is not None:
        return registration.unflatten(state[0], children)
    return _instance(cls, name, keys, children, state, may_import)


def _instance(cls: Any, name: str, keys: list[Key], children: list[Any], state: Any, may_import: bool) -> Any:
    if is_named_tuple(cls):
        return cls(*children)
    if issubclass(cls, Mapping):
        return _mapping(cls, dict(zip(keys, children, strict=True)), state, may_import)
    if _is_dataclass(cls):
        made = cls.__new__(cls)
        for key, child in zip(keys, children, strict=True):
            object.__setattr__(made, str(key), child)
        if state:
            made.__dict__.update(state)
        return made
    if cls is types.SimpleNamespace:
        return cls(**{str(key): child for key, child in zip(keys, children, strict=True)})
    raise Unsupported(f"a batch holds a {name}, which is neither a container nor registered on this rank")


def _mapping(cls: Any, named: dict[Key, Any], state: Any, may_import: bool) -> Any:
    factory, attributes, others = state or (None, {}, [])
    own = dict(others)
    items = {own.get(name, name): value for name, value in named.items()} if own else named
    if _is_dataclass(cls):
        return cls(**{str(key): value for key, value in items.items()})
    made: Any = cls.__new__(cls)
    if issubclass(cls, UserDict):
        made.data = items
    elif issubclass(cls, dict):
        base = OrderedDict if issubclass(cls, OrderedDict) else dict
        if issubclass(cls, defaultdict):
            made.default_factory = None if factory is None else find(factory, may_import)
        for key, value in items.items():
            base.__setitem__(made, key, value)
    else:
        made = cls(items)
    if attributes:
        made.__dict__.update(attributes)
    return made
