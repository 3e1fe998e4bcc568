"""Samples that move from the ranks that made them to the ranks that need them."""

from __future__ import annotations

import json
import pathlib
import pickle
import random
import subprocess
import sys

import levada
import ml_dtypes
import numpy as np
import pytest
import ranks
from levada import exchange



EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "rollout_train.py"


def some() -> exchange.SampleBatch:
    return exchange.SampleBatch(
        ["a", "b", "c"],
        {"tokens": np.arange(6), "reward": np.float32([1, 2, 3]), "hidden": [np.ones((2, 3)), None, np.zeros((0, 3))]},
        {"tokens": [1, [2, 1], 2]},
        values=[{"score": 1.5}, {}, {"name": "x", "none": None, "done": True, "step": 2**53 + 1}],
    )


def test_a_batch_has_ragged_fields_and_plain_values() -> None:
    batch = some()
    assert len(batch) == 3 and batch.ids == ["a", "b", "c"] and batch.keys == ["hidden", "reward", "tokens"]
    assert batch.seqlens("tokens") == [[1], [2, 1], [2]] and batch.seqlens("hidden") == [[2], None, [0]]
    assert batch["tokens"].tolist() == list(range(6)) and batch.item("tokens", 1).tolist() == [1, 2, 3]
    assert batch.sequence("tokens", 1, 1).tolist() == [3] and batch.item("hidden", 1) is None
    assert batch.item("hidden", 2).shape == (0, 3) and batch.trailing("hidden") == [3]
    assert batch.dtype("reward") == "float32" and batch.nbytes == 6 * 8 + 3 * 4 + 2 * 3 * 8
    assert batch.values(0) == {"score": 1.5}
    assert batch.values(2) == {"name": "x", "none": None, "done": True, "step": 2**53 + 1}
    batch.set_values(1, {"seen": False})
    assert batch.values(1) == {"seen": False}


def test_what_was_given_is_viewed_and_cannot_be_written() -> None:
    given = np.arange(6)
    batch = exchange.SampleBatch(["a", "b"], {"tokens": given}, {"tokens": [4, 2]})
    parts = batch.split([1, 1])
    assert all(np.shares_memory(part["tokens"], given) for part in parts)
    assert np.shares_memory(exchange.SampleBatch.gather(parts)["tokens"], given)
    assert not batch["tokens"].flags.writeable


def test_operations_undo_each_other() -> None:
    batch = some()
    gather = exchange.SampleBatch.gather
    assert gather(batch.split([2, 0, 1])) == batch == gather(batch.unpack())
    order = [2, 0, 1]
    assert batch.reorder(order).ids == ["c", "a", "b"]
    assert batch.reorder(order).reorder(exchange.SampleBatch.inverse(order)) == batch
    renamed = batch.rename({"tokens": "input_ids"})
    assert "tokens" not in renamed and "input_ids" in renamed and renamed.rename({"input_ids": "tokens"}) == batch
    part = batch.select(ids=["c", "a"], keys=["tokens"])
    assert part.ids == ["c", "a"] and part.keys == ["tokens"] and part["tokens"].tolist() == [4, 5, 0]
    part.update(batch.select(ids=["a", "c"]))
    assert part == batch.select(ids=["c", "a"])
    meta = batch.meta()
    assert not meta.has_data and batch.has_data and meta != batch
    assert exchange.SampleBatch.from_json(batch.to_json()) == meta
    assert json.loads(batch.to_json())["keys"]["tokens"]["seqlens"] == [[1], [2, 1], [2]]


