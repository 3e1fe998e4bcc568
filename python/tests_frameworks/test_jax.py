"""Runs docs/frameworks/jax.md on CPU processes that JAX connects. Run by `script/check frameworks`."""

from __future__ import annotations

import pathlib
from typing import Any

import grain
import levada
import numpy as np
import pages
import pytest
import ranks

pytestmark = pytest.mark.timeout(300)

PAGE = "frameworks/jax.md"

RECORD = """
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
make = jax.make_array_from_process_local_data
def recorded(sharding, batch):
    made = make(sharding, batch)
    (part,) = made["id"].addressable_shards
    tell(ids=batch["id"].tolist(), rows=part.data.tolist(), begin=part.index[0].start, size=made["id"].shape[0], torch="torch" in sys.modules)
    return made
jax.make_array_from_process_local_data = recorded
"""

PREPARE = """
os.environ["JAX_PLATFORMS"] = "cpu"
import grain, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
program = next(block for block in blocks if block.startswith("# train.py"))
names = {"__name__": "train"}
exec(program, names)
reads = []
class Records(names["Records"]):
    def __getitem__(self, number):
        reads.append(number)
        return super().__getitem__(number)
jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", levada.world_size(), rank)
def sharding(dp):
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(dp, -1), ("dp", "tp")), PartitionSpec("dp"))
rows = sharding(2)
seen = []
def train(batch):
    seen.append(batch)
def local(array):
    return np.concatenate([part.data for part in array.addressable_shards])
def numbers(scale=1):
    "Returns the items of each batch. The arrays have been kept since, so Levada must not have reused their memory."
    got = [local(batch["id"]).tolist() for batch in seen]
    for batch, ids in zip(seen, got):
        assert np.allclose(local(batch["x"]) * 96, scale * np.array(ids)[:, None]), "a batch has been overwritten"
    seen.clear()
    return got
"""


def run(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, Any]]]:
    outcome = ranks.run(folder, size, body, within=240)
    assert outcome.status == 0, outcome.errors
    return outcome.told


def steps_of(batches: list[list[list[int]]]) -> list[list[int]]:
    """Returns the items of each step on all data ranks."""
    return [pages.flat(list(step)) for step in zip(*batches, strict=True)]


def assert_each_item_once_an_epoch(batches: list[list[list[int]]], epochs: int, *, shuffled_anew: bool = True) -> None:
    steps = steps_of(batches)
    length = len(steps) // epochs
    each = [pages.flat(steps[epoch * length : (epoch + 1) * length]) for epoch in range(epochs)]
    assert [sorted(items) for items in each] == [list(range(96))] * epochs
    assert not shuffled_anew or each[0] != each[1]


