"""The options of a pipeline run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from levada.base.checks import check_function, flag, whole_number
from levada.base.errors import InvalidArgument, InvalidType

CONTEXTS = ("spawn", "forkserver", "fork")
_FOREVER = 1e8
"""In seconds: effectively no limit, but small enough for a clock."""
_MAX_WORKERS = 1022
"""An engine has at most 1024 processes, two of which are the dispatching process and this one."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of Pipeline.run()."""

    workers: int
    context: str
    worker_prefetch: int
    main_prefetch: int
    prefetch_bytes: int
    snapshot_every: int
    seed: int | None
    ordered: bool
    on_error: str
    worker_init: Callable[[int], Any] | None
    threads: int
    timeout: float
    start_timeout: float
    group: Any
    alone: bool
    record: bool
    allow_pickle: bool
    on_worker_death: str

    def __post_init__(self) -> None:
        for name in ("workers", "worker_prefetch", "main_prefetch", "prefetch_bytes", "snapshot_every", "threads"):
            bits = 63 if name in ("prefetch_bytes", "snapshot_every") else 31
            if not 0 <= self._set_integer(name) < 2**bits:
                raise InvalidArgument(f"{name} must be from 0 to 2**{bits} - 1, got {getattr(self, name)}")
        for name in ("ordered", "alone", "record", "allow_pickle"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        for name in ("timeout", "start_timeout"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds > 0:
                error = InvalidArgument if isinstance(seconds, (int, float)) else InvalidType
                raise error(f"{name} is {seconds!r}; it must be a positive number of seconds")
            object.__setattr__(self, name, min(float(seconds), _FOREVER))
        if self.workers > _MAX_WORKERS:
            raise InvalidArgument(f"workers is {self.workers}; a pipeline has at most {_MAX_WORKERS}")
        if self.on_error not in ("raise", "skip"):
            raise InvalidArgument(f'on_error is "{self.on_error}"; it must be raise or skip')
        if self.on_worker_death not in ("raise", "replace"):
            raise InvalidArgument(f'on_worker_death is "{self.on_worker_death}"; it must be raise or replace')
        if self.context not in CONTEXTS:
            raise InvalidArgument(f'context is "{self.context}"; it must be one of {", ".join(CONTEXTS)}')
        if self.worker_init is not None:
            check_function("worker_init", self.worker_init)
        if self.seed is not None and not 0 <= self._set_integer("seed") < 2**64:
            raise InvalidArgument(f"seed must be from 0 to 2**64 - 1, got {self.seed}")

    def _set_integer(self, name: str) -> int:
        """Converts an option to an int in place, and returns it."""
        number = whole_number(name, getattr(self, name))
        object.__setattr__(self, name, number)
        return number
