"""Takes objects of users' classes apart as containers, and puts them together again.

A class is sent by name, "module:qualified.name", and the bytes may come from a hostile rank or a forged file. They may
therefore name only classes that the user has chosen:

| bytes from | may name |
|---|---|
| any source | the plain values and containers of the tables below; classes passed to register() or registered with optree; TensorDict |
| a batch between ranks | in addition the program's own named tuples, data classes and dict classes: those of __main__ and of modules that are not installed in site-packages |
| anything that the user loads with allow_pickle=True | every class, as pickle |

A name denotes one class of one imported module, never a path through modules. No code of an unregistered class runs
while its objects are made: object, tuple or dict allocates them, and only their declared fields are set.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import pathlib
import sys
import types
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from levada.base.errors import CorruptMessage, InvalidArgument, InvalidType, Unsupported
from levada.batch.instances import (
    Key,
    field_names,
    is_computed,
    is_dataclass,
    is_reserved,
    is_special,
    key_names,
    make_mapping,
    make_record,
    name_of_factory,
    notes_of,
    reserved_keys,
)
from levada.batch.leaves import LEAVES, PLAIN, Leaf, expect, in_order, is_image, put_leaf_together, typed

Parts = tuple[str, str, Sequence[Key], list[Any], Any]
"""Kind, class, keys, children and other state. A "dict" loses the keys that a rank does not receive, a "record" has
None for them, and a "leaf" is sent as one value."""


REGISTERED, PROGRAM, ANY = range(3)
"""The classes that bytes may name, as `Allowed` in trees.h: registered ones; also the program's own; every class."""


def _set_of(cls: type) -> Callable[[Any], Any]:
    def put_together(elements: Any) -> Any:
        _expect_plain_hashes(typed(elements, list))
        return cls(elements)

    return put_together


_LEAVES = {
    **LEAVES,
    "builtins:set": Leaf(in_order, _set_of(set)),
    "builtins:frozenset": Leaf(in_order, _set_of(frozenset)),
}
"""The leaves and sets, by class name."""

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
"""Well-known containers that can be sent without registration."""


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
    """Registers `cls`, so that its objects, but not those of subclasses, can be part of batches and states. Returns
    `cls`.

    A named tuple, a data class or a Mapping can be decorated with `@levada.register` and is sent by its fields or
    items. Any other class follows the conventions of optree. `flatten(object)` returns (children, state) or (children,
    state, names): an iterable of trees, a tree with all other data of the object, and the children's names in paths (by
    default "0", "1", ...). `unflatten(state, children)` makes an object from them; a child that a rank's layout leaves
    out is None.

    Every rank must register the same classes. The sender of the bytes chooses the values of the objects, so do not
    register a class that treats a value as code, as a command or as the name of a file. Raises InvalidArgument if
    another class of the same name is registered.
    """
    if not isinstance(cls, type):
        raise InvalidType(f"levada.register() takes a class, got {cls!r}")
    name = name_of(cls)
    if flatten is None or unflatten is None:
        if _form_of(cls) is None:
            raise InvalidArgument(
                f"{name} is no named tuple, data class or Mapping; pass flatten and unflatten to levada.register()"
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
    """Returns the class of this name in an imported module, or None. Ignores classes that the module only imports, and
    those reached through another module. Raises Unsupported, naming the missing import."""
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None and may_import:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise Unsupported(f"a batch holds an object of {name}, which cannot be imported on this rank: {error}") from error
    if module is None:
        raise Unsupported(f"a batch holds an object of {name}; import {module_name} on every rank, or pass allow_pickle=True")
    if not isinstance(module, types.ModuleType):
        return None
    # An attribute of a module that is imported lazily would import it.
    namespace = object.__getattribute__(module, "__dict__")
    for step in path.split("."):
        found: Any = namespace.get(step)
        if type(found) is not type and not issubclass(type(found), type):  # isinstance() would query the object
            return None
        namespace = vars(found)
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
    """Makes a TensorDict from the keys that this rank received. A layout may have cut them along their batch
    dimensions."""
    try:
        return _tensordict_of(state, children)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptMessage(f"the message holds no valid TensorDict: {error}") from error


def _tensordict_of(state: Any, children: list[Any]) -> Any:
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
    """Returns why bytes may not name this class without a flatten function, or None if they may."""
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
    """Returns how to make an object of the class from its parts: the class that allocates it, `dataclass` for a record
    of its fields, or `Mapping` if only the class's own code can make it. Returns None for a class that is not a
    container. A member of an Enum is no container: each is made once."""
    if issubclass(cls, enum.Enum):
        return None
    if is_named_tuple(cls):
        return tuple
    if issubclass(cls, Mapping) and is_dataclass(cls):
        return Mapping
    forms = (OrderedDict, defaultdict, dict, UserDict, Mapping, types.SimpleNamespace)
    form = next((each for each in forms if issubclass(cls, each)), None)
    return dataclasses.dataclass if form is None and is_dataclass(cls) and not _has_c_base(cls) else form


def _has_c_base(cls: type) -> bool:
    """Returns whether the class derives from a static one other than object, such as list or Exception, which holds data
    in addition to the fields."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE) is not object


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE"""


def _is_installed(name: str) -> bool:
    """Returns whether a class belongs to Python, Levada or an installed package rather than to the user's program."""
    module_name = name.partition(":")[0]
    if module_name == "__main__":
        return False
    top = module_name.partition(".")[0]
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if top == "levada" or top in sys.stdlib_module_names or not isinstance(file, str):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(file).parts)


