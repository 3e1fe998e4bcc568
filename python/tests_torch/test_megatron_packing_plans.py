"""Decisions of levada.dropin.megatron that need no communication. Run by `script/check python-torch`."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import levada
import numpy as np
import pytest
import torch
from levada.dropin import megatron
from levada.dropin._packing_samples import INPUTS, TARGETS, read
from levada.dropin._packing_schedules import Schedule, Scheduler, as_schedule, balanced, check, in_order
from levada.dropin._packing_stages import keys_by_chunk
from levada.dropin._packing_step import PackingSettings, Place, RankMessage, agree


class Group(SimpleNamespace):
    """A stand-in for a process group that sends nothing."""

    def rank(self) -> int:
        return int(self.at)

    def size(self) -> int:
        return int(self.of)


ALONE = SimpleNamespace(**dict.fromkeys(("tp", "pp", "dp", "cp", "dp_cp"), Group(at=0, of=1)))


def sample(length: int, **more: Any) -> dict[str, Any]:
    row = torch.arange(length)
    return {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(length), "position_ids": row, **more}


def work(micros: list[list[int]], lengths: list[int]) -> int:
    return sum(6 * 4096 * lengths[each] + lengths[each] ** 2 for micro in micros for each in micro)


@pytest.mark.parametrize(
    ("lengths", "ranks", "limit", "multiple", "expected"),
    [  # the result of DpBalancedScheduler in Megatron-LM's main of 2026-08-22
        ([5, 5, 5, 5], 2, 10, 1, [[[0, 1]], [[2, 3]]]),
        ([9, 1, 2, 9, 3], 2, 10, 1, [[[0, 1], [3]], [[2], [4]]]),
        ([3, 3, 3, 3, 3, 3, 3], 2, 10, 1, [[[0, 1, 2], [6]], [[3, 4], [5]]]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 1, 12, 2, [[[0, 1, 2, 3], [4, 5], [6], [7]]]),
        ([1, 2, 3, 4, 5, 6, 7, 8], 2, 12, 2, [[[0, 1, 2, 3], [6]], [[4, 5], [7]]]),
    ],
)
def test_samples_in_order_are_packed_like_megatrons(
    lengths: list[int], ranks: int, limit: int, multiple: int, expected: Schedule
) -> None:
    assert in_order(lengths, ranks, limit, multiple) == expected


@pytest.mark.parametrize("multiple", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_schedules_contain_every_sample_once_in_equal_numbers_of_micro_batches(ranks: int, multiple: int) -> None:
    numbers = random.Random(ranks)
    for _ in range(100):
        lengths = [numbers.randint(1, 100) for _ in range(numbers.randint(40, 80))]
        if numbers.random() < 0.3:
            lengths[-5:] = [1000] * 5
        for schedule in (balanced, in_order):
            check(schedule(lengths, ranks, 1000, multiple), lengths, ranks, 1000, multiple)


@pytest.mark.parametrize("schedule", [balanced, in_order])
def test_a_step_of_too_few_samples_is_refused(schedule: Scheduler) -> None:
    with pytest.raises(levada.InvalidArgument, match=r"3 sample\(s\) cannot fill 2 micro-batch\(es\) on each of 2 data-para"):
        schedule([4, 4, 4], 2, 100, 2)


def test_balanced_ranks_have_about_the_same_work_in_fewer_micro_batches() -> None:
    numbers = random.Random(5)
    lengths = [min(int(numbers.lognormvariate(6, 1.2)) + 1, 8000) for _ in range(200)]
    by_cost, by_order = balanced(lengths, 4, 8192, 1), in_order(lengths, 4, 8192, 1)
    works = [[work(mine, lengths) for mine in schedule] for schedule in (by_cost, by_order)]
    assert max(works[0]) / min(works[0]) < 1.001 < max(works[1]) / min(works[1])
    assert len(by_cost[0]) < len(by_order[0])


def test_a_rank_with_few_samples_gets_short_ones_of_other_ranks() -> None:
    lengths = [1000, 9, 8, 7, 6, 5, 4, 3]
    schedule = balanced(lengths, 2, 1000, 4)
    check(schedule, lengths, 2, 1000, 4)
    assert [len(mine) for mine in schedule] == [4, 4]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ([[[0, 1]], [[2], [3]]], r"returned \[1, 2\] micro-batches by data-parallel rank; 2 ranks need equal numbers"),
        ([[[0, 1, 2, 3]]], r"returned \[1\] micro-batches"),
        ([[], []], r"returned \[0, 0\] micro-batches"),
        ([[[0, 1]], [[]]], r"micro-batch 0 of data-parallel rank 1 samples \[\]; a micro-batch needs one or more"),
        ([[[0, 1]], [[2, 4]]], r"samples \[2, 4\]; a micro-batch needs one or more of the samples 0 to 3"),
        ([[[0, 1, 2]], [[3]]], "micro-batch 0 of data-parallel rank 0 12 tokens; it holds at most 8"),
        ([[[0, 1]], [[2, 2]]], "returned 4 samples, 3 of them different, of a step of 4"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule: Schedule, text: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=text):
        check(schedule, [4, 4, 4, 4], 2, 8, 1)


def test_a_schedule_may_be_of_tuples_and_arrays() -> None:
    assert as_schedule((((0, 1),), (np.array([2, 3]),))) == [[[0, 1]], [[2, 3]]]
    for returned in (None, [[0, 1], [2, 3]], [[[0.5]]]):
        with pytest.raises(levada.InvalidArgument, match="the scheduler returned .*; it must return the numbers of samples as lists"):
            as_schedule(returned)


def test_a_list_instead_of_an_iterator_is_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="has type list, which is no iterator; pass iter"):
        read([sample(4, padded_seq_len=4)], 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (7, "item 0 of the data iterator has type int; it must be a dict, or a list of dicts"),
        ([sample(4, padded_seq_len=4), {}], "item 0 of the data iterator, sample 1 of it has no tokens"),
        (sample(4, padded_seq_len=4, cu_seqlens=torch.tensor([0, 4])), "must have either padded_seq_len"),
        (sample(4, padded_seq_len=torch.tensor([2, 2])), r"has padded_seq_len tensor\(\[2, 2\]\); it must be one whole"),
        (sample(4, padded_seq_len=4, original_seq_len=5), "an original_seq_len of 5 and a padded_seq_len of 4"),
        (sample(4, padded_seq_len=4, original_seq_len=0), "an original_seq_len of 0"),
        (sample(4, padded_seq_len=3), "has 4 elements of tokens, but padded_seq_len is 3; they must fit"),
        (sample(4, cu_seqlens=torch.tensor([0, 5])), "has 4 elements of tokens, but the last of cu_seqlens is 5"),
        (sample(4, cu_seqlens=torch.tensor([0, 3, 2, 4])), r"cu_seqlens \[0, 3, 2, 4\]; they must be 0 or more and never"),
        (sample(4, cu_seqlens=[0, 4]), r"cu_seqlens \[0, 4\]; it must be a torch tensor of whole numbers"),
        (sample(4, cu_seqlens=torch.tensor([0, 1.5, 4])), "cu_seqlens tensor.*; it must be a torch tensor of whole numbers"),
        ({**sample(4, padded_seq_len=4), "labels": [1, 2, 3, 4]}, "labels of list; it must be a torch tensor of int64"),
        ({**sample(4, padded_seq_len=4), "tokens": torch.ones(2, 2).long()}, r"tokens of shape \[2, 2\]; it must be"),
    ],
)
def test_an_item_that_is_not_a_sample_is_refused(item: Any, text: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=text):
        read(iter([item]), 1)


def test_items_of_several_samples_are_divided_at_their_boundaries() -> None:
    packed = {key: value[None] for key, value in sample(9).items()}
    items = [[sample(2, padded_seq_len=2), {**packed, "cu_seqlens": torch.tensor([[0, 4, 7, 9, 9, 9]])}]]
    got = read(iter(items), 1)
    assert [(each.original, each.padded, each.fields["tokens"].tolist()) for each in got] == [
        (2, 2, [0, 1]),
        (4, 4, [0, 1, 2, 3]),
        (3, 3, [4, 5, 6]),
        (2, 2, [7, 8]),
    ]


def told(place: Place, sizes: Place, lengths: list[int] | None) -> bytes:
    settings = PackingSettings(sizes, 16, 1, 1, "balanced")
    return RankMessage(None, place, settings, ("tokens",), None if lengths is None else (lengths, lengths)).encode()


def test_ranks_that_do_not_form_a_mesh_are_refused() -> None:
    same = [told(Place(0, 0, 0, 0), Place(2, 1, 1, 1), [4])] * 2
    with pytest.raises(levada.InvalidArgument, match="ranks 0 and 1 are both dp0 cp0 tp0 pp0 in their process groups"):
        agree(same)


def test_a_sample_that_context_parallelism_cannot_slice_is_refused() -> None:
    sizes = Place(1, 2, 1, 1)
    with pytest.raises(levada.InvalidArgument, match="sample 1 of data-parallel rank 0 has 6 tokens, which cp=2 cannot cut"):
        agree([told(Place(0, at, 0, 0), sizes, [4, 6]) for at in range(2)])


def test_readers_with_different_lengths_are_named() -> None:
    sizes = Place(1, 2, 1, 1)
    with pytest.raises(levada.InvalidArgument, match=r"sample 1 has 8 tokens \(8 with padding\) on rank 0, 12 \(12\) on rank 1"):
        agree([told(Place(0, at, 0, 0), sizes, [4, 8 + 4 * at]) for at in range(2)])


def test_the_error_without_megatron_or_groups_names_the_arguments_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="dp_balanced")
    with pytest.raises(levada.Unsupported, match="pass a pg_collection"):
        megatron.wrap_data_iterator(iter([]), config, 1)
    monkeypatch.setattr(megatron, "parallel_state", None)
    with pytest.raises(levada.Unsupported, match=r"megatron\.core, whose groups it would be, is not installed"):
        megatron.wrap_data_iterator(iter([]), config, 1)
    lacking = SimpleNamespace(tp=ALONE.tp, pp=ALONE.pp)
    with pytest.raises(levada.InvalidArgument, match="pg_collection has no group dp"):
        megatron.wrap_data_iterator(iter([]), config, 1, lacking)


def test_a_single_rank_packs() -> None:
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="dp_balanced")
    data = iter([sample(length, padded_seq_len=torch.tensor([length])) for length in (4, 3, 5)])
    new, count, total, squares = megatron.wrap_data_iterator(data, config, 3, ALONE)
    assert (count, total, squares) == (2, 12.0, 50.0)
    assert [next(new)["tokens"].tolist() for _ in range(count)] == [[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_a_stage_that_hosts_mtp_gets_all_keys() -> None:
    config = SimpleNamespace(mtp_num_layers=1)
    assert [set(keys) for keys in keys_by_chunk(config, Group(at=1, of=2))] == [{*INPUTS, *TARGETS}]
    config.pipeline_model_parallel_layout = "E|m|L"
    stages = [set(*keys_by_chunk(config, Group(at=at, of=3))) for at in range(3)]
    assert stages == [set(INPUTS), {*INPUTS, *TARGETS}, set(TARGETS)]
