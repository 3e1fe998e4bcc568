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
what a service before wants done before an epoch  is done by both; the workers' processes start anew where it is another
is left out by the in-process service and by the  function than before
distributed one
an unsharded branch beside a dispatch gives its   is refused, by name
items to each worker
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]

from levada._workers import dumps
from levada.dropin._torchdata_graph import WorkerInfo
from levada.dropin._torchdata_pipes import (
    SHARDING_PRIORITIES,
    FullSync,
    PinMemory,
    Prefetcher,
    RoundRobinDemultiplexer,
    SeedGenerator,
    ShardingRoundRobinDispatcher,
)
from levada.dropin._torchdata_services import (
    CheckpointableReadingServiceInterface,
    DataPipe,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    ResetFn,
    SequentialReadingService,
    clone,
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


class _InOrder(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """The items of a map-style datapipe, from 0 on."""

    def __init__(self, datapipe: DataPipe) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self.datapipe)):
            yield self.datapipe[number]

    def __len__(self) -> int:
        return len(self.datapipe)


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

    def __getattr__(self, name: str) -> Any:
        """Of what is iterated."""
        loader = self.__dict__.get("dataloader")
        if loader is None or loader._datapipe_iter is None:
            raise AttributeError(name)
        return getattr(loader._datapipe_iter, name)

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
