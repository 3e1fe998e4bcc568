"""torchdata's DataLoader2 and its reading services, over the datapipes of torch and, if installed, of torchdata.

    from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService    # was: from torchdata.dataloader2

Modules and names are those of torchdata.dataloader2 0.7.0 to 0.9.0; docs/migrate/torchdata.md lists the differences.
"""

from levada.dropin.torchdata._datapipes import (
    SHARDING_PRIORITIES,
    FullSync,
    PinMemory,
    Prefetcher,
    RoundRobinDemultiplexer,
    ShardingRoundRobinDispatcher,
)
from levada.dropin.torchdata.dataloader2 import DataLoader2, DataLoader2Iterator
from levada.dropin.torchdata.error import PauseIteration
from levada.dropin.torchdata.random import SeedGenerator
from levada.dropin.torchdata.reading_service import (
    CheckpointableReadingServiceInterface,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from levada.dropin.torchdata.shuffle_spec import ShuffleSpec
from levada.dropin.torchdata.utils import WorkerInfo

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "FullSync",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PauseIteration",
    "PinMemory",
    "Prefetcher",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "RoundRobinDemultiplexer",
    "SHARDING_PRIORITIES",
    "SeedGenerator",
    "SequentialReadingService",
    "ShardingRoundRobinDispatcher",
    "ShuffleSpec",
    "WorkerInfo",
]
