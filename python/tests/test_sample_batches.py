"""Batches of samples and stores, on one rank."""

from __future__ import annotations

import json
import pickle
import random

import levada
import ml_dtypes
import numpy as np
import pytest
from levada import exchange


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


def test_a_batch_has_read_only_views_of_the_given_arrays() -> None:
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
    assert batch.reorder(order).select(ids=batch.ids) == batch
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
    for part in parts:
        assert other.select(ids=part.ids)["reward"].tolist() == [39.0 - int(id) for id in part.ids]
    works = [sum(6 * 64 * n + n * n for id in part.ids for n in [lengths[int(id)]]) for part in batch.split(batch.balanced(4, cost="flops(hidden=64)"))]
    assert max(works) < 1.02 * sum(works) / 4
    wants = exchange.destinations(levada.Mesh(dp=4, tp=2), batch.meta(), balance=levada.Balance("flops", counts="equal"))
    assert sorted(id for destination in wants for id in destination.ids) == sorted(ids)
    assert [len(destination.ids) for destination in wants] == [10] * 4
    assert [len(destination.ranks) for destination in wants] == [2] * 4
    for balance in ("flops", levada.Balance("flops", counts="equal")):
        with pytest.raises(levada.InvalidArgument, match="40 sample.s. cannot be divided over 41 ranks"):
            exchange.destinations(levada.Mesh(dp=41), batch.meta(), balance=balance)
    with pytest.raises(levada.InvalidArgument, match="no weights"):
        batch.balanced(4, cost="weights")
    with pytest.raises(levada.InvalidArgument, match="pass a batch, or its meta, as ids"):
        exchange.destinations(levada.Mesh(dp=2), [["a"], ["b"]], balance="flops")
    with pytest.raises(levada.InvalidArgument, match="levada.exchange.balance"):
        exchange.destinations(levada.Mesh(dp=2), batch, balance=levada.Balance(lambda sample: 1))
    for others in ({"order": "paired"}, {"wait": "micro"}, {"max_delay": 2}, {"pad_to": 8}, {"too_long": "cut"}, {"length": len}):
        with pytest.raises(levada.InvalidArgument, match="supports only cost and counts"):
            exchange.destinations(levada.Mesh(dp=2), batch, balance=levada.Balance(**others))
    assert exchange.balance([5, 4, 3, 2], 2) == [[0, 3], [1, 2]]
    assert exchange.balance([9, 1, 1, 1], 2, equal=True) != exchange.balance([9, 1, 1, 1], 2)
    assert exchange.balance([1, 1, 1, 9], 2, in_order=True) == [[0, 1, 2], [3]]


def test_a_store_owns_its_memory_unless_copy_is_false() -> None:
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


def test_the_error_of_a_store_names_the_refused_value() -> None:
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


def test_the_error_of_a_batch_names_the_refused_value() -> None:
    make = exchange.SampleBatch
    for refused, kind, why in (
        (lambda: make(["a", "a"]), levada.InvalidArgument, "sample a appears twice"),
        (lambda: make(["a"], {"x": np.zeros(3)}), levada.InvalidArgument, "3 tokens"),
        (lambda: make(["a"], {}, {"x": [1]}), levada.InvalidArgument, "seqlens has key x"),
        (lambda: make(["a"], {"x": [np.int64(3)]}), levada.InvalidArgument, "key x of sample a"),
        (lambda: make(["a", "b"], {"x": [np.zeros(1), np.ones((1, 2))]}), levada.InvalidArgument, "sample b, key x"),
        (lambda: make(["a"], {"x": "text"}), TypeError, "key x of sample a is no tensor"),
        (lambda: make(["a"], {"x": np.zeros(3)}, {"x": ["3"]}), TypeError, "integer"),
        (lambda: make(["a"], {"x\x1b": "text"}), TypeError, r"key x\\x1b of sample a is no tensor"),
        (lambda: make(["a"], {"x\x1b": np.zeros(2, ">i4")}), TypeError, r"key x\\x1b cannot cross"),
        (lambda: make(["a"], values=[{"x": object()}]), TypeError, r"values\['x'\] cannot cross"),
        (lambda: make(["a"], values=[{"x\x1b": object()}]), TypeError, r"values\['x\\x1b'\] cannot cross"),
        (lambda: make(["a"], values=[{"x": {"y": np.zeros(3)}}]), TypeError, "tensors belong among the fields"),
        (lambda: some()["nothing"], levada.InvalidArgument, "nothing"),
        (lambda: some().meta()["tokens"], levada.InvalidArgument, "tokens"),
        (lambda: some().split([1]), levada.InvalidArgument, "must add up"),
        (lambda: some().split([[0, -1]]), TypeError, "parts must be counts, or lists"),
        (lambda: make.from_json('{"ids": 3}'), levada.InvalidArgument, "ids"),
        (lambda: exchange.balance([1], 0), levada.InvalidArgument, "part"),
        (lambda: exchange.balance([1], 1, equal=True, in_order=True), levada.InvalidArgument, "one of"),
        (lambda: exchange.balance([1, 1.5], 2), TypeError, r"tokens\[1\] must be a whole number, got 1.5"),
        (lambda: exchange.balance([1], -1), levada.InvalidArgument, "parts must be a whole number of 1 or more, got -1"),
        (lambda: exchange.balance("12", 2), TypeError, "tokens must be a list of whole numbers, got '12'"),
        (lambda: exchange.destinations(levada.Mesh(dp=1), some(), balance=""), levada.InvalidArgument, "the cost is ''"),
    ):
        with pytest.raises(kind, match=why):
            refused()


