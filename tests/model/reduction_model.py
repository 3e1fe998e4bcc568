"""A reference model of reductions: the sum of the inputs that the ranks of a group have enqueued, in the order of
ranks.

It has no bucket and no message. reductions.py draws and executes the runs.
"""

from __future__ import annotations

import zlib
from math import prod
from typing import Any

import numpy as np

Json = dict[str, Any]


BYTES = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8)
NORMALS = np.random.default_rng(0).standard_normal(1 << 19) * 10
"""Inputs are slices of these, because a generator for each input would take longer than its reduction."""


def slice_of(table: Any, count: int, *key: Any) -> Any:
    """Returns `count` entries of a table, from a place that depends on the key."""
    begin = zlib.crc32(repr(key).encode()) % (len(table) - count)
    return table[begin : begin + count].copy()


def tensor(step: Json, number: int, rank: int, part: int = 0) -> Any:
    """Returns a rank's input `number` of a step; for a list, its tensor for the group's rank `part`."""
    key = (step["seed"], number, rank, part)
    shape, dtype = [step["rows"], *step["trailing"]], np.dtype(step["dtype"])
    if dtype.kind in "iu":
        return slice_of(BYTES, prod(shape) * dtype.itemsize, *key).view(dtype).reshape(shape)
    values = slice_of(NORMALS, prod(shape), *key)
    if dtype.kind == "c":
        values = values + 1j * slice_of(NORMALS, prod(shape), *key, "imaginary")
    return values.astype(dtype).reshape(shape)


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


def results(step: Json, number: int, group: list[int]) -> list[Any]:
    """Returns the result of each rank of a group for an input of a step."""
    size = len(group)
    if step["do"] == "list":
        return [summed([tensor(step, number, rank, at) for rank in group], step["op"]) for at in range(size)]
    tensors = [tensor(step, number, rank) for rank in group]
    if step["do"] == "all_gather":
        return [np.stack(tensors)] * size
    total = summed(tensors, step["op"])
    return [total if step["do"] == "all_reduce" else part_of(total, at, size) for at in range(size)]
