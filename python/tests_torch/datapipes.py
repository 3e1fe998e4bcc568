"""Datapipes and loaders shared by tests of the torchdata drop-in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

from levada.dropin.torchdata import SHARDING_PRIORITIES, MultiProcessingReadingService
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

multiprocessing.set_forkserver_preload(["levada.dropin.torchdata", "cloudpickle"])
MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


def service(workers: int = 2, **options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(workers, "forkserver", **options)


def add_one(item: int) -> int:
    return item + 1


def dispatching(count: int = 20) -> Any:
    pipe = IterableWrapper(range(count)).shuffle().prefetch(5)
    return pipe.sharding_round_robin_dispatch(MULTIPROCESSING).map(add_one)


def sharded(count: int = 20) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(add_one)


class Holding(IterDataPipe):
    """A datapipe that must not be copied into workers."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        yield from self.source