def _own_code(cls: type) -> str | None:
    """Returns the class's own code that would run when Levada makes and drops an object of it, or None."""
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
            return f"sets its field {field.name} by its own code and is not registered"
    return None


def _name_to_send(cls: Any, path: str, allowed: int) -> str:
    """Returns the name by which every rank finds `cls`. Raises TypeError if other ranks would reject it."""
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
    return f"call levada.register({cls.__name__}) on every rank, or pass allow_pickle=True"


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make")


def take_apart(value: Any, path: str, allowed: int) -> Parts | None:
    """Returns the parts of an object that is not a plain container; None for an object of an unknown class. If
    `allowed` is ANY, a part may be an object that can only be sent as a pickle."""
    cls: Any = type(value)
    name = "PIL.Image:Image" if is_image(value) else name_of(cls)
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
        names = field_names(cls)
        return "record", name, names, [getattr(value, name) for name in names], notes_of(value, names)
    if form is types.SimpleNamespace:
        if _needs_pickle(cls, vars(value), path, allowed):
            return None
        return "record", name, list(vars(value)), list(vars(value).values()), None
    keys, others = key_names(value.keys())
    if others:
        _refuse_own_hashes((key for _, key in others), path)
    state = _state_of(value, others, path, allowed)
    if _needs_pickle(cls, {} if state is None else state[1], path, allowed, reserved_keys(cls, keys, value.values())):
        return None
    return "dict", name, keys, list(value.values()), state


def _needs_pickle(cls: Any, attributes: Iterable[str], path: str, allowed: int, keys: Sequence[Key] = ()) -> bool:
    """Returns whether only a pickle may make the object, because of an attribute that is special or one of these keys.
    Raises TypeError if pickles are not allowed."""
    special = next((each for each in [*attributes, *keys] if is_special(cls, str(each))), None)
    if special is None or allowed == ANY:
        return special is not None
    if is_reserved(special):
        raise TypeError(
            f"{path} cannot cross between ranks: its attribute {special} has a name in which packages look for memory or code; "
            "rename or remove it"
        )
    raise TypeError(f"{path} cannot cross between ranks: its attribute {special} hides a method of {name_of(cls)}; {_remedy(cls)}")


def _refuse_own_hashes(keys: Iterable[Any], path: str) -> None:
    cls = _own_hash(keys)
    if cls is not None:
        raise TypeError(
            f"{path} cannot cross between ranks: a key or element is of the class {name_of(cls)}, whose own code computes "
            "its hash; pass its flatten and unflatten to levada.register()"
        )


def _own_hash(keys: Iterable[Any]) -> type | None:
    """Returns the class of a key whose hash its own code computes, or None. Ignores registered classes."""
    for key in keys:
        cls: Any = type(key)
        if cls in PLAIN:
            continue
        is_own = not (type(cls.__hash__) is type(cls.__eq__) is types.WrapperDescriptorType)
        if is_own and name_of(cls) not in _LEAVES and find_registration(cls) is None:
            return cls  # type: ignore[no-any-return]
        found = _own_hash(key) if issubclass(cls, (tuple, frozenset)) else None
        if found is not None:
            return found
    return None