def test_a_batch_is_divided_by_tokens() -> None:
    lengths = [random.Random(5).randrange(1, 500) for _ in range(40)]
    ids = [str(i) for i in range(40)]
    batch = exchange.SampleBatch(ids, {"tokens": np.zeros(sum(lengths))}, {"tokens": lengths})
    parts = batch.split(batch.balanced(4, "tokens"))
    assert sorted(id for part in parts for id in part.ids) == sorted(ids)
    assert max(part.nbytes for part in parts) < 1.05 * batch.nbytes / 4
    assert [len(part.ids) for part in batch.split(batch.balanced(4, "tokens", equal=True))] == [10] * 4
    other = exchange.SampleBatch(ids[::-1], {"reward": np.arange(40.0)})
    for mine, its in zip(*exchange.SampleBatch.split_alike([batch, other], batch.balanced(4)), strict=True):
        assert mine.ids == its.ids and its["reward"].tolist() == [39.0 - int(id) for id in its.ids]
    assert exchange.balance([5, 4, 3, 2], 2) == [[0, 3], [1, 2]]
    assert exchange.balance([9, 1, 1, 1], 2, equal=True) != exchange.balance([9, 1, 1, 1], 2)
    assert exchange.balance([1, 1, 1, 9], 2, in_order=True) == [[0, 1, 2], [3]]


def test_a_store_owns_its_memory_unless_told_otherwise() -> None:
    given = np.arange(4)
    batch = exchange.SampleBatch(["a", "b"], {"tokens": given}, {"tokens": [3, 1]}, values=[{"n": 1}, {}])
    store, lent = exchange.Store(), exchange.Store()
    store.store(batch)
    lent.store(batch, copy=False)
    assert store.get(["b", "a"]) == lent.get(["b", "a"]) == batch.reorder([1, 0])
    assert np.shares_memory(lent.get(["a"])["tokens"], given) and store.nbytes == lent.nbytes == 32
    given[:] = 7
    assert store.get(["a"])["tokens"].tolist() == [0, 1, 2] and lent.get(["a"])["tokens"].tolist() == [7, 7, 7]
    held = store.get(["a"])["tokens"]
    store.update(exchange.SampleBatch(["a"], {"tokens": [np.array([8])], "reward": np.ones(1)}))
    assert held.tolist() == [0, 1, 2] and store.get(["a"], ["tokens"])["tokens"].tolist() == [8]
    assert store.has("a", "reward") and not store.has("b", "reward") and not store.has("c")
    lent.store(exchange.SampleBatch(["empty"], {"x": [None]}, values=[{"score": 1.5}]), copy=False)
    assert lent.ids == ["a", "b", "empty"] and lent.get(["empty"]).values(0) == {"score": 1.5}
    store.remove(["b", "nobody"])
    assert store.ids == ["a"] and len(store) == 1
    store.clear()
    assert len(store) == 0 and store.nbytes == 0


def test_what_a_store_refuses_it_names() -> None:
    store = exchange.Store(max_bytes=100)
    store.store(some().select(ids=["a"]))
    for refused, why in (
        (lambda: store.store(some()), "sample a is"),
        (lambda: store.store(some().select(ids=["a"]), copy=False), "sample a is in the store already; update it"),
        (lambda: store.store(some().select(ids=["b"]).meta()), "meta"),
        (lambda: store.store(exchange.SampleBatch(["z"], {"x": np.zeros(99)}, {"x": [99]})), "100 B"),
        (lambda: store.update(some().select(ids=["b"])), "sample b is not in the store"),
        (lambda: store.get(["b"]), "sample b is not in the store"),
        (lambda: store.get(["a"], ["nothing"]), "nothing"),
        (lambda: exchange.Store(tensors="jax"), "one of numpy, torch"),
    ):
        with pytest.raises(levada.InvalidArgument, match=why):
            refused()
    assert store.ids == ["a"]


