"""States of a DataLoader2 some of whose datapipes run in the process that consumes. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import levada
import pytest
import ranks
from datapipes import Holding, dispatching, service, sharded
from levada.dropin.torchdata import DataLoader2
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper


class Greedy(IterDataPipe):
    """Pulls all items before it yields the first one."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.source)


def zipped() -> Any:
    return Holding(sharded()).zip(IterableWrapper(range(100, 120)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Holding(sharded()),
        lambda: Holding(sharded()).prefetch(4),
        lambda: Holding(dispatching()).prefetch(4),
        lambda: Holding(sharded()).shuffle(buffer_size=8),
        lambda: Holding(sharded()).batch(3).unbatch(),
        lambda: Greedy(Holding(sharded())),
        zipped,
    ],
)
def test_a_state_resumes_at_the_next_item_though_local_datapipes_pull_ahead(make: Callable[[], Any]) -> None:
    with DataLoader2(make(), reading_service=service()) as loader:
        loader.seed(7)
        items = iter(loader)
        [next(items) for _ in range(5)]
        state = loader.state_dict()
        rest, following = list(items), list(loader)
    with DataLoader2.from_state(state, service(), allow_pickle=True) as loader:
        resumed = iter(loader)
        assert loader.state_dict() == state
        assert [next(resumed) for _ in range(3)] == rest[:3]
        state = loader.state_dict()
    with DataLoader2.from_state(state, service(), allow_pickle=True) as loader:
        assert [list(loader), list(loader)] == [rest[3:], following]


@pytest.mark.parametrize("workers", [0, 3])
def test_a_state_of_other_workers_is_refused(workers: int) -> None:
    with DataLoader2(Holding(sharded()), reading_service=service(2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(levada.InvalidArgument, match="saved with other workers or datapipes"):
        list(DataLoader2.from_state(state, service(workers), allow_pickle=True))


def test_states_of_ranks_that_end_together_resume_at_the_next_item(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def main():
            import os
            os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}}
            import torch.distributed as dist
            from levada.dropin.torchdata import DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
            from torch.utils.data.datapipes.iter import IterableWrapper
            dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
            def service():
                return SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(1, "forkserver"))
            with DataLoader2(IterableWrapper(range(40)).shuffle().sharding_filter(), reading_service=service()) as loader:
                loader.seed(3)
                items = iter(loader)
                [next(items) for _ in range(5)]
                state = loader.state_dict()
                rest = list(items)
            with DataLoader2.from_state(state, service(), allow_pickle=True) as loader:
                tell(rest=rest, resumed=list(loader))
            dist.destroy_process_group()
        if __name__ == "__main__":
            main()
        """,
    )
    for (only,) in told:
        assert only["resumed"] == only["rest"] and len(only["rest"]) == 15