def _flattened(value: Any, cls: type, registration: Registration) -> Parts:
    parts = registration.flatten(value)
    children = list(parts[0])
    names = parts[2] if len(parts) > 2 and parts[2] is not None else range(len(children))
    return "record", name_of(cls), [str(name) for name in names], children, [parts[1]]


def _state_of(value: Any, others: list[tuple[str, Any]], path: str, allowed: int) -> Any:
    """Returns the data of a mapping other than its items: the name of a defaultdict's factory, the attributes, and the
    original keys that were replaced."""
    attributes = {name: each for name, each in getattr(value, "__dict__", {}).items() if not is_computed(type(value), name)}
    if isinstance(value, UserDict):
        attributes.pop("data", None)
    if is_dataclass(value):
        attributes = {}  # the fields are the items
    if allowed != ANY and "_encodings" in attributes and _is_batch_encoding(value):
        attributes["_encodings"] = None  # as with a tokenizer written in Python
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if factory is None and not attributes and not others:
        return None
    return [None if factory is None else name_of_factory(factory, f"{path}.default_factory"), attributes, others]


def _is_batch_encoding(value: Any) -> bool:
    tokenizers = sys.modules.get("transformers.tokenization_utils_base")
    return tokenizers is not None and isinstance(value, tokenizers.BatchEncoding)


def put_together(name: str, keys: list[Key], children: list[Any], state: Any, allowed: int) -> Any:
    """Puts an object together from the parts that take_apart() returned. All parts are untrusted. Raises Unsupported
    for a class that they may not name, and CorruptMessage for parts that do not fit the class."""
    leaf = _LEAVES.get(name)
    if leaf is not None:
        return put_leaf_together(name, leaf, children)
    registration = _registered.get(name)
    if registration is None:
        cls = find(name, allowed == ANY)
        if cls is None:
            module = name.partition(":")[0]
            raise Unsupported(f"a batch holds an object of {name}, which {module} does not have on this rank; levada.register() it")
        registration = find_registration(cls)
        if registration is None:
            why = _refusal(cls, name, allowed)
            if why is not None:
                raise Unsupported(f"a batch or state holds a {name}, which {why}; {_remedy(cls)}")
            return _instance(cls, name, keys, children, state)
    expect(type(state) is list and len(state) == 1, name)
    return registration.unflatten(state[0], children)


def _instance(cls: Any, name: str, keys: list[Key], children: list[Any], state: Any) -> Any:
    form = _form_of(cls)
    if form is tuple:
        expect(len(children) == len(cls._fields), name)
        return tuple.__new__(cls, children)
    if form is dataclasses.dataclass:
        return make_record(cls, name, keys, children, state)
    if form is types.SimpleNamespace:
        expect(not any(is_special(cls, str(key)) for key in keys), name)
        return cls(**{str(key): child for key, child in zip(keys, children, strict=True)})
    expect(not reserved_keys(cls, keys, children), name)
    named = dict(zip(keys, children, strict=True))
    factory, attributes, items = (None, {}, named) if state is None else _items_of(cls, name, named, state)
    return make_mapping(cls, form, name, factory, attributes, items)


def _items_of(cls: Any, name: str, named: dict[Key, Any], state: Any) -> tuple[Any, dict[str, Any], dict[Any, Any]]:
    """Returns the name of the factory, the attributes, and the items by their original keys."""
    expect(type(state) is list and list(map(type, state))[1:] == [dict, list], name)
    factory, attributes, others = state
    expect(all(type(each) is str and not is_special(cls, each) for each in attributes), name)
    expect(all(type(each) is tuple and len(each) == 2 and type(each[0]) is str for each in others), name)
    _expect_plain_hashes([key for _, key in others])
    own = dict(others)
    return factory, attributes, {own.get(key, key): value for key, value in named.items()} if own else named


def _expect_plain_hashes(keys: list[Any]) -> None:
    cls = _own_hash(keys)
    if cls is not None:
        raise Unsupported(
            f"a batch holds a key of the class {name_of(cls)}, whose own code computes its hash; pass its flatten and "
            "unflatten to levada.register()"
        )
    try:
        hash(tuple(keys))
    except TypeError:
        raise CorruptMessage("the message has a key of a type that cannot be a key, such as a list") from None
    if len(keys) > _MAX_EQUAL_HASHES and max(Counter(map(hash, keys)).values()) > _MAX_EQUAL_HASHES:
        raise CorruptMessage("the message has keys or elements of one hash, whose lookup takes too long")


_MAX_EQUAL_HASHES = 1000
