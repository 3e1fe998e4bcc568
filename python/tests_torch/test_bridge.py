"""levada.dropin.bridge: Megatron-Bridge's batches. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

from bridge_steps import STANDARD, run, tokens


def test_every_rank_of_the_group_gets_the_batches_of_its_first_rank(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        3,
        """
    groups, cfg = grid(pp=1, tp=3), config()
    @dataclasses.dataclass
    class Images:
        pixel_values: torch.Tensor
        grid: list
    class Packing:
        def __init__(self, lengths): self.lengths = lengths
    levada.register(Packing, lambda each: ([each.lengths], "packing"), lambda state, children: Packing(*children))
    import __main__
    __main__.Images = Images
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    ids = batch(5)
    ids["input_ids"] = ids.pop("tokens")
    items = [batch(0), batch(1, length=5), batch(2, rows=2, attention_mask=mask),
             batch(3, cu_seqlens=torch.tensor([0, 3, 8], dtype=torch.int32), name="a.jsonl", weights=np.zeros(3),
                   visual_inputs=Images(torch.full((2, 3), 7.0), [1, 2]), packing=Packing(torch.tensor([3, 5]))),
             ids, {"tokens": torch.zeros(1, 2, dtype=torch.int64)}, batch(6)]
    iterator = read_by(rank == 0, items)
    get = lambda: bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)
    plain, short, rows, extra, aliased, bare = [get() for _ in range(6)]
    tell(keys=list(plain), tokens=told(plain["tokens"]), mask=plain["attention_mask"],
         short=told(short["tokens"]), rows=list(rows["labels"].shape), masked=bool(rows["attention_mask"].all()))
    tell(extra=sorted(set(extra) - set(STANDARD)), cu=told(extra["cu_seqlens"]), name=extra["name"],
         images=[type(extra["visual_inputs"]).__name__, told(extra["visual_inputs"].pixel_values)],
         packing=[type(extra["packing"]).__name__, told(extra["packing"].lengths)])
    extra["weights"][0] = 1 + rank
    dist.barrier()
    tell(weights=extra["weights"].tolist())
    tell(alias=aliased["input_ids"] is aliased["tokens"], ids=told(aliased["tokens"]))
    tell(absent=[key for key in STANDARD if bare[key] is None])
    aliased["tokens"].zero_()   # its own
    dist.barrier()
    tell(labels=told(aliased["labels"]), last=told(get()["tokens"]))
    ends = 0
    for _ in range(3):
        try:
            get()
        except StopIteration:
            ends += 1
    iterator = read_by(rank == 0, [batch(9)])   # continues: evaluation, another epoch
    tell(ends=ends, next=told(get()["tokens"]), mine=told(ids["input_ids"]))
    """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {
            "keys": STANDARD,
            "tokens": tokens(0),
            "mask": None,
            "short": tokens(1, length=5),
            "rows": [2, 8],
            "masked": True,
        }
        assert mine[1] == {
            "extra": ["cu_seqlens", "name", "packing", "visual_inputs", "weights"],
            "cu": [0, 3, 8],
            "name": "a.jsonl",
            "images": ["Images", [[7.0] * 3] * 2],
            "packing": ["Packing", [3, 5]],
        }
        assert mine[2] == {"weights": [1.0 + rank, 0.0, 0.0]}
        assert mine[3] == {"alias": True, "ids": tokens(5)}
        assert mine[4] == {"absent": STANDARD[1:]}
        assert mine[5] == {"labels": [[501 + at for at in range(8)]], "last": tokens(6)}
        assert mine[6] == {"ends": 3, "next": tokens(9), "mine": tokens(5)}


def test_each_stage_gets_its_keys_and_all_other_values(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        6,
        """
    groups = grid(pp=3, tp=2)
    first = groups.tp.rank() == 0
    stage = rank // 2
    def present(got):
        return [key for key in STANDARD if got[key] is not None]
    def get(cfg, items, middle=False, **options):
        iterator = read_by(first and (stage != 1 or middle), items)
        return bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups, **options)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    full = [batch(stage, attention_mask=mask, input_ids=torch.zeros(3), extra="x")]
    cfg = config(pp=3)
    got = get(cfg, full)
    tell(stage=present(got), keys=list(got))
    if stage == 1:
        got = get(cfg, full, middle=True)
        tell(stage=present(got), keys=list(got), extra=got["extra"], ids=told(got["input_ids"]))
    tell(mtp=present(get(cfg, full, use_mtp=True)))
    layout = config(pp=3, layout="Et*2|m|L")
    tell(own_mtp=present(get(layout, full, middle=True, use_mtp=True)), built=bridge.is_dataset_built_on_rank(groups, layout.model))
    tell(everything=present(get(cfg, full, middle=True, broadcast_all_keys=True)), built=bridge.is_dataset_built_on_rank(groups))
    same = batch(1)
    same["input_ids"] = same["tokens"]
    got = get(cfg, [same])
    tell(same=got.get("input_ids") is got["tokens"], ids=told(got.get("input_ids")))
    """,
    )
    first, last = ["tokens", "attention_mask", "position_ids"], ["labels", "loss_mask", "attention_mask"]
    with_mtp = STANDARD
    for rank, mine in enumerate(told):
        stage, reads = rank // 2, rank % 2 == 0
        if stage == 1:
            extras = [*STANDARD, "input_ids", "extra"]
            assert mine.pop(1) == {"stage": [], "keys": extras, "extra": "x", "ids": [0.0] * 3}
        assert mine[0]["stage"] == [first, [], last][stage]
        assert mine[0]["keys"] == (STANDARD if stage == 1 else [*STANDARD, "input_ids", "extra"])
        assert mine[1] == {"mtp": [first, [], with_mtp][stage]}
        assert mine[2] == {"own_mtp": [first, first, with_mtp][stage], "built": reads}
        assert mine[3] == {"everything": STANDARD, "built": reads and stage != 1}
        # the last stage needs no tokens, but gets input_ids; the stages between have no iterator
        assert mine[4] == {"same": stage != 2, "ids": None if stage == 1 else tokens(1)}


def test_the_switch_changes_the_readers_but_not_the_data(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        """
    groups = grid(pp=2, tp=2)
    first = groups.tp.rank() == 0
    @dataclasses.dataclass(frozen=True)
    class Images:
        pixel_values: torch.Tensor
        image_grid_thw: torch.Tensor
    import __main__
    __main__.Images = Images
    def items():
        mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        cu = torch.tensor([[0, 4, 8]], dtype=torch.int32)
        yield batch(0, attention_mask=mask)
        yield batch(1, cu_seqlens=cu, cu_seqlens_argmin=torch.tensor(3), max_seqlen=torch.tensor(4), other="x")
        yield batch(2, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=4, padding_mask=torch.zeros(1, 8))
        yield batch(3, visual_inputs=Images(torch.ones(2, 2), torch.tensor([[1, 2, 2]])))
    def plain(value):
        if isinstance(value, Images):
            return [told(value.pixel_values), told(value.image_grid_thw)]
        return {key: told(each) for key, each in value.items()} if isinstance(value, dict) else told(value)
    for masks in (True, False):
        results = []
        for broadcast in (True, False):
            cfg = config(pp=2, broadcast=broadcast, skip_getting_attention_mask_from_dataset=not masks)
            if not broadcast and not masks:
                del cfg.dataset.broadcast_data_across_tp   # absent: as False
            iterator = items() if first or not broadcast else None
            steps = [bridge.get_batch(iterator, cfg, pg_collection=groups) for _ in range(3)]
            steps.append(bridge.get_vlm_batch(iterator, cfg, pg_collection=groups))
            results.append([[plain(value) for value in step] for step in steps])
            try:
                bridge.get_batch(iterator, cfg, pg_collection=groups)
            except StopIteration:
                results[-1].append("end")
        tell(same=results[0] == results[1], got=results[0])
    always = bridge.dataset_builder_predicate(config(broadcast=False))
    absent = bridge.dataset_builder_predicate(Space(dataset=Space()))
    tell(built=[always(), absent(groups), bridge.dataset_builder_predicate(config())(groups)])
    """,
    )
    row = tokens(0)[0]
    for rank, mine in enumerate(told):
        first, last = rank < 2, rank >= 2
        for masks, got in ((True, mine[0]), (False, mine[1])):
            assert got["same"] is True
            plain, packed, current, images, end = got["got"]
            mask = [[[[True] * 8] * 8]] if masks else None
            assert plain[:4] == [[row] if first else None, [[at + 1 for at in row]] if last else None] + [
                [[1.0] * 8] if last else None,
                mask,
            ]
            assert plain[4:] == [[row] if first else None, None]
            assert packed[5] == {"cu_seqlens": [[0, 4, 8]], "cu_seqlens_argmin": 3, "max_seqlen": 4}
            assert current[5] == {
                "cu_seqlens_q": [[0, 4, 8]],
                "cu_seqlens_kv": [[0, 4, 8]],
                "max_seqlen_q": 4,
                "padding_mask": [[0.0] * 8],
            }
            assert images[0] == tokens(3) and (images[1] is None) == first and images[5] is None
            assert images[6] == [[[1.0] * 2] * 2 if first else None, [[1, 2, 2]]]
            assert end == "end"
        assert mine[2] == {"built": [True, True, rank % 2 == 0]}


def test_packing_and_masks_reach_the_middle_stages_with_the_switch_on_and_off(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        6,
        """
    groups = grid(pp=3, tp=2)
    cu = torch.tensor([[0, 3, 8]], dtype=torch.int32)
    packed = batch(1, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=5)
    masked = batch(2, attention_mask=torch.ones(1, 1, 8, 8, dtype=torch.bool))
    for item, dataset in ((packed, dict(enable_offline_packing=True)), (packed, dict(enable_in_batch_packing=True)),
                          (masked, dict(skip_getting_attention_mask_from_dataset=False))):
        results = []
        for broadcast in (True, False):
            cfg = config(pp=3, broadcast=broadcast, **dataset)
            built = bridge.dataset_builder_predicate(cfg)(groups)
            step = bridge.get_batch(read_by(built, [item]), cfg, pg_collection=groups)
            results.append([{key: told(each) for key, each in value.items()} if isinstance(value, dict) else told(value)
                            for value in step])
        tell(same=results[0] == results[1], packing=results[0][5], masked=results[0][3] is not None, tokens=results[0][0])
    cfg = config(pp=3, enable_offline_packing=True)
    built = bridge.is_dataset_built_on_rank(groups)   # without the packing argument
    tell(built=built)
    for get in (bridge.get_batch, bridge.get_vlm_batch):
        try:
            get(read_by(built, [packed]), cfg, pg_collection=groups)
        except levada.SourceError as error:
            tell(text=str(error))
    """,
    )
    packing = {"cu_seqlens_q": [[0, 3, 8]], "cu_seqlens_kv": [[0, 3, 8]], "max_seqlen_q": 5}
    for rank, mine in enumerate(told):
        for i, each in enumerate(mine[:3]):
            row = tokens(1 if i < 2 else 2) if rank < 4 else None
            assert each == {"same": True, "packing": packing if i < 2 else None, "masked": i == 2, "tokens": row}
        assert mine[3] == {"built": rank in (0, 4)}
        assert len(mine) == (6 if rank in (2, 3) else 4)
        assert all("has no data iterator" in each["text"] for each in mine[4:])


def test_each_virtual_stage_has_its_own_iterator(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        """
    groups, cfg = grid(pp=2, tp=2), config(pp=2)
    cfg.model.virtual_pipeline_model_parallel_size = 2
    first = groups.tp.rank() == 0
    iterators = [read_by(first, [batch(10 * chunk + i) for i in range(3)]) for chunk in range(2)]
    for chunk in (0, 0, 1, 0, 1, 1):
        step = bridge.get_batch(iterators[chunk], cfg, pg_collection=groups, vp_stage=chunk)
        tell(chunk=chunk, got=[None if value is None else value[0, 0].item() for value in step[:2]])
    """,
    )
    for rank, mine in enumerate(told):
        counts = [0, 0]
        for each in mine:
            chunk = each["chunk"]
            number = 100 * (10 * chunk + counts[chunk])
            counts[chunk] += 1
            # tokens go to the first chunk of the first stage, labels to the last chunk of the last stage
            is_first, is_last = rank < 2 and chunk == 0, rank >= 2 and chunk == 1
            assert each["got"] == [number if is_first else None, number + 1 if is_last else None]


def test_a_step_of_ten_values_gets_ten(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    groups, cfg = grid(pp=1, tp=2), config()
    packed = dict(cu_seqlens=torch.tensor([[0, 4, 8]], dtype=torch.int32), cu_seqlens_argmin=torch.tensor(3),
                  max_seqlen=torch.tensor(4), cu_seqlens_unpadded=torch.tensor([[0, 3, 8]], dtype=torch.int32),
                  cu_seqlens_unpadded_argmin=torch.tensor(2))
    newer = dict(cu_seqlens_q=torch.tensor([[0, 4, 8]], dtype=torch.int32))
    iterator = read_by(rank == 0, [batch(0), batch(1, **packed), batch(2, **newer)])
    for _ in range(2):
        tell(got=list(map(told, bridge.get_batch_with_cu_seqlens(iterator, cfg, pg_collection=groups))))
    try:
        bridge.get_batch_with_cu_seqlens(iterator, cfg, pg_collection=groups)
    except levada.InvalidArgument as error:
        tell(text=str(error))
    """,
    )
    row = tokens(0)[0]
    standard = [[row], [[at + 1 for at in row]], [[1.0] * 8], None, [row]]
    for mine in told:
        assert mine[0]["got"] == [*standard, None, None, None, None, None]
        assert len(mine[1]["got"]) == 10 and mine[1]["got"][0] == tokens(1)
        assert mine[1]["got"][5:] == [[[0, 4, 8]], 3, 4, [[0, 3, 8]], 2]
        assert "cu_seqlens_q" in mine[2]["text"]


