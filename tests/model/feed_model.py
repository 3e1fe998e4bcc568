"""A reference model of feeds: given the description of a job, computes what every rank receives at every step, or the
error.

It has no engine, no plan and no thread. It makes a whole batch for each coordinate along the data axes, and every rank
cuts its part out of it. feeds.py draws the runs, and driver.cc executes them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

Json = dict[str, Any]
DATA_AXES = ("dp", "dp_replicate", "dp_shard", "fsdp", "data", "ddp")
SHARED_AXES = ("tp", "cp", "pp", "sp")


class Refusal(Exception):
    """An error that every rank raises: its class, and a part of its message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


class Refusals(Exception):
    """Several errors, any of which may be raised."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__(refusals)
        self.refusals = refusals


class Placement(NamedTuple):
    kind: str
    axis: str
    dim: int = 0
    stages: tuple[str, ...] = ()


@cache
def parse(text: str) -> Placement:
    kind, rest = text[:-1].split("(")
    axis, *arguments = rest.split(",")
    if kind == "stages":
        return Placement(kind, axis, stages=tuple(arguments))
    return Placement(kind, axis, int(arguments[0]) if arguments else 0)


class Mesh:
    """Ranks laid out row-major over named axes. Made by mesh_of(), because its methods' caches keep every mesh."""

    def __init__(self, text: str) -> None:
        self.axes = {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
        self.size = prod(self.axes.values())
        self.data_axes = [axis for axis in self.axes if axis in DATA_AXES]

    def meant_by(self, name: str) -> list[str]:
        if name == "dp":
            return self.data_axes
        return [name] if name in self.axes else []

    @cache
    def extent(self, name: str) -> int:
        return prod(self.axes[axis] for axis in self.meant_by(name))

    @cache
    def coordinate(self, rank: int, name: str) -> int:
        where = dict(zip(self.axes, np.unravel_index(rank, list(self.axes.values()))))
        at = 0
        for axis in self.meant_by(name):
            at = at * self.axes[axis] + int(where[axis])
        return at

    def is_data(self, name: str) -> bool:
        meant = self.meant_by(name)
        return bool(meant) and meant[0] in self.data_axes

    @cache
    def same_span(self, one: str, other: str) -> bool:
        """Returns whether two names have the same coordinates on all ranks."""
        return all(self.coordinate(rank, one) == self.coordinate(rank, other) for rank in range(self.size))


@cache
def mesh_of(text: str) -> Mesh:
    return Mesh(text)


# Samples


def elements(field: Json, number: int, first: int, count: int) -> Any:
    """Returns samples [first, first + count) of a field; driver.cc makes the same ones."""
    if field["kind"] == "value":
        return first
    dims = field["dims"]
    if field["kind"] == "table":
        first, count = 0, 1
    samples, offsets = np.arange(first, first + count)[:, None], np.arange(prod(dims))[None, :]
    if field["kind"] == "segments":
        rows = field["rows"]
        values = np.array([rows[sample % len(rows)] for sample in range(first, first + count)])
        values = values.reshape(count, len(rows[0]))
    else:
        mask = 0xFF if field["dtype"] == "uint8" else 0xFFFF
        values = (samples * 1000003 + number * 7919 + offsets * 31 + 7) & mask
    shape = dims if field["kind"] == "table" else [count, *dims]
    return values.astype(field["dtype"]).reshape(shape)


def padded(values: Any, name: str, kept: int, total: int) -> Any:
    """Returns the first `kept` samples, followed by copies of the last one up to `total`. Padding has no loss."""
    more = np.repeat(values[-1:], total - kept, axis=0)
    return np.concatenate([values[:kept], np.zeros_like(more) if name == "loss_mask" else more])


def batch_of(feed: Json, first: int, here: int, total: int, size: int) -> Json:
    """Returns the `here` samples from `first` on, padded up to `total`. `size` is the number of samples in the
    source."""
    batch = {}
    for number, field in enumerate(feed["fields"]):
        has_samples = field["kind"] not in ("value", "table")
        begin, count = (first, here) if here > 0 else (size - 1, 1)
        values = elements(field, number, begin, count)
        if has_samples:
            values = padded(values, field["name"], here, total) if here < total else values[:here]
        batch[field["name"]] = values
    return batch


def num_readers(feed: Json, mesh: Mesh) -> int:
    readers = feed["readers"]
    numbers = {"one": 1, "host": 1, "all": mesh.size, "spread": mesh.extent("dp")}  # all ranks are on one host
    return numbers[readers] if readers in numbers else prod(mesh.extent(axis) for axis in readers.split(","))


def totals_of(made: list[Json], counts: list[int]) -> list[int | None]:
    """Returns the samples, tokens and labels of a step. `counts` are the samples of its batches that are not padding."""
    names = made[0].keys()  # of each batch
    data = [{name: batch[name][:count] for name in names & {"tokens", "labels", "loss_mask"}} for batch, count in zip(made, counts)]
    labels = None
    if "loss_mask" in names:
        labels = sum(np.count_nonzero(batch["loss_mask"]) for batch in data)
    elif "labels" in names:
        labels = sum(batch["labels"].size for batch in data)  # driver.cc makes no negative ones
    return [sum(counts), sum(batch["tokens"].size for batch in data) if "tokens" in names else None, labels]


# Placements


def placements_of(layout: Json, name: str) -> tuple[list[Placement], bool]:
    """Returns a field's placements, and whether they are the default for fields that no rule names."""
    for pattern, placements in layout["fields"].items():
        if fnmatchcase(name, pattern):
            return [parse(each) for each in placements], False
    return [parse(each) for each in layout.get("otherwise", [])], True


def holds(layout: Json, mesh: Mesh, rank: int, name: str) -> bool:
    """Returns whether the rank's stage has the field."""
    for placement in placements_of(layout, name)[0]:
        if placement.kind != "stages" or mesh.extent(placement.axis) == 1:
            continue
        stages = mesh.extent(placement.axis)
        at = mesh.coordinate(rank, placement.axis)
        builtin = {"first": [0], "last": [stages - 1]}
        if not any(at in (builtin.get(stage) or layout["stages"].get(stage, [])) for stage in placement.stages):
            return False
    return True


def zigzag(length: int, at: int, parts: int) -> list[int]:
    """Returns the positions in chunks `at` and 2*parts-1-at of 2*parts equal ones."""
    if length % (2 * parts):
        raise Refusal("InvalidArgument", "does not divide")
    chunk = length // (2 * parts)
    mirror = 2 * parts - 1 - at
    return [*range(at * chunk, (at + 1) * chunk), *range(mirror * chunk, (mirror + 1) * chunk)]


def zigzag_of_segments(row: Any, at: int, parts: int) -> list[int]:
    """Returns the positions of both chunks of every segment of a packed row."""
    picked = []
    for begin, end in zip(row[:-1], row[1:]):
        picked += [begin + each for each in zigzag(end - begin, at, parts)]
    return picked


def check_segments(whole: Any, cut: Placement, parts: int, segments: Any, cuts: list[Placement]) -> None:
    """Raises if a field's rows do not match the boundaries, or if a segment cannot be divided."""
    rows, dim = len(segments), cut.dim
    has_rows = dim < whole.ndim and (rows == 1 if dim == 0 else whole.shape[dim - 1] == rows and (rows == 1 or dim == 1))
    if not has_rows or [each.dim for each in cuts].count(dim) != 1:
        raise Refusal("InvalidArgument", "cannot be divided by")
    for row in segments:
        if row[0] != 0 or row[-1] != whole.shape[dim]:
            raise Refusal("InvalidArgument", "must run from 0 to")
        zigzag_of_segments(row, 0, parts)


def take_segments(values: Any, dim: int, rows: Any, at: int, parts: int) -> Any:
    """Returns this part of the segments of every row. `rows` holds the boundaries of the remaining rows."""
    index = np.array([zigzag_of_segments(row, at, parts) for row in rows], dtype=int)
    if dim == 0:
        return values.take(index[0], axis=0)
    index = index.reshape(len(rows), values.shape[dim] // parts)
    shape = (1,) * (dim - 1) + index.shape + (1,) * (values.ndim - dim - 1)
    return np.take_along_axis(values, index.reshape(shape), axis=dim)


def part_of(values: Any, name: str, feed: Json, mesh: Mesh, rank: int, short: int, segments: Any) -> Any:
    """Returns the rank's part of a field. `short` is the number of samples of an incomplete global batch, else 0.
    Raises Refusals."""
    if not isinstance(values, np.ndarray):
        return values
    placements, is_otherwise = placements_of(feed["layout"], name)
    extent_of_samples = values.shape[0] if values.ndim else -1
    cuts, rows, refusals = [], segments, []
    for placement in placements:
        deals = feed["divide"] == "deal" and mesh.is_data(placement.axis)
        is_cut = placement.kind in ("shard", "zigzag") and mesh.extent(placement.axis) > 1 and not deals
        if is_cut and not (is_otherwise and placement.dim >= values.ndim):
            cuts.append(placement)
    # Segments are checked in whole rows and cut last.
    of_segments = [cut for cut in cuts if cut.kind == "zigzag" and segments is not None]
    for cut in of_segments:
        try:
            check_segments(values, cut, mesh.extent(cut.axis), segments, cuts)
        except Refusal as refusal:
            refusals.append(refusal)
    try:
        for kind, axis, dim, _ in (cut for cut in cuts if cut not in of_segments):
            parts, at = mesh.extent(axis), mesh.coordinate(rank, axis)
            if dim >= values.ndim:
                raise Refusal("InvalidArgument", "cannot cut it along dim")
            length = values.shape[dim]
            if kind == "zigzag":
                values = values.take(zigzag(length, at, parts), axis=dim)
                continue
            share = length // parts
            if short and dim == 0 and mesh.same_span(axis, "dp") and extent_of_samples == short:
                earlier = short // length  # parts into which other axes have already cut the batch
                share = feed["batch"] // earlier
                if feed["batch"] % earlier:
                    raise Refusal("InvalidArgument", "does not divide")
            elif length % parts:
                raise Refusal("InvalidArgument", "does not divide")
            taken = slice(at * share, (at + 1) * share)
            values = values[(slice(None),) * dim + (taken,)]
            if dim == 0 and rows is not None:
                rows = rows[taken]
    except Refusal as refusal:
        refusals.append(refusal)
    if refusals:
        raise Refusals(refusals)
    for cut in of_segments:
        values = take_segments(values, cut.dim, rows, mesh.coordinate(rank, cut.axis), mesh.extent(cut.axis))
    return values


def parts_of(batch: Json, feed: Json, mesh: Mesh, rank: int, short: int) -> Json:
    """Returns what the rank receives of a batch. Raises every error of any field, even of a field that the rank
    lacks."""
    for pattern in feed["layout"]["fields"]:
        if not any(fnmatchcase(name, pattern) for name in batch):
            raise Refusals([Refusal("InvalidArgument", f"has no field {pattern}")])
    divides = any(
        parse(each).kind == "zigzag" and mesh.extent(parse(each).axis) > 1
        for placements in [*feed["layout"]["fields"].values(), feed["layout"].get("otherwise", [])]
        for each in placements
    )
    segments = batch.get("cu_seqlens") if divides else None
    parts, refusals = {}, []
    for name, values in batch.items():
        try:
            part = part_of(values, name, feed, mesh, rank, short, segments)
        except Refusals as found:
            refusals += found.refusals
            continue
        if holds(feed["layout"], mesh, rank, name):
            parts[name] = part
    if refusals:
        raise Refusals(refusals)
    return parts


# Steps


def check_start(feed: Json, mesh: Mesh) -> None:
    """Raises the errors that a feed finds before it reads anything."""
    refusals = []
    stages = mesh.axes.get("pp", 1)
    if feed["depth"] and feed["depth"] < stages:
        refusals.append(f"depth is {feed['depth']}, but pp has {stages} stages")
    rules = [*feed["layout"]["fields"].values(), feed["layout"].get("otherwise", [])]
    placements = [parse(each) for rule in rules for each in rule]
    for placement in placements:
        may_lack = placement.axis in SHARED_AXES or (placement.axis in DATA_AXES and mesh.extent("dp") == 1)
        if not mesh.meant_by(placement.axis) and not may_lack:
            refusals.append(f"but the mesh has no axis {placement.axis}")
        if feed["divide"] != "deal" or placement.kind == "stages" or not mesh.is_data(placement.axis):
            continue
        if mesh.extent(placement.axis) > 1 and (placement.kind, placement.dim) != ("shard", 0):
            refusals.append("whole batches are dealt along the data axes")
    for axis, size in mesh.axes.items():
        if size > 1 and axis not in SHARED_AXES + DATA_AXES and axis not in [each.axis for each in placements]:
            refusals.append(f"axis {axis} of the mesh")
    if refusals:
        raise Refusals([Refusal("InvalidArgument", text) for text in refusals])


class Outcome(NamedTuple):
    batches: list[list[Json]]
    """Batches by rank and step."""
    errors: list[Refusal]
    """The possible errors, one of which every rank raises; empty if the feed just ends. If several readers fail in one
    step for different reasons, the job reports the first."""
    ends: set[str | None]
    """The ways in which the feed may end."""
    may_end_after: int | None
    """After a rank has asked for a stop, the feed may end anywhere after this many steps."""


def read_steps(feed: Json, mesh: Mesh) -> tuple[list[list[Json]], list[Refusal], str | None]:
    """Returns all steps, as if no rank left or asked for a stop."""
    batches: list[list[Json]] = [[] for _ in range(mesh.size)]
    ranks, batch, size = mesh.extent("dp"), feed["batch"], feed["size"]
    splits = feed["divide"] == "split"
    units, unit_samples = (1, batch * ranks) if splits else (ranks, batch)
    knows_size = feed["known_size"]
    step = 0
    while feed["steps"] is None or step < feed["steps"]:
        begin = feed["first"] + step * batch * ranks
        here = min(max(size - begin, 0), batch * ranks)
        is_over = here == 0 or (here < batch * ranks and feed["tail"] == "drop")
        if knows_size and is_over:
            return batches, [], "exhausted"
        short = here if splits and feed["tail"] == "short" and here < batch * ranks else 0
        made, counts, broken = [], [], []
        for unit in range(units):
            first = begin + unit * unit_samples
            # A source of unknown size is read up to the first incomplete batch.
            wanted = unit_samples if not knows_size else min(unit_samples, size - first)
            if feed["fails_at"] is not None and wanted > 0 and first <= feed["fails_at"] < first + wanted:
                broken.append(Refusal("SourceError", f"sample {feed['fails_at']} is broken"))
                if splits or feed["readers"] in ("one", "host"):
                    return batches, broken, "failed"
            knows_size = knows_size or first + wanted > size
            if knows_size and is_over:
                return batches, [], "exhausted"
            count = min(max(here - unit * unit_samples, 0), unit_samples)
            total = unit_samples if feed["tail"] == "pad" else count
            made.append(batch_of(feed, first, count, total, size))
            counts.append(count)
        totals = totals_of(made, counts) if num_readers(feed, mesh) == 1 else None
        of_ranks = []
        for rank in range(mesh.size):
            coordinate = mesh.coordinate(rank, "dp")
            samples = min(max(here - coordinate * batch, 0), batch)
            try:
                leaves = parts_of(made[0 if splits else coordinate], feed, mesh, rank, short)
            except Refusals as found:
                broken += found.refusals
            else:
                of_ranks.append({"step": step, "samples": samples, "cursor": begin + here, "totals": totals, "leaves": leaves})
        if broken:
            return batches, broken, "failed"
        for rank, received in enumerate(of_ranks):
            batches[rank].append(received)
        step += 1
    return batches, [], "steps"


def run(feed: Json, mesh: Mesh) -> Outcome:
    """Returns what every rank receives of a feed, and how it ends."""
    try:
        check_start(feed, mesh)
    except Refusals as found:
        return Outcome([[] for _ in range(mesh.size)], found.refusals, {None}, None)
    batches, errors, end = read_steps(feed, mesh)
    if feed["leaves_at"] is not None and feed["leaves_at"] <= len(batches[0]):
        # Ranks that all leave before the same step never see its error. If the data ends at that step, the feed may end
        # either way.
        ends = {"left", end} if feed["leaves_at"] == len(batches[0]) else {"left"}
        return Outcome([got[: feed["leaves_at"]] for got in batches], [], ends, None)
    stop = feed["stop"]
    after = stop[1] if stop is not None and stop[1] <= len(batches[0]) else None
    return Outcome(batches, errors, {end}, after)
