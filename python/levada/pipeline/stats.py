"""The counts of a pipeline's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StageStats:
    """Counts of one stage, over all processes."""

    items: int
    """Items that the stage yielded."""
    skipped: int
    """Items that it left out because of an exception."""
    busy_seconds: float
    """Seconds that it worked."""
    waited_seconds: float
    """Seconds that it waited for the stage before it."""


@dataclass(frozen=True)
class RunStats:
    """Counts of a run."""

    stages: Mapping[str, StageStats] = field(default_factory=dict)
    """By the name of the stage."""
    messages: int = 0
    """Messages between the processes."""
    wakeups: int = 0
    bytes: int = 0
    """Bytes of the messages."""
    copied: int = 0
    """The part of them that the receiver copied."""
