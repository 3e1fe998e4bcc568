"""Topologies, planners and trackers of the AReaL drop-in. Run by `script/check python-torch`."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from types import SimpleNamespace

import levada
import pytest
from levada.dropin._areal_plans import hops
from levada.dropin.areal import (
    DataPipeTensorParallelTopology,
    GlobalStorageTracker,
    PipeDataTensorParallelTopology,
    ProcessTopology,
    RedistribPlanner,
    RedistribStep,
    dp_heads,
)


def test_a_topology_names_the_places_of_ranks() -> None:
    topo = ProcessTopology(axes=["pipe", "data", "tensor"], dims=[2, 2, 2])
    assert topo.world_size() == 8 and topo.get_dim("data") == 2 and topo.get_rank(pipe=1, data=0, tensor=1) == 5
    assert topo.get_coord(6) == (1, 1, 0) and topo.get_coord(6).data == 1
    assert topo.filter_match(pipe=0, data=1) == [2, 3] and topo.get_axis_list("pipe", 1) == [4, 5, 6, 7]
    assert topo.get_axis_comm_lists("pipe") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert topo.get_rank_repr(3) == "tensor_1" and dp_heads(topo) == [4, 6]
    wide = ProcessTopology(axes=["pipe", "data", "tensor"], dims=[1, 2, 8])
    assert wide.get_rank_repr(3) == "tensor_03" and wide.get_rank_repr(11, omit_axes=[]) == "pipe_00-data_01-tensor_03"
    assert list(topo.mapping.values()) == list(range(8)) and topo.mapping[topo.get_coord(5)] == 5
    with pytest.raises(ValueError, match="no axes"):
        topo.filter_match(model=0)
    with pytest.raises(ValueError, match="no rank 8"):
        topo.get_coord(8)
    with pytest.raises(ValueError, match="no rank at"):
        topo.get_rank(pipe=2, data=0, tensor=0)
    with pytest.raises(ValueError, match="at least one rank"):
        ProcessTopology(["pipe"], [0])
    with pytest.raises(AssertionError):
        topo.get_rank(pipe=2, data=0, tensor=0)


def test_topologies_have_areals_names() -> None:
    trained = PipeDataTensorParallelTopology(2, 3, 4, True, False, True, max_prompt_len=5)
    assert (trained.axes, trained.dims) == (["pipe", "data", "tensor"], [2, 4, 3])
    assert trained.sequence_parallel and not trained.gradient_checkpointing and trained.gradient_accumulation_fusion
    made = DataPipeTensorParallelTopology(num_pp=2, num_tp=3, num_dp=4, sequence_parallel=False)
    assert (made.axes, made.dims, made.max_prompt_len) == (["data", "pipe", "tensor"], [4, 2, 3], None)
    place = made.ProcessCoord(data=1, pipe=0, tensor=2)
    assert made.mapping[place] == 8 == made.get_rank(data=1, pipe=0, tensor=2) and type(made.get_coord(8)) is type(place)
    assert str(place) == "DataPipeTensorProcessCoord(data=1, pipe=0, tensor=2)" and str(made) == str(made.mapping)
    for topo in (trained, made):
        assert pickle.loads(pickle.dumps(topo)) == topo and copy.deepcopy(topo).mapping == topo.mapping


class Parallelism(ProcessTopology):
    """Has a custom constructor, as AReaL's PipeDataTensorParallelTopology does."""

    def __init__(self, num_pp: int, *, sequence_parallel: bool) -> None:
        super().__init__(axes=["pipe", "other"], dims=[num_pp, 2])
        self.sequence_parallel = sequence_parallel


@pytest.mark.parametrize("topo", [ProcessTopology(["data", "pipe"], [2, 3]), Parallelism(3, sequence_parallel=True)])
def test_a_topology_can_be_sent_and_compared(topo: ProcessTopology) -> None:
    for again in (pickle.loads(pickle.dumps(topo)), copy.deepcopy(topo)):
        assert again == topo and hash(again) == hash(topo) and type(again) is type(topo)
        assert again.mapping == topo.mapping and vars(again).keys() == vars(topo).keys()
    place = topo.get_coord(3)
    assert pickle.loads(pickle.dumps(place)) == place and type(pickle.loads(pickle.dumps(place))) is type(place)
    assert topo != ProcessTopology(topo.axes, [9, 9]) and topo != ProcessTopology(["a", "b"], topo.dims)
    assert topo == ProcessTopology(topo.axes, topo.dims) and topo != "a topology"
    assert repr(topo) == f"ProcessTopology(axes={topo.axes}, dims={topo.dims})"


def tracked() -> RedistribPlanner:
    tracker = GlobalStorageTracker(6)
    for rank in range(2):
        for key in ("x", "y"):
            tracker.add_data_synced(rank, [f"{rank}{i}" for i in range(3)], key, is_owner=True)
    asyncio.run(tracker.add_data(4, ["00"], "x", is_owner=False))
    return RedistribPlanner(SimpleNamespace(n_gpus_per_node=4), tracker)


