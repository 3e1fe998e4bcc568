"""Runs docs/migrate: each page's Python, block after block, on two ranks. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

import ranks

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "migrate"

PREPARE = """
import os
os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}}
os.environ["ACCELERATE_USE_CPU"] = "true"
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
dataset = [{{"x": torch.full((3,), float(i))}} for i in range(20)]
seen = []
def train(batch):
    seen.append(batch)
def numbers():
    told = [int(row[0]) for batch in seen for row in batch["x"]]
    seen.clear()
    return told
"""


def run(folder: pathlib.Path, page: str, body: str) -> list[list[dict[str, Any]]]:
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    prepare = PREPARE.format(folder=folder) + ranks.BLOCKS.format(blocks=blocks)
    return ranks.succeed(folder, 2, prepare + body + ranks.BLOCKS_END)


def test_from_a_plain_dataloader(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "dataloader.md",
        """
before, after = blocks
exec(before)
tell(got=numbers())
exec(after)
tell(got=numbers())
""",
    )
    for at in (0, 1):
        first, second = told[0][at]["got"], told[1][at]["got"]
        # Two epochs, each of which uses every sample once, in the second block without the last step, which is not full.
        assert len(first) == len(second) == (20, 16)[at]
        half = len(first) // 2
        for epoch in (slice(0, half), slice(half, None)):
            used = first[epoch] + second[epoch]
            assert len(set(used)) == len(used)


def test_from_dispatch_batches(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "accelerate.md",
        """
from accelerate import Accelerator, DataLoaderConfiguration
def trained(block):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    names = dict(globals(), model=model, optimizer=optimizer, loader=DataLoader(dataset[:16], batch_size=4))
    exec(block, names)
    return [parameter.tolist() for parameter in model.parameters()], names["loss"].item()
tell(same=[trained(block) for block in blocks[:2]])
from accelerate import skip_first_batches
feed = levada.Feed([1])
tell(prepared=Accelerator().prepare(feed) is feed)
try:
    skip_first_batches(feed, 1)
except AttributeError:
    tell(skips=False)
from accelerate.data_loader import SeedableRandomSampler
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint")
dataset = dataset + dataset[:8]  # seven steps an epoch; the state is saved after the fifth of the second
def steps_of(block, resumes):
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    numbers()
    exec(block, dict(globals(), model=model, optimizer=optimizer, resumes=resumes))
    return numbers(), [parameter.tolist() for parameter in model.parameters()]
tell(whole=steps_of(blocks[2], False), rest=steps_of(blocks[2], True))
""",
    )
    for mine, prepared, skipped, resumed in told:
        assert prepared == {"prepared": True} and skipped == {"skips": False}
        (whole, trained), (rest, trained_again) = resumed["whole"], resumed["rest"]
        assert len(whole) == 28 and rest == whole[24:] and trained_again == trained
        before, after = mine["same"]
        assert before == after
    assert told[0][0]["same"][0][0] == told[1][0]["same"][0][0]


def test_from_ms_swift(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "ms-swift.md",
        """
import types
swifts = types.ModuleType("swift.dataloader.dispatcher")
class DataLoaderDispatcher:
    def __init__(self, base_dataloader, device=None, skip_batches=0): raise AssertionError("ms-swift's own")
swifts.DataLoaderDispatcher = DataLoaderDispatcher
for name in ("swift", "swift.dataloader", "swift.dataloader.dispatcher"):
    sys.modules[name] = swifts
exec(blocks.pop(0))
seen.extend(swifts.DataLoaderDispatcher(DataLoader(dataset, batch_size=4), "cpu"))
tell(got=numbers())
loader, device, data_parallel_group = DataLoader(dataset, batch_size=4), "cpu", dist.new_group([1, 0])
exec(blocks[0])
tell(got=numbers())
exec(blocks[1])
tell(got=numbers())
""",
    )
    for rank, mine in enumerate(told):
        second_round = list(range(8 + 4 * rank, 12 + 4 * rank))
        assert mine.pop(0)["got"] == list(range(4 * rank, 4 * rank + 4)) + second_round
        assert mine[0]["got"] == second_round * 2
        assert mine[1]["got"] == list(range(4 * rank, 4 * rank + 4)) + second_round


def test_from_megatron(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "megatron.md",
        """
