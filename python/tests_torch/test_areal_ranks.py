"""Samples of the AReaL drop-in that move between ranks. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import process_groups
import ranks

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


def test_all_kinds_of_steps_deliver_bit_for_bit(tmp_path: pathlib.Path) -> None:
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
if rank < 3:                     # ranks that the steps do not name need not take part
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


def test_a_manager_raises_the_same_error_on_all_ranks(tmp_path: pathlib.Path) -> None:
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


def test_a_killed_rank_does_not_change_the_storage_of_others(tmp_path: pathlib.Path) -> None:
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


def test_ranks_that_no_step_names_need_not_take_part(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        from levada.dropin.areal import DataManager, RedistribStep, SequenceSample
        data = DataManager({}, group=dist.group.WORLD, timeout=20.0)
        data.setup_process_groups()
        values = torch.ones(2, requires_grad=True) * 3   # arrives without its gradients, as over a broadcast
        sample = SequenceSample.from_default([2], ["a"], {"input_ids": torch.tensor([3, 4]), "seq": values})
        if rank == 0: data.store(sample)
        if rank < 2:
            steps = [RedistribStep("bcast", 0, [0], [1], ["a"], [key]) for key in ("input_ids", "seq")]
            data.redistribute(sample.meta(), steps)
            got = data.get("a").data
            tell(got=got["input_ids"].tolist(), seq=got["seq"].tolist(), requires=got["seq"].requires_grad)
            open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"done{rank}"), "w").close()
        else:   # busy until the others have received their samples
            folder = os.path.dirname(os.path.abspath(__file__))
            for _ in range(3000):
                if all(os.path.exists(os.path.join(folder, f"done{other}")) for other in range(2)): break
                time.sleep(0.02)
            else: raise TimeoutError
        """,
    )
    got = {"got": [3, 4], "seq": [3.0, 3.0]}
    assert told == [[{**got, "requires": True}], [{**got, "requires": False}], []]


def test_a_split_without_a_group_uses_realhfs_or_is_refused(tmp_path: pathlib.Path) -> None:
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
