"""The drop-in for AReaL's data manager, against a reference that has all samples and selects."""

from __future__ import annotations

import asyncio
import copy
import json
import pathlib
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import levada
import numpy as np
import process_groups
import pytest
import ranks
import torch
from levada.dropin._areal_plans import hops
from levada.dropin.areal import (
    DataPipeTensorParallelTopology,
    GlobalStorageTracker,
    MicroBatchSpec,
    PipeDataTensorParallelTopology,
    ProcessTopology,
    RedistribPlanner,
    RedistribStep,
    SequenceSample,
    SequenceSplitSpec,
    dp_heads,
)


def some(ids: str = "abc") -> SequenceSample:
    tokens = [ord(id) % 5 + 1 for id in ids]
    data = {
        "input_ids": torch.arange(sum(tokens)) + 2**40,
        "rewards": torch.tensor([float(t) for t in tokens], dtype=torch.bfloat16),
        "logprobs": torch.rand(sum(tokens) - len(tokens)),
    }
    return SequenceSample.from_default(tokens, list(ids), data, {"task": [id.upper() for id in ids]})


def same(one: SequenceSample, other: SequenceSample) -> bool:
    alike = all(getattr(one, name) == getattr(other, name) for name in ("keys", "ids", "seqlens", "dtypes", "metadata"))
    return alike and all(torch.equal(one.data[key], other.data[key]) for key in one.keys)


def test_a_sample_is_cut_and_joined() -> None:
    batch = some("abcde")
    assert batch.bs == 5 and batch.seqlens["logprobs"] == [[t - 1] for (t,) in batch.seqlens["input_ids"]]
    assert same(SequenceSample.gather(batch.unpack()), batch)
    parts = batch.split_with_spec(SequenceSplitSpec(sizes=[2, 3]))
    assert parts[1].ids == ["c", "d", "e"] and parts[1].metadata == {"task": ["C", "D", "E"]}
    assert parts[0].data["input_ids"].data_ptr() == batch.data["input_ids"].data_ptr()
    parts[0].update_(SequenceSample.from_default([1, 1], ["a", "b"], {"values": torch.zeros(2)}))
    assert parts[1].keys == batch.keys and "values" not in parts[1].dtypes and "values" in parts[0].data
    assert same(SequenceSample.reorder(SequenceSample.reorder(batch, [4, 2, 0, 1, 3]), [2, 3, 1, 4, 0]), batch)
    assert sorted(SequenceSample.shuffled(batch, seed=3).ids) == batch.ids
    assert batch.select(["rewards"]).keys == {"rewards"}
    batch.remap_keys_({"rewards": "scores"})
    assert batch.keys == {"input_ids", "logprobs", "scores"} == batch.data.keys()
    meta = batch.meta()
    assert meta.data is None and meta.seqlens == batch.seqlens and meta.to_device("meta").data is None
    assert batch.to_device("meta").data["scores"].device.type == "meta"