from types import SimpleNamespace as Space
pg_collection = Space(tp=dist.group.WORLD, pp=None, cp=None)
cfg = Space(model=Space(), dataset=Space(broadcast_data_across_tp=True))
row = torch.arange(6).reshape(1, 6)
batch = {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(1, 6), "position_ids": row}
data_iterator = iter([batch]) if rank == 0 else None
steps = Space(forward_step=lambda state, data, model, plan: next(data)["tokens"].tolist())
sys.modules["megatron.bridge.training"] = Space(gpt_step=steps)
sys.modules["megatron.bridge.training.utils.pg_utils"] = Space(get_pg_collection=lambda _: pg_collection)
exec(blocks.pop(0))
tell(shared=forward_step(None, iter([batch]) if rank == 0 else None, None))
exec(blocks.pop(0))
tell(patched=steps.get_batch is bridge.get_batch)
exec(blocks[0])
tell(got=[tokens.tolist(), labels.tolist(), attention_mask])
build = lambda: tell(built=rank)
exec(blocks[1])
utils = Space(BlendedMegatronDatasetBuilder=lambda kind, samples, is_built, config: is_built(pg_collection))
sys.modules["megatron.bridge.data"] = Space(utils=utils)
exec(blocks.pop(2), {**globals(), "build": None})
tell(builds=utils.BlendedMegatronDatasetBuilder("kind", 1, lambda: True, "config"))
loader = DataLoader(dataset, batch_size=4)
exec(blocks[2])
tell(tp=parallel_state.get_tensor_model_parallel_rank(), same=batch["x"][:, 0].tolist())
feed.close()
text = os.path.join(sys.path[0], "text.jsonl")
prefix = os.path.join(sys.path[0], "text")
if rank == 0:
    with open(text, "w") as file:
        for i in range(40):
            print(json.dumps({"text": "words " * (20 + i)}), file=file)
    import subprocess
    subprocess.run([sys.executable, "-m", "levada", "convert", text, prefix, "--tokenizer", "bytes"], check=True)
dist.barrier()
exec(blocks[3].replace("dp=2, tp=2", "dp=1, tp=2"), shown=blocks[3])
tell(shapes=[list(batch["tokens"].shape) for batch in seen], first=seen[0]["tokens"].sum().item())
""",
    )
    for rank, mine in enumerate(told):
        assert mine.pop(0) == {"shared": [[0, 1, 2, 3, 4, 5]]}
        assert mine.pop(0) == {"patched": True}
        assert {"builds": rank == 0} in mine
        assert mine[0] == {"got": [[[0, 1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 6]], None]}
        assert (mine[1] == {"built": 0}) is (rank == 0)
        assert mine[-2] == {"tp": rank, "same": [0.0, 1.0, 2.0, 3.0]}
        assert mine[-1] == {"shapes": [[2, 64]] * 3, "first": told[0][-1]["first"]}


def test_from_megatrons_sequence_packing(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "megatron-packing.md",
        """
from types import SimpleNamespace as Space
alone = [dist.new_group([0]), dist.new_group([1])][rank]
pg_collection = Space(tp=dist.group.WORLD, pp=alone, dp=alone, cp=alone, dp_cp=alone)
config = Space(max_seqlen_per_dp_cp_rank=6, sequence_packing_scheduler="dp_balanced")
def sample(first, length):
    row = torch.arange(length)
    return {"tokens": row + first, "labels": row + first + 1, "loss_mask": torch.ones(length), "position_ids": row,
            "padded_seq_len": torch.tensor([length])}
num_microbatches = 3
data_iterator = iter([sample(10, 2), sample(20, 5), sample(30, 4)]) if rank == 0 else None
exec(blocks[0])
tell(tokens=[batch[0].tolist() for batch in seen], sums=[seqlen_sum, seqlen_squared_sum])
""",
    )
    assert told[0] == told[1] == [{"tokens": [[[10, 11, 30, 31, 32, 33]], [[20, 21, 22, 23, 24]]], "sums": [11.0, 45.0]}]


def test_from_areal(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "areal.md",
        """
from types import SimpleNamespace as Space
from levada.dropin.areal import SequenceSample
msid2mwid, cluster, ids_by_worker = {}, Space(n_gpus_per_node=8), [["a", "b"], ["c", "d", "e"]]
def made(ids):
    lengths = [ord(id) % 7 + 1 for id in ids]
    tokens = torch.cat([torch.arange(length) + 2**40 * ord(id) for id, length in zip(ids, lengths)])
    return SequenceSample.from_default(lengths, ids, {"packed_input_ids": tokens, "rewards": torch.tensor(lengths) / 7})
rollouts, everything = made(ids_by_worker[rank]), made(sum(ids_by_worker, []))
data_info = everything.meta()
for block in blocks:
    exec(block)
    data = batch.data if isinstance(batch, SequenceSample) else {key: batch[key] for key in batch.keys}
    tell(keys=sorted(data), same=all(torch.equal(data[key], everything.data[key]) for key in data))
""",
    )
    for mine in told:
        assert mine == [{"keys": ["packed_input_ids", "rewards"], "same": True}] * 2


def test_from_torchdata(tmp_path: pathlib.Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / "torchdata.md").read_text(), re.DOTALL)
    body = "\n".join(f"for _ in range(1):\n{textwrap.indent(block, '    ')}\n    tell()" for block in blocks)
    script = tmp_path / "page.py"
    script.write_text(
        "import levada\n"
        "seen, told = [], []\n"
        "train = seen.append\n"
        "def prepare(item):\n    return 2 * item\n"
        "def tell():\n    told.append(seen[:])\n    seen.clear()\n"
        "if __name__ == '__main__':\n" + textwrap.indent(body, "    ") + "\n    print(told)\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    for batches in eval(ran.stdout):
        half = len(batches) // 2
        epochs = [sorted(sum(epoch, [])) for epoch in (batches[:half], batches[half:])]
        assert epochs == [list(range(0, 200, 2))] * 2 and batches[:half] != batches[half:]
        assert all(len(batch) == 5 for batch in batches)
