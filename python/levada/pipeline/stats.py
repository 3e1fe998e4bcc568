"""The counts of a pipeline's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StageStats:
    """Counts of one stage, over all processes."""

    items: int
    """Number of items that the stage yielded."""
    skipped: int
    """Number of items that the stage left out because of an exception."""
    busy_seconds: float
    """Seconds that the stage worked."""
    waited_seconds: float
    """Seconds that the stage waited for the stage before it."""


@dataclass(frozen=True)
class RunStats:
    """Counts of a run."""

    stages: Mapping[str, StageStats] = field(default_factory=dict)
    """Counts by stage name."""
    messages: int = 0
    """Number of messages between the processes."""
    wakeups: int = 0
    bytes: int = 0
    """Number of bytes in the messages."""
    copied: int = 0
    """Number of these bytes that the receiver copied."""