def test_what_a_batch_refuses_it_names() -> None:
    make = exchange.SampleBatch
    for refused, kind, why in (
        (lambda: make(["a", "a"]), levada.InvalidArgument, "sample a stands twice"),
        (lambda: make(["a"], {"x": np.zeros(3)}), levada.InvalidArgument, "3 tokens"),
        (lambda: make(["a"], {}, {"x": [1]}), levada.InvalidArgument, "seqlens has key x"),
        (lambda: make(["a"], {"x": [np.int64(3)]}), levada.InvalidArgument, "key x, item 0"),
        (lambda: make(["a", "b"], {"x": [np.zeros(1), np.ones((1, 2))]}), levada.InvalidArgument, "sample b, key x"),
        (lambda: make(["a"], {"x": "text"}), TypeError, "key x, item 0 is no tensor"),
        (lambda: make(["a"], {"x": np.zeros(3)}, {"x": ["3"]}), TypeError, "integer"),
        (lambda: make(["a"], values=[{"x": object()}]), TypeError, r"values\['x'\] cannot cross"),
        (lambda: make(["a"], values=[{"x": {"y": np.zeros(3)}}]), TypeError, "tensors belong among the fields"),
        (lambda: some()["nothing"], levada.InvalidArgument, "nothing"),
        (lambda: some().meta()["tokens"], levada.InvalidArgument, "tokens"),
        (lambda: some().split([1]), levada.InvalidArgument, "do not add up"),
        (lambda: some().split([[0, -1]]), TypeError, "neither counts nor lists"),
        (lambda: make.from_json('{"ids": 3}'), levada.InvalidArgument, "ids"),
        (lambda: exchange.balance([1], 0), levada.InvalidArgument, "part"),
        (lambda: exchange.balance([1], 1, equal=True, in_order=True), levada.InvalidArgument, "one of"),
    ):
        with pytest.raises(kind, match=why):
            refused()


def test_who_is_no_rank_can_plan() -> None:
    held = exchange.Ownership()
    held.add(0, some().meta())
    held.add(3, some().select(ids=["a"]).meta())
    held = pickle.loads(pickle.dumps(held))
    assert len(held) == 3 and "b" in held and held.holders("a", "tokens") == [0, 3] == held.holders("c", "reward") + [3]
    plan = exchange.plan(held, {2: ["a", "b"], 1: ["b"], 3: ["a"]}, ["tokens", "reward"], host_of=[0, 0, 1, 1])
    assert [(each.source, each.to) for each in plan] == [(0, [1, 2]), (3, [2])]
    assert plan[0].items == [("b", "reward"), ("b", "tokens")] and plan[0].bytes == 28 and plan[0].messages == 1
    assert plan.moved_bytes == plan.lower_bound_bytes == 28 + 12 and plan.delivered_bytes == 2 * 28 + 12
    assert plan.edges == [(0, 1, 28), (0, 2, 28), (3, 2, 12)] and plan.busiest == (0, 28) and plan.ranks == [0, 1, 2, 3]
    assert pickle.loads(pickle.dumps(plan)) == plan == exchange.ExchangePlan.decode(plan.encode())
    assert json.loads(plan.to_json(with_ids=True))["moved_bytes"] == 40 and "delivered" in str(plan)
    held.remove(3, ["a"])
    assert exchange.plan(held, {2: ["a"]}, ["tokens"])[0].source == 0
    with pytest.raises(levada.CorruptMessage):
        exchange.ExchangePlan.decode(b"no plan")
    mesh = levada.Mesh(dp=2, tp=2, pp=2)
    assert exchange.data_heads(mesh) == [1, 5]
    first, second = exchange.destinations(mesh, [["a"], ["b"]], range(10, 18))
    assert (first.ranks, first.ids, second.ranks) == ([10, 11, 12, 13], ["a"], [14, 15, 16, 17])


