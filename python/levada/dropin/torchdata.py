"""torchdata's DataLoader2 and its reading services, over torch's own datapipes.

    from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService    # was: from torchdata.dataloader2

In torchdata                                      Here
------------------------------------------------  ------------------------------------------------------------------
items cross pickled, through queues that are      items cross in shared memory, tensors where they lie; nobody polls
polled every 0.1 ms
a state is that of the epoch's beginning          state_dict() is where the loop stands, and goes on with the next item
a worker that is killed leaves the loop waiting   levada.PeerLost within a second, with process and signal
an exception comes wrapped, its traceback as      the exception itself, caused by a levada.StageFailed with process,
text                                              item number and traceback
lambdas and local functions need dill             cross by cloudpickle
a fork that is too far apart raises in the        as before where both branches are in one process
middle of an epoch
pause with a dispatching process is unsafe        is answered by each process once
an unsharded branch beside a dispatch gives its   is refused, by name
items to each worker
"""

from __future__ import annotations

import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph_settings import apply_sharding  # type: ignore[import-not-found, unused-ignore]

from levada._errors import Unsupported
from levada._job import rank
from levada._pipeline import native
from levada._runs import Run
from levada._workers import CONTEXTS, dumps
from levada.dropin._torchdata_graph import Entrance, Part, WorkerInfo, all_of, cut, replace, set_seeds
from levada.dropin._torchdata_pipes import (
    SHARDING_PRIORITIES,
    FullSync,
    PinMemory,
    Prefetcher,
    RoundRobinDemultiplexer,
    SeedGenerator,
    ShardingRoundRobinDispatcher,
    refuse_unknown_start,
)

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "FullSync",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PinMemory",
    "Prefetcher",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "RoundRobinDemultiplexer",
    "SHARDING_PRIORITIES",
    "SeedGenerator",
    "SequentialReadingService",
    "ShardingRoundRobinDispatcher",
    "WorkerInfo",
]

T = TypeVar("T")
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
        """Called before each epoch."""
        return None

    def finalize_iteration(self) -> None:
        """Called when an epoch has ended."""


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


class _InOrder(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """The items of a map-style datapipe, from 0 on."""

    def __init__(self, datapipe: DataPipe) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self.datapipe)):
            yield self.datapipe[number]

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
        if iter_reset_fn is not None:
            raise Unsupported(
                "a reading service before this one wants to change the datapipes of an epoch, which are in other "
                "processes by then; use worker_reset_fn"
            )
        assert self._run is not None
        epoch = seed_generator.generate_shared_seed() >> 1  # all seeds of an epoch are drawn from its number
        if not self._run.is_restored:
            self._run.set_epoch(epoch)
        set_seeds(self._end, seed_generator)
        return None

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


