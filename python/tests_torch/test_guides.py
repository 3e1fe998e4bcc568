"""Runs the Python of README.md and of the guides in docs. Run by `script/check python-torch`."""

from __future__ import annotations

import json
import pathlib

import pytest
from pages import run

pytestmark = pytest.mark.timeout(240)


def test_readme(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
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


def test_cuda_graphs(tmp_path: pathlib.Path) -> None:
    """Runs without CUDA. bench/gpu/graphs.py has the CUDA program, which script/gpu runs on a GPU."""
    told = run(
        tmp_path,
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


def test_balance(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
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

taken, labels_of_steps, labels = [], [], torch.zeros(())
def model(batch, cp_group):
    assert (cp_group is None) == (feed.cp_size == 1) and batch["tokens"].shape[1] <= 8192
    labels.add_(batch["loss_mask"].sum())
    return weight * batch["tokens"]
def take_step(model, labels_of_step):
    torch.distributed.all_reduce(weight.grad)
    torch.distributed.all_reduce(labels)
    labels_of_steps.append([labels_of_step, int(labels)])
    labels.zero_()
    taken.append(weight.grad.item())
    weight.grad = None
run_block()
assert all(told == counted for told, counted in labels_of_steps), labels_of_steps
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


def test_a_data_set_by_number(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
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


def test_evaluation(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "docs/evaluation.md",
        4,
        """
process_group(4)
mesh = levada.Mesh(dp=2, tp=2)
dataset = [{"x": torch.tensor(float(i)), "y": torch.tensor(float(i - i % 4))} for i in range(37)]
model = lambda x: torch.where(x % 2 == 0, x - x % 4, x)  # wrong for odd numbers and right for even ones
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


def test_data_loading(tmp_path: pathlib.Path) -> None:
    (tmp_path / "chats").mkdir()
    chat = [{"role": "user", "content": "a b "}, {"role": "assistant", "content": "c d"}]
    (tmp_path / "chats" / "one.jsonl").write_text((json.dumps({"messages": chat}) + "\n") * 3000)
    told = run(
        tmp_path,
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


def test_my_step_raised(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
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


def test_from_fairscale(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
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