def test_a_process_that_is_not_a_rank_can_plan() -> None:
    held = exchange.SampleDirectory()
    held.add(0, some().meta())
    held.add(3, some().select(ids=["a"]).meta())
    held = pickle.loads(pickle.dumps(held))
    assert len(held) == 3 and "b" in held and held.holders("a", "tokens") == [0, 3] == held.holders("c", "reward") + [3]
    plan = exchange.plan(held, {2: ["a", "b"], 1: ["b"], 3: ["a"]}, ["tokens", "reward"], host_of=[0, 0, 1, 1])
    assert [(each.source, each.to) for each in plan] == [(0, [1, 2]), (3, [2])]
    assert plan[0].items == [("b", "reward"), ("b", "tokens")] and plan[0].bytes == 28
    assert plan.moved_bytes == plan.lower_bound_bytes == 28 + 12 and plan.delivered_bytes == 2 * 28 + 12
    assert plan.edges == [(0, 1, 28), (0, 2, 28), (3, 2, 12)] and plan.busiest == (0, 28) and plan.ranks == [0, 1, 2, 3]
    assert plan == exchange.plan(held, {3: ["a"], 1: ["b"], 2: ["b", "a"]}, ["reward", "tokens"], host_of=[0, 0, 1, 1])
    assert json.loads(plan.to_json(with_ids=True))["moved_bytes"] == 40 and "delivered" in str(plan)
    held.remove(3, ["a"])
    assert exchange.plan(held, {2: ["a"]}, ["tokens"])[0].source == 0
    with pytest.raises(levada.CorruptMessage):
        exchange.SampleDirectory.decode(b"no directory")
    mesh = levada.Mesh(dp=2, tp=2, pp=2)
    assert exchange.data_heads(mesh) == [1, 5]
    first, second = exchange.destinations(mesh, [["a"], ["b"]], range(10, 18))
    assert (first.ranks, first.ids, second.ranks) == ([10, 11, 12, 13], ["a"], [14, 15, 16, 17])


def test_names_may_contain_any_character() -> None:
    values = {"a\0b": 1, "a\0c": 2, "a": 3, "\n": 4}
    batch = exchange.SampleBatch(["s\0"], {"x\0y": np.zeros(1), "x": np.ones(1)}, values=[values])
    assert batch.values(0) == values and batch.keys == ["x", "x\0y"] and batch.ids == ["s\0"]
    assert exchange.SampleBatch.from_json(batch.to_json()).values(0) == values


def test_bfloat16_needs_no_torch() -> None:
    batch = exchange.SampleBatch(["a"], {"x": np.ones(3, ml_dtypes.bfloat16)}, {"x": [3]})
    assert batch["x"].dtype == ml_dtypes.bfloat16 and batch.dtype("x") == "bfloat16"


def test_the_error_names_keys_that_are_no_text_and_lengths_that_are_too_large() -> None:
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
