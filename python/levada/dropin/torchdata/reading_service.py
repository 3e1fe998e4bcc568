"""Reading services, which run the datapipes of a DataLoader2."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import multiprocessing
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import IterDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.graph_settings import apply_sharding  # type: ignore[import-not-found, unused-ignore]

from levada import _levada
from levada.base.errors import InvalidArgument, Unsupported
from levada.base.exits import main_not_imported
from levada.dropin.torchdata._datapipes import SHARDING_PRIORITIES, FullSync, Prefetcher, is_kind
from levada.dropin.torchdata._items import Items
from levada.dropin.torchdata._parts import Entrance, Part, cut, undivided
from levada.dropin.torchdata.graph import all_of, replace, set_graph_random_seed
from levada.dropin.torchdata.random import SeedGenerator, dist_share_seed
from levada.dropin.torchdata.utils import WorkerInfo
from levada.job.job import rank
from levada.pipeline.options import CONTEXTS
from levada.pipeline.pipeline import native
from levada.pipeline.run import Run
from levada.pipeline.workers import dumps

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
]

DataPipe = Any
ResetFn = Callable[[DataPipe], DataPipe]
InitFn = Callable[[DataPipe, WorkerInfo], DataPipe]
LimitFn = Callable[[DataPipe, int | None], DataPipe]
WorkerResetFn = Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe]

_TIMEOUT = 1800.0
"""Seconds that a datapipe may take to make an item, that processes may take to start (and to import what they need),
and that ranks may wait for each other."""


def clone(value: Any) -> Any:
    """Returns a copy, made by pickling."""
    return pickle.loads(dumps(value))


class ReadingServiceInterface(ABC):
    """Base class of reading services."""

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Called once, before the first epoch. Returns the datapipe to iterate."""

    def finalize(self) -> None:
        """Called when the loader is shut down."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        """Called before each epoch. `iter_reset_fn`: the function that the previous service returned, to be called with
        the datapipe. Returns such a function for the next service or for the loader, or None."""
        return None

    def finalize_iteration(self) -> None:
        """Called when an epoch has ended."""

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # of objects that were destroyed before this one
            self.finalize()


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service that can save its position."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Returns the position after the last item."""

    @abstractmethod
    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """Called instead of initialize(), to resume where checkpoint() was called."""