def test_micro_batches_keep_to_their_bounds_and_can_be_undone() -> None:
    batch = some("abcdefghijk")
    tokens = [sum(each) for each in batch.seqlens["input_ids"]]
    parts, forward, backward = batch.split(MicroBatchSpec(n_mbs=2, max_tokens_per_mb=9))
    assert sum(part.bs for part in parts) == 11 and len(parts) >= 2
    assert all(part.data["input_ids"].numel() <= 9 for part in parts)
    assert [id for part in parts for id in part.ids] == [batch.ids[i] for i in forward]
    out = torch.cat([part.data["input_ids"] for part in parts])
    lengths = batch.seqlens["input_ids"]
    assert torch.equal(SequenceSample.reorder_output(out, lengths, forward, backward), batch.data["input_ids"])
    balanced, *_ = batch.split(MicroBatchSpec(n_mbs=3))
    assert len(balanced) == 3 and max(p.data["input_ids"].numel() for p in balanced) <= -(-sum(tokens) // 3) + 1
    assert len(batch.synced_data_parallel_split(MicroBatchSpec.new(MicroBatchSpec(), n_mbs=4))) == 4
    with pytest.raises(RuntimeError, match="more than the 3"):
        batch.split(MicroBatchSpec(max_tokens_per_mb=3))
    with pytest.raises(RuntimeError, match="12 micro-batches"):
        batch.split(MicroBatchSpec(n_mbs=12))


def test_the_key_by_which_a_sample_is_split_does_not_depend_on_the_order_of_keys() -> None:
    assert some()._get_split_key() == "input_ids"
    data = {"seq": torch.zeros(5), "prompt_mask": torch.zeros(5), "rewards": torch.zeros(2)}
    for names in (list(data), list(reversed(data))):
        one = SequenceSample.from_default([2, 3], ["a", "b"], {name: data[name] for name in names})
        assert one._get_split_key() == "prompt_mask"


@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([[2, 3], [1, 4]]),
        np.array([[2, 3], [1, 4]], np.int32),
        ([2, 3], (1, 4)),
        [torch.tensor([2, 3]), np.array([1, 4])],
        [[torch.tensor(2), np.int64(3)], [1.0, 4]],
        iter([range(2, 4), (1, 4)]),
    ],
)
def test_lengths_become_lists_of_lists_of_int(lengths: Any) -> None:
    sample = SequenceSample(
        keys=["x"], trailing_shapes={"x": []}, dtypes={"x": torch.int64}, ids=["a", "b"], seqlens={"x": lengths},
        data={"x": torch.arange(10)}, metadata={"m": (1, 2), "n": np.array([3, 4])},
    )  # fmt: skip
    assert sample.seqlens == {"x": [[2, 3], [1, 4]]} and sample.trailing_shapes == {"x": ()}
    assert all(type(length) is int for item in sample.seqlens["x"] for length in item)
    assert sample.metadata == {"m": [1, 2], "n": [3, 4]} and type(sample.metadata["n"]) is list
    json.dumps(sample.meta().seqlens)


def test_lengths_that_are_no_whole_numbers_are_refused() -> None:
    fields: Any = dict(keys={"x"}, trailing_shapes={"x": ()}, dtypes={"x": None}, ids=["a"])
    for lengths in ([[1.5]], [["2"]], [3], [torch.tensor(3)], [None], 4):
        with pytest.raises(levada.InvalidArgument, match="whole numbers"):
            SequenceSample(**fields, seqlens={"x": lengths})
    for values in ("ab", {"a": 1}, 3):
        with pytest.raises(levada.InvalidArgument, match="metadata m"):
            SequenceSample(**fields, seqlens={"x": [[1]]}, metadata={"m": values})
    assert SequenceSample.from_default([[3]], ["a"], {"seq": torch.zeros(3)}).seqlens == {"seq": [[3]]}
    assert SequenceSample.from_default(torch.tensor([3]), ["a"], {"seq": torch.zeros(3)}).seqlens == {"seq": [[3]]}
    with pytest.raises(AssertionError, match="one sequence each"):
        SequenceSample.from_default([[1, 2]], ["a"], {"seq": torch.zeros(3)})


def test_unknown_keywords_of_a_sample_are_ignored() -> None:
    mask = torch.ones(2)
    fields: Any = dict(keys={"x"}, trailing_shapes={"x": ()}, dtypes={"x": None}, ids=["a"], seqlens={"x": [[1]]})
    sample = SequenceSample(**fields, prompt_mask=mask)
    assert not hasattr(sample, "prompt_mask") and sample.keys == {"x"}
    with SequenceSample.disable_validation():
        assert SequenceSample(**fields, prompt_mask=mask).keys == {"x"}


def test_each_shuffle_has_another_order_and_a_seed_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = some("abcdefghijklmnop")
    orders = [tuple(SequenceSample.shuffled(batch).ids) for _ in range(8)]
    assert len(set(orders)) == 8 and all(sorted(order) == batch.ids for order in orders)
    assert SequenceSample.shuffled(batch, seed=5).ids == SequenceSample.shuffled(batch, 5).ids
    monkeypatch.setitem(sys.modules, "realhf.base.seeding", SimpleNamespace(get_shuffle_seed=iter([5, 6]).__next__))
    assert SequenceSample.shuffled(batch).ids == SequenceSample.shuffled(batch, 5).ids
    assert SequenceSample.shuffled(batch).ids == SequenceSample.shuffled(batch, 6).ids
    indices = np.arange(batch.bs)  # AReaL's own way to an order
    np.random.RandomState(6).shuffle(indices)
    assert SequenceSample.shuffled(batch, 6).ids == [batch.ids[i] for i in indices]


