"""Trains the GPT of examples/train_gpt.py on the device, on four ranks that all need the same batches. Either every
rank tokenizes, or one reader does so for all.

    train.py CORPUS --readers one|all
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import device
import levada
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
import train_gpt  # noqa: E402

SEQUENCE, ROWS = (64, 4) if device.IS_STUB else (512, 32)


class Tokenizing:
    """Reads lines of JSON, tokenizes their text with a trained tokenizer, and cuts the tokens into samples."""

    def __init__(self, path: str, steps: int) -> None:
        self.path, self.steps, self.read = path, steps, 0

    def tokens(self) -> Iterator[int]:
        import tokenizers

        encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
        encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
        texts = [json.loads(line)["text"] for line in open(self.path, encoding="utf-8")][:20]
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=train_gpt.VOCABULARY, special_tokens=["?"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        )
        encoder.train_from_iterator(texts, trainer)
        while True:
            with open(self.path, "rb") as lines:
                for line in lines:
                    self.read += len(line)
                    yield from encoder.encode(json.loads(line)["text"]).ids

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        tokens, position = self.tokens(), torch.arange(SEQUENCE).repeat(ROWS, 1)
        for _ in range(self.steps):
            block = torch.tensor([next(tokens) for _ in range(ROWS * (SEQUENCE + 1))]).view(ROWS, SEQUENCE + 1)
            block.clamp_(max=train_gpt.VOCABULARY - 1)
            yield {
                "tokens": block[:, :-1].contiguous(),
                "labels": block[:, 1:].contiguous(),
                "position_ids": position,
                "loss_mask": torch.ones(ROWS, SEQUENCE),
            }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("--readers", default="one")
    parser.add_argument("--steps", type=int, default=8 if device.IS_STUB else 100)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.manual_seed(7)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    here = "cpu" if device.IS_STUB else "cuda"
    model = train_gpt.GPT(SEQUENCE, width=64 if device.IS_STUB else 256).to(here)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    source = Tokenizing(options.corpus, options.steps)
    where: dict[str, Any] = {} if device.IS_STUB else {"device": "cuda", "prefetch_to_device": True}
    feed = levada.Feed(source, mesh=levada.Mesh(tp=levada.world_size()), readers=options.readers, **where)
    losses, took, busy = [], [], []
    began = time.perf_counter()
    for batch in feed:
        if not device.IS_STUB:
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
        with sdpa_kernel(SDPBackend.MATH):  # has bitwise reproducible gradients
            loss = train_gpt.loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if not device.IS_STUB:
            last.record()
        losses.append(loss.item())
        if not device.IS_STUB:
            busy.append(first.elapsed_time(last))
        now = time.perf_counter()
        took.append(now - began)
        began = now
    later = slice(len(took) // 4, None)
    used = resource.getrusage(resource.RUSAGE_SELF)
    device.tell(
        None,
        losses=[repr(loss) for loss in losses],
        step_ms=round(1e3 * statistics.median(took[later]), 2),
        computing_share=round(sum(busy[later]) / (1e3 * sum(took[later])), 3) if busy else None,
        waited_share=round(feed.stats.waited_seconds / sum(took), 3),
        cpu_seconds=round(used.ru_utime + used.ru_stime, 1),
        megabytes_read=round(source.read / 1e6, 1),
    )


if __name__ == "__main__":
    main()
