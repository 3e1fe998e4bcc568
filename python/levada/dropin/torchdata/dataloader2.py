"""The DataLoader2: datapipes, and the reading service that runs them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.datapipes.datapipe import (  # type: ignore[import-not-found, unused-ignore]
    _DataPipeSerializationWrapper,
)

from levada.base.errors import Unsupported
from levada.base.threads import OneCaller
from levada.dropin.torchdata.error import PauseIteration
from levada.dropin.torchdata.random import SeedGenerator
from levada.dropin.torchdata.reading_service import (
    CheckpointableReadingServiceInterface,
    DataPipe,
    ReadingServiceInterface,
    ResetFn,
    clone,
)
from levada.pipeline.workers import dumps

__all__ = ["DataLoader2", "DataLoader2Iterator"]

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"

T = TypeVar("T")


class _InOrder(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Yields the items of a map-style datapipe, from index 0."""

    def __init__(self, datapipe: DataPipe) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self.datapipe)):
            yield self.datapipe[number]

    def __len__(self) -> int:
        return len(self.datapipe)


class DataLoader2Iterator(Iterator[T]):
    """An epoch of a DataLoader2, which is valid until another epoch begins."""

    def __init__(self, dataloader: DataLoader2[T], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None

    def __next__(self) -> T:
        loader = self.dataloader
        if self.iterator_id != loader.valid_iterator_id:
            raise RuntimeError(
                "this iterator has been invalidated: a newer one of the same DataLoader2 has been made, and only the newest "
                "may be used"
            )
        if loader._is_paused:
            raise StopIteration
        with loader._caller:
            return self._next_of(loader)

    def _next_of(self, loader: DataLoader2[T]) -> T:
        if loader._datapipe_iter is None:
            raise RuntimeError("this DataLoader2 has been shut down")
        loader._reset_iter = True
        try:
            item: T = next(loader._datapipe_iter)
        except PauseIteration:
            raise StopIteration from None
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
                self._pause()
        return item

    def _pause(self) -> None:
        self.dataloader._pause()
        self.limit_counter = 0

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the iterator that the datapipe returned."""
        loader = self.__dict__.get("dataloader")
        if loader is None or loader._datapipe_iter is None:
            raise AttributeError(name)
        return getattr(loader._datapipe_iter, name)

    def resume(self) -> None:
        """Lets the loop continue after it has reached a limit."""
        self.dataloader._resume()

    def limit(self, num_batches: int | None) -> None:
        """Ends the loop after every `num_batches` items, until resume(). None removes the limit."""
        self.limit_counter = 0
        self.limit_threshold = num_batches
        self.dataloader._limit(num_batches)


class DataLoader2(Generic[T]):
    """Iterates datapipes.

    - `datapipe_adapter_fn`: one or several functions that change the datapipe first.
    - `reading_service`: runs the datapipe. By default, it runs in this process.

    The datapipe and the service are copied, and can be used again. One thread at a time may use a loader; another
    thread gets InvalidArgument.
    """

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
        self._caller = OneCaller("a call of this DataLoader2")
        self._seeds = SeedGenerator()
        self._seeds_of_epoch: SeedGenerator = clone(self._seeds)
        self._has_seeds = False  # whether a state has set the seeds of the next epoch
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
        with self._caller:
            if self.datapipe is None:
                raise RuntimeError("this DataLoader2 has no datapipe: pass one to it, or call load_state_dict()")
            if self._terminated:
                raise RuntimeError("this DataLoader2 has been shut down")
            if self._reset_iter:
                self._begin_epoch()
            self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
            return DataLoader2Iterator(self, self.valid_iterator_id)

    def _begin_epoch(self) -> None:
        if self._has_seeds:
            self._has_seeds = False
        elif self._seed is None:
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
            raise TypeError(f"the reading service, a {type(service).__name__}, has no restore() and cannot resume a state")
        return service.restore(self.datapipe, self.reading_service_state)

    def seed(self, seed: int) -> None:
        """Seeds all random draws, from the next epoch on. An epoch that resumes from a state keeps its seed."""
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
        self._seed = seed
        self._reset_seed = True
        self._has_seeds = self._has_seeds and self.reading_service_state is not None

    def shutdown(self) -> None:
        """Ends the other processes. The loader cannot be used afterwards."""
        with self._caller:
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
        """Returns the datapipes, the seeds and, after the first item, the position in the loop."""
        with self._caller:
            return self._state()

    def _state(self) -> dict[str, Any]:
        if self.valid_iterator_id is None and self._state_dict is not None:
            return self._state_dict
        service, place = self.reading_service, None
        in_epoch = self.valid_iterator_id is not None and not self._is_over
        if in_epoch and isinstance(service, CheckpointableReadingServiceInterface):
            place = service.checkpoint()
        return {
            SERIALIZED_DATAPIPE_KEY_NAME: self._before,
            READING_SERVICE_STATE_KEY_NAME: place,
            RANDOMNESS_STATE_KEY_NAME: (
                self._seed,
                self._reset_seed,
                pickle.dumps(self._seeds_of_epoch if in_epoch else self._seeds),
                pickle.dumps(self._seeds_of_epoch),
                in_epoch,
            ),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: CheckpointableReadingServiceInterface, *, allow_pickle: bool = False
    ) -> DataLoader2[Any]:
        """Returns a loader that resumes where state_dict() was called. `allow_pickle`: as in load_state_dict()."""
        made: DataLoader2[Any] = cls(None, None, reading_service)
        made.load_state_dict(state, allow_pickle=allow_pickle)
        return made

    def load_state_dict(self, state_dict: dict[str, Any], *, allow_pickle: bool = False) -> None:
        """Makes this loader resume where state_dict() was called. Must be called before the first iter(). A state that
        torchdata saved resumes at the beginning of an epoch, as with torchdata.

        Like torchdata's, the state contains the datapipes with their functions as a pickle, and unpickling runs any
        code that a state names. Raises Unsupported unless `allow_pickle` is True, which is only safe for states that
        you trust.
        """
        if not allow_pickle:
            raise Unsupported(
                "a state of DataLoader2 holds its datapipes as a pickle, which can run code; pass allow_pickle=True if you "
                "trust the state"
            )
        with self._caller:
            self._load(state_dict)

    def _load(self, state_dict: dict[str, Any]) -> None:
        if self._datapipe_iter is not None:
            raise RuntimeError("this DataLoader2 has been iterated already; call load_state_dict() on a new one")
        self._state_dict = state_dict
        self.datapipe = pickle.loads(state_dict[SERIALIZED_DATAPIPE_KEY_NAME])
        if isinstance(self.datapipe, _DataPipeSerializationWrapper):
            self.datapipe = getattr(self.datapipe, "_datapipe")
        self._adapt()
        self.reading_service_state = state_dict[READING_SERVICE_STATE_KEY_NAME]
        if RANDOMNESS_STATE_KEY_NAME in state_dict:
            self._seed, self._reset_seed, seeds, seeds_of_epoch, *in_epoch = state_dict[RANDOMNESS_STATE_KEY_NAME]
            self._seeds, self._seeds_of_epoch = pickle.loads(seeds), pickle.loads(seeds_of_epoch)
            # An epoch keeps its seeds even if seed() was called during it.
            self._has_seeds = self._seed is None or not self._reset_seed or in_epoch == [True]

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Makes the next epoch start with its first item, after a state was loaded."""
        self._seeds = self._seeds_of_epoch
        self.reading_service_state = None

    def _pause(self) -> None:
        service: Any = self.reading_service
        if not hasattr(service, "_pause"):
            warnings.warn(f"a {type(service).__name__} does not support pause; the loop continues", stacklevel=2)
            return
        self._is_paused = True
        change = service._pause()
        if change is not None:
            self.datapipe = change(self.datapipe)

    def _resume(self) -> None:
        service: Any = self.reading_service
        if not self._is_paused:
            warnings.warn("resume() is called on a DataLoader2 that is not paused", stacklevel=2)
            return
        change = service._resume()
        if change is not None:
            self.datapipe = change(self.datapipe)
        self._is_paused = False

    def _limit(self, num_batches: int | None) -> None:
        change = getattr(self.reading_service, "_limit", _no_limit)(num_batches)
        if change is not None:
            self.datapipe = change(self.datapipe, num_batches)


def _no_limit(_: int | None) -> None:
    """Replaces the _limit() of a reading service that has none. The loop itself counts the items."""
