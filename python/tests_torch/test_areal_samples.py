"""Samples of the AReaL drop-in: their parts, lengths and seeds. Run by `script/check python-torch`."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import levada
import numpy as np
import pytest
import torch
from areal_samples import same, some
from levada.dropin.areal import MicroBatchSpec, SequenceSample, SequenceSplitSpec


def test_a_sample_is_split_and_joined() -> None:
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


def test_a_gathered_sample_is_written_without_changing_its_parts_and_a_part_with_its_whole() -> None:
    batch = some("abc")
    before = batch.data["input_ids"].clone()
    parts = batch.unpack()
    SequenceSample.gather(parts).data["input_ids"].zero_()
    SequenceSample.gather(parts[:1]).data["input_ids"].zero_()
    assert torch.equal(batch.data["input_ids"], before)
    parts[2].data["input_ids"].fill_(7)
    assert torch.equal(batch.data["input_ids"], torch.cat([before[:-5], torch.full((5,), 7)]))


def test_parts_and_gathered_samples_keep_gradients_devices_and_keys_without_data() -> None:
    weights = torch.ones(5, requires_grad=True)
    data = {"seq": weights * 2, "values": torch.zeros(5, device="meta"), "rewards": None}
    batch = SequenceSample.from_default([2, 3], ["a", "b"], data)
    turned = SequenceSample.reorder(batch, [1, 0])
    SequenceSample.gather(turned.unpack()).data["seq"][:3].sum().backward()
    assert weights.grad.tolist() == [0, 0, 2, 2, 2]
    assert turned.data["values"].device.type == "meta" and turned.data["values"].shape == (5,)
    assert turned.data["rewards"] is None and turned.seqlens["rewards"] == [[1], [1]]


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


def test_lengths_that_are_not_whole_numbers_are_refused() -> None:
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
    indices = np.arange(batch.bs)  # AReaL's shuffle
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
    with SequenceSample.disable_validation():
        one, other = (SequenceSample(keys={"a"}, ids=["x"], **fields) for _ in range(2))
    one.remap_keys_({"a": "b"})
    assert other.keys == other.dtypes.keys() == other.data.keys() == {"a"}
    assert torch.equal(fields.pop("data")["a"], given.pop("data")["a"]) and fields == given


def test_updating_with_a_meta_keeps_the_data() -> None:
    batch = some()
    tokens = batch.data["input_ids"]
    batch.update_(batch.meta())
    assert batch.data["input_ids"] is tokens and same(batch, batch)
    later = SequenceSample({"later"}, {"later": None}, {"later": None}, batch.ids, {"later": [[1]] * 3})
    batch.update_(later)
    assert batch.data["later"] is None and batch.data["input_ids"] is tokens and "later" in batch.keys


def test_a_sample_survives_json_and_pickle() -> None:
    batch = some()
    assert same(SequenceSample.from_json_compatible(json.loads(json.dumps(batch.as_json_compatible()))), batch)
    assert same(pickle.loads(pickle.dumps(batch)), batch)
    meta = SequenceSample.from_json_compatible(json.loads(json.dumps(batch.meta().as_json_compatible())))
    assert meta.data is None and meta.dtypes == batch.dtypes


def test_mismatched_data_of_a_sample_are_refused() -> None:
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
