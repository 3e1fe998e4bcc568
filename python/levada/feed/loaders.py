"""Detects sources that yield only one rank's part of the data, by their attributes and class names, also inside
iterators, generators and functions. Calls none of the program's functions."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, NamedTuple

from levada._levada import Mesh
from levada.base.errors import InvalidArgument

_MAX_DEPTH = 32
_MAX_PARTS = 2000
_MAX_LISTED = 256
"""Number of members of a list of data sets to examine."""
_MAX_INSTRUCTIONS = 10_000
"""Number of instructions of a function to examine."""

_DIVISIONS = (
    # attribute with the number of parts, attribute with this part's index, remedy
    ("num_replicas", "rank", "make it with num_replicas=1, rank=0"),
    ("data_parallel_size", "data_parallel_rank", "make it with data_parallel_rank=0, data_parallel_size=1"),
    ("dp_world_size", "dp_rank", "make it with dp_rank=0, dp_world_size=1"),
    ("num_processes", "process_index", "make it with num_processes=1, process_index=0"),
    ("num_shards", "shard_id", "make it with num_shards=1, shard_id=0"),
    ("world_size", "rank", "make it with world_size=1, rank=0"),
)
_PREFIXES = ("", "_")

_CLASSES = {
    "DataLoaderShard": "pass the loader that was passed to accelerator.prepare()",
    "DataLoaderDispatcher": "pass the loader that was passed to accelerator.prepare()",
    "StreamingDataset": "iterate it without a feed on each rank, or pass a data set that yields all samples",
    "StreamingDataLoader": "iterate it without a feed on each rank, or pass a loader that yields all samples",
    "SavableDataLoader": "pass a loader that yields all samples, of WorkerConfig(rank=0, world_size=1)",
    "BasicDataLoader": "pass a loader that yields all samples, of WorkerConfig(rank=0, world_size=1)",
}
"""Classes of accelerate, MosaicML Streaming, LitData and Megatron Energon that divide the data among the ranks of the
job."""

_FUNCTIONS = ("split_by_node",)
"""Functions of WebDataset that may be in a list of stages."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, range, CodeType, FrameType)
_CALLABLES = (FunctionType, MethodType, BuiltinMethodType, MethodWrapperType, functools.partial)
_WITH_VARIABLES = (*_CALLABLES, GeneratorType, CellType)
_PART_NAMES = (
    "sampler", "dataset", "loader", "source", "iterable", "iterator", "pipe", "stream", "stage", "root", "base", "child",
    "wrapped", "inner", "worker_config", "nodesplitter", "node", "step", "input", "arguments",
)  # fmt: skip


def why_partial(source: Any) -> str | None:
    """Returns why a source yields only one rank's part of the data, with the remedy, or None if nothing suggests that.
    Examines its samplers and data sets, however deeply nested, and calls none of their functions."""
    for part, is_variable in _parts(source):
        why = _why(part, is_variable=is_variable)
        if why is not None:
            return f"the source is {why}" if part is source else f"the {type(source).__name__} reads from {why}"
    return None


def check_whole(source: Any, mesh: Mesh, job_size: int) -> None:
    """Raises InvalidArgument if a feed along `mesh` would get only one rank's part of the data, because the feed itself
    divides what its source yields."""
    is_part_of_job = mesh.data_size == 1 and mesh.size < job_size  # other feeds may read the other parts
    why = None if mesh.size == 1 or is_part_of_job else why_partial(source)
    if why is not None:
        raise InvalidArgument(f"a feed takes all samples and divides them over its {mesh.size} ranks, but {why}")


def _why(part: Any, *, is_variable: bool) -> str | None:
    if isinstance(part, FunctionType) and part.__name__ in _FUNCTIONS:
        return f"{part.__name__}, which divides the shards by rank; omit it"
    kind = type(part).__name__
    nodes = _count(_attribute(part, "_distributed"), "world_size")
    if nodes > 1:
        return f"{with_article(kind)}, of which split_dataset_by_node() has left one of {nodes} parts; omit that call"
    shards = _count(_attribute(part, "_shard_options"), "shard_count")
    if shards > 1:
        return f"{with_article(kind)} with shard_count={shards}, which yields one of {shards} parts of the data; make it with NoSharding()"
    for number, rank, remedy in () if _only_notes_size(part) or (is_variable and not _may_yield(part)) else _DIVISIONS:
        for before in _PREFIXES:
            parts = _count(part, before + number)
            if parts > 1 and _count(part, before + rank) >= 0:
                return f"{with_article(kind)} with {number}={parts}, which yields one of {parts} parts of the data; {remedy}"
    config = _attribute(part, "worker_config")
    for base in type(part).__mro__:
        if base.__name__ in _CLASSES and (config is None or _count(config, "world_size") != 1):
            return f"{with_article(base.__name__)}, which yields one rank's part of the data; {_CLASSES[base.__name__]}"
    return None


def _only_notes_size(part: Any) -> bool:
    """Returns whether `part` is an iterator of torch's DataLoader over anything but DataPipes. Such an iterator stores
    the size of torch's process group, but only divides DataPipes by it."""
    return _has_base(part, "_BaseDataLoaderIter") and not _has_base(_attribute(part, "_dataset"), "IterDataPipe", "MapDataPipe")


