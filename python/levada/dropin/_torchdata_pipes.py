"""The datapipes that torchdata had and torch has not, under their functional names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import IterDataPipe, functional_datapipe  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data.datapipes.iter.sharding import (  # type: ignore[import-not-found, unused-ignore]
    SHARDING_PRIORITIES as SHARDING_PRIORITIES,
)

from levada._errors import InvalidArgument
from levada._pipeline import Pipeline


def _functional(name: str) -> Any:
    """Registers a datapipe under a name that nobody has taken."""
    if name in IterDataPipe.functions:
        return lambda cls: cls
    return functional_datapipe(name)


class _Through(IterDataPipe):  # type: ignore[misc, type-arg, unused-ignore]
    """A datapipe whose items are those of another one."""

    source_datapipe: Any

    def __len__(self) -> int:
        return len(self.source_datapipe)


@_functional("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(_Through):
    """What stands before this runs in one process, which deals its items to the workers in turn. Nothing where there are
    no workers."""

    def __init__(self, source_datapipe: Any, sharding_group_filter: Any = None) -> None:
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            raise NotImplementedError(
                "items are dealt among the processes of a rank: sharding_group_filter must be "
                "SHARDING_PRIORITIES.MULTIPROCESSING; among ranks sharding_filter() divides"
            )
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        yield from self.source_datapipe


@_functional("prefetch")
class Prefetcher(_Through):
    """Makes up to `buffer_size` items ahead, on a thread."""

    def __init__(self, source_datapipe: Any, buffer_size: int = 10) -> None:
        if buffer_size <= 0:
            raise ValueError(f"buffer_size is {buffer_size}; it must be positive")
        self.source_datapipe = source_datapipe
        self.buffer_size = buffer_size

    def _pipeline(self) -> Pipeline[Any]:
        return Pipeline[Any](self.source_datapipe).prefetch(self.buffer_size)

    def __iter__(self) -> Iterator[Any]:
        with self._pipeline().run(alone=True, seed=0) as run:
            yield from run


@_functional("pin_memory")
class PinMemory(Prefetcher):
    """Two items ahead in pinned memory, in the process that consumes them."""

    def __init__(self, source_datapipe: Any, device: Any = None, pin_memory_fn: Any = None) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("pin_memory() is for CUDA, which this torch does not have or find")
        super().__init__(source_datapipe, 2)
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def _pin(self, item: Any) -> Any:
        from torch.utils.data._utils.pin_memory import pin_memory  # type: ignore[import-not-found, unused-ignore]

        return (self.pin_memory_fn or pin_memory)(item, self.device)

    def _pipeline(self) -> Pipeline[Any]:
        return Pipeline[Any](self.source_datapipe).map(self._pin, name="pin_memory").prefetch(self.buffer_size)

    def is_replicable(self) -> bool:
        return False


@_functional("fullsync")
class FullSync(_Through):
    """Ends on all ranks with the shortest, and fails on all with the first that fails. What is agreed is agreed an item
    ahead."""

    def __init__(self, datapipe: Any, timeout: float = 1800.0) -> None:
        self.source_datapipe = datapipe
        self.timeout = timeout

    def __iter__(self) -> Iterator[Any]:
        import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError("fullsync() needs torch.distributed to be initialized")
        pipeline = Pipeline[Any](self.source_datapipe).fullsync()
        with pipeline.run(group=dist.group.WORLD, seed=0, timeout=self.timeout) as run:
            yield from run

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
    """`num_instances` datapipes, of which the i-th has every item whose number is i mod `num_instances`."""

    def __new__(cls, datapipe: Any, num_instances: int, buffer_size: int = 1000) -> Any:
        if num_instances < 1:
            raise ValueError(f"num_instances is {num_instances}; it must be at least 1")
        if num_instances == 1:
            return [datapipe]
        parts = _Numbered(datapipe).demux(
            num_instances=num_instances, classifier_fn=_ByNumber(num_instances), buffer_size=buffer_size
        )
        return [part.map(_item_of) for part in parts]


class SeedGenerator:
    """Seeds drawn one after the other: those that all ranks and workers share, and those of one's own."""

    def __init__(self, seed: int | None = None) -> None:
        self._place: tuple[int, ...] = ()
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Begins anew; without a seed, at one that torch's generator draws."""
        if seed is None:
            with torch.random.fork_rng():
                seed = int(torch.randint(2**63 - 1, ()).item())
        if not 0 <= seed < 2**64:
            raise ValueError(f"the seed is {seed}; it has 64 bits")
        self._seed = seed
        self._shared = random.Random(f"shared {seed}")
        self._own = random.Random(f"own {seed} {self._place}")

    def generate_shared_seed(self) -> int:
        return self._shared.getrandbits(64)

    def generate_seed(self) -> int:
        return self._own.getrandbits(64)

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """One whose own seeds are of that rank or worker."""
        if worker_id < 0:
            raise ValueError(f"worker_id is {worker_id}; it counts from 0")
        made = self if inplace else SeedGenerator(self._seed)
        made._shared.setstate(self._shared.getstate())
        made._place = (*self._place, worker_id)
        made._own = random.Random(f"own {self._own.getrandbits(64) if inplace else self._seed} {made._place}")
        return made


def refuse_unknown_start(context: str | None, known: tuple[str, ...]) -> str:
    if context is None:
        return known[0]
    if context not in known:
        raise InvalidArgument(f'multiprocessing_context is "{context}"; it must be one of {", ".join(known)}')
    return context
