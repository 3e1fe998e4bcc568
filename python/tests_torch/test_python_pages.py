"""Runs the Python of the pages in docs/python. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import pytest
import ranks
from pages import PREPARE, blocks_of, run, write_inputs

pytestmark = pytest.mark.timeout(240)


def test_feeds(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/feed.md",
        4,
        """
loader = [{"x": torch.full((2,), i)} for i in range(8)]
def step(batch):
    got.append(int(batch["x"][0]))
run_block()
tell(got=numbers())

documents, plain = [os.getpid()] * 8, loader
decode = lambda number: {"x": torch.full((2,), number), "is_elsewhere": os.getpid() != number}
run_block()
tell(streamed=[batch["is_elsewhere"] for batch in feed])
loader = plain

feed = levada.Feed(loader, mesh=mesh)
run_block()
tell(epochs=numbers(), epoch=feed.epoch)

run_block()
tell(resumed=numbers())

model = lambda rows: rows
run_block()
tell(gathered=predictions.tolist())
""",
    )
    for rank, mine in enumerate(told):
        items = list(range(rank // 2, 8, 2))
        assert mine[0] == {"got": items}
        assert mine[1] == {"streamed": [True] * 4}
        assert mine[2] == {"epochs": items * 2, "epoch": 1}
        assert mine[3] == {"resumed": items}
        assert mine[4] == {"gathered": [6, 6, 7, 7]}


def test_feed_reference(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/feed-reference.md",
        4,
        """
import socket, sys, types, urllib.request
mesh = levada.Mesh(dp=2, tp=2)
loader = [{"x": torch.full((2,), i)} for i in range(8)]
run_block()
row = torch.arange(8)
item = {"tokens": torch.stack([row, row + 10]), "labels": torch.stack([row, row + 10]), "images": {"a": torch.ones(2, 3)}}
(batch,) = levada.Feed([item], levada.Mesh(dp=2, cp=2), layout=layout, divide="split")
tell(tokens=batch["tokens"].tolist(), images=list(batch["images"]["a"].shape))

device = torch.device("meta")
step = lambda batch: got.append(batch["x"].device.type)
run_block()
tell(devices=numbers())
def step(batch):
    got.append(int(batch["x"][0]))

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    local_rank = free.getsockname()[1] - 9100
feed = levada.Feed(loader, mesh=mesh)
def train(batch):
    with urllib.request.urlopen(f"http://127.0.0.1:{9100 + local_rank}/metrics", timeout=30) as answer:
        got.append(f'levada_feed_batches_total{{rank="{rank}"}} {feed.step}' in answer.read().decode())
run_block()
tell(answered=got)

class SummaryWriter:
    def __init__(self, folder):
        assert folder == "runs"
        self.last = {}
    def add_scalar(self, name, value, step):
        self.last[name] = [value, step]
train = step
sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=SummaryWriter)
run_block()
tell(written=writer.last)
""",
    )
    for rank, mine in enumerate(told):
        zigzag = [2, 3, 4, 5] if rank % 2 else [0, 1, 6, 7]
        assert mine[0] == {"tokens": [[10 * (rank // 2) + at for at in zigzag]], "images": [1, 3]}
        assert mine[1] == {"devices": ["meta"] * 2}
        assert mine[2] == {"answered": [True] * 4}
        assert mine[3]["written"]["levada_feed_batches_total"] == [4, 4]


def test_batches(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/batches.md",
        4,
        """
run_block()
assert levada._levada.unpack_state(levada._levada.pack_state([Progress(1, 2)])) == [Progress(1, 2)]
from torch.utils.data import DataLoader
mesh = levada.Mesh(dp=2, tp=2)
dataset = [{"x": torch.full((3,), float(i))} for i in range(32)]
source = [[np.arange(4096) + row + 10 * item for row in range(2)] for item in range(4)]
run_block()
tell(loaded=[batch["x"][:, 0].tolist() for batch in levada.Feed(loader, mesh=mesh)])
tell(made=[[batch["tokens"].dtype == torch.int64, list(batch["tokens"].shape), batch["tokens"][1, 5].item()] for batch in feed])
""",
    )
    for rank, mine in enumerate(told):
        dp = rank // 2
        assert mine[0] == {"loaded": [[float(8 * batch + i) for i in range(8)] for batch in (dp, 2 + dp)]}
        assert mine[1] == {"made": [[True, [2, 4096], 6 + 10 * item] for item in (dp, 2 + dp)]}


def test_corpora(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/corpus.md",
        4,
        """
