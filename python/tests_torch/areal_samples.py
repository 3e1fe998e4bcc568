"""Samples shared by tests of the AReaL drop-in."""

from __future__ import annotations

import torch
from levada.dropin.areal import SequenceSample


def some(ids: str = "abc") -> SequenceSample:
    tokens = [ord(id) % 5 + 1 for id in ids]
    data = {
        "input_ids": torch.arange(sum(tokens)) + 2**40,
        "rewards": torch.tensor([float(t) for t in tokens], dtype=torch.bfloat16),
        "logprobs": torch.rand(sum(tokens) - len(tokens)),
    }
    return SequenceSample.from_default(tokens, list(ids), data, {"task": [id.upper() for id in ids]})


def same(one: SequenceSample, other: SequenceSample) -> bool:
    alike = all(getattr(one, name) == getattr(other, name) for name in ("keys", "ids", "seqlens", "dtypes", "metadata"))
    return alike and all(torch.equal(one.data[key], other.data[key]) for key in one.keys)