MAKE = """
import pickle
import ml_dtypes
from levada import exchange
def made(number):
    value = np.random.default_rng(number)
    length = number * 7 % 23
    return {
        "int64": value.integers(2**53, 2**62, length), "float64": value.random((length, 2)),
        "bfloat16": value.random(length).astype(ml_dtypes.bfloat16),
        "float8_e4m3fn": value.random(length).astype(ml_dtypes.float8_e4m3fn),
        "bool": value.random(length) < 0.5, "uint8": value.integers(0, 255, (length, 0), np.uint8),
        "empty": np.zeros(0, np.float16),
    }
def batch_of(numbers):
    samples = [made(number) for number in numbers]
    fields = {key: [sample[key] for sample in samples] for key in samples[0]}
    return exchange.SampleBatch([f"s{n}" for n in numbers], fields, values=[{"n": n} for n in numbers])
def same(batch, numbers):
    given, wanted = ({key: each[key].view(np.uint8) for key in each.keys} for each in (batch, batch_of(numbers)))
    return batch == batch_of(numbers) and all(np.array_equal(given[key], wanted[key]) for key in wanted)
"""


def test_samples_arrive_bit_for_bit_on_another_mesh(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        MAKE
        + """
store = exchange.Store()
store.store(batch_of(range(rank, 32, 4)))
keys = store.get(store.ids).keys
held = exchange.agree(store)
meta = held.meta()
divided = [part.ids for part in meta.split(meta.balanced(2, "int64"))]
wants = exchange.destinations(levada.Mesh(dp=2, tp=2), divided)
first = exchange.redistribute(store, wants, keys)
mine = divided[rank // 2]
again = exchange.redistribute(store, wants, keys)
planned = exchange.plan(held, wants, keys)
other = exchange.Store()
other.store(batch_of(range(rank, 32, 4)), copy=False)
exchange.redistribute(other, pickle.loads(pickle.dumps(planned)))
tell(same=same(store.get(mine), [int(id[1:]) for id in mine]), planned=first.plan == planned, again=again.sent_bytes,
     other=other.get(mine) == store.get(mine), sent=first.sent_bytes, received=first.received_bytes,
     moved=planned.moved_bytes, least=planned.lower_bound_bytes, delivered=planned.delivered_bytes,
     divided=sorted(len(ids) for ids in divided), values=store.get(mine[:1]).values(0), id=mine[0])
""",
    )
    for (mine,) in told:
        assert mine["same"] and mine["planned"] and mine["other"] and mine["again"] == 0
        assert mine["values"] == {"n": int(mine["id"][1:])} and sum(mine["divided"]) == 32
    (first,) = told[0]
    assert sum(mine["sent"] for (mine,) in told) == first["moved"] == first["least"]
    assert sum(mine["received"] for (mine,) in told) == first["delivered"]


def test_what_is_wrong_is_one_error_on_all_ranks_before_anything_moves(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        MAKE
        + """
def refused(store, wants, keys):
    before = store.nbytes
    try:
        exchange.redistribute(store, wants, keys)
    except levada.InvalidArgument as error:
        tell(error=str(error), same=store.nbytes == before)
def fresh(extra={}):
    store = exchange.Store(max_bytes=10_000 if rank else 1000)
    store.store(batch_of([rank + 1]))
    if extra: store.store(exchange.SampleBatch(["x"], *extra))
    return store
refused(fresh(), {0: ["s2", "unknown"]}, ["int64"])
refused(fresh(), {0: ["s2"]}, ["never"])
differ = [{"x": np.zeros(3, [np.float32, np.float64][rank % 2])}, {"x": [3]}]
refused(fresh(differ), {2: ["x"]}, ["x"])
differ = [{"x": np.zeros(3)}, {"x": [[1, 2] if rank else [3]]}]
refused(fresh(differ), {2: ["x"]}, ["x"])
refused(fresh(), {rank: ["s1"]}, ["int64"])
big = [{"x": np.zeros(220)}, {"x": [220]}] if rank == 2 else {}
refused(fresh(big), {0: ["x"]}, ["x"])
store = fresh()
plan = exchange.plan(exchange.agree(store), {0: ["s3"]}, ["int64"])
store.clear()
refused(store, plan, [])
""",
    )
    assert told[0] == told[1] == told[2] and all(each["same"] for each in told[0])
    for error, words in zip(
        (each["error"] for each in told[0]),
        (["sample unknown", "key int64", "rank 0"], ["sample s2", "key never", "rank 0"],
         ["x", "float32", "float64", "rank"], ["x", "rank"], ["different exchanges"],
         ["rank 0", "bounded"], ["s3", "int64", "rank 2"]),
        strict=True,
    ):  # fmt: skip
        assert all(word in error for word in words), error


