"""Runs the Python of a page, block after block, on as many ranks as the page describes, with stand-ins for what it leaves
to the reader: paths, tokenizers, data, models."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

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


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(folder: pathlib.Path, page: str, size: int, body: str) -> list[list[dict[str, Any]]]:
    """Returns each rank's reports. Fails if a block of the page was not run."""
    write_inputs(folder)
    prepare = ranks.BLOCKS.format(blocks=blocks_of(page)) + PREPARE.format(folder=str(folder))
    script = prepare + body + ranks.BLOCKS_END
    outcome = ranks.run(folder, size, script, within=180)
    assert outcome.status == 0, outcome.errors
    return outcome.told


def write_inputs(folder: pathlib.Path) -> None:
    """Writes the text and the tokenizers that the pages name."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate("abcdefgh")}, unk_token="h"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="g")
    fast.save_pretrained(folder / "my-model")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder / "my-chat-model")
    (folder / "web").mkdir()
    for part in range(2):
        lines = [json.dumps({"text": "a b c d " * (200 + 37 * number % 700)}) for number in range(part, 160, 2)]
        (folder / "web" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
