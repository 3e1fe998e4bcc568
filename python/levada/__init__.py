"""Levada: one reader loads; every rank of a mesh receives exactly the bytes it needs, once.

```python
import levada

feed = levada.Feed(loader, mesh=levada.Mesh(dp=2, tp=2))
for batch in feed:
    train(batch)
```
"""

import importlib
from typing import TYPE_CHECKING

from levada.base.extension import get_cmake_dir, require_extension

require_extension()

from levada._levada import Digests, Layout, Membership, Mesh, Replicate, Shard, Stages, Zigzag, pack, unpack
from levada.base.errors import (
    CorruptMessage,
    EngineError,
    Error,
    InvalidArgument,
    ItemError,
    PeerLost,
    SourceError,
    StageFailed,
    Timeout,
    Unsupported,
)
from levada.base.metrics import MetricsExporter
from levada.batch.balance import Balance
from levada.batch.classes import register
from levada.batch.memory import collate, empty
from levada.batch.packing import collate_packed
from levada.batch.padding import collate_padded
from levada.corpus.corpus import Corpus
from levada.feed.feed import Feed
from levada.job.context_groups import ContextGroups
from levada.job.job import join, rank, world_size
from levada.loader.items import item_seed
from levada.loader.loader import DataLoader
from levada.pipeline.pipeline import Pipeline
from levada.reduce.reduce import ReduceScatter

__version__ = "0.1.0"

__all__ = [
    "Balance",
    "ContextGroups",
    "Corpus",
    "CorruptMessage",
    "DataLoader",
    "Digests",
    "EngineError",
    "Error",
    "Feed",
    "InvalidArgument",
    "ItemError",
    "Layout",
    "Membership",
    "Mesh",
    "MetricsExporter",
    "PeerLost",
    "Pipeline",
    "ReduceScatter",
    "Replicate",
    "Shard",
    "SourceError",
    "StageFailed",
    "Stages",
    "Timeout",
    "Unsupported",
    "Zigzag",
    "collate",
    "collate_packed",
    "collate_padded",
    "empty",
    "get_cmake_dir",
    "item_seed",
    "join",
    "pack",
    "rank",
    "register",
    "unpack",
    "world_size",
]

_MODULES = ("ddp", "exchange", "fsdp", "testing")
"""Modules that are imported on first use as attributes."""

if TYPE_CHECKING:
    from levada import ddp as ddp
    from levada import exchange as exchange
    from levada import fsdp as fsdp
    from levada import testing as testing
else:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'levada' has no attribute '{name}'", name=name)
        try:
            return importlib.import_module(f"levada.{name}")
        except ImportError as error:  # without torch
            raise AttributeError(f"levada.{name} cannot be imported: {error}", name=name) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
