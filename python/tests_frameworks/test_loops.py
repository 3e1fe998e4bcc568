"""Runs the custom training loops of docs/frameworks on two or four ranks. Run by `script/check frameworks`."""

from __future__ import annotations

import pathlib

import pages
import pytest

pytestmark = pytest.mark.timeout(300)


def test_fsdp_and_hsdp(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/fsdp.md",
        4,
        """
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
device_type = "cpu"
def prepare():
    global model
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
def train(batch):
    seen.append(batch["x"][:, 0].int().tolist())
    model(batch["x"]).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-5 * parameter.grad
            parameter.grad = None
before, after, tensor_parallel, checkpoint = blocks
for block in (before, after):
    prepare()
    exec(block)
    tell(batches=numbers())
prepare()
exec(tensor_parallel)
tell(coordinate=mesh.get_coordinate(), batches=numbers())
taken = [next(loader)["x"][:, 0].tolist() for _ in range(3)]
exec(checkpoint)
tell(same=taken + [batch["x"][:, 0].tolist() for batch in loader] == [batch["x"][:, 0].tolist() for batch in loader])
""",
    )
    for at in (0, 1):
        batches = [mine[at]["batches"] for mine in told]
        epochs = [[pages.flat(mine[half]) for mine in batches] for half in (slice(0, 6), slice(6, 12))]
        assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(48))] * 2
        assert epochs[0] != epochs[1]
    for rank, mine in enumerate(told):
        data_rank = rank // 2
        assert mine[2]["coordinate"] == [data_rank, rank % 2]
        assert mine[2]["batches"] == [[i, i + 1] for i in range(2 * data_rank, 48, 4)]
        assert mine[3]["same"]


def test_streaming_data_sets(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/datasets.md",
        2,
        """
import datasets
from datasets.distributed import split_dataset_by_node
whole = datasets.Dataset.from_dict({"x": [[float(i)] for i in range(48)], "name": [f"sample {i}" for i in range(48)]})
whole = whole.with_format("torch")
world_size = 2
names = []
def train(batch):
    seen.append(batch["x"][:, 0].int().tolist())
    names.append(batch["name"])
before, after, by_counting, by_state = blocks
stream = whole.to_iterable_dataset(num_shards=3).shuffle(seed=7, buffer_size=8)
exec(before)
tell(batches=numbers())
exec(after)
assert names[-6:] == [[f"sample {i}" for i in batch] for batch in seen[-6:]]
tell(batches=numbers())
def interrupted_after_three(feed):
    global state
    for batch in feed:
        train(batch)
        if feed.step == 3:
            state = feed.state_dict()
    return numbers()[3:]
def rest_of(block):
    exec(block, globals())
    for batch in feed:
        train(batch)
    return numbers()
for is_shuffled in (True, False):
    stream = whole.to_iterable_dataset(num_shards=3)
    if is_shuffled:
        stream = stream.shuffle(seed=7, buffer_size=8)
    left = interrupted_after_three(levada.Feed(DataLoader(stream, batch_size=4, num_workers=2)))
    counted = rest_of(by_counting) == left
    left = interrupted_after_three(levada.Feed(stream.batch(4)))
    rest = rest_of(by_state)
    tell(counted=counted, by_state=rest == left, only_left={i for batch in rest for i in batch} <= set(sum(left, [])),
         is_shuffled=is_shuffled)
""",
    )
    for at in (0, 1):
        batches = [mine[at]["batches"] for mine in told]
        epochs = [[pages.flat(mine[half]) for mine in batches] for half in (slice(0, 6), slice(6, 12))]
        assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(48))] * 2
        assert epochs[0] != epochs[1]
    for mine in told:
        shuffled, plain = mine[2:]
        assert shuffled["counted"]
        assert plain == {"counted": True, "by_state": True, "only_left": True, "is_shuffled": False}


def test_a_data_set_with_a_length_is_a_source_by_number(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        None,
        2,
        """
import datasets
from levada import Pipeline
whole = datasets.Dataset.from_dict({"x": [[float(i)] for i in range(48)], "name": [f"sample {i}" for i in range(48)]})
whole = whole.with_format("torch")
def collated(samples):
    return {"x": torch.stack([sample["x"] for sample in samples]), "name": [sample["name"] for sample in samples]}
shuffled = Pipeline(whole).shuffle().batch(4, collate=collated)
for source in (shuffled, DataLoader(whole, batch_size=4), whole.batch(4)):
    for batch in levada.Feed(source, timeout=120):
        train(batch)
        assert batch["name"] == [f"sample {i}" for i in batch["x"][:, 0].int().tolist()]
    tell(batches=numbers())
stopped = levada.Feed(Pipeline(whole).shuffle().batch(4, collate=collated).run(alone=True, seed=5), timeout=120)
before = []
for batch in stopped:
    before.append(batch["x"][:, 0].int().tolist())
    if stopped.step == 2:
        state = stopped.state_dict()
resumed = levada.Feed(Pipeline(whole).shuffle().batch(4, collate=collated).run(alone=True, seed=5), timeout=120)
resumed.load_state_dict(state)
tell(resumed=[batch["x"][:, 0].int().tolist() for batch in resumed] == before[2:])
""",
    )
    for at in range(3):
        assert sorted(sum((pages.flat(mine[at]["batches"]) for mine in told), [])) == list(range(48))
    for rank, mine in enumerate(told):
        in_order = [[4 * batch + i for i in range(4)] for batch in range(rank, 12, 2)]
        assert [each["batches"] == in_order for each in mine[:3]] == [False, True, True]
        assert mine[3] == {"resumed": True}


def test_deepspeed(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/deepspeed.md",
        2,
        """
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else DeepSpeed compiles C++ when it starts
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.net(x).square().mean()
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
before, after, resume = blocks
model = Model()
exec(before)
tell(batches=numbers())
model = Model()
exec(after)
batches = numbers()
tell(batches=batches)
exec(resume)
tell(resumed=numbers() == batches[3:])
""",
    )
    for at in (0, 1):
        assert sorted(sum((pages.flat(mine[at]["batches"]) for mine in told), [])) == list(range(48))
    for rank, mine in enumerate(told):
        assert mine[1]["batches"] == [[i, i + 1] for i in range(2 * rank, 48, 4)]
        assert mine[2] == {"resumed": True}
