"""Takes objects of users' classes apart as containers, and puts them together again.

A class crosses by name, "module:qualified.name", and bytes may come from a hostile rank or a forged file. They may
therefore name only classes that the user has chosen:

| bytes of | may name |
|---|---|
| any kind | the plain values and containers of the tables below; classes given to register(), also those of optree; TensorDict |
| a batch between ranks | in addition the program's own named tuples, data classes and dict classes: those of __main__ and of modules that are not installed in site-packages |
| anything that the user loads with allow_pickle=True | every class, as pickle |

A name is one class of one imported module and never a path through modules. No code of an unregistered class runs while
its objects are made: they are allocated by object, tuple or dict, and only their declared fields are set.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import os
import pathlib
import re
import sys
import types
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from levada.base.errors import CorruptMessage, Error, InvalidArgument, InvalidType, Unsupported

Key = str | int
Parts = tuple[str, str, Sequence[Key], list[Any], Any]
"""Kind ("dict" loses keys that a rank does not receive, "record" has None for them, "leaf" crosses as one value),
class, keys, children, other state."""


REGISTERED, PROGRAM, ANY = range(3)
"""The classes that bytes may name, as `Allowed` of trees.h: registered ones; also the program's own; every class."""

_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))


class Leaf(NamedTuple):
    """The form in which a plain value crosses that has no leaf type of its own. put_together() gets untrusted parts."""

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


_TEXT_AND_TIME = re.compile(r"[<>|]?[SU]\d{0,9}|[<>|]?[mM]8(\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""Names of numpy's dtypes of bytes, strings, dates and durations."""


def _expect(is_valid: bool, what: str) -> None:
    if not is_valid:
        raise CorruptMessage(f"the message holds no valid {what}")


def _typed(value: Any, *classes: type) -> Any:
    """Returns an untrusted value if it is of exactly one of these classes, so that using it runs no other class's
    code."""
    _expect(type(value) in classes, " or ".join(cls.__name__ for cls in classes))
    return value


def _list(value: Any, *classes: type, length: int | None = None) -> list[Any]:
    """Returns an untrusted list of objects of exactly these classes."""
    _expect(type(value) is list and set(map(type, value)) <= set(classes) and length in (None, len(value)), "list of numbers")
    return value  # type: ignore[no-any-return]


def _array_parts(value: Any) -> list[Any]:
    array = sys.modules["numpy"].asarray(value)
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _array(parts: Any) -> Any:
    _expect(type(parts) is list and len(parts) == 3, "array")
    dtype, shape, elements = _typed(parts[0], str), _list(parts[1], int), _typed(parts[2], bytes)
    _expect(_TEXT_AND_TIME.fullmatch(dtype) is not None, "dtype of text or time")
    numpy = importlib.import_module("numpy")
    made = numpy.dtype(dtype)
    count = math.prod(shape)
    _expect(len(shape) <= 32 and all(0 <= size < 1 << 48 for size in shape), "shape of an array")
    _expect(count * made.itemsize == len(elements) and count <= max(1 << 20, len(elements)), "array")
    return numpy.ndarray(shape, made, bytearray(elements))


def _scalar(parts: Any) -> Any:
    array = _array(parts)
    _expect(array.shape == (), "numpy scalar")
    return array[()]


_BITS_OF_MODES = {
    **dict.fromkeys(("L", "P"), 8),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 32),
    "1": 1,
}
"""Bytes of a pixel in tobytes() of PIL's images."""


def _image_parts(image: Any) -> list[Any]:
    palette = image.palette
    colors = None if palette is None else [palette.mode, palette.tobytes()]
    return [image.mode, list(image.size), image.tobytes(), colors, image.info.get("transparency")]


