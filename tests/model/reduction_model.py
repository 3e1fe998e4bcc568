"""A reference model of reductions: the sum of the inputs that the ranks of a group have enqueued, in the order of
ranks.

It has no bucket and no message. reductions.py draws and executes the runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Json = dict[str, Any]


def tensor(step: Json, number: int, rank: int, part: int = 0) -> Any:
    """Returns a rank's input `number` of a step; for a list, its tensor for the group's rank `part`."""
    draw = np.random.default_rng([step["seed"], number, rank, part])
    shape, dtype = [step["rows"], *step["trailing"]], np.dtype(step["dtype"])
    if dtype.kind in "iu":
        return draw.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size=shape, dtype=dtype, endpoint=True)
    values = draw.standard_normal(shape) * 10
    return (values + 1j * draw.standard_normal(shape) if dtype.kind == "c" else values).astype(dtype)


def summed(tensors: list[Any], op: str) -> Any:
    """Sums the tensors in the order of ranks. Sums float16 in float32 and rounds once; an average divides the sum
    once."""
    dtype = tensors[0].dtype
    adds = np.dtype("float32") if dtype == "float16" else dtype
    total = tensors[0].astype(adds)
    for each in tensors[1:]:
        total = total + each.astype(adds)
    if op == "average":
        numbers = total.view(total.real.dtype) if dtype.kind == "c" else total  # both parts of a complex number
        total = (numbers / numbers.dtype.type(len(tensors))).view(adds).reshape(total.shape)
    return total.astype(dtype)


def part_of(total: Any, at: int, ranks: int) -> Any:
    """Returns the rows of one rank: ceil(rows / ranks) of them, padded with zeros."""
    extent = -(-len(total) // ranks)
    padded = np.zeros((extent * ranks, *total.shape[1:]), total.dtype)
    padded[: len(total)] = total
    return padded[at * extent : (at + 1) * extent]


def result(step: Json, number: int, group: list[int], rank: int) -> Any:
    """Returns a rank's result for an input of a step."""
    at = group.index(rank)
    if step["do"] == "list":
        return summed([tensor(step, number, each, at) for each in group], step["op"])
    tensors = [tensor(step, number, each) for each in group]
    if step["do"] == "all_gather":
        return np.stack(tensors)
    total = summed(tensors, step["op"])
    return total if step["do"] == "all_reduce" else part_of(total, at, len(group))
