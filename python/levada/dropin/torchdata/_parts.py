"""Divides a graph of datapipes into the parts that the dispatching process, the workers and this process run."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph_settings import apply_sharding  # type: ignore[import-not-found, unused-ignore]

from levada._levada import Graph, OpenContext
from levada.base.errors import InvalidArgument, Unsupported
from levada.dropin.torchdata._datapipes import SHARDING_PRIORITIES, is_kind
from levada.dropin.torchdata.graph import all_of, connected, replace, set_datapipes_seed, set_graph_random_seed, shards
from levada.dropin.torchdata.random import SeedGenerator
from levada.dropin.torchdata.utils import WorkerInfo
from levada.pipeline.sources import NativeSource
from levada.pipeline.workers import dumps

DataPipe = Any
_TORCHDATA = "torchdata.datapipes.iter"


class Cut(NamedTuple):
    """The datapipes after which the graph is divided among processes."""

    dispatch_boundary: DataPipe | None
    """Last datapipe of the dispatching process; None if there is no such process."""
    collect_boundary: DataPipe
    """Last datapipe of the workers."""


def cut(datapipe: DataPipe, workers: int) -> Cut:
    """Returns the cut at which Levada's placement divides the graph. Raises InvalidArgument, naming the datapipes, for
    an undivided branch next to a dispatched one."""
    pipes = all_of(datapipe)
    by_name = {f"{type(pipe).__name__.removesuffix('IterDataPipe')}_{at}": pipe for at, pipe in enumerate(pipes)}
    graph = _graph_of(pipes, {id(pipe): name for name, pipe in by_name.items()})
    dispatch_boundary, collect_boundary = graph.place(workers, False)[1:3]
    for name in (dispatch_boundary, collect_boundary):
        if name is not None and name not in by_name:
            raise InvalidArgument(
                f"the datapipes can only be divided among processes at {name}, which is none of them; put "
                "sharding_round_robin_dispatch() after the datapipe that joins its branches"
            )
    assert collect_boundary is not None
    return Cut(None if dispatch_boundary is None else by_name[dispatch_boundary], by_name[collect_boundary])


def _graph_of(pipes: list[DataPipe], names: dict[int, str]) -> Graph:
    """Returns a Levada graph of the same shape: a stage for each datapipe, and a fork if several datapipes read one."""
    numbers = {id(pipe): at for at, pipe in enumerate(pipes)}
    inputs = {id(pipe): [p for p in connected(pipe) if numbers[id(p)] < numbers[id(pipe)]] for pipe in pipes}
    readers: dict[int, int] = {}
    for before in inputs.values():
        for pipe in before:
            readers[id(pipe)] = readers.get(id(pipe), 0) + 1
    ends: dict[int, list[Graph]] = {}
    for pipe in pipes:
        stage = _stage_of(pipe, [ends[id(before)].pop() for before in inputs[id(pipe)]], names[id(pipe)])
        count = readers.get(id(pipe), 1)
        forked = f"after {names[id(pipe)]}"
        ends[id(pipe)] = [stage] if count == 1 else stage.fork(branches=count, buffer=1, name=forked)
    graph = ends[id(pipes[-1])][0]
    for pipe in pipes:
        for held in connected(pipe):
            if numbers[id(held)] > numbers[id(pipe)]:
                graph = graph.colocate(names[id(pipe)], names[id(held)])
    return graph


def _stage_of(pipe: DataPipe, inputs: list[Graph], name: str) -> Graph:
    opened = {"open": _nothing, "what": name, "allow_pickle": False}
    if not inputs:
        return Graph.stage("source", [], {**opened, "divides": "no"}, name)
    is_dispatch = is_kind(pipe, "ShardingRoundRobinDispatcher")
    is_own = hasattr(pipe, "is_replicable") and not pipe.is_replicable()
    if not (is_dispatch or is_own or shards(pipe)):
        return Graph.stage("transform", inputs, opened, name)
    before = inputs[0] if len(inputs) == 1 else Graph.stage("zip", inputs, {}, f"before {name}")
    operation = "dispatch" if is_dispatch else "fullsync" if is_own else "shard"
    return Graph.stage(operation, [before], {}, name)


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


def undivided(datapipe: DataPipe) -> list[DataPipe]:
    """Returns the sources whose items no sharding_filter() divides among workers."""
    found: list[DataPipe] = []
    entered: set[int] = set()
    waiting = [datapipe]
    while waiting:
        pipe = waiting.pop()
        if id(pipe) in entered or shards(pipe) or isinstance(pipe, MapDataPipe):
            continue
        entered.add(id(pipe))
        before = connected(pipe)
        waiting.extend(before)
        if not before:
            found.append(pipe)
    return found


class Entrance(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Represents a part of the graph that another process runs. Yields the items that it sends."""

    def __init__(self) -> None:
        self.open: Callable[[], Iterator[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        assert self.open is not None
        yield from self.open()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, _: dict[str, Any]) -> None:
        self.open = None


class Part(NativeSource):
    """The part of the graph that one process runs. It is sent to that process and restarts in each epoch."""

    def __init__(
        self,
        datapipe: DataPipe,
        entrance: Entrance | None,
        workers: int,
        rank: int,
        init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None,
        reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None,
        *,
        dispatches: bool = False,
    ) -> None:
        self._datapipe = datapipe
        self._entrance = entrance
        self._workers = workers
        self._rank = rank
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._dispatches = dispatches
        self._is_ready = False
        self.iter_reset_fn: Callable[[DataPipe], DataPipe] | None = None

    def __call__(self, inputs: list[Iterator[Any]], context: OpenContext) -> Iterator[Any]:
        number = 0 if self._dispatches else context.among_all[0]
        info = WorkerInfo(self._workers, number)
        if not self._is_ready:
            self._prepare(info)
        if self._entrance is not None:
            self._entrance.open = functools.partial(iter, _Received(inputs[0]))
        if self.iter_reset_fn is not None:
            self._datapipe = self.iter_reset_fn(self._datapipe)
        seeds = SeedGenerator(context.shared_seed)
        if self._dispatches:
            set_datapipes_seed(all_of(self._datapipe), seeds, distributed_shared=True)
        else:
            seeds.spawn(self._rank, inplace=True)
            seeds.spawn(number, inplace=True)
            set_graph_random_seed(self._datapipe, seeds)
        if self._reset_fn is not None:
            self._datapipe = self._reset_fn(self._datapipe, info, seeds)
        if self._entrance is not None:
            self._datapipe = _without_prefetchers(self._datapipe, self._entrance)
        return iter(self._datapipe)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "modules": [_TORCHDATA] if _TORCHDATA in sys.modules else [], "classes": _own_classes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in state.pop("modules"):
            importlib.import_module(name)  # the workers' functions call its datapipes by their functional names
        main = sys.modules["__main__"]
        for cls in state.pop("classes"):
            if not hasattr(main, cls.__name__):
                setattr(main, cls.__name__, cls)
        self.__dict__.update(state)

    def _prepare(self, info: WorkerInfo) -> None:
        self._is_ready = True
        if self._dispatches:
            return
        for branch in self._branches():
            apply_sharding(branch, info.num_workers, info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING)
        if self._init_fn is not None:
            self._datapipe = self._init_fn(self._datapipe, info)

    def _branches(self) -> list[DataPipe]:
        """Returns the branches that no dispatching process feeds, and which are divided among the workers instead."""
        if self._entrance is None:
            return [self._datapipe]
        fed = {id(pipe) for pipe in all_of(self._datapipe) if any(each is self._entrance for each in all_of(pipe))}
        beside: dict[int, DataPipe] = {}
        for pipe in all_of(self._datapipe):
            if id(pipe) in fed:
                beside.update((id(each), each) for each in connected(pipe) if id(each) not in fed)
        return list(beside.values())



class _Received:
    """The items that the dispatching process sends. A worker may only take them on the thread that serves it."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._owner = threading.get_ident()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if threading.get_ident() != self._owner:
            raise Unsupported(
                "a datapipe after sharding_round_robin_dispatch() requests items on its own thread, which workers do not "
                "support; put it before the dispatch, or use worker_prefetch_cnt to make items ahead"
            )
        return next(self._items)


def _without_prefetchers(datapipe: DataPipe, entrance: Entrance) -> DataPipe:
    """Removes the prefetchers after the entrance, because the worker itself makes items ahead, on one thread."""
    for pipe in all_of(datapipe):
        is_prefetcher = is_kind(pipe, "Prefetcher") and not is_kind(pipe, "PinMemory")
        if is_prefetcher and any(each is entrance for each in all_of(pipe)):
            datapipe = replace(datapipe, pipe, pipe.source_datapipe)
    return datapipe


def _own_classes() -> list[type]:
    """Returns the classes of a __main__ that another process does not import, whose instances are to be sent to it."""
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        return []
    own = [value for value in vars(main).values() if isinstance(value, type) and value.__module__ == "__main__"]
    return [cls for cls in own if _can_be_sent(cls)]


def _can_be_sent(cls: type) -> bool:
    try:
        dumps(cls)
    except Exception:
        return False
    return True