def _image(parts: Any) -> Any:
    _expect(type(parts) is list and len(parts) == 5, "image")
    mode, size, pixels = _typed(parts[0], str), _list(parts[1], int, length=2), _typed(parts[2], bytes)
    palette, transparency = parts[3:]
    _expect(mode in _BITS_OF_MODES and all(0 <= side < 1 << 31 for side in size), "image")
    _expect((size[0] * _BITS_OF_MODES[mode] + 7) // 8 * size[1] == len(pixels), "image, its pixels have another size")
    made = importlib.import_module("PIL.Image").frombytes(mode, tuple(size), pixels)
    if palette is not None:
        _list(palette, str, bytes, length=2)
        _expect(palette[0] in ("RGB", "RGBA", "L") and len(_typed(palette[1], bytes)) <= 1024, "palette of an image")
        made.putpalette(palette[1], palette[0])
    if transparency is not None:
        if type(transparency) is tuple:
            _list(list(transparency), int)
        made.info["transparency"] = _typed(transparency, int, bytes, tuple)
    return made


def _path(cls: type) -> Leaf:
    return Leaf(os.fsencode, lambda path: cls(os.fsdecode(_typed(path, bytes))))


def _set_of(cls: type) -> Callable[[Any], Any]:
    def put_together(elements: Any) -> Any:
        _expect_plain_hashes(_typed(elements, list))
        return cls(elements)

    return put_together


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unsupported("a batch holds a value of torch; import torch on every rank")
    return torch


@functools.lru_cache(1)
def _dtypes() -> dict[str, Any]:
    torch = _torch()
    return {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}


def _dtype(name: Any) -> Any:
    found = _dtypes().get(_typed(name, str))
    _expect(found is not None, "dtype of torch")
    return found


def _device(name: Any) -> Any:
    _expect(re.fullmatch(r"[a-z0-9_]{1,32}(:\d{1,4})?", _typed(name, str)) is not None, "device of torch")
    return _torch().device(name)


_LEAVES = {
    "builtins:int": Leaf(
        lambda number: number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),
        lambda digits: int.from_bytes(_typed(digits, bytes), "little", signed=True),
    ),
    "builtins:complex": Leaf(
        lambda number: [number.real, number.imag], lambda parts: complex(*_list(parts, float, length=2))
    ),
    "builtins:range": Leaf(
        lambda numbers: [numbers.start, numbers.stop, numbers.step], lambda ends: range(*_list(ends, int, length=3))
    ),
    "builtins:set": Leaf(_in_order, _set_of(set)),
    "builtins:frozenset": Leaf(_in_order, _set_of(frozenset)),
    "builtins:bytearray": Leaf(bytes, lambda content: bytearray(_typed(content, bytes))),
    **{f"{cls.__module__}:{cls.__qualname__}": _path(cls) for cls in (pathlib.PosixPath, pathlib.PurePosixPath)},
    f"{pathlib.PureWindowsPath.__module__}:PureWindowsPath": Leaf(
        str, lambda path: pathlib.PureWindowsPath(_typed(path, str))
    ),
    "numpy:ndarray": Leaf(_array_parts, _array),
    **{f"numpy:{name}": Leaf(_array_parts, _scalar) for name in ("str_", "bytes_", "datetime64", "timedelta64")},
    "PIL.Image:Image": Leaf(_image_parts, _image),
    "torch:Size": Leaf(list, lambda sizes: _torch().Size(_list(sizes, int))),
    "torch:dtype": Leaf(lambda dtype: str(dtype).partition(".")[2], _dtype),
    "torch:device": Leaf(str, _device),
}
"""By the class's name."""

_CONTAINERS = frozenset(
    (
        "builtins:dict",
        "collections:Counter",
        "collections:OrderedDict",
        "collections:UserDict",
        "collections:defaultdict",
        "torch.nn.utils.rnn:PackedSequence",
        "transformers.feature_extraction_utils:BatchFeature",
        "transformers.image_processing_base:BatchFeature",
        "transformers.tokenization_utils_base:BatchEncoding",
        "types:SimpleNamespace",
    )
)
"""Well-known containers that cross unregistered."""

_FACTORIES = {
    f"{cls.__module__}:{cls.__qualname__}": cls
    for cls in (list, dict, set, frozenset, tuple, int, float, complex, bool, str, bytes, bytearray, OrderedDict, Counter)
}
"""Factories of a defaultdict, by name."""