class InProcessReadingService(CheckpointableReadingServiceInterface):
    """Runs everything in this process. `prefetch_cnt`: number of items to make ahead. `init_fn(datapipe, info)` is
    called once, and `reset_fn(datapipe, info, seeds)` before each epoch; each returns the datapipe to use from then
    on."""

    def __init__(
        self, prefetch_cnt: int = 0, init_fn: InitFn | None = None, reset_fn: WorkerResetFn | None = None
    ) -> None:
        self._prefetch_cnt = prefetch_cnt
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._end_datapipe = _Counter()

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        apply_sharding(datapipe, 1, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
        if self._init_fn is not None:
            datapipe = self._init_fn(datapipe, WorkerInfo(1, 0))
        if self._prefetch_cnt > 0:
            datapipe = Prefetcher(datapipe, self._prefetch_cnt)
        self._end_datapipe.datapipe = datapipe
        return self._end_datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        end = self._end_datapipe
        end.returned = end.skip
        if iter_reset_fn is not None:
            end.datapipe = iter_reset_fn(end.datapipe)
        set_graph_random_seed(end.datapipe, seed_generator)
        if self._reset_fn is not None:
            end.datapipe = self._reset_fn(end.datapipe, WorkerInfo(1, 0), seed_generator)
        return None

    def checkpoint(self) -> bytes:
        return _levada.pack_state(self._end_datapipe.returned)

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        restored = self.initialize(datapipe)
        if serialized_state:
            self._end_datapipe.skip_items(_levada.unpack_state(serialized_state))
        return restored

    def _pause(self, pause_fn: ResetFn | None = None) -> ResetFn | None:
        _pause_all(self._end_datapipe)
        if pause_fn is not None:
            self._end_datapipe.datapipe = pause_fn(self._end_datapipe.datapipe)
        return None

    def _resume(self, resume_fn: ResetFn | None = None) -> ResetFn | None:
        if resume_fn is not None:
            self._end_datapipe.datapipe = resume_fn(self._end_datapipe.datapipe)
        _call(all_of(self._end_datapipe), "resume")
        return None

    def _limit(self, num_batches: int | None, limit_fn: LimitFn | None = None) -> LimitFn | None:
        if limit_fn is not None:
            limit_fn(self._end_datapipe.datapipe, num_batches)
        return None


class _Counter(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Counts the items that an epoch has returned. Can skip items that were returned before."""

    def __init__(self) -> None:
        self.datapipe: DataPipe = None
        self.returned = 0
        self.skip = 0

    def skip_items(self, count: Any) -> None:
        """Makes the next epoch skip `count` items, a number that a state holds."""
        if type(count) is not int or count < 0:
            raise InvalidArgument(
                "this state was saved with other workers or datapipes, whose items may have another order; resume with the same ones, or "
                "restart the epoch by _restore_checkpoint_beginning_of_epoch()"
            )
        self.skip = count

    def __iter__(self) -> Iterator[Any]:
        skip, self.skip = self.skip, 0
        self.returned = skip
        for item in itertools.islice(self.datapipe, skip, None):
            self.returned += 1
            yield item

    def __len__(self) -> int:
        return len(self.datapipe)


def _call(pipes: Iterable[DataPipe], name: str) -> None:
    """Calls the method `name` of each datapipe that has one."""
    for pipe in pipes:
        method = getattr(pipe, name, None)
        if callable(method):
            method()


def _pause_all(datapipe: DataPipe) -> None:
    """Pauses the datapipes that make items ahead, from the end of the graph. Pausing one waits for its thread, which
    may be waiting for the datapipe before it."""
    _call(reversed(all_of(datapipe)), "pause")


class MultiProcessingReadingService(CheckpointableReadingServiceInterface):
    """Runs workers as processes. Everything before a sharding_round_robin_dispatch() runs in one more process, which
    sends its items to the workers in turn. A datapipe whose is_replicable() returns False stays in this process.

    - `num_workers`: number of workers. 0 runs everything in this process.
    - `multiprocessing_context`: "fork", "forkserver" or "spawn". None means multiprocessing's own start method. A
      process that already has threads of Levada, such as those of another loader, cannot be forked; workers then start
      by "forkserver", without importing the main module. If "fork" was requested, a warning says so.
    - `worker_prefetch_cnt`: maximum number of items that wait for a worker.
    - `main_prefetch_cnt`: maximum number of items from all workers together that wait for this process; rounded up to
      the same number for each worker.
    - `worker_init_fn(datapipe, info)`: called in each worker when it has started. Returns the datapipe to use from then
      on.
    - `worker_reset_fn(datapipe, info, seeds)`: called in each of the other processes before each epoch. Also returns
      the datapipe to use from then on.
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
            raise ValueError(f"num_workers must be at least 0, got {num_workers}")
        if multiprocessing_context not in (None, *CONTEXTS):
            known = ", ".join(CONTEXTS)
            raise InvalidArgument(f'multiprocessing_context must be one of {known}, got "{multiprocessing_context}"')
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        self._in_process: InProcessReadingService | None = None
        self._run: Run[Any] | None = None
        self._items: Items
        self._parts: list[Part] = []
        self._packed_reset_fn: bytes | None = None
        self._end_datapipe: DataPipe = None
        self._counter: _Counter | None = None  # at the end, if datapipes run in this process

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        if self.num_workers == 0:
            self._in_process = InProcessReadingService(0, self.worker_init_fn, self.worker_reset_fn)
            return self._in_process.initialize(datapipe)
        dispatched, collected = cut(datapipe, self.num_workers)
        if dispatched is None:  # cut() rejects undivided sources next to a dispatched one
            self._warn_of_copies(collected)
        workers = Entrance()
        self._end_datapipe = replace(datapipe, collected, workers)
        if self._end_datapipe is not workers:
            self._counter = _Counter()
            self._counter.datapipe, self._end_datapipe = self._end_datapipe, self._counter
        self._run = self._make_run(dispatched, collected)
        self._items = Items(self._run)
        workers.open = self._items.__iter__
        return self._end_datapipe

    def _warn_of_copies(self, datapipe: DataPipe) -> None:
        if self.num_workers == 1 or self.worker_init_fn is not None or self.worker_reset_fn is not None:
            return
        for pipe in undivided(datapipe):
            warnings.warn(
                f"nothing divides the items of {pipe} among the {self.num_workers} workers, so each worker returns "
                "all of them; put sharding_filter() or sharding_round_robin_dispatch() after it",
                stacklevel=6,
            )

    def _make_run(self, dispatched: DataPipe | None, collected: DataPipe) -> Run[Any]:
        own = rank()
        entrance = None
        if dispatched is not None:
            entrance = Entrance()
            collected = entrance if collected is dispatched else replace(collected, dispatched, entrance)
        work = Part(collected, entrance, self.num_workers, own, self.worker_init_fn, self.worker_reset_fn)
        dispatch = None
        if dispatched is not None:
            dispatch = Part(dispatched, None, self.num_workers, own, None, self.worker_reset_fn, dispatches=True)
        self._parts = [work] if dispatch is None else [dispatch, work]
        return native(dispatch, work).run(
            self.num_workers,
            worker_prefetch=self.worker_prefetch_cnt,
            main_prefetch=-(-self.main_prefetch_cnt // self.num_workers),
            timeout=_TIMEOUT,
            start_timeout=_TIMEOUT,
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
        if self._counter is not None:
            self._counter.returned = self._counter.skip
        set_graph_random_seed(self._end_datapipe, seed_generator)
        self._start(self._run)
        return None

    def _reset_parts_by(self, iter_reset_fn: ResetFn | None) -> None:
        """Makes the other processes call the function before each epoch. Ends processes that call another function."""
        packed = None if iter_reset_fn is None else dumps(iter_reset_fn)
        if packed == self._packed_reset_fn:
            return
        assert self._run is not None
        self._run.close()
        self._packed_reset_fn = packed
        for part in self._parts:
            part.iter_reset_fn = iter_reset_fn

    def _start(self, run: Run[Any]) -> None:
        """Starts the processes unless they run. Comes before the first item, whose threads would rule out a fork."""
        if run.is_started:
            return
        context = self.multiprocessing_context or multiprocessing.get_context().get_start_method()
        reason = _levada.unforkable() if context == "fork" else None
        if reason is not None:
            context = "forkserver"
        if reason is not None and self.multiprocessing_context is not None:
            warnings.warn(f'{reason}, which a fork would lack; workers start by "forkserver" instead', stacklevel=5)
        run.options = dataclasses.replace(run.options, context=context)
        with contextlib.nullcontext() if reason is None else main_not_imported():
            run.start()

    def finalize(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._items.close()
            _call(reversed(all_of(self._end_datapipe)), "shutdown")
            run.close()

    def checkpoint(self) -> bytes:
        if self._in_process is not None:
            return self._in_process.checkpoint()
        if self._run is not None and self._counter is not None:
            # The run counts the items that datapipes of this process have pulled, possibly ahead of the loop.
            return _levada.pack_state({"items": self._counter.returned, "workers": self.num_workers})
        return _levada.pack_state(None if self._run is None else self._run.state_dict())

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        if self.num_workers == 0:
            self.initialize(datapipe)
            assert self._in_process is not None
            return self._in_process.restore(datapipe, serialized_state)
        restored = self.initialize(datapipe)
        state = _levada.unpack_state(serialized_state) if serialized_state else None
        if self._counter is not None and state is not None:
            is_alike = isinstance(state, dict) and state.get("workers") == self.num_workers
            self._counter.skip_items(state.get("items") if is_alike else None)
        elif self._run is not None and state is not None:
            self._run.load_state_dict(state)
        return restored

    def _pause(self, pause_fn: ResetFn | None = None) -> ResetFn | None:
        if self._in_process is not None:
            return self._in_process._pause(pause_fn)
        _refuse("pause_fn", pause_fn)
        if self._run is not None:
            _pause_all(self._end_datapipe)
            self._items.pause()
        return None

    def _resume(self, resume_fn: ResetFn | None = None) -> ResetFn | None:
        if self._in_process is not None:
            return self._in_process._resume(resume_fn)
        _refuse("resume_fn", resume_fn)
        if self._run is not None:
            self._items.resume()
            _call(all_of(self._end_datapipe), "resume")
        return None

    def _limit(self, num_batches: int | None, limit_fn: LimitFn | None = None) -> LimitFn | None:
        if self._in_process is not None:
            return self._in_process._limit(num_batches, limit_fn)
        _refuse("limit_fn", limit_fn)
        return None


def _refuse(name: str, function: Any) -> None:
    if function is not None:
        raise Unsupported(
            f"the {name} of another reading service would have to run in the workers in the middle of an epoch, which "
            "they cannot; let initialize_iteration() return a function, which they call before each epoch"
        )


class PrototypeMultiProcessingReadingService(MultiProcessingReadingService):
    """The original name of MultiProcessingReadingService."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        text = "PrototypeMultiProcessingReadingService is deprecated; use MultiProcessingReadingService"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        super().__init__(*args, **kwargs)


class DistributedReadingService(ReadingServiceInterface):
    """Divides the items of each sharding_filter() among the ranks of torch.distributed, which end together and draw
    from the same seed. `timeout`: seconds that one wait may take."""

    def __init__(self, timeout: float = _TIMEOUT) -> None:
        if not dist.is_available():
            raise RuntimeError("this torch has no torch.distributed")
        self._timeout = timeout
        self._datapipe: DataPipe = None
        self._group: Any = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialized")
        # Uses a separate group: seeds need no device, and must not queue between a training's collectives.
        self._group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=self._timeout))
        apply_sharding(datapipe, dist.get_world_size(), dist.get_rank(), SHARDING_PRIORITIES.DISTRIBUTED)
        if not is_kind(datapipe, "FullSync"):
            datapipe = FullSync(datapipe, self._timeout)
        self._datapipe = datapipe
        return datapipe

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: ResetFn | None = None
    ) -> ResetFn | None:
        seed_generator.seed(dist_share_seed(seed_generator.generate_shared_seed(), self._group))
        seed_generator.spawn(dist.get_rank(), inplace=True)
        set_graph_random_seed(self._datapipe, seed_generator)
        return iter_reset_fn

    def finalize(self) -> None:
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Several services, each applied to the previous one's datapipe, such as the ranks', then the workers'."""

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
            iter_reset_fn = service.initialize_iteration(seed_generator=seed_generator, iter_reset_fn=iter_reset_fn)
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        for service in reversed(self.reading_services):
            service.finalize_iteration()

    def checkpoint(self) -> bytes:
        states = [getattr(service, "checkpoint", bytes)() for service in self.reading_services]
        return pickle.dumps(states)

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """Unpickles the state, which may run any code that it names: pass only a state that you trust."""
        for service, state in zip(self.reading_services, pickle.loads(serialized_state), strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                datapipe = service.initialize(datapipe)
        return datapipe

    def _pause(self, pause_fn: ResetFn | None = None) -> ResetFn | None:
        return self._chain("_pause", pause_fn)

    def _resume(self, resume_fn: ResetFn | None = None) -> ResetFn | None:
        return self._chain("_resume", resume_fn)

    def _chain(self, name: str, function: ResetFn | None) -> ResetFn | None:
        for service in self.reading_services:
            if hasattr(service, name):
                function = getattr(service, name)(function)
        return function

    def _limit(self, num_batches: int | None, limit_fn: LimitFn | None = None) -> LimitFn | None:
        for service in self.reading_services:
            if hasattr(service, "_limit"):
                limit_fn = getattr(service, "_limit")(num_batches, limit_fn)
        return limit_fn
