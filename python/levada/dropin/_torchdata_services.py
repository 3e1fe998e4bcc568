"""Reading services: who carries out the datapipes of a DataLoader2."""

from __future__ import annotations

import contextlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import IterDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph_settings import apply_sharding  # type: ignore[import-not-found, unused-ignore]

from levada._job import rank
from levada._pipeline import native
from levada._runs import Run
from levada._workers import CONTEXTS, dumps
from levada.dropin._torchdata_graph import Entrance, Part, WorkerInfo, cut, replace, set_seeds
from levada.dropin._torchdata_pipes import (
    SHARDING_PRIORITIES,
    FullSync,
    Prefetcher,
    SeedGenerator,
    refuse_unknown_start,
)
DataPipe = Any
ResetFn = Callable[[DataPipe], DataPipe]
InitFn = Callable[[DataPipe, WorkerInfo], DataPipe]
WorkerResetFn = Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe]


def _nothing() -> None:
    """Of services that make nothing ahead."""


def clone(value: Any) -> Any:
    """A copy that shares nothing, of what can be sent to another process."""
    return pickle.loads(dumps(value))


class ReadingServiceInterface(ABC):
    """How a DataLoader2 has its datapipes carried out."""

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Called once, before the first epoch: the datapipe that is iterated instead."""

    def finalize(self) -> None:
        """Called when the loader is shut down."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Called before each epoch. `iter_reset_fn`: what the service before this one wants done to its datapipes; what is
        returned is for the service after this one, or behind the last for the loader."""
        return None

    def finalize_iteration(self) -> None:
        """Called when an epoch has ended."""

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # of what has gone before this
            self.finalize()


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """One that can say where it stands."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """After the item given last."""

    @abstractmethod
    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """In place of initialize(), where checkpoint() was called."""


class InProcessReadingService(CheckpointableReadingServiceInterface):
    """All in this process. `prefetch_cnt`: items made ahead. `init_fn(datapipe, info)` is called once, `reset_fn(datapipe,
    info, seeds)` before each epoch; each gives the datapipe to go on with."""

    def __init__(
        self, prefetch_cnt: int = 0, init_fn: InitFn | None = None, reset_fn: WorkerResetFn | None = None
    ) -> None:
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._place = _Place()

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        apply_sharding(datapipe, 1, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
        if self._init_fn is not None:
            datapipe = self._init_fn(datapipe, WorkerInfo(1, 0))
        if self._prefetch_cnt > 0:
            datapipe = Prefetcher(datapipe, self._prefetch_cnt)
        self._place.datapipe = datapipe
        return self._place

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        place = self._place
        if iter_reset_fn is not None:
            place.datapipe = iter_reset_fn(place.datapipe)
        set_seeds(place.datapipe, seed_generator)
        if self._reset_fn is not None:
            place.datapipe = self._reset_fn(place.datapipe, WorkerInfo(1, 0), seed_generator)
        return None

    def checkpoint(self) -> bytes:
        return pickle.dumps(self._place.given)

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        restored = self.initialize(datapipe)
        self._place.skip = pickle.loads(serialized_state)
        return restored

    def _pause(self) -> None:
        """Nothing is taken meanwhile."""

    def _resume(self) -> None:
        """As before."""


class _Place(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Counts what an epoch has given, and may leave out what was given before."""

    def __init__(self) -> None:
        self.datapipe: DataPipe = None
        self.given = 0
        self.skip = 0

    def __iter__(self) -> Iterator[Any]:
        skip, self.skip, self.given = self.skip, 0, 0
        for item in self.datapipe:
            self.given += 1
            if self.given > skip:
                yield item

    def __len__(self) -> int:
        return len(self.datapipe)