class DataLoader2Iterator(Iterator[T]):
    """An epoch of a DataLoader2; over when another one is begun."""

    def __init__(self, dataloader: DataLoader2[T], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None

    def __next__(self) -> T:
        loader = self.dataloader
        if self.iterator_id != loader.valid_iterator_id:
            raise RuntimeError(
                "this iterator was ended by another one of the same DataLoader2, which has one at a time"
            )
        if loader._is_paused:
            raise StopIteration
        loader._reset_iter = True
        try:
            item: T = next(loader._datapipe_iter)  # type: ignore[arg-type]
        except StopIteration:
            loader._is_over = True
            if loader.reading_service is not None:
                loader.reading_service.finalize_iteration()
            raise
        except Exception:
            loader.shutdown()
            raise
        if self.limit_threshold is not None and self.limit_counter is not None:
            self.limit_counter += 1
            if self.limit_counter >= self.limit_threshold:
                self.limit_counter = 0
                loader._pause()
        return item

    def resume(self) -> None:
        """Goes on after a limit was reached."""
        self.dataloader._resume()

    def limit(self, num_batches: int | None) -> None:
        """The loop ends after so many more items, until resume(), and after so many again; None: no more."""
        self.limit_counter = 0
        self.limit_threshold = num_batches


class DataLoader2(Generic[T]):
    """Datapipes at work. `datapipe_adapter_fn`: one function or several that change the datapipe first;
    `reading_service`: who carries it out, by default this process. Both are copied, so that they can be used again."""

    def __init__(
        self,
        datapipe: DataPipe | None,
        datapipe_adapter_fn: Iterable[ResetFn] | ResetFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
    ) -> None:
        if isinstance(datapipe, MapDataPipe):
            datapipe = _InOrder(datapipe)
        self.datapipe: DataPipe = None if datapipe is None else clone(datapipe)
        adapters: list[ResetFn] = []
        if datapipe_adapter_fn is not None:
            adapters = list(datapipe_adapter_fn) if isinstance(datapipe_adapter_fn, Iterable) else [datapipe_adapter_fn]
        self.datapipe_adapter_fns = adapters
        self.reading_service: ReadingServiceInterface | None = clone(reading_service)
        self.reading_service_state: bytes | None = None
        self.valid_iterator_id: int | None = None
        self._adapted = False
        self._datapipe_iter: Iterator[T] | None = None
        self._reset_iter = True
        self._terminated = False
        self._is_paused = False
        self._is_over = False
        self._seeds = SeedGenerator()
        self._seeds_of_epoch: SeedGenerator = clone(self._seeds)
        self._seed: int | None = None
        self._reset_seed = True
        self._state_dict: dict[str, Any] | None = None
        self._before = b""
        if self.datapipe is not None:
            self._adapt()

    def _adapt(self) -> None:
        for adapt in self.datapipe_adapter_fns:
            self.datapipe = adapt(self.datapipe)
        self._before = dumps(self.datapipe)

    def __iter__(self) -> DataLoader2Iterator[T]:
        if self.datapipe is None:
            raise RuntimeError("there is no datapipe; give one, or load_state_dict()")
        if self._terminated:
            raise RuntimeError("this DataLoader2 has been shut down")
        if self._reset_iter:
            self._begin_epoch()
        self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
        return DataLoader2Iterator(self, self.valid_iterator_id)

    def _begin_epoch(self) -> None:
        if self._seed is None:
            if self._state_dict is None or self.valid_iterator_id is not None:
                self._seeds.seed()
        elif self._reset_seed:
            self._seeds.seed(self._seed)
            self._reset_seed = False
        self._seeds_of_epoch = clone(self._seeds)
        service = self.reading_service
        if service is not None:
            if not self._adapted:
                self.datapipe = self._initialized(service)
                self._adapted = True
            change = service.initialize_iteration(self._seeds)
            if change is not None:
                self.datapipe = change(self.datapipe)
        self._is_paused = self._is_over = False
        self._datapipe_iter = iter(self.datapipe)
        self._reset_iter = False

    def _initialized(self, service: ReadingServiceInterface) -> DataPipe:
        if self.reading_service_state is None:
            return service.initialize(self.datapipe)
        if not isinstance(service, CheckpointableReadingServiceInterface):
            raise TypeError(f"a {type(service).__name__} cannot go on at a state")
        return service.restore(self.datapipe, self.reading_service_state)

    def seed(self, seed: int) -> None:
        """What all that is drawn at random is drawn from, from the next epoch on."""
        if not 0 <= seed < 2**64:
            raise ValueError(f"the seed is {seed}; it has 64 bits")
        self._seed = seed
        self._reset_seed = True

    def shutdown(self) -> None:
        """Ends the other processes, and with them the loader."""
        if self._terminated:
            return
        self._terminated = True
        self._datapipe_iter = None
        self._reset_iter = True
        if self.reading_service is not None:
            self.reading_service.finalize_iteration()
            self.reading_service.finalize()

    def __del__(self) -> None:
        if hasattr(self, "_before"):
            self.shutdown()

    def __enter__(self) -> DataLoader2[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """The datapipes, the seeds and, after an item, where the loop stands."""
        if self.valid_iterator_id is None and self._state_dict is not None:
            return self._state_dict
        service, place = self.reading_service, None
        in_epoch = self.valid_iterator_id is not None and not self._is_over
        if in_epoch and isinstance(service, CheckpointableReadingServiceInterface):
            place = service.checkpoint()
        return {
            "serialized_datapipe": self._before,
            "reading_service_state": place,
            "randomness_state": (
                self._seed,
                self._reset_seed,
                pickle.dumps(self._seeds_of_epoch if in_epoch else self._seeds),
                pickle.dumps(self._seeds_of_epoch),
            ),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: CheckpointableReadingServiceInterface
    ) -> DataLoader2[Any]:
        """A loader that goes on where state_dict() was called."""
        made: DataLoader2[Any] = cls(None, None, reading_service)
        made.load_state_dict(state)
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Before the first iter()."""
        if self._datapipe_iter is not None:
            raise RuntimeError("this DataLoader2 has been iterated; load_state_dict() takes a new one")
        self._state_dict = state_dict
        self.datapipe = pickle.loads(state_dict["serialized_datapipe"])
        self._adapt()
        self.reading_service_state = state_dict["reading_service_state"]
        self._seed, self._reset_seed = state_dict["randomness_state"][:2]
        self._seeds, self._seeds_of_epoch = map(pickle.loads, state_dict["randomness_state"][2:])

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """After a state was loaded: begins with the first item of its epoch."""
        self._seeds = self._seeds_of_epoch
        self.reading_service_state = None

    def _pause(self) -> None:
        pause = getattr(self.reading_service, "_pause", None)
        if pause is None:
            warnings.warn("this reading service cannot pause", stacklevel=2)
            return
        self._is_paused = True
        pause()

    def _resume(self) -> None:
        if not self._is_paused:
            warnings.warn("this DataLoader2 is not paused", stacklevel=2)
            return
        resume: Callable[[], None] = getattr(self.reading_service, "_resume")
        resume()
        self._is_paused = False