@pytest.mark.parametrize("cut", ["consecutive", "zigzag"])
def test_sequences_are_cut_along_cp(tmp_path: pathlib.Path, cut: str) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        f"""
from levada import exchange
store = exchange.Store()
if rank == 0: store.store(exchange.SampleBatch(["a"], {{"x": np.arange(8), "reward": np.ones(1)}}, {{"x": [8]}}))
wants = exchange.destinations(levada.Mesh(cp=2), [["a"]], [1, 2], cut={cut!r})
done = exchange.redistribute(store, wants, ["x", "reward"], cut_keys=["x"])
mine = store.get(["a"])
tell(x=mine["x"].tolist(), reward=mine["reward"].tolist(), moved=done.plan.moved_bytes,
     again=len(exchange.redistribute(store, wants, ["x", "reward"], cut_keys=["x"]).plan))
try: exchange.redistribute(store, wants, ["reward"], cut_keys=["x"])
except levada.InvalidArgument as error: tell(error=str(error))
""",
    )
    parts = {"consecutive": [[0, 1, 2, 3], [4, 5, 6, 7]], "zigzag": [[0, 1, 6, 7], [2, 3, 4, 5]]}[cut]
    assert [mine["x"] for mine, _ in told] == [list(range(8)), *parts]
    assert all(mine["reward"] == [1.0] and mine["moved"] == 72 and mine["again"] == 0 for mine, _ in told)
    assert {refused["error"] for _, refused in told} == {
        "key x is to be cut, but is not among the keys that are to move"
    }
    with pytest.raises(levada.InvalidArgument):
        exchange.destinations(levada.Mesh(cp=2), [["a"]], cut="diagonally")


def test_samples_come_without_keys_that_they_lack(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
from levada import exchange
store = exchange.Store()
ids = ["a", "b"]
if rank == 0:
    fields = {"tokens": np.arange(2), "reward": [None, np.ones(1)]}
    store.store(exchange.SampleBatch(ids, fields, values=[{"n": 1}, {}]))
try: exchange.redistribute(store, {1: ids}, ["reward"])
except levada.InvalidArgument as error: tell(error=str(error))
exchange.redistribute(store, {1: ids}, ["reward"], allow_absent=True)
tell(a=store.has("a"), b=store.has("b", "reward"))
exchange.redistribute(store, {1: ids}, ["tokens", "reward", "never"], allow_absent=True)
mine = store.get(ids, ["tokens", "reward", "never"], allow_absent=True)
tell(tokens=mine["tokens"].tolist(), absent=mine.item("reward", 0) is None and mine.seqlens("never") == [None, None], values=mine.values(0))
""",
    )
    for rank, (refused, first, second) in enumerate(told):
        assert refused["error"] == "sample a, key reward is wanted on rank 1, but no rank has that key of it"
        assert first == {"a": rank == 0, "b": True}
        assert second == {"tokens": [0, 1], "absent": True, "values": {"n": 1}}


def test_a_receivers_own_values_are_not_overwritten(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
from levada import exchange
store = exchange.Store()
store.store(exchange.SampleBatch(["s"], {["tokens", "value"][rank]: np.ones(1)}, values=[{"score": rank + 1}]))
try: exchange.redistribute(store, {1: ["s"]}, ["tokens"])
except levada.InvalidArgument as error: tell(error=str(error), values=store.get(["s"]).values(0))
""",
    )
    for rank, (refused,) in enumerate(told):
        assert refused["error"] == "sample s has another value of score on rank 1 than on rank 0"
        assert refused["values"] == {"score": rank + 1}


