"""Trains a small GPT on text, on four ranks: two data-parallel by two tensor-parallel ones.

    script/make-corpus build/corpus.jsonl
    torchrun --nproc-per-node 4 examples/train_gpt.py build/corpus.jsonl --steps 100

Levada reads and distributes the batches. Torch does the rest: its DTensors shard the linear layers over tp, and
gradients are averaged over dp. Rank 0 prints the loss of each step with all digits. The choice of readers changes what
is read and sent, but no bit of a batch, so `--readers one` and `--readers all` print the same.
"""

from __future__ import annotations

import argparse
import sys
import time

import levada
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCABULARY = 257  # the values of a byte, and the end of a document


class Attention(nn.Module):
    """Causal self-attention over the heads of this tp rank."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, head)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Computes the logits of the next token, [batch, sequence, vocabulary], from tokens and positions, [batch,
    sequence]."""

    def __init__(self, sequence: int, width: int = 64, head: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, head) for _ in range(depth))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def divide(model: GPT, tp: DeviceMesh) -> None:
    """Shards the linear layers over tp: the first of each pair by columns and the second by rows, with one sum after
    the pair."""
    columns = ("attention.query", "attention.key", "attention.value", "up")
    rows = ("attention.out", "down")
    plan = {**dict.fromkeys(columns, ColwiseParallel()), **dict.fromkeys(rows, RowwiseParallel())}
    for block in model.blocks:
        parallelize_module(block, tp, plan)


def average(model: GPT, mesh: DeviceMesh) -> None:
    """Averages gradients over dp, all in one message. A layer that is not sharded has the same gradient on each tp
    rank."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    flat = torch.cat([gradient.flatten() for gradient in local])
    dist.all_reduce(flat, group=mesh.get_group("dp"))
    flat /= mesh["dp"].size()
    for gradient, mean in zip(local, flat.split([gradient.numel() for gradient in local]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def loss_of(model: GPT, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["tokens"], batch["position_ids"])
    losses = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    mask = batch["loss_mask"].flatten()
    return (losses * mask).sum() / mask.sum()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on four ranks, dp=2, tp=2.")
    parser.add_argument("corpus", nargs="+", help=".jsonl, .txt or .bin files")
    parser.add_argument("--readers", default="one", help="one, all, host, or axes such as dp (default: one)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="samples a dp rank and step")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    devices = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = GPT(options.sequence)
    divide(model, devices["tp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)

    corpus = levada.Corpus(options.corpus, seq_length=options.sequence, shuffle=True, seed=7, epochs=0, tensors="torch", tokenizer="bytes")
    feed = levada.Feed(
        corpus,
        mesh=levada.Mesh.from_device_mesh(devices),
        batch_size=options.batch,
        readers=options.readers,
        max_steps=options.steps,
    )
    began = time.monotonic()
    for step, batch in enumerate(feed):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        average(model, devices)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, group=devices.get_group("dp"))
        if dist.get_rank() == 0:
            print(f"{step:5}  {mean.item() / 2!r}", flush=True)
    if dist.get_rank() == 0:
        seconds = time.monotonic() - began
        tokens = feed.step * options.batch * 2 * options.sequence
        waited = feed.stats.waited_seconds / seconds
        print(f"{tokens / seconds:,.0f} tokens/s, {waited:.1%} of the time waiting for data", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