def _has_base(part: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(part).__mro__)


def with_article(kind: str) -> str:
    return f"{'an' if kind[:1] in 'AEIOUaeiou' else 'a'} {kind}"


class _Part(NamedTuple):
    value: Any
    is_variable: bool
    """Whether it was found through a function or generator, whose variables may also be the program's options."""


def _parts(source: Any) -> Iterator[_Part]:
    """Yields a source and its parts, nearest first."""
    level, seen = [_Part(source, False)], {id(source)}
    for _ in range(_MAX_DEPTH):
        below: list[_Part] = []
        for part in level:
            yield part
            is_variable = part.is_variable or isinstance(part.value, _WITH_VARIABLES)
            for each in _members(part.value):
                if isinstance(each, _PLAIN) or id(each) in seen:
                    continue
                if len(seen) >= _MAX_PARTS:
                    return
                seen.add(id(each))
                below.append(_Part(each, is_variable))
        level = below


def _may_yield(part: Any) -> bool:
    """Returns whether the class of `part` can yield items and is not a mapping."""
    names = ("__iter__", "__next__", "__getitem__")
    return not isinstance(part, Mapping) and any(name in base.__dict__ for base in type(part).__mro__ for name in names)


_CONTAINERS = (list, tuple, set, frozenset, deque, dict)


def _members(part: Any) -> Iterator[Any]:
    container = next((kind for kind in _CONTAINERS if isinstance(part, kind)), None)
    if container is not None:  # a subclass may override the container's methods
        with contextlib.suppress(RuntimeError):  # another thread is changing it
            values = dict.values(part) if container is dict else container.__iter__(part)
            yield from list(islice(values, _MAX_LISTED))
    elif isinstance(part, Mapping):
        yield from _own(part).values()
    elif isinstance(part, _WITH_VARIABLES):
        yield from _captured(part)
    else:
        if _is_built_in_iterator(part):
            yield from gc.get_referents(part)
        for name, each in _attributes(part):
            if any(known in name.lower() for known in _PART_NAMES) or _is_built_in_iterator(each):
                yield each


def _is_built_in_iterator(part: Any) -> bool:
    """Returns whether `part` is a generator, or an iterator of Python or itertools, such as map, islice or a list's
    iterator. The garbage collector can list the objects that these refer to."""
    bases = type(part).__mro__
    return any(base.__module__ == "itertools" or (base.__module__ == "builtins" and "__next__" in base.__dict__) for base in bases)


def _captured(part: Any) -> Iterator[Any]:
    """Yields the objects that a function or generator refers to, except its module's functions and containers, which
    may be for other data, too."""
    if isinstance(part, functools.partial):
        yield from (part.func, *part.args, *part.keywords.values())
    elif isinstance(part, MethodType):
        yield from (part.__self__, part.__func__)
    elif isinstance(part, (BuiltinMethodType, MethodWrapperType)):
        yield part.__self__
    elif isinstance(part, GeneratorType):
        if part.gi_frame is not None:
            yield from part.gi_frame.f_locals.values()
            yield from _globals_of(part.gi_code, part.gi_frame.f_globals)
        yield part.gi_yieldfrom
        yield from gc.get_referents(part)  # the iterators of its loops, which no variable refers to
    elif isinstance(part, CellType):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield part.cell_contents
    else:
        yield from part.__closure__ or ()
        yield from part.__defaults__ or ()
        yield from (part.__kwdefaults__ or {}).values()
        yield from _globals_of(part.__code__, part.__globals__)


def _globals_of(code: CodeType, variables: dict[str, Any]) -> Iterator[Any]:
    names = {each.argval for each in islice(dis.get_instructions(code), _MAX_INSTRUCTIONS) if each.opname == "LOAD_GLOBAL"}
    for name in sorted(names):
        value = variables.get(name)
        if not isinstance(value, (*_CALLABLES, *_CONTAINERS, Mapping)):
            yield value


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of an object without calling its properties."""
    yield from list(_own(part).items())
    for base in type(part).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            yield name, _attribute(part, name)


def _own(part: Any) -> dict[str, Any]:
    with contextlib.suppress(AttributeError):
        own = object.__getattribute__(part, "__dict__")
        return own if isinstance(own, dict) else {}
    return {}


def _attribute(part: Any, name: str) -> Any:
    """Returns an attribute of an object or its class, or None if only a property or __getattr__() could return it."""
    own = _own(part)
    if name in own:
        return own[name]
    found = next((base.__dict__[name] for base in type(part).__mro__ if name in base.__dict__), None)
    if isinstance(found, MemberDescriptorType):
        with contextlib.suppress(AttributeError):  # not set
            return found.__get__(part)
        return None
    return None if hasattr(type(found), "__get__") else found


def _count(part: Any, name: str) -> int:
    """Returns an attribute if it is an integer, otherwise -1."""
    number = _attribute(part, name)
    return number if isinstance(number, int) and not isinstance(number, bool) else -1
