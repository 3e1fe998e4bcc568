"""Finds out from attributes and class names whether a source yields only one rank's part of the data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from levada._levada import Mesh
from levada.base.errors import InvalidArgument

_MAX_DEPTH = 32
_MAX_PARTS = 2000
_MAX_LISTED = 256
"""How many members of a list of data sets are examined."""

_DIVISIONS = (
    # number of parts, index of this part, remedy
    ("num_replicas", "rank", "make it with num_replicas=1, rank=0"),
    ("data_parallel_size", "data_parallel_rank", "make it with data_parallel_rank=0, data_parallel_size=1"),
    ("dp_world_size", "dp_rank", "make it with dp_rank=0, dp_world_size=1"),
    ("num_processes", "process_index", "make it with num_processes=1, process_index=0"),
    ("num_shards", "shard_id", "make it with num_shards=1, shard_id=0"),
    ("world_size", "rank", "make it with world_size=1, rank=0"),
)
_PREFIXES = ("", "_")

_CLASSES = {
    "DataLoaderShard": "pass the loader that accelerator.prepare() was given",
    "DataLoaderDispatcher": "pass the loader that accelerator.prepare() was given",
    "StreamingDataset": "iterate it without a feed on each rank, or give a data set that yields all samples",
    "StreamingDataLoader": "iterate it without a feed on each rank, or give a loader that yields all samples",
    "SavableDataLoader": "give a loader that yields all samples, of WorkerConfig(rank=0, world_size=1)",
    "BasicDataLoader": "give a loader that yields all samples, of WorkerConfig(rank=0, world_size=1)",
}
"""Classes of accelerate, MosaicML Streaming, LitData and Megatron Energon that divide the data among the ranks of the
job."""

_FUNCTIONS = ("split_by_node",)
"""Functions of WebDataset in a list of stages."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, range)
_PART_NAMES = (
    "sampler", "dataset", "loader", "source", "iterable", "iterator", "pipe", "stream", "stage", "root", "base", "child",
    "wrapped", "inner", "worker_config", "nodesplitter", "node", "step", "input", "arguments",
)  # fmt: skip


def why_partial(source: Any) -> str | None:
    """Returns the reason for which a source yields only one rank's part of the data, with the remedy; None if there is
    no sign of that. Examines its samplers and data sets, however they are nested, and calls none of their functions."""
    for part in _parts(source):
        why = _why(part)
        if why is not None:
            return f"the source is {why}" if part is source else f"the {type(source).__name__} reads from {why}"
    return None


def check_whole(source: Any, mesh: Mesh, job_size: int) -> None:
    """Raises InvalidArgument if a feed along `mesh`, which divides what its source yields, gets only one rank's
    part."""
    is_part_of_job = mesh.data_size == 1 and mesh.size < job_size  # other feeds may have the other parts
    why = None if mesh.size == 1 or is_part_of_job else why_partial(source)
    if why is not None:
        raise InvalidArgument(f"a feed takes all samples and divides them over its {mesh.size} ranks, but {why}")


def _why(part: Any) -> str | None:
    name = getattr(part, "__name__", None) if callable(part) and not isinstance(part, type) else None
    if name in _FUNCTIONS:
        return f"{name}, which divides the shards by rank; leave it out"
    kind = type(part).__name__
    nodes = _count(_attribute(part, "_distributed"), "world_size")
    if nodes > 1:
        return f"{_article(kind)}, of which split_dataset_by_node() has left one of {nodes} parts; leave out that call"
    for number, rank, remedy in () if _only_notes_size(part) else _DIVISIONS:
        for before in _PREFIXES:
            parts = _count(part, before + number)
            if parts > 1 and _count(part, before + rank) >= 0:
                return f"{_article(kind)} with {number}={parts}, which yields one of {parts} parts of the data; {remedy}"
    config = _attribute(part, "worker_config")
    for base in type(part).__mro__:
        if base.__name__ in _CLASSES and (config is None or _count(config, "world_size") != 1):
            return f"{_article(base.__name__)}, which yields one rank's part of the data; {_CLASSES[base.__name__]}"
    return None


def _only_notes_size(part: Any) -> bool:
    """Returns whether this is an iterator of torch's DataLoader over anything but DataPipes. It stores the size of
    torch's process group, but divides only DataPipes by it."""
    return _has_base(part, "_BaseDataLoaderIter") and not _has_base(_attribute(part, "_dataset"), "IterDataPipe", "MapDataPipe")


def _has_base(part: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(part).__mro__)


def _article(kind: str) -> str:
    return f"{'an' if kind[:1] in 'AEIOUaeiou' else 'a'} {kind}"


def _parts(source: Any) -> Iterator[Any]:
    """Yields a source and its parts, the nearest first."""
    level, seen = [source], {id(source)}
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            yield part
            for each in _members(part):
                if isinstance(each, _PLAIN) or id(each) in seen:
                    continue
                if len(seen) >= _MAX_PARTS:
                    return
                seen.add(id(each))
                below.append(each)
        level = below


def _members(part: Any) -> Iterator[Any]:
    if isinstance(part, (list, tuple)):
        yield from part[:_MAX_LISTED]
    elif isinstance(part, Mapping):
        with contextlib.suppress(Exception):
            yield from list(part.values())[:_MAX_LISTED]
    elif isinstance(part, GeneratorType):
        yield from [] if part.gi_frame is None else list(part.gi_frame.f_locals.values())
    elif isinstance(part, (map, filter, zip, enumerate, reversed)):
        with contextlib.suppress(Exception):
            yield from part.__reduce__()[1]
    elif isinstance(part, (FunctionType, MethodType, functools.partial)):
        yield from _captured(part)
    else:
        for name, each in _attributes(part):
            if any(known in name.lower() for known in _PART_NAMES):
                yield each


def _captured(function: Any) -> Iterator[Any]:
    """Yields the objects that a function refers to in addition to those of its module."""
    if isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    elif isinstance(function, MethodType):
        yield from (function.__self__, function.__func__)
    else:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable without a value yet
                yield cell.cell_contents


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of an object without calling its properties."""
    with contextlib.suppress(Exception):
        yield from list(vars(part).items())
    for base in type(part).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            yield name, _attribute(part, name)


def _attribute(part: Any, name: str) -> Any:
    try:
        return getattr(part, name, None)
    except Exception:
        return None


def _count(part: Any, name: str) -> int:
    """Returns an attribute if it is an integer, otherwise -1."""
    number = _attribute(part, name)
    return number if isinstance(number, int) and not isinstance(number, bool) else -1
