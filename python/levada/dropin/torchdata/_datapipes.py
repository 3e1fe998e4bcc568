"""The datapipes that torchdata has and torch lacks, under their functional names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import IterDataPipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.datapipes.iter.sharding import (  # type: ignore[import-not-found, unused-ignore]
    SHARDING_PRIORITIES as SHARDING_PRIORITIES,
)

from levada.pipeline.pipeline import Pipeline
from levada.pipeline.run import Run

Class = TypeVar("Class", bound=type)
_END = object()


def _functional(name: str) -> Callable[[Class], Class]:
    """Adds a method to all datapipes that makes the class. The name is not registered among torch's functional names.
    If other code registers it, before or after, as torchdata does when it is imported, that succeeds and takes
    precedence."""

    def give(cls: Class) -> Class:
        def make(source: Any, *args: Any, **kwargs: Any) -> Any:
            return IterDataPipe.functions.get(name, cls)(source, *args, **kwargs)

        make.__doc__ = cls.__doc__
        setattr(IterDataPipe, name, make)
        return cls

    return give


def is_kind(pipe: Any, name: str) -> bool:
    """Returns whether `pipe` is of Levada's or torchdata's class of this name, or of a subclass of either."""
    return any(
        cls.__module__.startswith(("levada.dropin.torchdata.", "torchdata.datapipes."))
        and cls.__name__.removesuffix("IterDataPipe") == name
        for cls in type(pipe).__mro__
    )


class _Through(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """A datapipe that yields the items of another one."""

    source_datapipe: Any

    def __len__(self) -> int:
        return len(self.source_datapipe)


@_functional("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(_Through):
    """Runs everything before it in one process, which sends its items to the workers in turn. Does nothing without
    workers."""

    def __init__(self, source_datapipe: Any, sharding_group_filter: Any = None) -> None:
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            raise NotImplementedError(
                "sharding_round_robin_dispatch() divides among the workers of one rank: sharding_group_filter must be "
                f"SHARDING_PRIORITIES.MULTIPROCESSING, got {sharding_group_filter}; sharding_filter() divides among ranks"
            )
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        yield from self.source_datapipe


class _Running(_Through):
    """A datapipe whose items a Levada pipeline makes."""

    _run: Run[Any] | None = None
    _is_paused = False

    @abstractmethod
    def _start(self) -> Run[Any]:
        """Returns a run of that pipeline."""

    def __iter__(self) -> Iterator[Any]:
        with self._start() as run:
            self._run, self._is_paused = run, False
            items = iter(run)
            while (item := next(items, _END)) is not _END:
                yield item
            if self._is_paused:
                raise RuntimeError(f"{self} is paused; resume() it before the next item is asked for")

    def pause(self) -> None:
        """Stops making items ahead until resume()."""
        if self._run is not None:
            self._is_paused = True
            self._run.pause()

    def resume(self) -> None:
        if self._run is not None and self._is_paused:
            self._is_paused = False
            self._run.resume()

    def shutdown(self) -> None:
        """Ends the current iteration."""
        run, self._run, self._is_paused = self._run, None, False
        if run is not None:
            run.close()

    def reset(self) -> None:
        self.shutdown()

    def __getstate__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_run", "_is_paused")}
        return state if IterDataPipe.getstate_hook is None else IterDataPipe.getstate_hook(state)


@_functional("prefetch")
class Prefetcher(_Running):
    """Makes up to `buffer_size` items ahead, on a thread."""

    def __init__(self, source_datapipe: Any, buffer_size: int = 10) -> None:
        if buffer_size <= 0:
            raise ValueError(f"buffer_size must be positive, got {buffer_size}")
        self.source_datapipe = source_datapipe
        self.buffer_size = buffer_size

    def _start(self) -> Run[Any]:
        return Pipeline[Any](self.source_datapipe).prefetch(self.buffer_size).run(alone=True, seed=0)


@_functional("pin_memory")
class PinMemory(Prefetcher):
    """Makes two items ahead, in pinned memory, in the process that consumes them."""

    def __init__(self, source_datapipe: Any, device: Any = None, pin_memory_fn: Any = None) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("pin_memory() needs CUDA, which this torch lacks or finds no device for")
        super().__init__(source_datapipe, 2)
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def _pin(self, item: Any) -> Any:
        from torch.utils.data._utils.pin_memory import pin_memory  # type: ignore[import-not-found, unused-ignore]

        return (self.pin_memory_fn or pin_memory)(item, self.device)

    def _start(self) -> Run[Any]:
        pipeline = Pipeline[Any](self.source_datapipe).map(self._pin, name="pin_memory").prefetch(self.buffer_size)
        return pipeline.run(alone=True, seed=0)

    def is_replicable(self) -> bool:
        return False


@_functional("fullsync")
class FullSync(_Running):
    """Ends on all ranks when the shortest one ends, and fails on all ranks when the first one fails. The ranks agree
    one item ahead. `timeout`: seconds that one wait may take."""

    def __init__(self, datapipe: Any, timeout: float = 1800.0) -> None:
        self.source_datapipe = datapipe
        self.timeout = timeout

    def _start(self) -> Run[Any]:
        import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError("fullsync() needs torch.distributed to be initialized")
        pipeline = Pipeline[Any](self.source_datapipe).fullsync()
        return pipeline.run(group=dist.group.WORLD, seed=0, timeout=self.timeout)

    def is_replicable(self) -> bool:
        return False


class _Numbered(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[Any]:
        yield from enumerate(self.source_datapipe)

    def __len__(self) -> int:
        return len(self.source_datapipe)


class _ByNumber:
    def __init__(self, instances: int) -> None:
        self.instances = instances

    def __call__(self, numbered: tuple[int, Any]) -> int:
        return numbered[0] % self.instances


def _item_of(numbered: tuple[int, Any]) -> Any:
    return numbered[1]


@_functional("round_robin_demux")
class RoundRobinDemultiplexer(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """Returns `num_instances` datapipes, of which datapipe i has the items whose index is i modulo `num_instances`."""

    def __new__(cls, datapipe: Any, num_instances: int, buffer_size: int = 1000) -> Any:
        if num_instances < 1:
            raise ValueError(f"num_instances must be at least 1, got {num_instances}")
        if num_instances == 1:
            return [datapipe]
        parts = _Numbered(datapipe).demux(
            num_instances=num_instances, classifier_fn=_ByNumber(num_instances), buffer_size=buffer_size
        )
        return [part.map(_item_of) for part in parts]
