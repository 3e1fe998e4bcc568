"""Samples that move from the ranks that made them to the ranks that need them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import levada
import pytest
import ranks
from levada import exchange

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "rollout_train.py"
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
held = exchange.all_gather(store)
meta = held.meta()
divided = [part.ids for part in meta.split(meta.balanced(2, "int64"))]
wants = exchange.destinations(levada.Mesh(dp=2, tp=2), divided)
first = exchange.redistribute(store, wants, keys)
mine = divided[rank // 2]
again = exchange.redistribute(store, wants, keys)
planned = exchange.plan(held, wants, keys)
other = exchange.Store()
other.store(batch_of(range(rank, 32, 4)), copy=False)
exchange.redistribute(other, wants, keys)
did = (first.multicasts, first.moved_bytes, first.lower_bound_bytes, first.delivered_bytes)
tell(same=same(store.get(mine), [int(id[1:]) for id in mine]), again=again.sent_bytes,
     planned=did == (len(planned), planned.moved_bytes, planned.lower_bound_bytes, planned.delivered_bytes),
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


def test_a_mistake_is_the_same_error_on_all_ranks_before_anything_moves(tmp_path: pathlib.Path) -> None:
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
""",
    )
    assert told[0] == told[1] == told[2] and all(each["same"] for each in told[0])
    for error, words in zip(
        (each["error"] for each in told[0]),
        (["sample unknown", "key int64", "rank 0"], ["sample s2", "key never", "rank 0"],
         ["x", "float32", "float64", "rank"], ["x", "rank"], ["ranks 0 and 1 pass different destinations;"],
         ["rank 0", "bounded"]),
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
tell(x=mine["x"].tolist(), reward=mine["reward"].tolist(), moved=done.moved_bytes,
     again=exchange.redistribute(store, wants, ["x", "reward"], cut_keys=["x"]).multicasts)
try: exchange.redistribute(store, wants, ["reward"], cut_keys=["x"])
except levada.InvalidArgument as error: tell(error=str(error))
""",
    )
    parts = {"consecutive": [[0, 1, 2, 3], [4, 5, 6, 7]], "zigzag": [[0, 1, 6, 7], [2, 3, 4, 5]]}[cut]
    assert [mine["x"] for mine, _ in told] == [list(range(8)), *parts]
    assert all(mine["reward"] == [1.0] and mine["moved"] == 72 and mine["again"] == 0 for mine, _ in told)
    assert {refused["error"] for _, refused in told} == {
        "cut_keys has key x, which keys lacks; add it to keys"
    }
    with pytest.raises(levada.InvalidArgument):
        exchange.destinations(levada.Mesh(cp=2), [["a"]], cut="diagonally")


def test_samples_arrive_without_absent_keys(tmp_path: pathlib.Path) -> None:
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
        assert refused["error"] == "sample a, key reward is wanted on rank 1, but no rank holds it"
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


def test_a_killed_rank_leaves_no_partial_key(tmp_path: pathlib.Path) -> None:
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
    if rank == 0: signal.setitimer(signal.ITIMER_REAL, 0.5)
    exchange.redistribute(store, {0: []}, [])
except KeyboardInterrupt:
    tell(kind="KeyboardInterrupt", text="")
except levada.EngineError as error:
    tell(kind="EngineError", text=str(error))
""",
    )
    assert [mine["kind"] for (mine,) in told] == ["KeyboardInterrupt", "EngineError", "EngineError"]
    assert all("a rank was interrupted in an exchange" in mine["text"] for (mine,) in told[1:]), told


