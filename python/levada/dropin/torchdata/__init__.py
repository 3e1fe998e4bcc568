"""torchdata's DataLoader2 and its reading services, over torch's own datapipes.

    from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService    # was: from torchdata.dataloader2

In torchdata                                      Here
------------------------------------------------  ------------------------------------------------------------------
items cross pickled, through queues that are      items cross in shared memory, tensors where they lie; nobody polls
polled every 0.1 ms
a state is that of the epoch's beginning          state_dict() is where the loop stands, and goes on with the next item
a worker that is killed leaves the loop waiting   levada.PeerLost within a second, with process and signal
an exception comes wrapped, its traceback as      the exception itself, caused by a levada.StageFailed with process,
text                                              item number and traceback
lambdas and local functions need dill             cross by cloudpickle
a fork that is too far apart raises in the        as before where both branches are in one process
middle of an epoch
pause with a dispatching process is unsafe        is answered by each process once
what a service before wants done before an epoch  is done by both; the workers' processes start anew where it is another
is left out by the in-process service and by the  function than before
distributed one
an unsharded branch beside a dispatch gives its   is refused, by name
items to each worker
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
