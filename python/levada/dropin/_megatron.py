"""The keys of a batch that Megatron's stages need, and the part of a batch that a context-parallel rank computes
with."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from levada.base.errors import InvalidArgument

Batch = dict[str, Any]

STANDARD = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")

# For packed sequences: the boundaries for attention, and lengths that Megatron reads on the host.
BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
LENGTHS = ("max_seqlen_q", "max_seqlen_kv")
OLD_BOUNDARIES = ("cu_seqlens", "cu_seqlens_unpadded")
OLD_LENGTHS = ("cu_seqlens_argmin", "max_seqlen", "cu_seqlens_unpadded_argmin")
ON_HOST = frozenset((*LENGTHS, *OLD_LENGTHS))


def place(group: Any) -> tuple[int, int]:
    """Returns the rank in a process group and its size. None counts as a group of one."""
    return (0, 1) if group is None else (group.rank(), group.size())


class Stage(NamedTuple):
    """The role of a pipeline stage, or of one of its virtual stages, for a batch."""

    first: bool
    last: bool
    predicts: bool
    """Whether the stage hosts the layers of multi-token prediction, which embed tokens again."""
    everything: bool
    """Whether the stage needs every key, regardless of its role."""

    @classmethod
    def of_chunk(cls, pp: Any, model: Any, *, first: bool, last: bool, use_mtp: bool, vp_stage: int | None) -> Stage:
        """Returns stage `vp_stage` of this rank. first, last: whether the rank is on the first or last stage."""
        chunks = getattr(model, "virtual_pipeline_model_parallel_size", None) or 1
        first = first and not vp_stage
        last = last and vp_stage in (None, chunks - 1)
        layout = getattr(model, "pipeline_model_parallel_layout", None)
        predicts = use_mtp and (last if layout is None else hosts_mtp(layout, *place(pp), vp_stage))
        return cls(first, last, predicts, everything=False)

    @property
    def reads(self) -> bool:
        return self.first or self.last or self.predicts or self.everything

    @property
    def standard(self) -> frozenset[str]:
        """The standard keys that the stage needs."""
        if self.everything or (self.first and self.last):
            return frozenset(STANDARD)
        keys = {"attention_mask"} if self.reads else set()
        if self.first or self.predicts:
            keys |= {"tokens", "position_ids"}
        if self.last:
            keys |= {"labels", "loss_mask"}
        return frozenset(keys)


def hosts_mtp(layout: Any, rank: int, size: int, vp_stage: int | None = None) -> bool:
    """Returns whether a pipeline layout puts layers of multi-token prediction on this rank, or on one of its virtual
    stages.

    layout: a list of stages, each a list of layers; a text such as "Et*3|(tt|)*2m|L"; or Megatron's parsed layout.
    """
    stages = getattr(layout, "layout", None)
    if stages is not None:
        mine = list(stages[rank])
    else:
        mine = list((_parsed(layout) if isinstance(layout, str) else layout)[rank::size])
    if vp_stage is not None:
        mine = mine[vp_stage : vp_stage + 1]
    return any(layer == "m" or getattr(layer, "name", layer) == "mtp" for stage in mine for layer in stage)


@functools.lru_cache
def _parsed(layout: str) -> Sequence[str]:
    layout = layout.replace(",", "")
    while (unrolled := re.sub(r"(?:\(([^()]*)\)|(\w))\*(\d+)", _repeated, layout)) != layout:
        layout = unrolled
    return layout.split("|")


def _repeated(match: re.Match[str]) -> str:
    group, letter, count = match.groups()
    return (group if letter is None else letter) * int(count)


def projected(data: Mapping[str, Any], keys: frozenset[str]) -> Batch:
    """Returns the standard keys in `keys`, and all other keys. "input_ids" replaces missing tokens."""
    batch = dict(data)
    if batch.get("tokens") is None:
        batch["tokens"] = batch.get("input_ids")
    return {
        key: value for key, value in batch.items() if key not in STANDARD or (key in keys and value is not None)
    }


def packed_keys(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the keys of `data` that contain the boundaries of packed sequences."""
    if data.get("cu_seqlens_q") is not None:
        return (*BOUNDARIES, *LENGTHS)
    if data.get("cu_seqlens") is not None:
        return (*OLD_BOUNDARIES, *OLD_LENGTHS)
    return ()


def sliced(batch: Batch, rank: int, size: int) -> Batch:
    """Returns the part of context-parallel rank `rank` of `size`. Each sequence is cut into 2 * size chunks, of which
    the rank gets chunks rank and 2 * size - 1 - rank. Sequences are the packed ones if the batch has their boundaries,
    otherwise its rows.

    Raises InvalidArgument, naming the key, if a sequence cannot be cut in this way.
    """
    if size == 1:
        return batch
    packing = packed_keys(batch)
    bounds = _boundaries(batch) if packing else None
    whole = {*packing, "total_tokens", "token_count"}
    if packing:
        whole.add("attention_mask")
    return {
        key: value if key in whole or value is None else _slice(key, value, bounds, rank, size)
        for key, value in batch.items()
    }


def _boundaries(batch: Batch) -> list[int]:
    """Returns the starts of the packed sequences, followed by the end of the last one."""
    candidates = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens")
    key = next(key for key in candidates if batch.get(key) is not None)
    value = batch[key]
    if value.dim() > 1 and value.size(0) != 1:
        raise InvalidArgument(f"{key} has {value.size(0)} rows; packed sequences are sliced one row at a time")
    bounds = [int(bound) for bound in value.flatten().tolist()]
    count = batch.get("cu_seqlens_argmin") if key == "cu_seqlens" else None
    if count is not None:
        return bounds[: int(count)]
    padding = next((at for at, bound in enumerate(bounds) if bound < 0), len(bounds))
    return bounds[:padding]


def _slice(key: str, value: Any, bounds: list[int] | None, rank: int, size: int) -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]

    dim = 2 if key == "attention_mask" else 1
    if not isinstance(value, torch.Tensor) or value.dim() <= dim:
        raise InvalidArgument(f"{key} has no dimension {dim} along which context parallelism could slice it")
    length = value.size(dim)
    bounds = [0, length] if bounds is None else bounds
    if bounds[0] != 0 or bounds[-1] != length:
        raise InvalidArgument(f"{key} has {length} tokens, but the packed sequences span [{bounds[0]}, {bounds[-1]})")
    parts = []
    for begin, end in zip(bounds, bounds[1:], strict=False):
        chunk, rest = divmod(end - begin, 2 * size)
        if rest or chunk < 0:
            raise InvalidArgument(
                f"{key}: a sequence of {end - begin} tokens cannot be cut into {2 * size} chunks for cp={size}; pad it"
            )
        for at in (rank, 2 * size - 1 - rank):
            parts.append(value.narrow(dim, begin + at * chunk, chunk))
    return torch.cat(parts, dim)