def test_a_call_refused_on_one_rank_is_not_mistaken_for_its_next_call(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
from levada import exchange
store = exchange.Store()
def attempt(wants, keys, **options):
    try:
        exchange.redistribute(store, wants, keys, **{"timeout": 20, **options})
        tell(error="")
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
attempt({0: []}, ["x"], timeout=float("nan") if rank == 2 else 20)
attempt({0: []}, ["x"], timeout=[-1e300, float("inf"), 1e12][rank])
attempt({0: []}, ["x"], timeout=[1e300, float("inf"), 1e12][rank])
if rank == 1: attempt({0: 7}, ["x"])
attempt({0: []}, ["x"])
""",
    )
    common = [[line["error"] for line in mine if "wants must be" not in line["error"]] for mine in told]
    assert common[0] == common[1] == common[2] and len(told[1]) == 5
    nan, negative, large, next_call = common[0]
    assert nan == "InvalidArgument: rank 2: timeout must be positive, got 0 s"
    assert negative == "InvalidArgument: rank 0: timeout must be positive, got -1000000000 s"
    assert large == ""
    assert next_call.startswith("InvalidArgument: rank 0 makes call 4 of this group's exchanges, but rank 1 makes call 5:")


def test_a_string_is_refused_as_a_list_of_ids_or_keys() -> None:
    directory = levada.exchange.SampleDirectory()
    for wants, keys, fault in [
        ({1: "ab"}, ["x"], r"wants\[1\] must be a list of strings, got 'ab'"),
        ({1: ["a"]}, "x", "keys must be a list of strings, got 'x'"),
        ({1: [7]}, ["x"], "ids and keys are strings"),
        ({"1": ["a"]}, ["x"], "wants must be"),
        ([1], ["x"], "a list of Destination"),
    ]:
        with pytest.raises(levada.InvalidArgument, match=fault):
            levada.exchange.plan(directory, wants, keys)  # type: ignore[arg-type]


def test_a_store_leaves_memory_to_exchanges_reductions_and_feeds(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
from levada import _levada, exchange
job = _levada.meet(rank, 2, f"small-{os.getppid()}", bytes(32), 20.0, memory_bytes=8 * 2**20)
store = exchange.Store()
exchange.redistribute(store, {0: []}, ["x"], group=job, timeout=20)
ids = [[f"{owner}.{i}" for i in range(24)] for owner in range(2)]
store.store(exchange.SampleBatch(ids[rank], {"x": np.full(24 * 2**20, rank, np.uint8)}, {"x": [2**20] * 24}))
exchange.redistribute(store, {1 - rank: ids[rank], rank: ids[1 - rank]}, ["x"], group=job, timeout=20)
got = store.get(ids[1 - rank])["x"]
reduce = levada.ReduceScatter(job, timeout=20)
reduced = reduce(np.full(2**17, 1.0 + rank)).wait()
batches = ({"x": np.full(2**20, step, np.uint8)} for step in range(3))
fed = [int(batch["x"][-1]) for batch in levada.Feed(batches, levada.Mesh(tp=2), group=job, timeout=20)]
tell(got=[len(got), bool((got == 1 - rank).all())], reduced=float(reduced[0]), fed=fed)
""",
    )
    assert told == [[{"got": [24 * 2**20, True], "reduced": 3.0, "fed": [0, 1, 2]}]] * 2


def test_a_conflict_between_ranks_is_an_error_on_all(tmp_path: pathlib.Path) -> None:
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
    exchange.all_gather(store, timeout=20)
except levada.InvalidArgument as error:
    tell(error=str(error))
if rank == 1: store.remove(["1.0"])
try:
    exchange.all_gather(store, timeout=20)
except levada.InvalidArgument as error:
    tell(error=str(error))
if rank == 1: store.clear()
tell(ids=exchange.all_gather(store, timeout=20).meta().ids)
""",
    )
    assert told[0] == told[1] == told[2] and len(told[0]) == 3
    assert told[0][0]["error"] == "rank 1: key x is float64 [] for sample 1.1 on rank 1, but float32 [] for sample 1.0 on rank 1"
    assert all(word in told[0][1]["error"] for word in ("key x", "rank 0", "sample 1.1 on rank 1")), told[0]
    assert sorted(told[0][2]["ids"]) == ["0.0", "0.1", "2.0", "2.1"]


def test_the_example_with_three_models_on_the_same_ranks_runs() -> None:
    command = [sys.executable, "-m", "levada", "run", "-n", "4", str(EXAMPLE)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 10 and all(line.endswith("all as computed alone") for line in lines)
    rewards = [float(line.split()[3].rstrip(",")) for line in lines]
    assert sum(rewards[-3:]) > sum(rewards[:3])  # the actor learns


def test_threads_may_store_and_change_the_same_batch(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        1,
        """
        import threading
        from levada import exchange
        ids = [str(number) for number in range(3000)]
        batch = exchange.SampleBatch(ids, {"a": np.zeros(3000)})
        held = exchange.SampleDirectory()
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
            held.merge(kept.directory(number % 3))
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


def test_different_calls_or_stores_on_ranks_are_an_error(tmp_path: pathlib.Path) -> None:
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
            attempt(lambda: exchange.all_gather(first))
        attempt((lambda: exchange.all_gather(rollouts)) if rank == 0 else
                (lambda: exchange.redistribute(rollouts, {0: ["a"]}, ["x"])))
        extra = [exchange.Store() for _ in range(rank)]
        tell(held=len(exchange.all_gather(exchange.Store(name="rollouts"))), names=[rollouts.name, scores.name])
        """,
    )
    for mine in told:
        first, second, third, last = mine
        assert "rank 0 calls all_gather() with store 1, but rank 1 calls all_gather() with store 2" in first["error"]
        assert "rank 0 calls all_gather() with store 2, but rank 1 calls all_gather() with store 1" in second["error"]
        assert "rank 0 calls all_gather() with store 1, but rank 1 calls redistribute() with store 1" in third["error"]
        assert last == {"held": 0, "names": ["store 1", "store 2"]}
