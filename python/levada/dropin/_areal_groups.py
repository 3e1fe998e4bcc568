"""Divides samples into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

from levada.exchange import balance


@dataclasses.dataclass
class MicroBatchSpec:
    """How to divide a batch: into at least `n_mbs` micro-batches of at most `max_tokens_per_mb` tokens."""

    n_mbs: int = 1
    max_tokens_per_mb: int = 10**12

    @classmethod
    def new(cls, mb_spec: MicroBatchSpec, **changes: Any) -> MicroBatchSpec:
        """Returns a copy of `mb_spec` with `changes`."""
        return cls(**{"n_mbs": mb_spec.n_mbs, "max_tokens_per_mb": mb_spec.max_tokens_per_mb, **changes})


def groups_of(lens: list[int], mb_spec: MicroBatchSpec) -> list[list[int]]:
    max_tokens = mb_spec.max_tokens_per_mb
    if lens and max(lens) > max_tokens:
        raise RuntimeError(f"a sample has {max(lens)} tokens, more than the {max_tokens} of a micro-batch")
    if len(lens) < mb_spec.n_mbs:
        raise RuntimeError(f"{len(lens)} samples cannot be cut into {mb_spec.n_mbs} micro-batches")
    greedy = _fill(lens, max_tokens, mb_spec.n_mbs)
    for number in range(max(mb_spec.n_mbs, -(-sum(lens) // max_tokens), 1), len(greedy) + 1):
        for equal in (False, True):
            groups = balance(lens, number, equal=equal)
            if all(groups) and all(sum(lens[i] for i in group) <= max_tokens for group in groups):
                return groups
    return greedy


def _fill(lens: list[int], max_tokens: int, min_groups: int) -> list[list[int]]:
    """Adds each sample, longest first, to the group with the fewest samples that has room, or to a new group if none
    has. Makes as many micro-batches as AReaL."""
    groups: list[list[int]] = []
    totals: list[int] = []
    for i in sorted(range(len(lens)), key=lambda each: -lens[each]):
        roomy = [at for at, total in enumerate(totals) if total + lens[i] <= max_tokens]
        if len(groups) < min_groups or not roomy:
            roomy = [len(groups)]
            groups.append([])
            totals.append(0)
        at = min(roomy, key=lambda each: (len(groups[each]), totals[each]))
        groups[at].append(i)
        totals[at] += lens[i]
    return groups
