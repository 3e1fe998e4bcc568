"""A rank that raises in its step, with each drop-in: the other ranks get an error that names it and its exception. Run by
`script/check python-torch`."""

from __future__ import annotations

import pathlib
from typing import Any

import bridge_steps
import packing_steps
import process_groups
import pytest
import ranks

STEP = """
    def step(number):
        if rank == 1 and number == 5:
            tell(failed=time.monotonic())
            raise ValueError("loss is NaN")
        time.sleep(0.005)  # the length of a step
"""

LOOPS = {
    "swift": """
    from levada.dropin.swift import DataLoaderDispatcher
    def loop():
        for number, batch in enumerate(DataLoaderDispatcher({"x": torch.full((3,), i)} for i in range(9000))): step(number)
""",
    "bridge": """
    groups, cfg = grid(pp=1, tp=3), config()
    iterator = read_by(rank == 0, (batch(i) for i in range(3000)))
    def loop():
        for number in range(3000):
            bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)
            step(number)
""",
    "areal": """
    from levada.dropin.areal import DataManager, ProcessTopology, RedistribStep, SequenceSample
    data = DataManager({"actor": ProcessTopology(["pipe", "data", "tensor"], [1, 3, 1])})
    data.setup_process_groups()
    def sample(name):
        return SequenceSample.from_default([3], [name], {"input_ids": torch.full((3,), 7)})
    def loop():
        for number in range(3000):
            name = str(number)
            if rank == 0: data.store(sample(name))
            data.redistribute(sample(name).meta(), [RedistribStep("bcast", 0, [0], [1, 2], [name], ["input_ids"])])
            step(number)
""",
    "torchdata": """
    from levada.dropin.torchdata import DataLoader2, DistributedReadingService
    from torch.utils.data.datapipes.iter import IterableWrapper
    def loop():
        pipe = IterableWrapper(range(100_000)).sharding_filter()
        for number, item in enumerate(DataLoader2(pipe, reading_service=DistributedReadingService())): step(number)
""",
    "fairscale": """
    from levada.dropin.fairscale import ReduceScatterBucketer
    bucketer = ReduceScatterBucketer()
    def loop():
        for number in range(3000):
            bucketer.reduce_scatter_async([torch.ones(4)] * 3, dist.group.WORLD)
            bucketer.flush()
            step(number)
""",
    "megatron": """
    grid(tp=3)
    def loop():
        for number in range(3000):
            samples = iter([sample(0, at, 8) for at in range(2)]) if rank == 0 else None
            micros, count, *_ = wrap(samples, config(), 2)
            for _ in range(count): get(micros)
            step(number)
""",
}
PREPARE = {"bridge": bridge_steps.PREPARE, "megatron": packing_steps.PREPARE}

OUTCOME = """
    try:
        loop()
        tell(finished=True)
    except levada.Error as error:
        tell(heard=time.monotonic(), kind=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
        raise
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dropin", LOOPS)
def test_the_other_ranks_report_which_rank_raised_what(tmp_path: pathlib.Path, dropin: str) -> None:
    if dropin == "megatron":
        pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    body = PREPARE.get(dropin, "") + STEP + LOOPS[dropin] + OUTCOME
    outcomes = process_groups.finish(process_groups.start(tmp_path, 3, body), tmp_path, within=250)
    told = [outcome.told[0] for outcome in outcomes]
    assert [len(mine) for mine in told] == [1, 1, 1], [outcome.errors for outcome in outcomes]
    _assert_told(told)


def _assert_told(told: list[list[dict[str, Any]]]) -> None:
    ranks.assert_prompt(told, failing=1)
    for mine in (told[0][0], told[2][0]):
        assert mine["kind"] == "PeerLost", mine  # names rank 1, or rank 0, which got that error and ended
        assert "rank 1 " in mine["text"] and "ValueError: loss is NaN" in mine["text"], mine


@pytest.mark.parametrize("engine", ["shm", "c10d", "shm+c10d"])
def test_on_every_engine_the_others_get_the_error_within_a_second(tmp_path: pathlib.Path, engine: str) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        f"""
        from levada.job import groups
        if {engine!r} == "shm+c10d": groups._read = lambda path: f"host {{rank // 2}}"
        for attempt in range(3):
            job = levada.join(dist.new_group([0, 1, 2, 3]), engine={engine!r})
            assert job.engine == {engine!r} and len(set(job.host_of)) == (2 if "+" in job.engine else 1)
            try:
                with levada.Feed(({{"x": torch.full((3,), i)}} for i in range(9000)), group=job) as feed:
                    for number, batch in enumerate(feed):
                        if rank == 1 and number == 5:
                            tell(failed=time.monotonic())
                            raise ValueError("loss is NaN")
                        time.sleep(0.005)  # the length of a step
            except ValueError:
                pass
            except levada.PeerLost as error:
                tell(heard=time.monotonic(), rank=error.rank, text=str(error))
            dist.monitored_barrier()
        """,
    )
    delays = []
    for attempt in range(3):
        delays.append(ranks.assert_prompt([mine[attempt : attempt + 1] for mine in told], failing=1))
        for mine in (told[0], told[2], told[3]):
            assert "rank 1 left the feed at step 6 with ValueError: loss is NaN" in str(mine[attempt]["text"]), mine
    ranks.assert_prompt_in_most_runs(delays)


def test_a_datapipe_that_workers_iterate_names_the_rank_too(tmp_path: pathlib.Path) -> None:
    told = ranks.run_without_launcher(
        tmp_path,
        3,
        f"""
        def main():
            os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}}
            import torch.distributed as dist
            from levada.dropin.torchdata import DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
            from torch.utils.data.datapipes.iter import IterableWrapper
            dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=3)
            pipe = IterableWrapper(range(100_000)).sharding_filter()
            service = SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(1, "spawn"))
            try:
                with DataLoader2(pipe, reading_service=service) as loader:
                    for number, item in enumerate(loader):
                        if rank == 1 and number == 5:
                            tell(failed=time.monotonic())
                            raise ValueError("loss is NaN")
                        time.sleep(0.005)  # the length of a step
            except levada.Error as error:
                tell(heard=time.monotonic(), kind=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
                raise
        if __name__ == "__main__":
            main()
        """,
        within=180,
    )
    _assert_told(told)