def test_a_split_makes_no_more_micro_batches_than_the_longest_first_does() -> None:
    lens = [93, 38, 16, 96, 43, 93, 92, 65, 55, 65, 86, 25, 39, 37, 76, 64, 65, 51, 76, 5, 62]
    batch = SequenceSample.from_default(lens, list(range(len(lens))), {"seq": torch.zeros(sum(lens))})
    parts, *_ = batch.split(MicroBatchSpec(n_mbs=6, max_tokens_per_mb=158))
    assert len(parts) == 8 == -(-sum(lens) // 158)
    assert sorted(id for part in parts for id in part.ids) == sorted(batch.ids)
    assert all(part.data["seq"].numel() <= 158 for part in parts)


def test_samples_share_nothing_that_they_change() -> None:
    fields = {
        "trailing_shapes": {"a": ()},
        "dtypes": {"a": torch.float32},
        "seqlens": {"a": [[2]]},
        "data": {"a": torch.ones(2)},
        "metadata": {"m": [1]},
    }
    given = copy.deepcopy(fields)
    one, other = (SequenceSample(keys={"a"}, ids=["x"], **fields) for _ in range(2))
    one.update_(SequenceSample.from_default([2], ["x"], {"rewards": torch.ones(1)}, {"more": [2]}))
    one.select(["a"]).update_(SequenceSample.from_default([2], ["x"], {"rewards": torch.ones(1)}, {"third": [3]}))
    for each in (one, other):
        each.remap_keys_({"a": "b"})
    assert other.keys == other.dtypes.keys() == {"b"} and other.metadata == {"m": [1]} == fields["metadata"]
    assert one.keys == {"b", "rewards"} and one.metadata == {"m": [1], "more": [2]}
    assert same(SequenceSample.from_json_compatible(json.loads(json.dumps(other.as_json_compatible()))), other)
    assert torch.equal(fields.pop("data")["a"], given.pop("data")["a"]) and fields == given


def test_a_meta_takes_no_data_away() -> None:
    batch = some()
    tokens = batch.data["input_ids"]
    batch.update_(batch.meta())
    assert batch.data["input_ids"] is tokens and same(batch, batch)
    later = SequenceSample({"later"}, {"later": None}, {"later": None}, batch.ids, {"later": [[1]] * 3})
    batch.update_(later)
    assert batch.data["later"] is None and batch.data["input_ids"] is tokens and "later" in batch.keys


def test_a_sample_goes_through_json_and_pickle() -> None:
    batch = some()
    assert same(SequenceSample.from_json_compatible(json.loads(json.dumps(batch.as_json_compatible()))), batch)
    assert same(pickle.loads(pickle.dumps(batch)), batch)
    meta = SequenceSample.from_json_compatible(json.loads(json.dumps(batch.meta().as_json_compatible())))
    assert meta.data is None and meta.dtypes == batch.dtypes


def test_what_does_not_fit_a_sample_is_refused() -> None:
    fields = dict(
        keys={"x"}, trailing_shapes={"x": ()}, dtypes={"x": torch.int64}, ids=[1, 2], seqlens={"x": [[1], [2]]}
    )
    assert SequenceSample(**fields, data={"x": torch.zeros(3, dtype=torch.int64)}).ids == ["1", "2"]
    for changes, kind, why in (
        ({"ids": [1, "1"]}, ValueError, "not all different"),
        ({"seqlens": {"x": [[1]]}}, ValueError, "lengths for 1 samples"),
        ({"seqlens": {"x": [1, 2]}}, ValueError, "lists"),
        ({"dtypes": {}}, KeyError, "dtypes"),
        ({"data": {"x": torch.zeros(4, dtype=torch.int64)}}, ValueError, "shape"),
        ({"data": {"x": torch.zeros(3)}}, ValueError, "float32"),
    ):
        with pytest.raises(kind, match=why):
            SequenceSample(**{**fields, **changes})
    with SequenceSample.disable_validation():
        SequenceSample(**{**fields, "seqlens": {"x": [[1]]}})
    with pytest.raises(NotImplementedError, match="other"):
        SequenceSample.from_default([1], ["a"], {"other": torch.zeros(1)})
    with pytest.raises(ValueError, match="two of the keys"):
        some().remap_keys_({"rewards": "logprobs"})
    for spec in ({}, {"partitions": [(0, 1), (2, 3)]}, {"sizes": [1, 0]}, {"sizes": [1], "partitions": [(0, 2)]}):
        with pytest.raises(ValueError):
            SequenceSplitSpec(**spec)


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


def test_topologies_have_the_names_of_areals() -> None:
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
    """With a constructor of its own, as AReaL's PipeDataTensorParallelTopology."""

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


def test_who_is_no_rank_plans_and_sends_the_steps() -> None:
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
        with pytest.raises(AssertionError if pattern == "bcast" else KeyError, match="nobody has it"):
            planner.derive_plan({0: ["99"]}, ["x"], pattern)
    with pytest.raises(NotImplementedError):
        planner.derive_plan(dests, ["x"], "ring")
    assert planner.derive_plan_bcast(dests, ("y", "x")) == steps
    assert planner.derive_plan_gather_scatter(dests, ("x", "y")) == through
    with pytest.raises(levada.InvalidArgument, match="pattern"):
        planner.derive_plan(dests, ["x"], "ring")
    asyncio.run(planner.storage_tracker.clear_data(["00", "10"]))
    assert "00" not in planner.storage_tracker.storages[4] and ("10", "x") not in planner.storage_tracker.data_owner


def test_a_planner_takes_a_tracker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_step_that_says_nothing_is_refused() -> None:
    for step in (
        RedistribStep("reduce", 0, [0], [1], ["a"], ["x"]),
        RedistribStep("bcast", None, None, [1], ["a"], ["x"]),
        RedistribStep("gather", 0, [1, 2], None, [["a"]], ["x"]),
    ):
        with pytest.raises(levada.InvalidArgument):
            list(hops(step))


PROLOGUE = """
import torch
from types import SimpleNamespace
from levada.dropin.areal import *
kinds = {"ids": torch.int64, "half": torch.bfloat16, "tiny": torch.float8_e4m3fn, "flag": torch.bool,
         "wide": torch.float64, "none": torch.uint8}
def made(id):
    number = int(id)
    torch.manual_seed(number)
    lengths = {"ids": [number % 5, 3], "half": [number % 3 + 1], "tiny": [2], "flag": [number % 2], "wide": [1, 2],
               "none": [0]}
    data = {"ids": torch.randint(2**53, 2**62, (sum(lengths["ids"]),)), "half": torch.rand(sum(lengths["half"]), 3)}
    data |= {key: torch.rand(sum(lengths[key])) < 0.5 if key == "flag" else torch.rand(sum(lengths[key])) for key in
             ("tiny", "flag", "wide", "none")}
    data = {key: it.to(kinds[key]) for key, it in data.items()}
    return SequenceSample(keys=set(data), trailing_shapes={key: it.shape[1:] for key, it in data.items()},
                          dtypes=kinds, ids=[id], seqlens={key: [lengths[key]] for key in data}, data=data)
def bits(sample):
    return {key: (it.dtype, tuple(it.shape), it.contiguous().view(torch.uint8).tolist() if it.numel() else [])
            for key, it in sample.data.items()}
ids = [str(i) for i in range(12)]
info = SequenceSample.gather([made(id) for id in ids]).meta()
topos = {"actor": ProcessTopology(["pipe", "data", "tensor"], [1, 4, 1]),
         "trainer": ProcessTopology(["pipe", "data", "tensor"], [2, 1, 2])}
def manager(**options):
    made_here = DataManager(topos, {}, [("actor", "trainer")], **options)
    made_here.setup_process_groups()
    for id in ids[rank::4]: made_here.store(made(id))
    return made_here
def right(data, wanted):
    return all(bits(data.get(id)) == bits(made(id)) and data.get(id).seqlens == made(id).seqlens for id in wanted)
def only(data, wanted):
    return sorted(data.storage) == sorted(set(wanted) | set(ids[rank::4]))
def refused(call):
    try: call()
    except Exception as error: return [type(error).__name__, str(error)]
"""


def test_redistribution_delivers_bit_for_bit_by_all_kinds_of_steps(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        PROLOGUE
        + """
tracker = GlobalStorageTracker(4)
for at in range(4):
    for key in kinds: tracker.add_data_synced(at, ids[at::4], key, is_owner=at in dp_heads(topos["actor"]))
planner = RedistribPlanner(SimpleNamespace(n_gpus_per_node=2), tracker)
dests = {0: ids[:7], 1: ids[:7], 2: ids[3:], 3: []}
for pattern in ("bcast", "gather-scatter"):
    data = manager()
    plan = planner.derive_plan(dests, list(kinds), pattern)
    data.redistribute(info, plan)
    gathered = ids[:10] + ids[11:] if pattern != "bcast" and rank == 0 else []  # 10 is where it is wanted
    tell(right=right(data, dests[rank]), only=only(data, dests[rank] + gathered), plan=repr(plan), size=data.storage_size())

hand = manager()
steps = [RedistribStep("gather", 2, [3, 1], None, [["3", "7"], ["1"]], ["ids", "half"]),
         RedistribStep("scatter", 2, None, [3, 0], [["1", "2"], ["7"]], ["ids"]),
         RedistribStep("bcast", 2, [2], [1, 0, 3], ["3"], ["half"])]
if rank == 1: hand.storage["1"].data["ids"].add_(5)
hand.redistribute(info, steps)
has = {id: sorted(sample.keys) for id, sample in hand.storage.items()}
tell(has=has, passed_on=hand.storage["1"].data["ids"].tolist() if rank in (2, 3) else None)
expected = made("1").data["ids"].add(5).tolist()
tell(expected=expected)

class Theirs:                    # AReaL's RedistribStep: the same fields
    def __init__(self, comm_type, root, srcs, dsts, ids, keys):
        self.comm_type, self.root, self.srcs, self.dsts, self.ids, self.keys = comm_type, root, srcs, dsts, ids, keys
theirs = manager()
theirs.redistribute(info, [Theirs("bcast", 1, [1], (0, 2, 3), ["5", "9"], ["ids"])])
tell(theirs=all(theirs.get(id).data["ids"].tolist() == made(id).data["ids"].tolist() for id in ("5", "9")))

swap = manager()                 # ranks 0 and 1 hold versions of one sample, and send each other theirs; 2 gets 0's
if rank < 2: swap.storage["x"] = SequenceSample.from_default([3], ["x"], {"input_ids": torch.full((3,), rank)})
swapped = SequenceSample.from_default([3], ["x"], {"input_ids": torch.zeros(3, dtype=torch.int64)}).meta()
if rank < 3:                     # whom the steps do not name need not come
    swap.redistribute(swapped, [RedistribStep("bcast", 0, [0], [2], ["x"], ["input_ids"]),
                                RedistribStep("bcast", 1, [1], [0], ["x"], ["input_ids"])])
tell(swap=swap.storage["x"].data["input_ids"].tolist() if rank < 3 else None)

away = manager(device="meta")
away.redistribute(info, [RedistribStep("bcast", 0, [0], [1, 2, 3], ["0"], list(kinds))])
tell(device=[it.device.type for it in away.get("0").data.values()][0], dtypes=away.get("0").dtypes == kinds)

empty = manager()
nothing = SequenceSample({"later"}, {"later": None}, {"later": None}, ["0"], {"later": [[4]]})
empty.redistribute(nothing, [RedistribStep("bcast", 0, [0], [3], ["0"], ["later"])])
tell(later=empty.get("0").data["later"] if rank == 3 else "no", lengths=empty.get("0").seqlens["later"] if rank == 3 else [[4]])
""",
    )
    assert len({(mine[0]["plan"], mine[1]["plan"]) for mine in told}) == 1
    for rank, mine in enumerate(told):
        assert all(mine[i]["right"] and mine[i]["only"] for i in (0, 1)), (rank, mine[:2])
        if mine[3]["expected"] and rank in (2, 3):
            assert mine[2]["passed_on"] == mine[3]["expected"]
        assert mine.pop(4) == {"theirs": True}
        assert mine[4]["swap"] == [[1] * 3, [1] * 3, [0] * 3, None][rank]
        assert mine[5] == {"device": "cpu" if rank == 0 else "meta", "dtypes": True}
        assert mine[6]["lengths"] == [[4]] and mine[6]["later"] == (None if rank == 3 else "no")
    everything = sorted(["ids", "half", "tiny", "flag", "wide", "none"])
    assert told[2][2]["has"] == {"2": everything, "6": everything, "10": everything} | {
        id: ["half", "ids"] for id in ("1", "3", "7")
    }
    assert told[0][2]["has"] == {"0": everything, "4": everything, "8": everything, "7": ["ids"], "3": ["half"]}
    assert told[3][2]["has"]["1"] == ["ids"] == told[3][2]["has"]["2"] and told[1][2]["has"]["3"] == ["half"]


def test_a_manager_says_what_is_wrong_alike_on_all_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        PROLOGUE
        + """
data = manager()
def moving(*step): return refused(lambda: data.redistribute(info, [RedistribStep(*step)]))
tell(unknown=moving("bcast", 0, [0], [1, 2, 3], ["77"], ["ids"]),
     lacking=moving("bcast", 0, [0], [1, 2, 3], ["5"], ["ids"]),
     never=moving("gather", 3, [0, 1, 2, 3], None, [["0"], ["1"], ["2"], []], ["never"]))
if rank == 1: data.storage["1"].seqlens["ids"] = [[4]]
if rank == 2: data.storage["2"].data["wide"] = torch.rand(3).to_sparse()
tell(other=moving("gather", 3, [0, 1, 2], None, [["0"], ["1"], ["2"]], ["ids"]), only=only(data, []),
     sparse=moving("gather", 3, [0, 1, 2], None, [["0"], ["1"], ["2"]], ["wide"]))
try: data.redistribute(info, [RedistribStep("bcast", 2, [2], [0], ["2"], ["wide"])])
except levada.InvalidArgument as error: tell(cause=type(error.__cause__).__name__)
else: tell(cause="not asked")
if rank == 0:
    tell(twice=refused(lambda: data.store(made("0"))), many=refused(lambda: data.store(SequenceSample.gather([made("1"), made("2")]))),
         get=refused(lambda: data.get("1")), update=refused(lambda: data.update(made("1"))), has=[data.has_data("0"), data.has_data("1")])
    data.update(SequenceSample.from_default([2], ["0"], {"rewards": torch.ones(1)}))
    tell(updated=data.get("0").data["rewards"].tolist(), size=data.storage_size())
    data.remove(["0", "unknown"])
    tell(size=data.storage_size())
    data.clear_data()
    tell(size=data.storage_size())
""",
    )
    for mine in told:
        assert mine[:2] == told[0][:2]
        assert all(error[0] == "InvalidArgument" for name, error in (mine[0] | mine[1]).items() if name != "only")
        assert "77" in mine[0]["unknown"][1] and "never" in mine[0]["never"][1]
        for word in ("5", "ids", "rank 0"):
            assert word in mine[0]["lacking"][1]
        for word in ("1", "ids", "rank 1"):
            assert word in mine[1]["other"][1]
        for word in ("2", "wide", "rank 2"):
            assert word in mine[1]["sparse"][1]
        assert mine[1]["only"]
    assert [mine[2]["cause"] for mine in told] == ["NoneType", "not asked", "TypeError", "not asked"]
    first = told[0][3:]
    assert first[0]["twice"][0] == first[0]["many"][0] == "Refused"
    assert first[0]["get"][0] == first[0]["update"][0] == "KeyError" and first[0]["has"] == [True, False]
    assert first[1:] == [{"updated": [1.0], "size": 3}, {"size": 2}, {"size": 0}]


