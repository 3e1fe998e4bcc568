"""Functions that change a graph of datapipes before a DataLoader2 runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch.utils.data.graph_settings import (  # type: ignore[import-not-found, unused-ignore]
    apply_shuffle_settings,
)

from levada.dropin.torchdata._datapipes import is_kind
from levada.dropin.torchdata.graph import all_of

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]


class Adapter(ABC):
    """Base class of adapters."""

    @abstractmethod
    def __call__(self, datapipe: Any) -> Any:
        """Returns the datapipe to use instead, which may be the same datapipe after a change."""


class Shuffle(Adapter):
    """Turns every shuffle() of the graph on or off. True appends one at the end if there is none; None changes
    nothing."""

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        return apply_shuffle_settings(datapipe, shuffle=self.enable)


class CacheTimeout(Adapter):
    """Sets how many seconds torchdata's end_caching() waits for a file that another process writes."""

    def __init__(self, timeout: int | None = None) -> None:
        if timeout is None:
            raise ValueError("CacheTimeout needs a timeout in seconds, got None")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        for pipe in all_of(datapipe):
            if is_kind(pipe, "_WaitPendingCacheItem"):
                pipe.set_timeout(self.timeout)
        return datapipe
