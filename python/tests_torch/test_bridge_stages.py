"""Pipeline stages that read, with and without Megatron's groups. Run by `script/check python-torch`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import levada
import pytest
import torch
from bridge_steps import STANDARD
from levada.dropin import bridge


class Place(SimpleNamespace):
    """A stand-in for a process group that sends nothing."""

    def rank(self) -> int:
        return int(self.at)

    def size(self) -> int:
        return int(self.of)


@pytest.mark.parametrize("layout", ["Et*3|(tt|)*2m|L", [["E"], ["t"], ["t"], ["mtp"], ["loss"]], None])
def test_datasets_are_built_only_on_reading_ranks(layout: Any) -> None:
    built = [
        bridge.is_dataset_built_on_rank(
            SimpleNamespace(tp=Place(at=tp, of=2), pp=Place(at=pp, of=5)),
            SimpleNamespace(pipeline_model_parallel_layout=layout),
        )
        for pp in range(5)
        for tp in range(2)
    ]
    assert built == [tp == 0 and (pp in (0, 4) or (pp == 3 and layout is not None)) for pp in range(5) for tp in range(2)]


@pytest.mark.parametrize(
    ("options", "packs"),
    [
        ({}, False),
        ({"enable_offline_packing": True}, True),
        ({"enable_offline_packing": True, "offline_packing_specs": SimpleNamespace(packed_sequence_size=0)}, False),
        ({"enable_in_batch_packing": True}, True),
        ({"packed_sequence_specs": SimpleNamespace(packed_sequence_size=8)}, True),  # up to v0.5.1, as the next two
        ({"packed_sequence_specs": SimpleNamespace(packed_sequence_size=0)}, False),
        ({"pack_sequences_in_batch": True}, True),
    ],
)
def test_middle_stages_read_if_sequences_are_packed(options: dict[str, Any], packs: bool) -> None:
    groups = SimpleNamespace(tp=Place(at=0, of=2), pp=Place(at=1, of=3))
    assert bridge.is_dataset_built_on_rank(groups, dataset_config=SimpleNamespace(**options)) is packs


def test_a_virtual_stage_that_hosts_mtp_is_found() -> None:
    parsed = SimpleNamespace(layout=[[["E"], []], [["t"], [SimpleNamespace(name="mtp")]], [["t"], ["L"]]])
    model = SimpleNamespace(pipeline_model_parallel_layout=parsed)
    for pp, expected in ((0, True), (1, True), (2, True)):
        groups = SimpleNamespace(tp=Place(at=0, of=1), pp=Place(at=pp, of=3))
        assert bridge.is_dataset_built_on_rank(groups, model) is expected
    cfg = SimpleNamespace(model=model, dataset=SimpleNamespace(broadcast_data_across_tp=True))
    predicate = bridge.dataset_builder_predicate(cfg)
    assert predicate(SimpleNamespace(tp=Place(at=0, of=2), pp=Place(at=1, of=3))) is True
    assert bridge.dataset_builder_predicate(SimpleNamespace(dataset=SimpleNamespace()))() is True


def test_the_groups_default_to_megatrons(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(levada.Unsupported, match=r"megatron\.core"):
        bridge.is_dataset_built_on_rank()
    monkeypatch.setattr(bridge, "parallel_state", None)
    with pytest.raises(levada.Unsupported, match=r"megatron\.core, whose groups it would be, is not installed"):
        bridge.is_dataset_built_on_rank()
    megatron = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_tensor_model_parallel_group=lambda: Place(at=0, of=2),
        get_pipeline_model_parallel_group=lambda: Place(at=2, of=3),
    )
    monkeypatch.setattr(bridge, "parallel_state", megatron)
    assert bridge.is_dataset_built_on_rank() is True


def test_a_stage_can_be_set_as_megatrons_tests_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = SimpleNamespace(tp=Place(at=0, of=1), pp=Place(at=0, of=1), cp=Place(at=0, of=1))
    cfg = SimpleNamespace(model=SimpleNamespace(), dataset=SimpleNamespace())
    for name, value in (("is_pp_first_stage", False), ("is_pp_last_stage", False)):
        monkeypatch.setattr(bridge, name, lambda pp, value=value: value)
    assert bridge.get_batch(iter([]), cfg, pg_collection=groups) == (None,) * 6
    monkeypatch.setattr(bridge, "is_pp_last_stage", lambda pp: True)
    monkeypatch.setattr(bridge, "get_batch_on_this_cp_rank", lambda batch, cp_group: {**batch, "labels": "cut"})
    assert bridge.get_batch(iter([{"tokens": 1, "labels": 2}]), cfg, pg_collection=groups)[:2] == (None, "cut")


def test_a_group_of_one_reads_for_itself() -> None:
    groups = SimpleNamespace(tp=Place(at=0, of=1), pp=Place(at=0, of=1), cp=Place(at=0, of=1))
    cfg = SimpleNamespace(model=SimpleNamespace(), dataset=SimpleNamespace(broadcast_data_across_tp=True))
    iterator = iter([{"tokens": torch.ones(1, 4), "more": "x"}])
    got = bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)
    assert list(got) == [*STANDARD, "more"] and got["labels"] is None
    with pytest.raises(StopIteration):
        bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)
    unpacked = {"tokens": torch.ones(1, 4), "cu_seqlens_q": None, "padding_mask": torch.ones(1, 4)}
    assert bridge.get_batch(iter([unpacked]), cfg, pg_collection=groups)[5] is None
    with pytest.raises(levada.InvalidArgument, match="no data iterator"):
        bridge.get_batch(None, cfg, pg_collection=groups)