def test_a_rank_that_is_killed_in_the_middle_leaves_no_half_of_a_key(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        3,
        """
from levada import exchange
def samples(of):
    ids = [f"{of}.{i}" for i in range(16)]
    return exchange.SampleBatch(ids, {"x": np.full(16 * 4096, of, np.int64)}, {"x": [4096] * 16})
store = exchange.Store()
store.store(samples(rank))
wants = {to: [f"{of}.{i}" for of in range(3) for i in range(16)] for to in range(3)}
levada.join()
if rank == 2:
    import threading
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        exchange.redistribute(store, wants, ["x"], chunk_bytes=4096)
        store.remove([id for id in store.ids if not id.startswith(f"{rank}.")])
except (levada.PeerLost, levada.EngineError) as error:
    whole = all(store.get([id]) == samples(int(id[0])).select(ids=[id]) for id in store.ids)
    tell(kind=type(error).__name__, whole=whole)
""",
    )
    assert outcome.told[0] and outcome.told[1], outcome.errors
    for (mine,) in outcome.told[:2]:
        assert mine["kind"] in ("PeerLost", "EngineError") and mine["whole"]


def test_ctrl_c_ends_an_exchange_on_all_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
from levada import exchange
store = exchange.Store()
levada.join()
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
if rank == 1:                    # comes when the other has given up
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "0.jsonl")): time.sleep(0.01)
try:
    if rank == 0: signal.setitimer(signal.ITIMER_REAL, 0.1)
    exchange.redistribute(store, {0: []}, [])
except KeyboardInterrupt:
    tell(kind="KeyboardInterrupt", text="")
except levada.EngineError as error:
    tell(kind="EngineError", text=str(error))
""",
    )
    assert [mine["kind"] for (mine,) in told] == ["KeyboardInterrupt", "EngineError", "EngineError"]
    assert all("a rank was interrupted in an exchange" in mine["text"] for (mine,) in told[1:]), told


def test_what_one_rank_alone_cannot_tell_is_an_error_on_all(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
from levada import exchange
store = exchange.Store()
for i in range(2):
    dtype = np.float64 if rank == 1 and i else np.float32
    store.store(exchange.SampleBatch([f"{rank}.{i}"], {"x": np.zeros(3, dtype)}, {"x": [3]}))
try:
    exchange.agree(store, timeout=20)
except levada.InvalidArgument as error:
    tell(error=str(error))
if rank == 1: store.remove(["1.0"])
try:
    exchange.agree(store, timeout=20)
except levada.InvalidArgument as error:
    tell(error=str(error))
if rank == 1: store.clear()
tell(ids=exchange.agree(store, timeout=20).meta().ids)
""",
    )
    assert told[0] == told[1] == told[2] and len(told[0]) == 3
    assert told[0][0]["error"] == "rank 1: key x is float64 [] for sample 1.1 on rank 1, but float32 [] for sample 1.0 on rank 1"
    assert all(word in told[0][1]["error"] for word in ("key x", "rank 0", "sample 1.1 on rank 1")), told[0]
    assert sorted(told[0][2]["ids"]) == ["0.0", "0.1", "2.0", "2.1"]


def test_bfloat16_needs_no_torch() -> None:
    batch = exchange.SampleBatch(["a"], {"x": np.ones(3, ml_dtypes.bfloat16)}, {"x": [3]})
    assert batch["x"].dtype == ml_dtypes.bfloat16 and batch.dtype("x") == "bfloat16"


