"""Runs the Python of the pages, block after block, on as many ranks as the page describes, with stand-ins for what it
leaves to the reader: paths, tokenizers, data, models. Run by `script/check python-torch`."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import ranks
import tokenizers
import transformers

ROOT = pathlib.Path(__file__).parents[2]

PREPARE = """
import pathlib
import torch
os.chdir({folder!r})
got = []
def run_block():
    exec(blocks.pop(0))
def numbers():
    told = got[:]
    got.clear()
    return told
def process_group(size):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.distributed.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=size)
"""
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}"
)

TESTED_ELSEWHERE = {
    "docs/getting-started.md": "tests_torch/test_getting_started.py",
    "docs/several-hosts.md": "tests_torch/test_several_hosts.py",
    "docs/migrate/accelerate.md": "tests_torch/test_migration.py",
    "docs/migrate/areal.md": "tests_torch/test_migration.py",
    "docs/migrate/dataloader.md": "tests_torch/test_migration.py",
    "docs/migrate/megatron-packing.md": "tests_torch/test_migration.py",
    "docs/migrate/megatron.md": "tests_torch/test_migration.py",
    "docs/migrate/ms-swift.md": "tests_torch/test_migration.py",
    "docs/migrate/torchdata.md": "tests_torch/test_migration.py",
    "docs/frameworks/datasets.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/deepspeed.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/fsdp.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/torchtitan.md": "tests_frameworks/test_loops.py",
    "docs/frameworks/lightning.md": "tests_frameworks/test_trainers.py",
    "docs/frameworks/transformers.md": "tests_frameworks/test_trainers.py",
    "docs/frameworks/ray-train.md": "tests_frameworks/test_ray_train.py",
    "docs/frameworks/transferqueue.md": "tests_frameworks/test_transferqueue.py",
}
WRITTEN_AS_PROGRAMS = {
    "docs/getting-started.md",
    "docs/several-hosts.md",
    "docs/migrate/torchdata.md",
    "docs/frameworks/ray-train.md",
    "docs/frameworks/transferqueue.md",
}
TESTED_HERE = {
    "README.md",
    "docs/balance.md",
    "docs/data-loading.md",
    "docs/dataloader.md",
    "docs/evaluation.md",
    "docs/my-step-raised.md",
    "docs/migrate/fairscale.md",
    "docs/python/batches.md",
    "docs/python/corpus.md",
    "docs/python/exchange.md",
    "docs/cuda-graphs.md",
    "docs/python/feed.md",
    "docs/python/feed-reference.md",
    "docs/python/pipelines.md",
    "docs/python/reduce.md",
}


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(folder: pathlib.Path, page: str, size: int, body: str) -> list[list[dict[str, Any]]]:
    """Returns each rank's reports. Fails if a block of the page was not run."""
    assert page in TESTED_HERE
    prepare = ranks.BLOCKS.format(blocks=blocks_of(page)) + PREPARE.format(folder=str(folder))
    script = prepare + body + ranks.BLOCKS_END
    outcome = ranks.run(folder, size, script, within=180)
    assert outcome.status == 0, outcome.errors
    return outcome.told


pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the text and the tokenizers that the pages name."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate("abcdefgh")}, unk_token="h"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="g")
    fast.save_pretrained(tmp_path / "my-model")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(tmp_path / "my-chat-model")
    (tmp_path / "web").mkdir()
    for part in range(2):
        lines = [json.dumps({"text": "a b c d " * (200 + 37 * number % 700)}) for number in range(part, 160, 2)]
        (tmp_path / "web" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_every_page_with_python_is_run_by_a_test() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    with_python = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    assert with_python == TESTED_HERE | TESTED_ELSEWHERE.keys()
    for page in TESTED_HERE:
        assert pathlib.Path(__file__).read_text().count(f'"{page}"') == 2, f"no test of this file runs {page}"
    for page, test in TESTED_ELSEWHERE.items():
        text = (ROOT / "python" / test).read_text()
        name = re.escape(page.rpartition("/")[2])
        # ranks.BLOCKS checks that each block is run; pages written as programs run all of theirs.
        is_run = re.search(rf'\brun\(\s*tmp_path,\s*"(?:[\w-]+/)?{name}"', text)
        assert re.search(rf'"(?:[\w-]+/)*{name}"', text), f"{test} does not name {page}"
        assert is_run or page in WRITTEN_AS_PROGRAMS, f"{test} does not run {page}"


def test_pages_of_frameworks_begin_with_the_framework() -> None:
    for page in (ROOT / "docs/frameworks").glob("*.md"):
        beginning = "\n".join(page.read_text().splitlines()[:15])
        assert not re.search(r"script/|\.ci|tests_|check frameworks", beginning), page


def test_readme(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "README.md",
        4,
        """
dataset = list(range(20))
stream = [{"x": torch.full((2,), i), "nested": [i, {"name": str(i)}]} for i in range(8)]
drawn = []
def step(batch):
    if torch.is_tensor(batch): drawn.extend(batch.tolist())
    else: got.append([int(batch["x"][0]), batch["nested"][1]["name"]])
run_block()
tell(got=got, drawn=drawn)
""",
    )
    assert [mine[0]["got"] for mine in told] == [[[i, str(i)] for i in range(rank // 2, 8, 2)] for rank in range(4)]
    drawn = [mine[0]["drawn"] for mine in told]
    assert drawn[0] == drawn[1] and drawn[2] == drawn[3] and sorted(drawn[0] + drawn[2]) == list(range(20))


def test_feeds(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_feed_reference(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_cuda_graphs(folder: pathlib.Path) -> None:
    """Runs without CUDA. bench/gpu/graphs.py has the CUDA program, which script/gpu runs on a GPU."""
    told = run(
        folder,
        "docs/cuda-graphs.md",
        1,
        """
import types
loader, made = [{"x": torch.full((2,), i)} for i in range(4)], levada.Feed
levada.Feed = lambda loader, **options: tell(options=options) or made(loader)
step = lambda batch: None
capture = lambda step, batch: types.SimpleNamespace(replay=lambda: got.append(len(batch["x"])))
run_block()
tell(replays=got)
""",
    )
    assert told == [[{"options": {"device": "cuda", "prefetch_to_device": True, "device_buffers": 3}}, {"replays": [2] * 4}]]


def test_batches(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_corpora(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_exchange(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_pipelines(folder: pathlib.Path) -> None:
    program, packed = blocks_of("docs/python/pipelines.md")
    body = """
from torch.utils.data import default_collate
lines = [f"{i} line" for i in range(70)]
def tokenize(line):
    return {"number": int(line.split()[0])}
def step(batch):
    got.append(batch["number"].tolist())
"""
    script = ranks.BLOCKS.format(blocks=[packed]) + PREPARE.format(folder=str(folder)) + body + program
    script += """
    tell(epochs=numbers())
    texts = ["a b c d " * (10 + i % 90) for i in range(900)]
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("my-model")
    run_block()
    tell(shapes=[list(batch["tokens"].shape) for batch in pipeline])
"""
    (told,) = ranks.succeed(folder, 1, script)
    epochs = [told[0]["epochs"][at : at + 4] for at in (0, 4, 8)]  # each worker makes two batches of its 35 lines
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(70))] * 3
    assert epochs[0] != epochs[1] != epochs[2] and sorted(map(len, epochs[0])) == [3, 3, 32, 32]
    assert len(told[1]["shapes"]) > 1 and all(shape == [8, 4096] for shape in told[1]["shapes"])


def test_reductions(folder: pathlib.Path) -> None:
    told = run(
        folder,
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


def test_balance(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "docs/balance.md",
        4,
        """
from types import SimpleNamespace
from transformers import AutoTokenizer
mesh = levada.Mesh(dp=2, tp=2)
run_block()
process_group(4)
weight = torch.nn.Parameter(torch.ones(()))
class Model:
    sums = torch.zeros(2)
    def parameters(self): return [weight]
    def __call__(self, tokens, loss_mask, cu_seqlens, **more):
        assert tokens.shape[-1] <= 16384
        got.append([int(cu_seqlens[0, -1]), feed.num_micro])
        self.sums += torch.stack([(tokens * loss_mask).sum(), loss_mask.sum()])
        return SimpleNamespace(loss=weight * (tokens * loss_mask).sum() / loss_mask.sum())
model, wrong = Model(), []
class Optimizer:
    steps = 0
    def step(self):
        self.steps += 1
        torch.distributed.all_reduce(weight.grad)  # as DDP averages, over all ranks
        torch.distributed.all_reduce(model.sums)
        mean = model.sums[0] / model.sums[1]
        if abs(weight.grad / 4 - mean) > 1e-4 * mean: wrong.append([self.steps, weight.grad.item() / 4, mean.item()])
    def zero_grad(self): weight.grad, model.sums = None, torch.zeros(2)
optimizer = Optimizer()
run_block()
assert not wrong, wrong
tell(steps=optimizer.steps, fed=feed.step, micro=[number for _, number in got], tokens=sum(tokens for tokens, _ in numbers()))

texts = [f"{'a b c d ' * (3 + i % 50)}{i}" for i in range(300)]
tokenizer = AutoTokenizer.from_pretrained("my-model")
run_block()
tell(names=[name for batch in feed for name in batch["name"]], steps=feed.step)

taken = []
def model(batch, cp_group):
    assert (cp_group is None) == (feed.cp_size == 1) and batch["tokens"].shape[1] <= 8192
    return weight * batch["tokens"]
def take_step(model):
    torch.distributed.all_reduce(weight.grad)
    taken.append(weight.grad.item())
    weight.grad = None
run_block()
expected, sums = [], torch.zeros(())
feed = levada.Feed(corpus, mesh=levada.Mesh(dp=4), batch_size=16, balance="flops", max_tokens=32768)
for batch in feed:
    sums += (batch["tokens"] * batch["loss_mask"]).sum()
    if feed.micro + 1 == feed.num_micro:
        torch.distributed.all_reduce(sums)
        expected.append(sums.item())
        sums.zero_()
assert len(taken) == len(expected) > 0 and all(abs(a - b) < 1e-4 * b for a, b in zip(taken, expected)), (taken, expected)

def samples_of(count, size):
    for i in range(count):
        tokens = torch.full((size + i % 100,), i)
        yield {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(len(tokens))}
short_samples, long_samples = lambda: samples_of(4 * 32 * 9, 50), lambda: samples_of(2 * 4, 9000)
steps, trained = 10, []
def train_on(batch, context_parallel):
    trained.append([context_parallel, batch["input_ids"].shape[-1]])
run_block()
tell(long=[length for is_long, length in trained if is_long], short=[length for is_long, length in trained if not is_long])
""",
    )
    for first, second in zip(told[::2], told[1::2], strict=True):
        assert first == second
    for mine in told:
        assert mine[0]["steps"] == mine[0]["fed"] > 0 and mine[0]["tokens"] > 0
        assert mine[0]["micro"] == told[0][0]["micro"]
    assert len(told[0][1]["names"]) + len(told[2][1]["names"]) == 256 and told[0][1]["steps"] == 2
    for mine in told:
        assert len(mine[2]["short"]) == 9 and max(mine[2]["short"]) <= 8192
        assert len(mine[2]["long"]) == 4 and min(mine[2]["long"]) >= 4500 and max(mine[2]["long"]) <= 8192


def test_a_data_set_by_number(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "docs/dataloader.md",
        4,
        """
dataset = [{"x": torch.full((2,), float(i))} for i in range(37)]
texts = [{"tokens": np.full(10 + 7 * i % 90, i)} for i in range(50)]
def train(batch):
    got.append(batch["x"][: loader.valid, 0].int().tolist() if "x" in batch else int(batch["cu_seqlens"][0][-1]))
def loss_of(batch):
    return batch["x"][:, 0] * 2
run_block()  # two epochs
assert loader.epoch == 2
tell(epochs=numbers())
run_block()  # like()
for at, batch in enumerate(loader):
    train(batch)
    if at == 2: break
tell(first=numbers())
barrier("saving")
if rank == 0: run_block()
else: _not_run.discard(blocks.pop(0))
barrier("saved")
def train(batch):
    got.append(batch["x"][: resumed.valid, 0].int().tolist())
run_block()
tell(rest=numbers())
def train(batch):
    got.append(int(batch["cu_seqlens"][0][-1]))
run_block()
tell(last=loss.item())
run_block()
assert losses == [2.0 * i for i in range(37)]
run_block()
assert image["x"].tolist() == [5.0, 5.0]
run_block()
tell(tokens=numbers(), total=sum(lengths))
""",
    )
    epochs = [sum(step, []) for step in zip(told[0][0]["epochs"], told[2][0]["epochs"], strict=True)]
    assert told[0][0] == told[1][0] and told[2][0] == told[3][0]
    half = len(epochs) // 2
    one, two = sum(epochs[:half], []), sum(epochs[half:], [])
    assert sorted(one) == sorted(two) == list(range(37)) and one != two
    first = sum((sum(step, []) for step in zip(told[0][1]["first"], told[2][1]["first"], strict=True)), [])
    rest = sum((sum(step, []) for step in zip(*(mine[2]["rest"] for mine in told), strict=True)), [])
    assert first + rest == one + two, "a state resumes on another mesh"
    assert sum(mine[3]["last"] for mine in told) / 4 == 2 * (32 + 36) / 2, "averaged gradients are those of the step's mean"
    assert sum(sum(mine[4]["tokens"]) for mine in told) == told[0][4]["total"]


def test_evaluation(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "docs/evaluation.md",
        4,
        """
process_group(4)
mesh = levada.Mesh(dp=2, tp=2)
dataset = [{"x": torch.tensor(float(i)), "y": torch.tensor(float(i - i % 4))} for i in range(37)]
model = lambda x: torch.where(x % 2 == 0, x - x % 4, x)  # wrong for odd numbers and right for the others
loss_of = lambda model, batch: batch["x"] * 2
run_block()
tell(share=evaluate(model, dataset))

run_block()
tell(mean=mean_loss(model, dataset))

train_set = test_set = dataset
seen = []
train = lambda batch: seen.extend(training.numbers)
run_block()
tell(seen=seen)

test_loader = torch.utils.data.DataLoader(dataset, batch_size=4)
run_block()
tell(predictions=predictions)

token_losses = lambda model, batch: batch["tokens"] * 0.01
run_block()
alone = levada.Feed(corpus, mesh=levada.Mesh(dp=4), batch_size=1, tail="pad")
sums = torch.zeros(2)
for batch in alone:
    sums += torch.stack([(token_losses(model, batch) * batch["loss_mask"]).sum(), batch["loss_mask"].sum()])
torch.distributed.all_reduce(sums)
tell(perplexity=perplexity, alone=(sums[0] / sums[1]).exp().item(), samples=len(corpus), counted=sums[1].item())

loader = levada.DataLoader(dataset, batch_size=4, mesh=mesh)
tell(stages=[len(loader.gather(None if rank % 2 else batch["x"])) for batch in loader])
try:
    for batch in loader: loader.gather(batch["x"][:1])
except levada.InvalidArgument as error:
    tell(text=str(error))
""",
    )
    for mine in told:
        assert mine[0] == {"share": 19 / 37}
        assert mine[1] == {"mean": 36.0}
        assert sorted(mine[2]["seen"] + told[2 if mine in told[:2] else 0][2]["seen"]) == list(range(37))
        assert mine[3]["predictions"] == [float(i - i % 4 if i % 2 == 0 else i) for i in range(37)]
        assert abs(mine[4]["perplexity"] - mine[4]["alone"]) < 1e-4 and mine[4]["counted"] == 64 * mine[4]["samples"]
        assert mine[5] == {"stages": [8, 8, 8, 8, 5]}
        assert "the batch has 4 rows, but there are results of 1; give one for each row" in mine[6]["text"]


def test_data_loading(folder: pathlib.Path) -> None:
    (folder / "chats").mkdir()
    chat = [{"role": "user", "content": "a b "}, {"role": "assistant", "content": "c d"}]
    (folder / "chats" / "one.jsonl").write_text((json.dumps({"messages": chat}) + "\n") * 3000)
    told = run(
        folder,
        "docs/data-loading.md",
        1,
        """
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
run_block()
batch = next(iter(levada.Feed(corpus, batch_size=1)))
kept = np.asarray(batch["loss_mask"])[0].astype(bool)
tell(shape=list(batch["tokens"].shape), told=sorted(set(np.asarray(batch["labels"])[0][kept].tolist())))

# A store that needs no network; the text in one frame of zstd that compresses nothing.
class Bucket(MemoryFileSystem):
    protocol = "s3"
    @classmethod
    def _strip_protocol(cls, path): return super()._strip_protocol(path.removeprefix("s3://"))
fsspec.register_implementation("s3", Bucket, clobber=True)
text = pathlib.Path("web/0.jsonl").read_bytes()[:100_000].rpartition(b"\\n")[0] + b"\\n"
frame = b"\\x28\\xb5\\x2f\\xfd\\xa0" + len(text).to_bytes(4, "little") + (len(text) << 3 | 1).to_bytes(3, "little") + text
Bucket().pipe_file("/bucket/web/0.jsonl.zst", frame)
run_block()
remote = [batch["tokens"].tolist() for batch in levada.Feed(corpus, batch_size=1)]
pathlib.Path("local.jsonl").write_bytes(text)
local = levada.Corpus("local.jsonl", tokenizer="my-model", seq_length=4096, shuffle=True, seed=7)
tell(same=remote == [batch["tokens"].tolist() for batch in levada.Feed(local, batch_size=1)], batches=len(remote))
""",
    )
    assert told[0][0]["shape"] == [1, 4096] and set(told[0][0]["told"]) <= {2, 3, 6}
    assert told[0][1]["same"] and told[0][1]["batches"] > 1


def test_my_step_raised(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "docs/my-step-raised.md",
        4,
        """
mesh = levada.Mesh(dp=2, tp=2)
loader = [{"x": torch.full((2,), float(i))} for i in range(400)]
failing = lambda: rank == 3 and feed.step == 12
def step(batch):
    return torch.tensor(float("nan") if failing() else 1.0)
try:
    run_block()
except (ValueError, levada.PeerLost) as error:
    tell(kind=type(error).__name__, text=str(error), cause=feed.end.cause, step=feed.end.step)

run_block()
assert feed.on_peer_lost == "abort"
feed = levada.Feed(loader, mesh=mesh)
failing = lambda: False
early_stopping = lambda loss: rank == 2 and feed.step == 7
run_block()
tell(cause=feed.end.cause, step=feed.end.step)

feed = levada.Feed(loader, mesh=mesh)
def step(batch):
    if not got and rank == 1 and feed.step == 5:
        raise ValueError("once")
restore_checkpoint = lambda: got.append("restored")
run_block()
tell(restored=got, attempt=attempt, cause=feed.end.cause, steps=feed.step)
""",
    )
    for rank, mine in enumerate(told):
        if rank == 3:
            assert mine[0]["kind"] == "ValueError" and mine[0]["text"] == "loss is NaN"
        else:
            assert mine[0]["kind"] == "PeerLost" and mine[0]["cause"] == "abandoned", mine
            assert mine[0]["text"].startswith("rank 3 left the feed at step 12 with ValueError: loss is NaN; rank ")
        assert mine[1]["cause"] == "stopped" and mine[1] == told[0][1] and 7 <= mine[1]["step"] < 200
        assert mine[2] == {"restored": ["restored"], "attempt": 1, "cause": "exhausted", "steps": 200}


def test_from_fairscale(folder: pathlib.Path) -> None:
    told = run(
        folder,
        "docs/migrate/fairscale.md",
        2,
        """
import types
for name in ("fairscale", "fairscale.nn", "fairscale.nn.data_parallel", "fairscale.nn.data_parallel.fully_sharded_data_parallel"):
    sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, sys.modules[name])
process_group(2)
run_block()
run_block()
bucketer = fsdp.ReduceScatterBucketer(bucket_cap_mb=1)
inputs = [torch.full((3,), float(10 * to + rank)) for to in range(2)]
bucketer.reduce_scatter_async(inputs, torch.distributed.group.WORLD, lambda part: got.append(part.tolist()))
bucketer.flush()
bucketer.teardown()
tell(got=got, own=type(bucketer).__module__)
""",
    )
    for rank, mine in enumerate(told):
        assert mine == [{"got": [[20.0 * rank + 1] * 3], "own": "levada.dropin.fairscale"}]