def test_a_rank_that_is_killed_in_the_middle_leaves_the_storage_of_others_as_it_was(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        3,
        """
import threading
import torch
from levada.dropin.areal import DataManager, RedistribStep, SequenceSample
keys = ["input_ids", "values"]
def made(of):
    data = {key: torch.full((16 * 8192,), of) for key in keys}
    return SequenceSample.from_default([8192] * 16, [f"{of}.{i}" for i in range(16)], data)
info = SequenceSample.gather([made(of) for of in range(3)]).meta()
steps = [RedistribStep("bcast", of, [of], [to for to in range(3) if to != of], made(of).ids, keys[: 1 + of % 2])
         for of in range(3)]  # which takes two exchanges
data = DataManager({}, timeout=30.0)
data.setup_process_groups()
for sample in made(rank).unpack(): data.store(sample)
own = dict(data.storage)
if rank == 2: threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        data.redistribute(info, steps)
        assert data.storage_size() == 48
        data.remove([id for id in data.storage if id not in own])
except (levada.PeerLost, levada.EngineError) as error:
    same = len(data.storage) == len(own) and all(data.storage[id] is sample for id, sample in own.items())
    whole = all((it == rank).all() for sample in own.values() for it in sample.data.values())
    tell(kind=type(error).__name__, same=same and bool(whole))
""",
    )
    assert outcome.told[0] and outcome.told[1], outcome.errors
    for (mine,) in outcome.told[:2]:
        assert mine["kind"] in ("PeerLost", "EngineError") and mine["same"]