class MultiProcessingReadingService(CheckpointableReadingServiceInterface):
    """Workers as processes. What stands before all sharding_round_robin_dispatch() runs in one more process, which deals
    its items to the workers in turn; what says of itself is_replicable() == False stays in this one.

    - `num_workers`: how many; 0: all in this process.
    - `multiprocessing_context`: "spawn", "forkserver" or "fork", as levada.Pipeline.run() says; None: "spawn".
    - `worker_prefetch_cnt`, `main_prefetch_cnt`: how many items may wait for a worker, and of each worker for this process.
    - `worker_init_fn(datapipe, info)`: called in each worker when it has started.
    - `worker_reset_fn(datapipe, info, seeds)`: called in each of the other processes before each epoch. Both give the
      datapipe to go on with.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: InitFn | None = None,
        worker_reset_fn: WorkerResetFn | None = None,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers is {num_workers}; it is at least 0")
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self._context = refuse_unknown_start(multiprocessing_context, CONTEXTS)
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        self._in_process: InProcessReadingService | None = None
        self._run: Run[Any] | None = None
        self._parts: list[Part] = []
        self._packed_reset_fn: bytes | None = None
        self._end: DataPipe = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        if self.num_workers == 0:
            self._in_process = InProcessReadingService(0, self.worker_init_fn, self.worker_reset_fn)
            return self._in_process.initialize(datapipe)
        dealt, gathered = cut(datapipe, self.num_workers)
        exit_of_workers = Entrance()
        end = replace(datapipe, gathered, exit_of_workers)
        self._run = self._make_run(dealt, gathered)
        exit_of_workers.open = self._run.__iter__
        self._end = end
        return end

    def _make_run(self, dealt: DataPipe | None, gathered: DataPipe) -> Run[Any]:
        own = rank()
        entrance = None
        if dealt is not None:
            entrance = Entrance()
            gathered = entrance if gathered is dealt else replace(gathered, dealt, entrance)
        work = Part(gathered, entrance, self.num_workers, own, self.worker_init_fn, self.worker_reset_fn)
        dispatch = None
        if dealt is not None:
            dispatch = Part(dealt, None, self.num_workers, own, None, self.worker_reset_fn, dispatches=True)
        self._parts = [work] if dispatch is None else [dispatch, work]
        return native(dispatch, work).run(
            self.num_workers,
            context=self._context,
            worker_prefetch=self.worker_prefetch_cnt,
            main_prefetch=self.main_prefetch_cnt,
            seed=0,
            alone=True,
        )

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        if self._in_process is not None:
            return self._in_process.initialize_iteration(seed_generator, iter_reset_fn)
        assert self._run is not None
        self._reset_parts_by(iter_reset_fn)
        epoch = seed_generator.generate_shared_seed() >> 1  # all seeds of an epoch are drawn from its number
        if not self._run.is_restored:
            self._run.set_epoch(epoch)
        set_seeds(self._end, seed_generator)
        return None

    def _reset_parts_by(self, iter_reset_fn: ResetFn | None) -> None:
        """Has the other processes call it before each epoch. Those that call another one make room for new ones."""
        packed = None if iter_reset_fn is None else dumps(iter_reset_fn)
        if packed == self._packed_reset_fn:
            return
        assert self._run is not None
        self._run.close()
        self._packed_reset_fn = packed
        for part in self._parts:
            part.iter_reset_fn = iter_reset_fn

    def finalize(self) -> None:
        if self._run is not None:
            self._run.close()

    def checkpoint(self) -> bytes:
        if self._in_process is not None:
            return self._in_process.checkpoint()
        return pickle.dumps(None if self._run is None else self._run.state_dict())

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        restored = self.initialize(datapipe)
        state = pickle.loads(serialized_state)
        if self._in_process is not None:
            self._in_process._place.skip = state
        elif self._run is not None and state is not None:
            self._run.load_state_dict(state)
        return restored

    def _pause(self) -> None:
        if self._run is not None:
            self._run.pause()

    def _resume(self) -> None:
        if self._run is not None:
            self._run.resume()


def PrototypeMultiProcessingReadingService(*args: Any, **kwargs: Any) -> MultiProcessingReadingService:
    """The name that MultiProcessingReadingService had before."""
    return MultiProcessingReadingService(*args, **kwargs)


class DistributedReadingService(ReadingServiceInterface):
    """Divides the items of each sharding_filter() among the ranks of torch.distributed, which end together and draw from
    the same seed. `timeout`: seconds of one wait."""

    def __init__(self, timeout: float = 1800.0) -> None:
        if not dist.is_available():
            raise RuntimeError("this torch has no torch.distributed")
        self._timeout = timeout
        self._datapipe: DataPipe = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialized")
        apply_sharding(datapipe, dist.get_world_size(), dist.get_rank(), SHARDING_PRIORITIES.DISTRIBUTED)
        if not isinstance(datapipe, FullSync):
            datapipe = FullSync(datapipe, self._timeout)
        self._datapipe = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        shared = [seed_generator.generate_shared_seed()]
        dist.broadcast_object_list(shared, src=0)
        seed_generator.seed(shared[0])
        seed_generator.spawn(dist.get_rank(), inplace=True)
        set_seeds(self._datapipe, seed_generator)
        return iter_reset_fn


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Several, each over what the one before it made: such as the ranks', then the workers'."""

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        self.reading_services = reading_services

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def finalize(self) -> None:
        for service in reversed(self.reading_services):
            service.finalize()

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        for service in self.reading_services:
            iter_reset_fn = service.initialize_iteration(seed_generator, iter_reset_fn)
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        for service in reversed(self.reading_services):
            service.finalize_iteration()

    def checkpoint(self) -> bytes:
        states = [
            service.checkpoint() if isinstance(service, CheckpointableReadingServiceInterface) else b""
            for service in self.reading_services
        ]
        return pickle.dumps(states)

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        for service, state in zip(self.reading_services, pickle.loads(serialized_state), strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                datapipe = service.initialize(datapipe)
        return datapipe

    def _pause(self) -> None:
        for service in self.reading_services:
            getattr(service, "_pause", _nothing)()

    def _resume(self) -> None:
        for service in reversed(self.reading_services):
            getattr(service, "_resume", _nothing)()
