"""Levada: one reader loads; every rank of a mesh receives exactly the bytes it needs, once.

    import levada

    feed = levada.Feed(loader, mesh=levada.Mesh(dp=2, tp=2))
    for batch in feed:
        train(batch)
"""

from levada._balance import Balance, collate_packed
from levada._classes import register
from levada._corpus import Corpus
from levada._errors import (
    CorruptMessage,
    EngineError,
    Error,
    InvalidArgument,
    PeerLost,
    SourceError,
    StageFailed,
    Timeout,
    Unsupported,
)
from levada._feed import Feed
from levada._layouts import make_layout as layout
from levada._job import join, rank, world_size
from levada._levada import Digests, Layout, Membership, Mesh, pack, unpack
from levada._memory import collate, empty
from levada._pipeline import Pipeline
from levada._reduce import ReduceScatter

__version__ = "0.1.0"

__all__ = [
    "Balance",
    "Corpus",
    "CorruptMessage",
    "Digests",
    "EngineError",
    "Error",
    "Feed",
    "InvalidArgument",
    "Layout",
    "Membership",
    "Mesh",
    "PeerLost",
    "Pipeline",
    "ReduceScatter",
    "SourceError",
    "StageFailed",
    "Timeout",
    "Unsupported",
    "collate",
    "collate_packed",
    "empty",
    "join",
    "layout",
    "pack",
    "rank",
    "register",
    "unpack",
    "world_size",
]