def test_ranks_that_no_step_names_need_not_come(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        from levada.dropin.areal import DataManager, RedistribStep, SequenceSample
        data = DataManager({}, group=dist.group.WORLD, timeout=20.0)
        data.setup_process_groups()
        sample = SequenceSample.from_default([2], ["a"], {"input_ids": torch.tensor([3, 4])})
        if rank == 0: data.store(sample)
        if rank < 2:
            data.redistribute(sample.meta(), [RedistribStep("bcast", 0, [0], [1], ["a"], ["input_ids"])])
            tell(got=data.get("a").data["input_ids"].tolist())
            open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"done{rank}"), "w").close()
        else:   # busy until the others have what they want
            folder = os.path.dirname(os.path.abspath(__file__))
            for _ in range(3000):
                if all(os.path.exists(os.path.join(folder, f"done{other}")) for other in range(2)): break
                time.sleep(0.02)
            else: raise TimeoutError
        """,
    )
    assert told == [[{"got": [3, 4]}], [{"got": [3, 4]}], []]


def test_a_split_without_a_group_takes_that_of_realhf_or_is_refused(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        from types import SimpleNamespace
        from levada.dropin.areal import MicroBatchSpec, SequenceSample
        pair = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
        def split(count):
            sample = SequenceSample.from_default([1] * count, list(range(count)), {"seq": torch.zeros(count)})
            return len(sample.synced_data_parallel_split(MicroBatchSpec(max_tokens_per_mb=2)))
        try: split(6)
        except levada.InvalidArgument as error: tell(refused=str(error))
        sys.modules["realhf.base.constants"] = SimpleNamespace(data_parallel_group=lambda: pair)
        if rank % 2 == 0:   # the model on ranks 1 and 3 splits later, or not at all
            tell(parts=split([6, 0, 8][rank]))
        dist.barrier()
        if rank % 2:
            tell(parts=split([0, 4, 0, 5][rank]))
        """,
    )
    assert ["pass group=" in mine[0]["refused"] for mine in told] == [True] * 4
    assert [mine[1]["parts"] for mine in told] == [4, 3, 4, 3]