class Registration(NamedTuple):
    cls: type
    flatten: Callable[[Any], tuple[Any, ...]]
    unflatten: Callable[[Any, list[Any]], Any]


_registered: dict[str, Registration] = {}
_registered_containers: dict[str, type] = {}

_Class = TypeVar("_Class", bound=type)


@overload
def register(cls: _Class) -> _Class: ...


@overload
def register(
    cls: _Class,
    flatten: Callable[[Any], tuple[Any, ...]],
    unflatten: Callable[[Any, list[Any]], Any],
) -> _Class: ...


def register(
    cls: _Class,
    flatten: Callable[[Any], tuple[Any, ...]] | None = None,
    unflatten: Callable[[Any, list[Any]], Any] | None = None,
) -> _Class:
    """Registers `cls`, so that its objects (not those of subclasses) can be part of batches and states, and returns it.

    A named tuple, a data class or a Mapping needs nothing else, and can be decorated with `@levada.register`: it
    crosses by its fields or items. Any other class crosses by the conventions of optree. `flatten(object)` returns
    (children, state) or (children, state, names): an iterable of trees, a tree of all other data that the object needs,
    and the children's names in paths (by default "0", "1", ...). `unflatten(state, children)` makes an object from
    them; a child that a rank's layout leaves out is None.

    Every rank must register the same classes. The sender of bytes chooses the values of the objects, so do not register
    a class that treats a value as code, as a command or as the name of a file. Raises InvalidArgument if another class
    of that name is registered.
    """
    if not isinstance(cls, type):
        raise InvalidType(f"levada.register() takes a class, got {cls!r}")
    name = name_of(cls)
    if flatten is None or unflatten is None:
        if _form_of(cls) is None:
            raise InvalidArgument(
                f"{name} is no named tuple, data class or Mapping; give levada.register() also flatten and unflatten"
            )
        _registered_containers[name] = cls
        _refusal.cache_clear()
        return cls
    if _registered.get(name, Registration(cls, flatten, unflatten)).cls is not cls:
        raise InvalidArgument(f"another class is registered as {name}")
    _registered[name] = Registration(cls, flatten, unflatten)
    return cls


def name_of(cls: type) -> str:
    if cls.__module__ == "__mp_main__":  # the main module's name in processes started by multiprocessing
        return f"__main__:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str, may_import: bool = False) -> type | None:
    """Returns the class of that name in an imported module, or None. A class that the module only imports, or one that
    is reached through another module, does not count. Raises Unsupported, naming the missing import."""
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None and may_import:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise Unsupported(f"a batch holds a {name}, which cannot be imported on this rank: {error}") from error
    if module is None:
        raise Unsupported(f"a batch holds a {name}; import {module_name} on every rank, or give allow_pickle=True")
    if not isinstance(module, types.ModuleType):
        return None
    found: Any = module
    for step in path.split("."):
        found = vars(found).get(step)
        if type(found) is not type and not issubclass(type(found), type):  # isinstance() would query the object
            return None
    return found if found.__qualname__ == path and found.__module__ in (module_name, "__mp_main__") else None


def find_registration(cls: type) -> Registration | None:
    own = _registered.get(name_of(cls)) if _registered else None
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
    """Makes a TensorDict of the keys that this rank received. A layout may have cut them along their batch
    dimensions."""
    keys, batch_size, names, has_device = state
    items = {key: child for key, child in zip(keys, children, strict=True) if child is not None}
    for child in items.values():
        if hasattr(child, "shape"):
            batch_size = child.shape[: len(batch_size)]
            device = getattr(child, "device", None) if has_device else None
            break
    else:
        device = None
    return sys.modules["tensordict"].TensorDict(items, batch_size=batch_size, names=names, device=device)


@functools.lru_cache(1024)
def _refusal(cls: type, name: str, allowed: int) -> str | None:
    """Returns the reason why bytes may not name this class without a flatten function, or None."""
    if _form_of(cls) is None:
        return "is neither a container nor registered"
    if allowed == ANY or name in _CONTAINERS or _registered_containers.get(name) is cls:
        return None
    if allowed == REGISTERED:
        return "is not registered, as the classes of saved objects have to be"
    if _is_installed(name):
        return "belongs to an installed package and is not registered"
    return _own_code(cls)


