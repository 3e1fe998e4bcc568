"""Several threads on each stateful object of a drop-in. Run by `script/check threads`."""

from __future__ import annotations

import pathlib
import textwrap

import pytest
import racing

pytestmark = pytest.mark.timeout(300 * racing.TIMES)

GROUP = """
import torch, torch.distributed as dist
sys.setswitchinterval(1e-5)
rank, size = levada.rank(), levada.world_size()
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=size)
group = dist.group.WORLD
def until_done(use, times=50):
    def work():
        done = 0
        while done < times:
            try:
                use()
                done += 1
            except levada.InvalidArgument as error:
                if "another thread" not in str(error): raise
                time.sleep(0.001)
        return done
    return work
"""


def run(folder: pathlib.Path, body: str, ranks: int = 1) -> None:
    racing.run(folder, GROUP.replace("{folder}", str(folder)) + textwrap.dedent(body), ranks)


def test_hooks_of_one_state_average_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        from levada import ddp
        state = ddp.State(timeout=60)
        class Bucket:
            def __init__(self, number): self.tensor = torch.full((64,), float(number))
            def buffer(self): return self.tensor
        def average():
            assert ddp.average(state, Bucket(3)).wait().tolist() == [3.0] * 64
        outcomes = together(*[until_done(average)] * 3)
        assert outcomes == [50] * 3, outcomes
        """,
    )


def test_threads_on_one_bucketer_get_their_sums_or_are_refused(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        from levada.dropin.fairscale import ReduceScatterBucketer
        bucketer, sums = ReduceScatterBucketer(1), []
        def reduce():
            bucketer.reduce_scatter_async([torch.full((8,), 2.0)], group, lambda it: sums.append(it.tolist()))
        outcomes = together(*[until_done(reduce)] * 3, until_done(bucketer.flush), until_done(lambda: bucketer.buckets))
        assert outcomes == [50] * 5, outcomes
        bucketer.flush()
        bucketer.teardown()
        assert sums == [[2.0] * 8] * 150, len(sums)
        """,
    )


def test_threads_on_one_data_manager_store_move_and_clear_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        from levada.dropin.areal import DataManager, RedistribStep, SequenceSample
        manager = DataManager({}, group=group, timeout=60)
        manager.setup_process_groups()
        def sample(name):
            return SequenceSample.from_default([3], [name], {"packed_input_ids": torch.arange(3)})
        kept = sample("kept")
        if rank == 0: manager.store(kept)
        step = RedistribStep(comm_type="bcast", root=0, srcs=[0], dsts=[1], ids=["kept"], keys=["packed_input_ids"])
        def store(name):
            def use():
                manager.store(sample(name))
                assert manager.has_data(name) and manager.get(name).data["packed_input_ids"].tolist() == [0, 1, 2]
                manager.remove([name])
                manager.storage_size()
            return until_done(use)
        move = lambda: manager.redistribute(kept.meta(), [step])
        movers = [until_done(move), until_done(move)] if rank == 0 else [until_done(move, 100)]
        outcomes = together(*movers, store("a"), store("b"))
        assert sum(outcomes) == 200, outcomes
        assert manager.get("kept").data["packed_input_ids"].tolist() == [0, 1, 2] and manager.storage_size() == 1
        """,
        ranks=2,
    )


def test_threads_that_request_batches_of_one_group_get_their_own(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        from levada.dropin.bridge import BroadcastIterator
        def of(number):
            def batches():
                for step in itertools.count():
                    time.sleep(0.001)
                    yield {"x": torch.tensor([number, step])}
            mine = BroadcastIterator(batches() if rank == 0 else None, group)
            got = []
            work = until_done(lambda: got.append(next(mine)["x"].tolist()), 50 if rank == 0 else 150)
            def all_of_them():
                work()
                return got
            return all_of_them
        if rank == 0:
            outcomes = together(of(1), of(2), of(3))
            assert outcomes == [[[number, step] for step in range(50)] for number in (1, 2, 3)], outcomes
        else:
            (outcome,) = together(of(0))
            assert sorted(outcome) == [[number, step] for number in (1, 2, 3) for step in range(50)], outcome
        """,
        ranks=2,
    )


def test_threads_that_iterate_one_dispatcher_have_separate_passes(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        from levada.dropin.swift import DataLoaderDispatcher
        dispatcher = DataLoaderDispatcher([torch.full((3,), float(number)) for number in range(100)])
        def work():
            return [[int(batch[0]) for batch in dispatcher] for _ in range(5)]
        outcomes = together(work, work, lambda: dispatcher.set_epoch(1))
        assert outcomes[:2] == [[list(range(100))] * 5] * 2, outcomes
        """,
    )
