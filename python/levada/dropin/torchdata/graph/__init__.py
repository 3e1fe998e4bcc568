"""Functions on graphs of datapipes, as traverse_dps() returns them: {id: (datapipe, the graph before it)}."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph import (  # type: ignore[import-not-found, unused-ignore]
    DataPipe,
    DataPipeGraph,
    _list_connected_datapipes,
    traverse_dps,
)

from levada.dropin.torchdata._datapipes import SHARDING_PRIORITIES
from levada.dropin.torchdata.random import SeedGenerator

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]


def list_dps(graph: Any, exclude_dps: Any = None) -> list[Any]:
    """Returns the datapipes of a graph, each once, breadth first from its end. Leaves out `exclude_dps` (one or
    several) and all datapipes before those."""
    if isinstance(exclude_dps, (IterDataPipe, MapDataPipe)):
        exclude_dps = [exclude_dps]
    seen = {id(pipe) for excluded in exclude_dps or () for pipe in all_of(excluded)}
    found: list[Any] = []
    waiting = deque([graph])
    while waiting:
        for number, (pipe, before) in waiting.popleft().items():
            if number not in seen:
                seen.add(number)
                found.append(pipe)
                waiting.append(before)
    return found


def find_dps(graph: Any, dp_type: type[Any]) -> list[Any]:
    """Returns the datapipes of exactly this class, not of subclasses."""
    return [pipe for pipe in list_dps(graph) if type(pipe) is dp_type]


def replace_dp(graph: Any, old_datapipe: Any, new_datapipe: Any) -> Any:
    """Replaces a datapipe by another, which may contain it, and returns the new graph."""
    return traverse_dps(replace(_end_of(graph), old_datapipe, new_datapipe))


def remove_dp(graph: Any, datapipe: Any) -> Any:
    """Removes a datapipe that has exactly one datapipe before it, and returns the new graph."""
    before = connected(datapipe)
    if not before:
        raise RuntimeError(f"Cannot remove the source DataPipe {datapipe} from the graph")
    if len(before) > 1:
        raise RuntimeError(f"Cannot remove the receiving DataPipe {datapipe}, which has {len(before)} before it")
    return replace_dp(graph, datapipe, before[0])


def _end_of(graph: Any) -> Any:
    [(end, _)] = graph.values()
    return end


def set_datapipes_seed(datapipes: Iterable[Any], seed_generator: SeedGenerator, distributed_shared: bool) -> None:
    """Seeds the datapipes that have a set_seed(): with shared seeds, or with seeds of this process only."""
    for pipe in datapipes:
        if callable(getattr(pipe, "set_seed", None)):
            draw = seed_generator.generate_shared_seed if distributed_shared else seed_generator.generate_seed
            pipe.set_seed(draw())


def set_graph_random_seed(datapipe: Any, seed_generator: SeedGenerator) -> Any:
    """Seeds the datapipes that have a set_seed(), with shared seeds before a sharding_filter and own seeds after it."""
    pipes = all_of(datapipe)
    before = {id(each) for pipe in pipes if shards(pipe) for each in all_of(pipe)}
    for pipe in pipes:
        set_datapipes_seed([pipe], seed_generator, distributed_shared=id(pipe) in before)
    return datapipe


def connected(datapipe: DataPipe) -> list[DataPipe]:
    """Returns the datapipes that this datapipe refers to, such as those before it."""
    found: list[DataPipe] = _list_connected_datapipes(datapipe, True, set())
    return found


def all_of(datapipe: DataPipe) -> list[DataPipe]:
    """Returns this datapipe and all before it, in the order in which items pass through them."""
    order: dict[int, DataPipe] = {}
    entered: set[int] = set()
    waiting = [(datapipe, False)]
    while waiting:
        pipe, is_ready = waiting.pop()
        if is_ready:
            order[id(pipe)] = pipe
        elif id(pipe) not in entered:
            entered.add(id(pipe))
            waiting.append((pipe, True))
            waiting.extend((before, False) for before in reversed(connected(pipe)))
    return list(order.values())


def shards(pipe: DataPipe) -> bool:
    """Returns whether the datapipe divides items among workers."""
    if not callable(getattr(pipe, "apply_sharding", None)) or not getattr(pipe, "is_shardable", lambda: True)():
        return False
    return getattr(pipe, "sharding_group_filter", None) in (None, SHARDING_PRIORITIES.MULTIPROCESSING)


def replace(datapipe: DataPipe, old: DataPipe, new: DataPipe) -> DataPipe:
    """Replaces `old` by `new` in the graph, in place. Returns the end of the graph."""
    if datapipe is old:
        return new
    for pipe in all_of(datapipe):
        held: dict[str, Any] = pipe.__dict__
        for name, value in list(held.items()):
            held[name] = _replaced(value, old, new)
    return datapipe


def _replaced(value: Any, old: DataPipe, new: DataPipe) -> Any:
    """Returns `value`, or a copy that contains `new` if it contains `old`."""
    if value is old:
        return new
    if isinstance(value, (IterDataPipe, MapDataPipe)):
        return value
    if isinstance(value, dict):
        return _kept(value, {key: _replaced(each, old, new) for key, each in value.items()}, value.values())
    if type(value) in (list, tuple, set, frozenset):
        return _kept(value, type(value)(_replaced(each, old, new) for each in value), value)
    return value


def _kept(before: Any, after: Any, held: Iterable[Any]) -> Any:
    now = after.values() if isinstance(after, dict) else after
    return before if [id(each) for each in held] == [id(each) for each in now] else after
