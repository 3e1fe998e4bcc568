"""Steps of levada.dropin.megatron on the ranks of a job, and their expected results."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any, NamedTuple

import process_groups

LIMIT = 48
LENGTHS = {0: [16, 4, 24, 8, 40, 12, 4], 1: [28, 8, 8, 48, 4, 20, 16]}
"""Padded lengths of the samples that each data-parallel rank reads."""

PREPARE = """
    from types import SimpleNamespace as Space
    from megatron.core import parallel_state
    from levada.dropin import megatron

    LENGTHS = {0: [16, 4, 24, 8, 40, 12, 4], 1: [28, 8, 8, 48, 4, 20, 16]}
    wrap, get = megatron.wrap_data_iterator, megatron.get_batch_on_this_rank_for_sequence_packing

    def place():
        return (parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank(),
                parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_context_parallel_rank())

    def grid(tp=1, cp=1, pp=1, vpp=None):
        parallel_state.initialize_model_parallel(tp, pp, vpp, context_parallel_size=cp)
        return place()

    def sample(data, at, length):
        position = torch.arange(length)
        tokens = position + 10_000 * (data + 1) + 100 * at
        return {"tokens": tokens, "labels": tokens + 1, "loss_mask": (position % 2).float(), "position_ids": position,
                "original_seq_len": torch.tensor([length - at % 3]), "padded_seq_len": torch.tensor([length])}

    def step(data):
        return [sample(data, at, length) for at, length in enumerate(LENGTHS[data])]

    def config(**options):
        return Space(**{"max_seqlen_per_dp_cp_rank": 48, "sequence_packing_scheduler": "dp_balanced", **options})

    def told(value):
        return value.tolist() if torch.is_tensor(value) else value

    def told_item(item):
        return {key: told(value) for key, value in item.items()}

    def told_batch(batch):
        *fields, packing, padding = batch
        params = {name: told(value) for name, value in vars(packing).items() if name.startswith(("cu_", "max_", "qkv"))}
        return [*map(told, fields), params, told(padding)]
"""


class Sample(NamedTuple):
    data: int
    at: int

    @property
    def length(self) -> int:
        return LENGTHS[self.data][self.at]

    @property
    def original(self) -> int:
        return self.length - self.at % 3

    @property
    def first(self) -> int:
        """The sample's first token."""
        return 10_000 * (self.data + 1) + 100 * self.at


def samples(ranks: int) -> list[Sample]:
    """Returns the samples of one step."""
    return [Sample(data, at) for data in range(ranks) for at in range(len(LENGTHS[data]))]


def sample_of(token: int) -> Sample:
    return Sample(token // 10_000 - 1, token % 10_000 // 100)


def item(micro: list[Sample], keys: set[str]) -> dict[str, Any]:
    """Returns a packed micro-batch, with its padding as read."""
    positions = [(each, at) for each in micro for at in range(each.length)]
    fields = {
        "tokens": [each.first + at for each, at in positions],
        "labels": [each.first + at + 1 for each, at in positions],
        "loss_mask": [float(at % 2) for _, at in positions],
        "position_ids": [at for _, at in positions],
    }
    return {
        **{key: value for key, value in fields.items() if key in keys},
        "cu_seqlens_padded": [0, *itertools.accumulate(each.length for each in micro)],
        "cu_seqlens": [0, *itertools.accumulate(each.original for each in micro)],
        "max_seqlen": max(each.length for each in micro),
    }


def batch(micro: list[Sample], keys: set[str], rank: int = 0, size: int = 1) -> list[Any]:
    """Returns the batch for a stage that computes with `keys`, on context-parallel rank `rank` of `size`."""
    full = item(micro, keys)
    begins = full["cu_seqlens_padded"]
    padding = [at >= each.original for each in micro for at in range(each.length)]
    chosen = []
    for begin, each in zip(begins, micro, strict=False):
        chunk = each.length // (2 * size)
        for part in (rank, 2 * size - 1 - rank) if size > 1 else (0, 1):
            chosen += range(begin + part * chunk, begin + (part + 1) * chunk)
    cut = {key: [[0 if padding[at] else full[key][at] for at in chosen]] if key in keys else None for key in FIELDS}
    packing = {
        "qkv_format": "thd",
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"), begins),
        **dict.fromkeys(("max_seqlen_q", "max_seqlen_kv"), full["max_seqlen"]),
    }
    tokens, labels, loss_mask, positions = (cut[key] for key in FIELDS)
    return [tokens, labels, loss_mask, None, positions, packing, [[padding[at] for at in chosen]]]


FIELDS = ("tokens", "labels", "loss_mask", "position_ids")


def keys_of(stage: int, stages: int) -> set[str]:
    """Returns the keys that a pipeline stage computes with."""
    first = {"tokens", "position_ids"} if stage == 0 else set()
    return first | ({"labels", "loss_mask"} if stage == stages - 1 else set())


def run(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, Any]]]:
    return process_groups.succeed(folder, size, PREPARE + body)
