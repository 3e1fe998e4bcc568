"""Steps that read through levada.dropin.bridge on the ranks of a job."""

from __future__ import annotations

import pathlib
from typing import Any

import process_groups

STANDARD = ["tokens", "labels", "loss_mask", "attention_mask", "position_ids"]
PREPARE = """
    import dataclasses
    from types import SimpleNamespace as Space
    from levada.dropin import bridge

    STANDARD = ["tokens", "labels", "loss_mask", "attention_mask", "position_ids"]

    def batch(i, length=8, rows=1, **more):
        row = torch.arange(length).repeat(rows, 1)
        return {"tokens": row + 100 * i, "labels": row + 100 * i + 1, "loss_mask": torch.ones(rows, length),
                "position_ids": row, **more}

    def grid(pp, tp, cp=1):
        # ranks as Megatron numbers them: tp fastest, then cp, then pp
        groups = {}
        def make(name, members):
            group = dist.new_group(members)
            if rank in members:
                groups[name] = group
        for p in range(pp):
            for c in range(cp):
                make("tp", [(p * cp + c) * tp + t for t in range(tp)])
            for t in range(tp):
                make("cp", [(p * cp + c) * tp + t for c in range(cp)])
        for at in range(cp * tp):
            make("pp", [p * cp * tp + at for p in range(pp)])
        return Space(**groups)

    def config(pp=1, broadcast=True, layout=None, **dataset):
        model = Space(pipeline_model_parallel_size=pp, pipeline_model_parallel_layout=layout, seq_length=8,
                      virtual_pipeline_model_parallel_size=None)
        return Space(model=model, dataset=Space(broadcast_data_across_tp=broadcast, **dataset),
                     train=Space(micro_batch_size=1))

    def read_by(first, items):
        return iter(items) if first else None

    def told(value):
        return value.tolist() if torch.is_tensor(value) else value
"""


def run(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, Any]]]:
    return process_groups.succeed(folder, size, PREPARE + body)


def tokens(i: int, length: int = 8) -> list[list[int]]:
    return [[100 * i + at for at in range(length)]]