@functools.lru_cache(1024)
def _form_of(cls: type) -> Any:
    """Returns how an object of the class is made from its parts: the class that allocates it, dataclass for a record of
    its fields, or Mapping if only the class's own code can make it; None for a class that is not a container."""
    if is_named_tuple(cls):
        return tuple
    if issubclass(cls, Mapping) and _is_dataclass(cls):
        return Mapping
    forms = (OrderedDict, defaultdict, dict, UserDict, Mapping, types.SimpleNamespace)
    form = next((each for each in forms if issubclass(cls, each)), None)
    return dataclasses.dataclass if form is None and _is_dataclass(cls) else form


def _is_installed(name: str) -> bool:
    """Returns whether a class belongs to Python, to Levada or to an installed package and not to the user's program."""
    module_name = name.partition(":")[0]
    if module_name == "__main__":
        return False
    top = module_name.partition(".")[0]
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if top == "levada" or top in sys.stdlib_module_names or not isinstance(file, str):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(file).parts)


def _own_code(cls: type) -> str | None:
    """Returns the code of the class that would run when Levada makes and drops an object of it, or None."""
    if hasattr(cls, "__del__"):
        return "defines __del__ and is not registered"
    form = _form_of(cls)
    if form is Mapping:
        return "is a Mapping that only its own code can make, and is not registered"
    if form is types.SimpleNamespace:
        return "is not registered"
    if form is not dataclasses.dataclass:
        return None
    for field in dataclasses.fields(cls):
        kind = type(inspect.getattr_static(cls, field.name, None))
        if hasattr(kind, "__set__") and kind is not types.MemberDescriptorType:
            return f"sets its field {field.name} by code of its own and is not registered"
    return None


def _name_to_send(cls: Any, path: str, allowed: int) -> str:
    """Returns the name by which every rank finds `cls`. Raises TypeError if the others would refuse it."""
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
    why = _refusal(cls, name, allowed)
    if why is not None:
        raise TypeError(f"{path} cannot cross between ranks: its class {name} {why}; {_remedy(cls)}")
    return name


def _remedy(cls: Any) -> str:
    return f"call levada.register({cls.__name__}) on every rank, or give allow_pickle=True"


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make")


