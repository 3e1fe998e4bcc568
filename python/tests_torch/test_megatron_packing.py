"""levada.dropin.megatron: Megatron-LM's sequence packing. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import pytest
from packing_steps import LIMIT, Sample, batch, item, keys_of, run, sample_of, samples

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

IN_ORDER = [  # the result of DpBalancedScheduler for LENGTHS, by data-parallel rank, in Megatron-LM's main of
              # 2026-08-22
    [[(0, 0), (0, 1), (0, 2)], [(0, 5), (0, 6), (1, 0)], [(1, 3)]],
    [[(0, 3), (0, 4)], [(1, 1), (1, 2)], [(1, 4), (1, 5), (1, 6)]],
]
IN_ORDER_ALONE = [[[(0, 0), (0, 1), (0, 2)], [(0, 3), (0, 4)], [(0, 5), (0, 6)]]]


@pytest.mark.parametrize("mesh", [{"tp": 2, "dp": 2}, {"dp": 2, "pp": 2}, {"cp": 2, "dp": 2}, {"pp": 3}], ids=str)
def test_every_rank_gets_the_micro_batches_that_megatron_packs(tmp_path: pathlib.Path, mesh: dict[str, int]) -> None:
    tp, cp, dp, pp = (mesh.get(name, 1) for name in ("tp", "cp", "dp", "pp"))
    told = run(
        tmp_path,
        tp * cp * dp * pp,
        f"""
    data, tensor, stage, _ = grid(tp={tp}, cp={cp}, pp={pp})
    reads = tensor == 0 and stage in (0, {pp - 1})
    for scheduler in ("dp_balanced", "balanced"):
        def packed():
            iterator = iter(step(data)) if reads else None
            return wrap(iterator, config(max_seqlen_per_dp_cp_rank={LIMIT // cp}), 7, scheduler=scheduler)
        new, count, *sums = packed()
        items = [told_item(next(new)) for _ in range(count)]
        new, *_ = packed()
        if tensor > 0:
            new = None   # as callers made for Megatron-LM do
        batches = [told_batch(get(new)) for _ in range(count)]
        tell(items=items, batches=batches, sums=sums)
        try:
            get(new)
        except StopIteration:
            tell(end=count)
    """,
    )
    read = samples(dp)
    sums = [float(sum(each.length for each in read)), float(sum(each.length**2 for each in read))]
    for number in range(2):
        by_data = {}
        for rank, mine in enumerate(told):
            stage, data, context = rank // (tp * cp * dp), rank // (tp * cp) % dp, rank // tp % cp
            got, keys = mine[2 * number], keys_of(stage, pp)
            if number == 0:
                wanted = [[Sample(*each) for each in micro] for micro in (IN_ORDER if dp == 2 else IN_ORDER_ALONE)[data]]
            elif stage == 0:
                wanted = [[sample_of(each["tokens"][at]) for at in each["cu_seqlens_padded"][:-1]] for each in got["items"]]
            else:
                wanted = by_data[data]
            assert by_data.setdefault(data, wanted) == wanted
            assert got["items"] == [item(micro, keys) for micro in wanted]
            assert got["batches"] == [batch(micro, keys, context, cp) for micro in wanted]
            assert (got["sums"], mine[2 * number + 1]) == (sums, {"end": len(wanted)})
        micros = [micro for mine in by_data.values() for micro in mine]
        assert sorted(each for micro in micros for each in micro) == read
        assert max(sum(each.length for each in micro) for micro in micros) <= LIMIT
        assert len({len(mine) for mine in by_data.values()}) == 1


def test_virtual_stages_get_as_many_micro_batches_as_their_group_size_divides(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    data, _, stage, _ = grid(pp=2, vpp=2)
    chosen = config(virtual_pipeline_model_parallel_size=2, microbatch_group_size_per_vp_stage=2)
    def packed(scheduler):
        iterators = [iter(step(0)), None]
        return wrap(iterators if stage == 0 else iterators[::-1], chosen, 7, scheduler=scheduler)
    for scheduler in ("dp_balanced", "balanced"):
        new, count, *_ = packed(scheduler)
        items = [[told_item(next(each)) for _ in range(count)] for each in new]
        new, *_ = packed(scheduler)
        tell(items=items, batches=[[told_batch(get(each, 2, vp_stage=at)) for _ in range(count)] for at, each in enumerate(new)])
    """,
    )
    wanted = [[Sample(*each) for each in micro] for micro in [*IN_ORDER_ALONE[0][:2], [(0, 5)], [(0, 6)]]]
    for rank, (in_order, balanced) in enumerate(told):
        for chunk in range(2):
            keys = keys_of(2 * chunk + rank, 4)
            assert in_order["items"][chunk] == [item(micro, keys) for micro in wanted]
            assert in_order["batches"][chunk] == [batch(micro, keys) for micro in wanted]
        assert [len(each) for each in balanced["items"]] == [4, 4]


def test_one_reader_per_data_parallel_rank_is_enough(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        """
    data, _, stage, _ = grid(pp=2)
    groups = Space(tp=parallel_state.get_tensor_model_parallel_group(), pp=parallel_state.get_pipeline_model_parallel_group(),
                   dp=parallel_state.get_data_parallel_group(), cp=parallel_state.get_context_parallel_group(),
                   dp_cp=parallel_state.get_data_parallel_group(with_context_parallel=True))
    # Pre-packed, as of SFTDataset, whose last boundary is repeated, with a dimension that a collate_fn has added.
    parts = step(data)
    row = {key: torch.cat([each[key] for each in parts])[None] for key in ("tokens", "labels", "loss_mask", "position_ids")}
    bounds = torch.tensor([0, *LENGTHS[data]]).cumsum(0)
    row["cu_seqlens"] = torch.cat([bounds, bounds[-1:].repeat(5)])[None].int()
    iterator = iter([[row]]) if stage == data else None   # of either stage
    new, count, *_ = wrap(iterator, config(), 1, groups, scheduler="dp_balanced")
    row["labels"].zero_()   # belongs to this rank again
    tell(items=[told_item(next(new)) for _ in range(count)])
    uneven = [sample(data, at, length) for at, length in enumerate(LENGTHS[data][: 7 - rank // 3])]
    try:
        wrap(iter([uneven]), config(), 1, groups)
    except levada.InvalidArgument as error:
        tell(error=str(error))
    """,
    )
    for rank, mine in enumerate(told):
        wanted = [[Sample(*each) for each in micro] for micro in IN_ORDER[rank % 2]]
        expected = [item(micro, keys_of(rank // 2, 2)) for micro in wanted]
        for each in expected:
            each["cu_seqlens"] = each["cu_seqlens_padded"]
        assert mine[0]["items"] == expected
        assert mine[1]["error"] == (
            "ranks 1 and 3 read different samples for data-parallel rank 1: 7 samples on rank 1, 6 on rank 3; "
            "both must have the same data set, seed and position"
        )


def test_an_error_on_one_rank_is_raised_on_all_and_the_next_step_works(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        """
    data, tensor, *_ = grid(tp=2)
    def broken():
        yield step(0)[0]
        raise RuntimeError("the disk is gone")
    def attempt(items=None, count=7, chosen=None, reads=True, **options):
        items = step(data) if items is None else items
        try:
            wrap(iter(items) if reads and tensor == 0 else None, chosen or config(), count, **options)
            tell(kind=None)
        except StopIteration:
            tell(kind="StopIteration", text="")
        except levada.Error as error:
            tell(kind=type(error).__name__, text=str(error), cause=type(error.__cause__).__name__)
    def without(key):
        return [{name: value for name, value in each.items() if name != key or data == 0} for each in step(data)]
    attempt(chosen=config(max_seqlen_per_dp_cp_rank=40))
    attempt(chosen=config(max_seqlen_per_dp_cp_rank=48 + rank // 3))
    attempt(without("labels"))
    attempt(without("padded_seq_len"))
    attempt([{**each, "tokens": each["tokens"].int()} for each in step(data)] if rank == 2 else None)
    attempt(reads=data == 0)
    attempt(step(data) + step(data), count=7 + data)
    attempt(broken() if data == 0 else None)
    attempt(step(data)[: 7 - data])
    attempt([])
    attempt([[sample(0, 0, 4)]] if data == 0 else [[]], count=1)
    attempt(scheduler="fastest")
    attempt(chosen=config(sequence_packing_scheduler="default_dynamic_cp"))
    attempt(chosen=config(max_seqlen_per_dp_cp_rank=None))
    attempt(scheduler=lambda lengths, ranks, limit, multiple: [[[0]], [[1]]])
    attempt(group=levada.join(dist.new_group([rank])))
    attempt()
    try:
        get(iter([{}]))
    except levada.InvalidArgument as error:
        tell(kind="other iterator", text=str(error))
    """,
    )
    for mine in told:
        assert [(each["kind"], each["text"]) for each in mine[:-3]] == [(each["kind"], each["text"]) for each in told[0][:-3]]
    texts = [
        "sample 3 of data-parallel rank 1 has 48 tokens, but a micro-batch holds 40; raise max_seqlen_per_dp_cp_rank",
        "times the context-parallel size): 48 on rank 0, 49 on rank 3; pass the same on all ranks",
        "rank 2: item 0 of the data iterator has no labels, which packing needs; it has tokens, loss_mask",
        "rank 2: item 0 of the data iterator must have either padded_seq_len, if it is one sample, or cu_seqlens",
        "rank 2: item 0 of the data iterator has tokens of int32; it must be a torch tensor of int64",
        "no rank of data-parallel rank 1 (ranks 2, 3) has a data iterator; pass one on tensor-parallel rank 0",
        "num_microbatches: 7 on rank 0, 8 on rank 2",
        "rank 0: the data iterator raised at item 1 of a step: Traceback",
        "the data iterator of rank 2 ended within a step, that of rank 0 did not",
        "",
        "a step of 1 sample(s) cannot be divided over 2 data-parallel ranks",
        "rank 0: scheduler is 'fastest'; it must be",
        "rank 0: config.sequence_packing_scheduler is 'default_dynamic_cp'",
        "rank 0: config.max_seqlen_per_dp_cp_rank must be a whole number, got None",
        "the scheduler returned 2 samples, 2 of them different, of a step of 14; it must return each sample once",
        "the process groups have 4 places (dp=2, cp=1, tp=2, pp=1), but 1 ranks call this",
    ]
    assert len(told[0]) == len(texts) + 2
    for text, each in zip(texts, told[0], strict=False):
        assert text in each["text"], (text, each)
    others = {7: "SourceError", 9: "StopIteration", 12: "Unsupported", 13: "InvalidType"}
    for at, each in enumerate(told[0][:-2]):
        assert each["kind"] == others.get(at, "InvalidArgument"), each
    assert told[0][7]["cause"] == "SourceError" and "the disk is gone" in told[3][7]["text"]
    assert [mine[-2]["kind"] for mine in told] == [None] * 4
    assert "pass the one that it returned on this rank" in told[0][-1]["text"]


def test_packed_micro_batches_of_another_iterator_reach_tensor_parallel_peers(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    grid(tp=2)
    row = {"tokens": torch.arange(8) + 1, "labels": torch.arange(8) + 2, "loss_mask": torch.ones(8),
           "position_ids": torch.arange(8), "cu_seqlens": torch.tensor([0, 3, 6], dtype=torch.int32),
           "cu_seqlens_padded": torch.tensor([0, 4, 8], dtype=torch.int32), "max_seqlen": torch.tensor([4])}
    iterator = iter([row, {key: value for key, value in row.items() if key != "tokens"}]) if rank == 0 else None
    tell(batch=told_batch(get(iterator)))
    for _ in range(2):
        try:
            get(iterator)
        except (levada.InvalidArgument, StopIteration) as error:
            tell(kind=type(error).__name__, text=str(error))
    """,
    )
    for mine in told:
        tokens, labels, loss_mask, _, positions, packing, padding = mine[0]["batch"]
        assert tokens == [[1, 2, 3, 0, 5, 6, 7, 0]] and labels == [[2, 3, 4, 0, 6, 7, 8, 0]]
        assert loss_mask == [[1.0, 1.0, 1.0, 0.0] * 2] and positions == [[0, 1, 2, 0, 4, 5, 6, 0]]
        assert padding == [[False, False, False, True] * 2] and packing["max_seqlen_q"] == 4
        assert mine[1]["kind"] == "InvalidArgument" and "the micro-batch has no tokens" in mine[1]["text"]
        assert mine[2]["kind"] == "StopIteration"