def test_a_step_with_its_own_get_batch_reads_a_broadcast_iterator(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    groups = grid(pp=1, tp=2)
    def own_get_batch(data_iterator):     # of any version: it reads the items that it needs
        batch = next(data_iterator)
        return batch["tokens"], batch.get("visual_inputs"), sorted(batch)
    def never():
        raise AssertionError("rank 1 reads")
        yield
    def failing():
        yield batch(5)
        raise OSError("disk gone")
    chunks = [iter([batch(0, visual_inputs="x"), batch(1)]), failing()] if rank == 0 else [never(), None]
    for chunk in (0, 1, 0):
        values = own_get_batch(bridge.BroadcastIterator(chunks[chunk], groups.tp))
        tell(got=[told(values[0]), *values[1:]])
    try:
        next(bridge.BroadcastIterator(chunks[1], groups.tp))
    except levada.SourceError as error:
        tell(text=str(error))
    tell(ended=list(bridge.BroadcastIterator(chunks[0], groups.tp)))
    """,
    )
    keys = ["labels", "loss_mask", "position_ids", "tokens"]
    for mine in told:
        assert mine[0]["got"] == [tokens(0), "x", [*keys, "visual_inputs"]]
        assert [each["got"] for each in mine[1:3]] == [[tokens(5), None, keys], [tokens(1), None, keys]]
        assert "OSError: disk gone" in mine[3]["text"] and mine[4] == {"ended": []}


def test_context_parallel_ranks_get_their_slices(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        """
    groups = grid(pp=1, tp=2, cp=2)
    first = groups.tp.rank() == 0
    mask = torch.arange(64).reshape(1, 1, 8, 8)
    cu = torch.tensor([[0, 4, 8, -1]], dtype=torch.int32)
    items = [batch(0, attention_mask=mask), batch(1, cu_seqlens=cu, max_seqlen=4),
             batch(2, cu_seqlens_q=cu, cu_seqlens_q_padded=torch.tensor([0, 8])), batch(3, length=6)]
    for broadcast in (True, False):
        cfg = config(broadcast=broadcast, skip_getting_attention_mask_from_dataset=False)
        iterator = iter(items) if first or not broadcast else None
        for _ in range(3):
            step = bridge.get_batch(iterator, cfg, pg_collection=groups)
            tell(tokens=told(step[0]), mask=told(step[3]), packing=sorted(step[5] or []))
        try:
            bridge.get_batch(iterator, cfg, pg_collection=groups)
        except (levada.SourceError, levada.InvalidArgument) as error:
            tell(text=str(error))
    """,
    )
    for rank, mine in enumerate(told):
        part = [[0, 1, 6, 7], [2, 3, 4, 5]][rank // 2]  # positions in a row
        packed = [[0, 3, 4, 7], [1, 2, 5, 6]][rank // 2]  # positions in two sequences of four
        for got in (mine[:4], mine[4:]):
            assert got[0]["tokens"] == [part] and got[0]["packing"] == []
            assert got[0]["mask"] == [[[[8 * row + at for at in range(8)] for row in part]]]
            assert got[1]["tokens"] == [[100 + at for at in packed]] and got[1]["packing"] == ["cu_seqlens", "max_seqlen"]
            assert got[2]["tokens"] == [[200 + at for at in part]]
            assert "a sequence of 6 tokens cannot be cut into 4 chunks for cp=2" in got[3]["text"]


def test_an_error_is_raised_on_every_rank_and_the_next_step_works(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    groups, cfg = grid(pp=1, tp=2), config()
    def failing():
        yield batch(0)
        raise OSError("disk gone")
    class Unknown: pass
    bad = [failing(), iter([[1, 2]]), iter([batch(0, what=Unknown())]), None]
    for iterator in bad:
        try:
            while True:
                bridge.get_batch_on_this_tp_rank(iterator if rank == 0 else None, cfg, pg_collection=groups)
        except levada.SourceError as error:
            tell(text=str(error))
    good = read_by(rank == 0, [batch(4)])
    tell(tokens=told(bridge.get_batch_on_this_tp_rank(good, cfg, pg_collection=groups)["tokens"]))
    if rank == 0:
        sys.exit()
    try:
        bridge.get_batch_on_this_tp_rank(None, cfg, pg_collection=groups)
    except levada.PeerLost as error:
        tell(lost=error.rank)
    """,
    )
    for mine in told:
        assert "OSError: disk gone" in mine[0]["text"]
        assert "the data iterator returned a list, not a mapping" in mine[1]["text"]
        assert "batch['what'] cannot cross between ranks" in mine[2]["text"]
        assert "or set levada.dropin.bridge.ALLOW_PICKLE = True" in mine[2]["text"]
        assert "give allow_pickle" not in mine[2]["text"]
        assert "tensor-parallel rank 0 has no data iterator" in mine[3]["text"]
        assert mine[4] == {"tokens": tokens(4)}
    assert told[1][5] == {"lost": 0}


def test_the_error_on_a_pickle_names_the_setting_of_the_drop_in(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    class Unknown: pass
    groups, cfg = grid(pp=1, tp=2), config()
    bridge.ALLOW_PICKLE = rank == 0
    iterator = read_by(rank == 0, [batch(0, what=Unknown())])
    try:
        bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)
    except levada.Unsupported as error:
        tell(text=str(error))
    """,
    )
    setting = "levada.dropin.bridge.ALLOW_PICKLE = True on every rank"
    assert told == [[], [{"text": f"a batch holds a pickled object; set {setting}"}]]


def test_objects_of_any_class_cross_if_pickles_are_allowed(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        """
    class Unknown:
        def __init__(self, value): self.value = value
    groups, cfg = grid(pp=1, tp=2), config()
    bridge.ALLOW_PICKLE = True
    iterator = read_by(rank == 0, [batch(0, what=Unknown(7))])
    tell(what=bridge.get_batch_on_this_tp_rank(iterator, cfg, pg_collection=groups)["what"].value)
    """,
    )
    assert told == [[{"what": 7}]] * 2