def test_a_process_that_is_not_a_rank_plans_and_sends_the_steps() -> None:
    planner = tracked()
    dests = {4: ["00", "10"], 5: ["10", "00"], 2: [], 0: ["01"]}
    steps = planner.derive_plan(dests, ["y", "x"], pattern="bcast")
    assert pickle.loads(pickle.dumps(steps)) == steps
    assert [(s.comm_type, s.root, s.dsts, s.ids, s.keys) for s in steps] == [
        ("bcast", 0, [4, 5], ["00"], ["y"]),
        ("bcast", 1, [4, 5], ["10"], ["x"]),
        ("bcast", 1, [4, 5], ["10"], ["y"]),
        ("bcast", 4, [5], ["00"], ["x"]),  # on the same node
    ]
    reordered = dict(reversed([(rank, ids[::-1]) for rank, ids in dests.items()]))
    for pattern in ("bcast", "gather-scatter"):
        assert planner.derive_plan(reordered, ["x", "y"], pattern) == planner.derive_plan(dests, ["y", "x"], pattern)
    through = planner.derive_plan(dests, ["x", "y"])
    assert [(s.comm_type, s.root, s.srcs or s.dsts, s.ids, s.keys) for s in through] == [
        ("gather", 0, [1], [["10"]], ["x", "y"]),
        ("scatter", 0, [4, 5], [["10"], ["00", "10"]], ["x"]),
        ("scatter", 0, [4, 5], [["00", "10"], ["00", "10"]], ["y"]),
    ]
    assert repr(through[0]) == "Gather ['x', 'y'] from [1] to 0."
    for pattern in ("bcast", "gather-scatter"):
        assert planner.derive_plan({0: ["00"], 1: ["12"]}, ["x", "y"], pattern) == []
        with pytest.raises(levada.InvalidArgument, match="99"):
            planner.derive_plan({0: ["99"]}, ["x"], pattern)
        with pytest.raises(levada.InvalidArgument, match="z"):
            planner.derive_plan({0: ["10"]}, ["z"], pattern)
        with pytest.raises(AssertionError if pattern == "bcast" else KeyError, match="no rank has it"):
            planner.derive_plan({0: ["99"]}, ["x"], pattern)
    with pytest.raises(NotImplementedError):
        planner.derive_plan(dests, ["x"], "ring")
    assert planner.derive_plan_bcast(dests, ("y", "x")) == steps
    assert planner.derive_plan_gather_scatter(dests, ("x", "y")) == through
    with pytest.raises(levada.InvalidArgument, match="pattern"):
        planner.derive_plan(dests, ["x"], "ring")
    asyncio.run(planner.storage_tracker.clear_data(["00", "10"]))
    assert "00" not in planner.storage_tracker.storages[4] and ("10", "x") not in planner.storage_tracker.data_owner


def test_a_planner_needs_only_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = tracked().storage_tracker
    dests = {4: ["00", "10"], 5: ["10", "00"]}
    monkeypatch.delitem(sys.modules, "realhf.base.cluster", raising=False)
    for nodes_of, alone in ((8, [RedistribPlanner(tracker), RedistribPlanner(storage_tracker=tracker)]), (4, None)):
        if alone is None:
            spec = SimpleNamespace(n_gpus_per_node=4)
            monkeypatch.setitem(sys.modules, "realhf.base.cluster", SimpleNamespace(spec=spec))
            alone = [RedistribPlanner(tracker)]
        both = RedistribPlanner(SimpleNamespace(n_gpus_per_node=nodes_of), tracker)
        for planner in alone:
            assert planner.derive_plan(dests, ["x", "y"], "bcast") == both.derive_plan(dests, ["x", "y"], "bcast")
    with pytest.raises(levada.InvalidArgument, match="GlobalStorageTracker"):
        RedistribPlanner(SimpleNamespace(n_gpus_per_node=4))


def test_a_tracker_can_be_locked() -> None:
    tracker = GlobalStorageTracker(1)

    async def adds_while_locked() -> bool:
        async with tracker.lock:
            adding = asyncio.create_task(tracker.add_data(0, ["a"], "x", is_owner=True))
            await asyncio.sleep(0)
            waited = not tracker.storages[0]
        await adding
        return waited

    assert asyncio.run(adds_while_locked()) and tracker.storages == [{"a": ["x"]}]


def test_an_incomplete_step_is_refused() -> None:
    for step in (
        RedistribStep("reduce", 0, [0], [1], ["a"], ["x"]),
        RedistribStep("bcast", None, None, [1], ["a"], ["x"]),
        RedistribStep("gather", 0, [1, 2], None, [["a"]], ["x"]),
    ):
        with pytest.raises(levada.InvalidArgument):
            list(hops(step))