def _is_dataclass(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


def take_apart(value: Any, path: str, allowed: int) -> Parts | None:
    """Returns the parts of an object that is not a plain container; None for an object of an unknown class. If
    `allowed` is ANY, a part may be one that crosses only as a pickle."""
    cls: Any = type(value)
    name = "PIL.Image:Image" if _is_image(value) else name_of(cls)
    leaf = _LEAVES.get(name)
    if leaf is not None:
        if cls in (set, frozenset):
            _refuse_own_hashes(value, path)
        return "leaf", name, [], [leaf.take_apart(value)], None
    registration = find_registration(cls)
    if registration is not None:
        return _flattened(value, cls, registration)
    form = _form_of(cls)
    if form is None:
        return None
    name = _name_to_send(cls, path, allowed)
    if form is tuple:
        return "record", name, list(cls._fields), list(value), None
    if form is dataclasses.dataclass:
        names = _field_names(cls)
        return "record", name, names, [getattr(value, name) for name in names], _notes_of(value, names)
    if form is types.SimpleNamespace:
        return "record", name, list(vars(value)), list(vars(value).values()), None
    keys, others = _names_of(value.keys())
    if others:
        _refuse_own_hashes((key for _, key in others), path)
    return "dict", name, keys, list(value.values()), _state_of(value, others, path, allowed)


def _refuse_own_hashes(keys: Iterable[Any], path: str) -> None:
    cls = _own_hash(keys)
    if cls is not None:
        raise TypeError(
            f"{path} cannot cross between ranks: a key or element is of the class {name_of(cls)}, whose own code computes "
            "its hash; give levada.register() its flatten and unflatten"
        )


def _own_hash(keys: Iterable[Any]) -> type | None:
    """Returns the class of a key whose own code computes its hash, or None. A registered class may do so."""
    for key in keys:
        cls: Any = type(key)
        if cls in _PLAIN:
            continue
        is_own = not (type(cls.__hash__) is type(cls.__eq__) is types.WrapperDescriptorType)
        if is_own and name_of(cls) not in _LEAVES and find_registration(cls) is None:
            return cls  # type: ignore[no-any-return]
        found = _own_hash(key) if issubclass(cls, (tuple, frozenset)) else None
        if found is not None:
            return found
    return None


def _is_image(value: Any) -> bool:
    """Returns whether it is an image of PIL, including the classes for opened files."""
    images = sys.modules.get("PIL.Image")
    return images is not None and isinstance(value, images.Image)


def _names_of(keys: Iterable[Any]) -> tuple[list[Key], list[tuple[str, Any]]]:
    """Returns the keys in the form of a message, strings and integers, and those of these names that replace another
    key."""
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
def _field_names(cls: Any) -> list[str]:
    """Returns the names of a data class's fields, which the caller must not change."""
    return [field.name for field in dataclasses.fields(cls)]


def _notes_of(value: Any, names: list[str]) -> dict[str, Any] | None:
    """Returns the plain values that a data class keeps in addition to its fields. Other attributes, and those computed
    on demand, may describe the whole batch, of which a rank gets a part."""
    attributes = getattr(value, "__dict__", {})
    if len(attributes) == len(names):
        return None
    cls = type(value)
    return {name: each for name, each in attributes.items() if _is_note(cls, name, each, names)} or None


def _is_note(cls: type, name: Any, value: Any, names: list[str]) -> bool:
    """Returns whether it is an attribute other than the fields: a plain value that shadows no method or property."""
    is_plain = type(name) is str and type(value) in _PLAIN and name not in names
    return is_plain and not hasattr(type(inspect.getattr_static(cls, name, None)), "__get__")


def _flattened(value: Any, cls: type, registration: Registration) -> Parts:
    parts = registration.flatten(value)
    children = list(parts[0])
    names = parts[2] if len(parts) > 2 and parts[2] is not None else range(len(children))
    return "record", name_of(cls), [str(name) for name in names], children, [parts[1]]


def _state_of(value: Any, others: list[tuple[str, Any]], path: str, allowed: int) -> Any:
    """Returns a mapping's data other than its items: the name of a defaultdict's factory, its attributes, its other
    keys."""
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, UserDict):
        attributes.pop("data", None)
    if _is_dataclass(value):
        attributes = {}  # its fields are its items
    if allowed != ANY and "_encodings" in attributes and _is_batch_encoding(value):
        attributes["_encodings"] = None  # as for a tokenizer written in Python
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if factory is None and not attributes and not others:
        return None
    return [None if factory is None else _name_of_factory(factory, f"{path}.default_factory"), attributes, others]


def _name_of_factory(factory: Any, path: str) -> str:
    for name, each in _FACTORIES.items():
        if each is factory:
            return name
    raise TypeError(
        f"{path} cannot cross between ranks: {factory!r} is not one of {', '.join(cls.__name__ for cls in _FACTORIES.values())}"
    )


def _is_batch_encoding(value: Any) -> bool:
    tokenizers = sys.modules.get("transformers.tokenization_utils_base")
    return tokenizers is not None and isinstance(value, tokenizers.BatchEncoding)


def put_together(name: str, keys: list[Key], children: list[Any], state: Any, allowed: int) -> Any:
    """Returns the object that take_apart() took these parts from. All parts are untrusted. Raises Unsupported for a
    class that they may not name, CorruptMessage for parts that its objects do not have."""
    leaf = _LEAVES.get(name)
    if leaf is not None:
        return _plain_value(name, leaf, children)
    registration = _registered.get(name)
    if registration is None:
        cls = find(name, allowed == ANY)
        if cls is None:
            module = name.partition(":")[0]
            raise Unsupported(f"a batch holds a {name}, which {module} does not have on this rank; levada.register() it")
        registration = find_registration(cls)
        if registration is None:
            why = _refusal(cls, name, allowed)
            if why is not None:
                raise Unsupported(f"a batch or state holds a {name}, which {why}; {_remedy(cls)}")
            return _instance(cls, name, keys, children, state)
    _expect(type(state) is list and len(state) == 1, name)
    return registration.unflatten(state[0], children)


