"""A graph of datapipes: found, placed by Levada, and cut in parts that are processes' own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph import (  # type: ignore[import-not-found, unused-ignore]
    _list_connected_datapipes,
)
from torch.utils.data.graph_settings import apply_sharding  # type: ignore[import-not-found, unused-ignore]

from levada._errors import InvalidArgument
from levada._levada import Graph, Opening
from levada._sources import NativeSource
from levada.dropin._torchdata_pipes import SHARDING_PRIORITIES, SeedGenerator, ShardingRoundRobinDispatcher

DataPipe = Any


class WorkerInfo(NamedTuple):
    """A worker's place among the workers."""

    num_workers: int
    worker_id: int


class Cut(NamedTuple):
    """The datapipes behind which the graph is cut."""

    dealt: DataPipe | None
    """What the dispatching process gives; None where there is none."""
    gathered: DataPipe
    """What the workers give."""


def connected(datapipe: DataPipe) -> list[DataPipe]:
    """The datapipes that this one holds, such as those before it."""
    found: list[DataPipe] = _list_connected_datapipes(datapipe, True, set())
    return found


def all_of(datapipe: DataPipe) -> list[DataPipe]:
    """This one and all before it, those before it first."""
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


def cut(datapipe: DataPipe, workers: int) -> Cut:
    """Where Levada's placement cuts the graph. Raises InvalidArgument, naming the datapipes, for one beside a mark that
    nothing divides."""
    pipes = all_of(datapipe)
    by_name = {f"{type(pipe).__name__.removesuffix('IterDataPipe')}_{at}": pipe for at, pipe in enumerate(pipes)}
    graph = _graph_of(pipes, {id(pipe): name for name, pipe in by_name.items()})
    dealt, gathered = graph.place(workers, False)[1:3]
    for name in (dealt, gathered):
        if name is not None and name not in by_name:
            raise InvalidArgument(f"the datapipes can be cut behind none of them, but only at {name}")
    assert gathered is not None
    return Cut(None if dealt is None else by_name[dealt], by_name[gathered])


def _graph_of(pipes: list[DataPipe], names: dict[int, str]) -> Graph:
    """The graph that stands for theirs: a stage of a datapipe's name for each, and forks where several take from one."""
    numbers = {id(pipe): at for at, pipe in enumerate(pipes)}
    inputs = {id(pipe): [p for p in connected(pipe) if numbers[id(p)] < numbers[id(pipe)]] for pipe in pipes}
    takers: dict[int, int] = {}
    for before in inputs.values():
        for pipe in before:
            takers[id(pipe)] = takers.get(id(pipe), 0) + 1
    ends: dict[int, list[Graph]] = {}
    for pipe in pipes:
        stage = _stage_of(pipe, [ends[id(before)].pop() for before in inputs[id(pipe)]], names[id(pipe)])
        count = takers.get(id(pipe), 1)
        forked = f"after {names[id(pipe)]}"
        ends[id(pipe)] = [stage] if count == 1 else stage.fork(branches=count, buffer=1, name=forked)
    graph = ends[id(pipes[-1])][0]
    for pipe in pipes:
        for held in connected(pipe):
            if numbers[id(held)] > numbers[id(pipe)]:
                graph = graph.tie(names[id(pipe)], names[id(held)])
    return graph


def _stage_of(pipe: DataPipe, inputs: list[Graph], name: str) -> Graph:
    if not inputs:
        return Graph.source(_nothing, name, False, name=name)
    is_mark = isinstance(pipe, ShardingRoundRobinDispatcher)
    is_own = hasattr(pipe, "is_replicable") and not pipe.is_replicable()
    if not (is_mark or is_own or _shards(pipe)):
        return Graph.transform(inputs, open=_nothing, what=name, name=name)
    before = inputs[0] if len(inputs) == 1 else Graph.zip(inputs, name=f"before {name}")
    if is_mark:
        return before.dispatch(name=name)
    return before.fullsync(name=name) if is_own else before.shard(name=name)


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


def _shards(pipe: DataPipe) -> bool:
    """Whether it divides items among workers."""
    if not callable(getattr(pipe, "apply_sharding", None)) or not getattr(pipe, "is_shardable", lambda: True)():
        return False
    return getattr(pipe, "sharding_group_filter", None) in (None, SHARDING_PRIORITIES.MULTIPROCESSING)


def replace(datapipe: DataPipe, old: DataPipe, new: DataPipe) -> DataPipe:
    """The graph with `new` in the place of `old`, changed where it stands."""
    if datapipe is old:
        return new
    for pipe in all_of(datapipe):
        held: dict[str, Any] = pipe.__dict__
        for name, value in list(held.items()):
            held[name] = _replaced(value, old, new)
    return datapipe


def _replaced(value: Any, old: DataPipe, new: DataPipe) -> Any:
    """`value`, or where it holds `old` one that holds `new`."""
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


def set_seeds(datapipe: DataPipe, seeds: SeedGenerator) -> None:
    """Seeds what draws at random: by shared seeds what stands before a sharding_filter, by its own what does not."""
    before: dict[int, DataPipe] = {}
    for pipe in all_of(datapipe):
        if _shards(pipe):
            before.update((id(each), each) for each in all_of(pipe))
    for pipe in all_of(datapipe):
        if callable(getattr(pipe, "set_seed", None)):
            pipe.set_seed(seeds.generate_shared_seed() if id(pipe) in before else seeds.generate_seed())


def set_shared_seeds(datapipe: DataPipe, seeds: SeedGenerator) -> None:
    for pipe in all_of(datapipe):
        if callable(getattr(pipe, "set_seed", None)):
            pipe.set_seed(seeds.generate_shared_seed())


class Entrance(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Stands for a part of the graph that another process runs: gives what comes of it."""

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
    """What a process runs of the graph. Sent to it; there begun anew in each epoch."""

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

    def __call__(self, inputs: list[Iterator[Any]], opening: Opening) -> Iterator[Any]:
        number = 0 if self._dispatches else opening.among_all[0]
        info = WorkerInfo(self._workers, number)
        if not self._is_ready:
            self._prepare(info)
        if self._entrance is not None:
            self._entrance.open = functools.partial(iter, inputs[0])
        if self.iter_reset_fn is not None:
            self._datapipe = self.iter_reset_fn(self._datapipe)
        seeds = SeedGenerator(opening.shared_seed)
        if self._dispatches:
            set_shared_seeds(self._datapipe, seeds)
        else:
            seeds.spawn(self._rank, inplace=True)
            seeds.spawn(number, inplace=True)
            set_seeds(self._datapipe, seeds)
        if self._reset_fn is not None:
            self._datapipe = self._reset_fn(self._datapipe, info, seeds)
        return iter(self._datapipe)

    def _prepare(self, info: WorkerInfo) -> None:
        self._is_ready = True
        if self._dispatches:
            return
        for branch in self._branches():
            apply_sharding(branch, info.num_workers, info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING)
        if self._init_fn is not None:
            self._datapipe = self._init_fn(self._datapipe, info)

    def _branches(self) -> list[DataPipe]:
        """What of the graph no dispatching process feeds, and so has to be divided here."""
        if self._entrance is None:
            return [self._datapipe]
        fed = {id(pipe) for pipe in all_of(self._datapipe) if any(each is self._entrance for each in all_of(pipe))}
        beside: dict[int, DataPipe] = {}
        for pipe in all_of(self._datapipe):
            if id(pipe) in fed:
                beside.update((id(each), each) for each in connected(pipe) if id(each) not in fed)
        return list(beside.values())