def test_the_example_of_three_models_on_the_same_ranks_runs() -> None:
    command = [sys.executable, "-m", "levada", "run", "-n", "4", str(EXAMPLE)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 10 and all(line.endswith("all as computed alone") for line in lines)
    rewards = [float(line.split()[3].rstrip(",")) for line in lines]
    assert sum(rewards[-3:]) > sum(rewards[:3])  # it learns


def test_keys_that_are_no_text_and_lengths_that_are_too_large_are_named() -> None:
    tokens = np.zeros(1)
    with pytest.raises(TypeError, match="keys of fields must be str, got 1"):
        exchange.SampleBatch(["a"], {1: tokens})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="keys of seqlens must be str, got 2"):
        exchange.SampleBatch(["a"], {"x": tokens}, {2: [1]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"keys of values must be str, got \('a', 1\)"):
        exchange.SampleBatch(["a"], values=[{("a", 1): 1}])  # type: ignore[dict-item]
    with pytest.raises(OverflowError):
        exchange.SampleBatch(["a"], {"x": tokens}, {"x": [2**70]})
    with pytest.raises(UnicodeEncodeError):
        exchange.SampleBatch(["a"], values=[{"\ud800": 1}])
    with pytest.raises(TypeError, match=r"values\['n'\] cannot cross between ranks: '\\ud800' has no UTF-8"):
        exchange.SampleBatch(["a"], values=[{"n": "\ud800"}])


def test_threads_may_store_and_change_the_same_batch(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        1,
        """
        import threading
        from levada import exchange
        ids = [str(number) for number in range(3000)]
        batch = exchange.SampleBatch(ids, {"a": np.zeros(3000)})
        held = exchange.Ownership()
        refused, start = set(), threading.Barrier(4)
        def work(act):
            start.wait()
            for number in range(60):
                try: act(number)
                except levada.InvalidArgument as error: refused.add(str(error))
        def store(number):
            kept = exchange.Store()
            kept.store(batch)
            kept.update(batch)
            held.merge(kept.ownership(number % 3))
        def change(number):
            batch.set("ab"[number % 2] * 2, np.full(3000, number))
            batch.set_values(number, {"n": number})
        def plan(number):
            exchange.plan(held, {number % 3: ids[:number]}, ["a"])
            held.clear(number % 3)
        threads = [threading.Thread(target=work, args=(act,)) for act in (store, store, change, plan)]
        for each in threads: each.start()
        for each in threads: each.join()
        change(0), change(1)
        kept = exchange.Store()
        kept.store(batch)
        tell(refused=sorted(refused), keys=batch.keys, same=kept.get(ids) == batch)
        """,
    )
    ((only,),) = told
    assert only["keys"] == ["a", "aa", "bb"] and only["same"]
    known = ("is being stored by another thread", "is wanted on rank", "has another value of n", "has sequences of")
    assert all(any(part in each for part in known) for each in only["refused"])


def test_ranks_in_other_calls_or_with_other_stores_are_told_so(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        from levada import exchange
        rollouts, scores = exchange.Store(), exchange.Store()
        rollouts.store(exchange.SampleBatch(["a"], {"x": np.ones(1)}))
        def attempt(act):
            try: act()
            except levada.InvalidArgument as error: tell(error=str(error))
        for first in (rollouts, scores) if rank == 0 else (scores, rollouts):
            attempt(lambda: exchange.agree(first))
        attempt((lambda: exchange.agree(rollouts)) if rank == 0 else
                (lambda: exchange.redistribute(rollouts, {0: ["a"]}, ["x"])))
        extra = [exchange.Store() for _ in range(rank)]
        tell(held=len(exchange.agree(exchange.Store(name="rollouts"))), names=[rollouts.name, scores.name])
        """,
    )
    for mine in told:
        first, second, third, last = mine
        assert "rank 0 calls agree() with store 1, rank 1 agree() with store 2" in first["error"]
        assert "rank 0 calls agree() with store 2, rank 1 agree() with store 1" in second["error"]
        assert "rank 0 calls agree() with store 1, rank 1 redistribute() with store 1" in third["error"]
        assert last == {"held": 0, "names": ["store 1", "store 2"]}