def _plain_value(name: str, leaf: Leaf, children: list[Any]) -> Any:
    _expect(len(children) == 1, name)
    try:
        return leaf.put_together(children[0])
    except Error:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptMessage(f"the message holds no valid {name}: {error}") from error


def _instance(cls: Any, name: str, keys: list[Key], children: list[Any], state: Any) -> Any:
    form = _form_of(cls)
    if form is tuple:
        _expect(len(children) == len(cls._fields), name)
        return tuple.__new__(cls, children)
    if form is dataclasses.dataclass:
        return _record(cls, name, keys, children, state)
    if form is types.SimpleNamespace:
        return cls(**{str(key): child for key, child in zip(keys, children, strict=True)})
    return _mapping(cls, form, name, dict(zip(keys, children, strict=True)), state)


def _record(cls: Any, name: str, keys: list[Key], children: list[Any], notes: Any) -> Any:
    names = _field_names(cls)
    if keys != names or len(children) != len(names):
        raise CorruptMessage(f"the message gives a {name} the fields {keys}, and here it has {names}")
    made = object.__new__(cls)
    for field, child in zip(names, children, strict=True):
        object.__setattr__(made, field, child)
    if notes is not None:
        _expect(type(notes) is dict and all(_is_note(cls, each, notes[each], names) for each in notes), name)
        _set_attributes(made, name, notes)
    return made


def _set_attributes(made: Any, name: str, attributes: dict[str, Any]) -> None:
    try:
        own = object.__getattribute__(made, "__dict__")
    except AttributeError:
        raise CorruptMessage(f"the message gives attributes to a {name}, which can have none") from None
    own.update(attributes)


def _mapping(cls: Any, form: Any, name: str, named: dict[Key, Any], state: Any) -> Any:
    factory, attributes, items = (None, {}, named) if state is None else _items_of(name, named, state)
    if form is Mapping and _is_dataclass(cls):
        return cls(**{str(key): value for key, value in items.items()})
    if form is UserDict:
        made = object.__new__(cls)
        _set_attributes(made, name, {**attributes, "data": items})
        return made
    made = cls(items) if form is Mapping else _dict(cls, form, name, factory, items)
    if attributes:
        _set_attributes(made, name, attributes)
    return made


def _items_of(name: str, named: dict[Key, Any], state: Any) -> tuple[Any, dict[str, Any], dict[Any, Any]]:
    """Returns the name of the factory, the attributes, and the items by their original keys."""
    _expect(type(state) is list and list(map(type, state))[1:] == [dict, list], name)
    factory, attributes, others = state
    _expect(all(type(each) is str for each in attributes), name)
    _expect(all(type(each) is tuple and len(each) == 2 and type(each[0]) is str for each in others), name)
    _expect_plain_hashes([key for _, key in others])
    own = dict(others)
    return factory, attributes, {own.get(key, key): value for key, value in named.items()} if own else named


def _expect_plain_hashes(keys: list[Any]) -> None:
    cls = _own_hash(keys)
    if cls is not None:
        raise Unsupported(
            f"a batch holds a key of the class {name_of(cls)}, whose own code computes its hash; give levada.register() its "
            "flatten and unflatten"
        )
    try:
        hash(tuple(keys))
    except TypeError:
        raise CorruptMessage("the message holds a key that cannot be one, such as a list") from None


def _dict(cls: Any, base: Any, name: str, factory: Any, items: dict[Any, Any]) -> Any:
    made = base.__new__(cls)
    if base is defaultdict and factory is not None:
        _expect(type(factory) is str and factory in _FACTORIES, f"default_factory of a {name}")
        base.__init__(made, _FACTORIES[factory])
    for key, value in items.items():
        base.__setitem__(made, key, value)
    return made
