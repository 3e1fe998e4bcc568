"""The keys of packed samples that pipeline stages compute with."""

from __future__ import annotations

from typing import Any

from levada.dropin._megatron import Stage, place
from levada.dropin._packing_samples import INPUTS, KEYS, TARGETS


def chunks_of(config: Any) -> int:
    """Returns the number of virtual pipeline stages per rank."""
    return getattr(config, "virtual_pipeline_model_parallel_size", None) or 1


def keys_by_chunk(config: Any, pp: Any) -> list[tuple[str, ...]]:
    """Returns the keys that each virtual stage of this rank computes with."""
    at, size = place(pp)
    predicts = getattr(config, "mtp_num_layers", None) is not None
    chunks = chunks_of(config)
    keys = []
    for chunk in range(chunks):
        stage = Stage.of_chunk(
            pp, config, first=at == 0, last=at == size - 1, use_mtp=predicts, vp_stage=chunk if chunks > 1 else None
        )
        wanted = {
            *(INPUTS if stage.first or stage.predicts else ()),
            *(TARGETS if stage.last or stage.predicts else ()),
        }
        keys.append(tuple(key for key in KEYS if key in wanted))
    return keys