def test_the_program_sees_each_item_once_an_epoch_at_its_rows_of_the_global_array(tmp_path: pathlib.Path) -> None:
    (program,) = (block for block in pages.blocks_of(PAGE) if block.startswith("# train.py"))
    told = run(tmp_path, 4, RECORD + program)
    for rank, mine in enumerate(told):
        assert [each["ids"] for each in mine] == [each["rows"] for each in mine] == [each["ids"] for each in told[rank // 2 * 2]]
        assert {(each["begin"], each["size"], each["torch"]) for each in mine} == {(rank // 2 * 4, 8, False)}
    assert_each_item_once_an_epoch([[each["ids"] for each in told[rank]] for rank in (0, 2)], 2)


def test_the_blocks_of_the_page(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        4,
        ranks.BLOCKS.format(blocks=pages.blocks_of(PAGE))
        + PREPARE
        + """
import json
before, _, save, resume, pipeline, stream, resume_stream = blocks
exec(before)
tell(batches=numbers())
loader = levada.DataLoader(Records(), batch_size=4, shuffle=True, seed=7, drop_last=True, mesh=levada.Mesh(dp=2, tp=2))
for epoch in range(2):
    for batch in loader:
        train(jax.make_array_from_process_local_data(rows, batch))
        if (epoch, loader.step) == (0, 5):
            exec(save)
tell(batches=numbers(), state=state)
rows = sharding(4)
reads.clear()
exec(resume)
tell(batches=numbers(), reads=len(reads))
rows = sharding(2)
exec(pipeline)
tell(batches=numbers(scale=2))
exec(stream)
tell(batches=numbers())
rows = sharding(4)
reads.clear()
exec(resume_stream)
tell(batches=numbers(), reads=len(reads))
def without_class():
    return levada.Feed(grain.MapDataset.source(Records()).shuffle(seed=7).to_iter_dataset().batch(4), mesh="dp=4")
feed = without_class()
for batch in feed:
    train(jax.make_array_from_process_local_data(rows, batch))
    if feed.step == 2:
        state = feed.state_dict()
left = numbers()[2:]
feed, _ = without_class(), reads.clear()
feed.load_state_dict(state)
for batch in feed:
    train(jax.make_array_from_process_local_data(rows, batch))
tell(same=numbers() == left, reads=len(reads))
def part(count):
    sampler = grain.samplers.IndexSampler(96, grain.sharding.ShardOptions(0, count), num_epochs=1)
    return grain.DataLoader(data_source=Records(), sampler=sampler)
try:
    levada.Feed(part(4))
except levada.InvalidArgument as error:
    tell(refused=str(error))
try:
    iter(part(4)).set_state(iter(part(2)).get_state())
except ValueError as error:
    tell(refused=str(error))
"""
        + ranks.BLOCKS_END,
    )
    before, after, resumed, piped, streamed, streamed_on, counted = zip(*(mine[:7] for mine in told))
    for shown, epochs in ((before, 2), (after, 2), (piped, 1), (streamed, 2)):
        batches = [each["batches"] for each in shown]
        assert batches[0] == batches[1] and batches[2] == batches[3]
        assert_each_item_once_an_epoch(batches[::2], epochs, shuffled_anew=epochs == 2)
    assert len({each["state"] for each in after}) == 1
    whole = steps_of([each["batches"] for each in after[::2]])
    assert list(map(sorted, steps_of([each["batches"] for each in resumed]))) == list(map(sorted, whole[5:]))
    assert [each["reads"] for each in resumed] == [2 * (24 - 5)] * 4, "earlier items have been read again"
    items = [batch for step in zip(*(each["batches"] for each in streamed[::2])) for batch in step]
    for rank, each in enumerate(streamed_on):
        assert each["batches"] == items[10 + rank :: 4][:9]
    reads, *others = (each["reads"] for each in streamed_on)
    assert 2 * 96 - 10 * 4 <= reads < 2 * 96, "a feed that finds a state slow asks for it less often"
    assert others == [0, 0, 0]
    assert [(each["same"], each["reads"]) for each in counted] == [(True, 96)] + [(True, 0)] * 3
    for mine in told:
        assert "a DataLoader with shard_count=4, which yields one of 4 parts of the data; make it with NoSharding()" in mine[7]["refused"]
        assert "Sampler in checkpoint does not match" in mine[8]["refused"]


def test_processes_of_two_devices_with_torch_in_them_get_arrays_for_both(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        2,
        f"""
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
"""
        + ranks.BLOCKS.format(blocks=pages.blocks_of(PAGE))
        + PREPARE
        + """
rows = sharding(4)
loader = levada.DataLoader(Records(), batch_size=8, shuffle=True, seed=7, drop_last=True, mesh=levada.Mesh(dp=2))
for epoch in range(2):
    for batch in loader:
        is_refused = False
        try:
            jax.make_array_from_process_local_data(rows, batch)
        except TypeError:
            is_refused = True
        made = jax.make_array_from_process_local_data(rows, jax.tree.map(np.asarray, batch))
        tell(parts=[part.data.tolist() for part in made["id"].addressable_shards], ids=batch["id"].tolist(), is_refused=is_refused)
        train(made)
numbers()
""",
    )
    for mine in told:
        assert all(pages.flat(each["parts"]) == each["ids"] and len(each["parts"]) == 2 and each["is_refused"] for each in mine)
    assert_each_item_once_an_epoch([[each["ids"] for each in mine] for mine in told], 2)


def test_random_map_draws_by_index_and_a_filtered_item_ends_the_pass() -> None:
    def noisy(number: int, generator: np.random.Generator) -> float:
        return number + float(generator.random())

    def seeded(number: int) -> float:
        return number + float(np.random.random())

    source = grain.MapDataset.source(range(12))
    for dataset, is_same in ((source.seed(3).random_map(noisy), True), (source.map(seeded), False)):
        loader = levada.DataLoader(dataset, 4, shuffle=True, seed=7)
        epochs = [sorted(np.concatenate([np.asarray(batch) for batch in loader]).tolist()) for _ in range(2)]
        assert [[int(each) for each in epoch] for epoch in epochs] == [list(range(12))] * 2
        assert (epochs[0] == epochs[1]) == is_same
    with pytest.raises(levada.ItemError, match="FilterMapDataset"):
        list(levada.DataLoader(source.filter(lambda number: number % 2 == 0), 4))