mesh = levada.Mesh(dp=2, tp=2)
run_block()
batches = list(feed)
tell(shapes=[list(batch["tokens"].shape) for batch in batches], firsts=[batch["tokens"][:, :9].tolist() for batch in batches])
""",
    )
    assert told[0] == told[1] and told[2] == told[3] and told[0] != told[2]
    assert len(told[0][0]["shapes"]) > 1 and all(shape == [8, 4096] for shape in told[0][0]["shapes"])


def test_exchange(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/exchange.md",
        4,
        """
dp = rank // 2
lengths = [1 + (rank + i) % 3 for i in range(4)]
ids = [f"{rank}-{i}" for i in range(4)]
tokens = torch.cat([torch.full((length,), 10 * rank + i) for i, length in enumerate(lengths)])
rewards = torch.rand(4)
run_block()
tell(tokens={id: batch.item("tokens", at).tolist() for at, id in enumerate(batch.ids)})
""",
    )
    assert told[0] == told[1] and told[2] == told[3]
    mine = [told[0][0]["tokens"], told[2][0]["tokens"]]
    assert not mine[0].keys() & mine[1].keys() and len(mine[0]) + len(mine[1]) == 16
    for rank in range(4):
        for i in range(4):
            assert (mine[0] | mine[1])[f"{rank}-{i}"] == [10 * rank + i] * (1 + (rank + i) % 3)


def test_pipelines(tmp_path: pathlib.Path) -> None:
    program, packed = blocks_of("docs/python/pipelines.md")
    body = """
from torch.utils.data import default_collate
lines = [f"{i} line" for i in range(70)]
def tokenize(line):
    return {"number": int(line.split()[0])}
def step(batch):
    got.append(batch["number"].tolist())
"""
    script = ranks.BLOCKS.format(blocks=[packed]) + PREPARE.format(folder=str(tmp_path)) + body + program
    script += """
    tell(epochs=numbers())
    texts = ["a b c d " * (10 + i % 90) for i in range(900)]
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("my-model")
    run_block()
    tell(shapes=[list(batch["tokens"].shape) for batch in pipeline])
"""
    write_inputs(tmp_path)
    (told,) = ranks.succeed(tmp_path, 1, script)
    epochs = [told[0]["epochs"][at : at + 4] for at in (0, 4, 8)]  # each worker makes two batches of its 35 lines
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(70))] * 3
    assert epochs[0] != epochs[1] != epochs[2] and sorted(map(len, epochs[0])) == [3, 3, 32, 32]
    assert len(told[1]["shapes"]) > 1 and all(shape == [8, 4096] for shape in told[1]["shapes"])


def test_reductions(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/python/reduce.md",
        2,
        """
process_group(2)
gradients = [torch.arange(8.0).reshape(4, 2) * (1 + rank) + number for number in range(3)]
keep = lambda part: got.append(part.tolist())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
module = torch.distributed.fsdp.fully_shard(torch.nn.Linear(3, 1), mesh=init_device_mesh("cpu", (2,)))
run_block()
tell(parts=got)
model(torch.full((1, 3), 1.0 + rank)).backward()
tell(averaged=[parameter.grad.tolist() for parameter in model.parameters()])
""",
    )
    for rank, mine in enumerate(told):
        sums = [[[3.0 * (2 * row + at) + 2 * number for at in range(2)] for row in (0, 1, 2, 3)] for number in range(3)]
        assert mine[0] == {"parts": [whole[2 * rank : 2 * rank + 2] for whole in sums]}
        assert mine[1] == {"averaged": [[[1.5, 1.5, 1.5]]]}