def test_a_split_that_one_rank_cannot_make_fails_on_all(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        PROLOGUE
        + """
def sample(count, tokens=2):
    names = [str(i) for i in range(count)]
    return SequenceSample.from_default([tokens] * count, names, {"input_ids": torch.zeros(tokens * count)})
def split(batch, **spec):
    began = time.monotonic()
    why = refused(lambda: batch.synced_data_parallel_split(MicroBatchSpec(**spec), levada.join()))
    return [why, time.monotonic() - began < 30]
tell(few=split(sample([1, 4][rank]), n_mbs=2), long=split(sample(4, [2, 9][rank]), max_tokens_per_mb=8))
tell(later=split(sample([2, 4][rank]), max_tokens_per_mb=2))
tell(parts=len(sample([3, 4][rank]).synced_data_parallel_split(MicroBatchSpec(max_tokens_per_mb=4), levada.join())))
tell(parts=len(sample([4, 4][rank], [1, 2][rank]).synced_data_parallel_split(MicroBatchSpec(max_tokens_per_mb=2), levada.join())))
""",
    )
    assert told[0] == told[1]
    few, long, later, *parts = [value for each in told[0] for value in each.values()]
    assert few == [["RuntimeError", "rank 0: 1 samples cannot be cut into 2 micro-batches"], True]
    assert long == [["RuntimeError", "rank 1: a sample has 9 tokens, more than the 8 of a micro-batch"], True]
    assert later == [["RuntimeError", "rank 0: 2 samples cannot be cut into 4 micro-batches"], True]
    assert parts == [2, 4]
