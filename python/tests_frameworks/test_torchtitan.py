"""Runs docs/frameworks/torchtitan.md on four ranks: the blocks for the release with the installed torchtitan, and the program
for main with titan_main.py, or with torchtitan's own package if the installed torchtitan has it. Run by `script/check
frameworks`."""

from __future__ import annotations

import json
import pathlib

import pages
import pytest
import tokenizers

pytestmark = pytest.mark.timeout(300)

NUM_TEXTS = 90


def test_the_release_gets_each_batch_once_and_resumes_on_another_mesh(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/torchtitan.md",
        4,
        """
from dataclasses import dataclass
import datasets
import torch.distributed.checkpoint as dcp
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
class Tokenizer:
    def encode(self, text, add_bos, add_eos):
        return [1, *(3 + ord(letter) for letter in text), 2]
def load(path):
    return datasets.Dataset.from_dict({"text": [f"sample number {i} " * (i % 5 + 1) for i in range(60)]})
DATASETS["mine"] = DatasetConfig(path="none", loader=load, sample_processor=lambda sample: sample["text"])
tokenizer, dp_world_size, dp_rank = Tokenizer(), 2, rank // 2
def train(inputs, labels):
    seen.append([inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()])
before, after = blocks
dp_world_size, dp_rank = 1, 0
exec(before)
everything = numbers()
dp_world_size, dp_rank = 2, rank // 2
exec(after)
mine = numbers()
tell(dealt=mine == everything[dp_rank : len(mine) * 2 : 2], steps=len(mine), batches=len(everything))
dataloader = config.build(
    dp_world_size=2, dp_rank=dp_rank, tokenizer=tokenizer, seq_len=32, local_batch_size=2, snapshot_every_n_steps=1
)
batches = iter(dataloader)
for _ in range(5):
    train(*next(batches))
dcp.save({"dataloader": dataloader}, checkpoint_id=folder)
dataloader = config.build(dp_world_size=2, dp_rank=dp_rank, tokenizer=tokenizer, seq_len=32, local_batch_size=2)
dcp.load({"dataloader": dataloader}, checkpoint_id=folder)
for inputs, labels in dataloader:
    train(inputs, labels)
tell(resumed=numbers() == mine)
config = FeedDataLoader.Config(dataset="mine", infinite=False, tp=4)
dataloader = config.build(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, seq_len=32, local_batch_size=2)
dcp.load({"dataloader": dataloader}, checkpoint_id=folder)
for inputs, labels in dataloader:
    train(inputs, labels)
tell(resumed_on_one_data_rank=numbers() == everything[10:])
try:
    FeedDataLoader.Config(dataset="mine", tp=4).build(dp_world_size=2, dp_rank=dp_rank)
except ValueError as error:
    tell(refused=str(error))
""",
    )
    for rank, mine in enumerate(told):
        assert mine[0]["dealt"] and mine[0]["steps"] == mine[0]["batches"] // 2 > 10
        assert mine[1] == {"resumed": True}
        assert mine[2] == {"resumed_on_one_data_rank": True}
        assert mine[3]["refused"] == f"dp rank {rank // 2} of 2 is 0 in pp=1,dp=1,cp=1,tp=4: check tp, cp and pp"


MAIN = """
sys.path.insert(0, {tests!r})
import titan_main
titan_main.install()
os.chdir({data!r})
program = {{"__name__": "train"}}
exec({block!r}, program)
def train(inputs, labels):
    seen.append([inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()])
program["train"] = train
documents = program["SingleDatasetConfig"](
    source=program["IndexedJsonlSource"].Config(patterns=("data/*.jsonl",)), processor=program["TextProcessor"].Config()
)
config = program["GrainDataLoader"].Config(dataset=program["FirstFitPackingConfig"](dataset=documents), repeat=False)
tokenizer = program["HuggingFaceTokenizer"](tokenizer_path="tokenizer")
plain = config.build(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, max_context_length=64, num_tokens_per_batch=64)
for inputs, labels in plain:
    train(inputs, labels)
tell(everything=numbers())
for tp in (2, 2, 1, 4):
    program["main"](tp)
    dist.barrier()
    tell(tp=tp, batches=numbers())
try:
    program["FeedDataLoader"].Config(dataset=None, tp=4).build(dp_world_size=2, dp_rank=rank // 2)
except ValueError as error:
    tell(refused=str(error))
"""


def write_data(folder: pathlib.Path) -> None:
    """Writes texts, each a different word, repeated, and a tokenizer whose tokens are these words."""
    (folder / "data").mkdir()
    texts = [" ".join([f"w{number}"] * (5 + 7 * number % 40)) for number in range(NUM_TEXTS)]
    (folder / "data/texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(NUM_TEXTS))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def test_main_gets_finite_data_once_and_resumes_on_another_mesh(tmp_path: pathlib.Path) -> None:
    write_data(tmp_path)
    (block,) = filter(pages.is_program, pages.blocks_of("frameworks/torchtitan.md"))
    tests = str(pathlib.Path(__file__).parent)
    told = pages.run(tmp_path, None, 4, MAIN.format(tests=tests, data=str(tmp_path), block=block))
    everything = told[0][0]["everything"]
    assert len(everything) > 20 and len(everything) % 2, "the last step must be incomplete"
    words = [token for tokens, _, _ in everything for token in tokens if token > 2]
    assert [words.count(3 + number) for number in range(NUM_TEXTS)] == [5 + 7 * number % 40 for number in range(NUM_TEXTS)]
    for at, (tp, begin, end) in enumerate([(2, 0, 10), (2, 10, None), (1, 10, None), (4, 10, None)], 1):
        dealt = everything[begin:end]
        dp = 4 // tp
        for rank, mine in enumerate(told):
            assert mine[at]["tp"] == tp
            own = dealt[rank // tp :: dp]
            assert mine[at]["batches"][: len(own)] == own
            filling = mine[at]["batches"][len(own) :]
            assert len(own) + len(filling) == -(-len(dealt) // dp), "ranks took different numbers of steps"
            assert all(len(labels) == 64 and set(labels) == {-100} for _, _, labels in filling)
    for rank, mine in enumerate(told):
        assert mine[5]["refused"] == f"dp rank {rank // 2} of 2 is 0 in pp=1,dp=1,cp=1,tp=4: check tp, cp and pp"
