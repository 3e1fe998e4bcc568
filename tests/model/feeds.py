"""Draws runs of feeds, and compares what ranks received with the model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import feed_model as model
import numpy as np
from feed_model import Json
from shrink import changed

MESHES = [
    "dp=1", "dp=2", "dp=3", "tp=2", "cp=2", "cp=3", "pp=3", "dp=2,tp=2", "dp=2,cp=2", "cp=2,dp=2", "dp=2,pp=2", "tp=2,pp=2",
    "dp_replicate=2,dp_shard=2", "dp_shard=2,cp=2,dp_replicate=2", "dp=2,cp=2,tp=2", "pp=2,dp=2,cp=2", "dp=2,cp=3,tp=2",
    "dp=2,tp=3", "fsdp=2,tp=2", "data=2,ep=2", "dp=2,cp=2,tp=2,pp=2", "sp=2,dp=2", "dp=5",
]  # fmt: skip


def draw_segments(r: random.Random, length: int, unit: int) -> list[list[int]]:
    """Draws boundaries of some packed rows, all with the same number of entries. Most are multiples of `unit`."""
    rows = []
    for _ in range(r.choice([1, 2, 3])):
        inner = sorted(r.randrange(length // unit + 1) * unit for _ in range(2))
        rows.append([0, *inner, length])
    if r.random() < 0.05:
        rows[0][1] = min(rows[0][1] + 1, rows[0][2])
    return rows


def draw_fields(r: random.Random, mesh: model.Mesh) -> list[Json]:
    unit = 2 * mesh.extent("cp") * r.choice([1, 1, 1, 2]) if r.random() < 0.95 else 3
    length = unit * mesh.axes.get("tp", 1) * r.choice([1, 2, 3])
    names = r.sample(["tokens", "labels", "loss_mask", "x", "y"], r.randrange(1, 4))
    fields = []
    for name in names:
        dims = [length, *r.choice([[], [], [2], [4]])] if r.random() < 0.9 else r.choice([[], [0], [7]])
        fields.append({"name": name, "kind": "samples", "dtype": r.choice(["int64", "int32", "float32", "uint8"]), "dims": dims})
    if r.random() < 0.2:
        rows = draw_segments(r, length, unit)
        fields.append({"name": "cu_seqlens", "kind": "segments", "dtype": "int32", "dims": [len(rows[0])], "rows": rows})
    if r.random() < 0.2:
        fields.append({"name": "table", "kind": "table", "dtype": "int32", "dims": r.choice([[], [17], [0], [34, 3]])})
    if r.random() < 0.2:
        fields.append({"name": "note", "kind": "value", "dtype": "", "dims": []})
    return fields


def draw_placements(r: random.Random, mesh: model.Mesh) -> list[str]:
    placements = []
    data = r.choice(["dp", "dp", "dp", r.choice(mesh.data_axes or ["dp"]), ""])
    if r.random() < 0.03:
        data = r.choice(model.DATA_AXES)  # most meshes lack it
    if data:
        placements.append(f"shard({data},0)" if r.random() < 0.95 else f"shard({data},1)")
    for axis in ("cp", "tp", "sp", "ep"):
        if axis in mesh.axes or r.random() < 0.1:
            choices = {"cp": [f"zigzag({axis},1)"] * 3, "tp": [f"replicate({axis})"] * 2}
            more = [f"shard({axis},1)", f"shard({axis},2)", f"shard({axis},0)", f"zigzag({axis},2)", f"replicate({axis})"]
            placement = r.choice(choices.get(axis, []) * 2 + more)
            placements.append(placement)
    if "pp" in mesh.axes and r.random() < 0.7:
        names = r.sample(["first", "last", "middle"], r.randrange(0, 3))
        placements.append(f"stages({','.join(['pp', *names])})")
    if r.random() < 0.2:
        r.shuffle(placements)
    return placements


def may_learn_size(divide: str, readers: str) -> bool:
    """Returns whether each reader reads the whole source, as it must if the size is only known at the end."""
    return divide == "split" or readers in ("one", "host")


def draw_feed(r: random.Random, mesh: model.Mesh, number: int) -> Json:
    fields = draw_fields(r, mesh)
    rules = {field["name"]: draw_placements(r, mesh) for field in fields if r.random() < 0.85}
    if "cu_seqlens" in rules:
        rules["cu_seqlens"] = ["shard(dp,0)"]
    layout = {"fields": rules, "otherwise": draw_placements(r, mesh) if r.random() < 0.3 else [], "stages": {"middle": []}}
    if "pp" in mesh.axes:
        layout["stages"]["middle"] = [r.randrange(mesh.axes["pp"])]
    divide = r.choice(["deal", "split"])
    axes = r.sample(list(mesh.axes), r.randrange(1, len(mesh.axes) + 1))
    readers = r.choice(["one", "all", "host", "dp", "spread", ",".join(axes)])
    batch = r.choice([1, 1, 2, 3])
    step = batch * mesh.extent("dp")
    size = step * r.randrange(0, 5) + r.randrange(step) + (1 if r.random() < 0.9 else 0)
    knows_size = r.random() < 0.7 or not may_learn_size(divide, readers)
    leaves_at = r.randrange(4) if r.random() < 0.15 else None
    return {
        "name": f"feed {number}",
        "fields": fields,
        "layout": layout,
        "batch": batch,
        "divide": divide,
        "tail": r.choice(["drop", "pad", "short"]),
        "first": 0,
        "size": size,
        "known_size": knows_size,
        "steps": r.choice([None, None, r.randrange(5)]),
        "readers": readers,
        "depth": r.choice([0, 0, 1, 2, 5]),
        "ahead": r.random() < 0.7,
        "lends": r.random() < 0.5,
        "fails_at": r.randrange(max(size, 1)) if r.random() < 0.2 else None,
        "leaves_at": leaves_at,
        "stop": [r.randrange(mesh.size), r.randrange(4)] if leaves_at is None and r.random() < 0.15 else None,
    }


def draw(seed: int) -> list[Json]:
    """Draws the runs of one job: later runs resume at the position of the previous run's first feed, on other
    meshes."""
    r = random.Random(seed)
    mesh = model.mesh_of(text := r.choice(MESHES))
    runs = [{"mesh": text, "feeds": [draw_feed(r, mesh, number) for number in range(r.choice([1, 1, 1, 2, 3]))]}]
    while r.random() < 0.4 and len(runs) < 4:
        last = runs[-1]["feeds"][0]
        last["leaves_at"], last["stop"] = r.randrange(3), None
        batches = model.run(last, model.mesh_of(runs[-1]["mesh"])).batches[0]
        mesh = model.mesh_of(text := r.choice(MESHES))
        feed = draw_feed(r, mesh, 0)
        feed |= {key: last[key] for key in ("fields", "size", "fails_at")}
        feed["first"] = batches[-1]["cursor"] if batches else last["first"]
        feed["layout"]["fields"] = {name: rule for name, rule in feed["layout"]["fields"].items()
                                    if name in [field["name"] for field in feed["fields"]]}  # fmt: skip
        runs.append({"mesh": text, "feeds": [feed]})
    return [run | {"fresh": r.random() < 0.05} for run in runs]


def leaf_of(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return [str(values.dtype), list(values.shape), np.ascontiguousarray(values).tobytes().hex()]


def difference(run: Json, outcomes: list[list[Json]]) -> str | None:
    """Returns how the ranks' results differ from the model, or None."""
    mesh = model.mesh_of(run["mesh"])
    for number, feed in enumerate(run["feeds"]):
        want = model.run(feed, mesh)
        counts = {len(of_rank[number]["batches"]) for of_rank in outcomes}
        if len(counts) > 1:
            ends = [(len(of_rank[number]["batches"]), of_rank[number]["error"]) for of_rank in outcomes]
            return f"feed {number}: ranks got different numbers of steps: {ends}"
        count = counts.pop()
        stopped = want.may_end_after is not None and outcomes[0][number]["end"] == "stopped"
        if stopped and not want.may_end_after <= count <= len(want.batches[0]):
            return f"feed {number}: stopped after {count} steps, asked to at {want.may_end_after} of {len(want.batches[0])}"
        for rank, of_rank in enumerate(outcomes):
            got = of_rank[number]
            where = f"feed {number}, rank {rank}"
            for step, batch in enumerate(got["batches"][: len(want.batches[rank])]):
                expected = want.batches[rank][step]
                leaves = {name: leaf_of(values) for name, values in expected["leaves"].items()}
                if batch != expected | {"leaves": leaves}:
                    return f"{where}, step {step}: got\n  {batch}\nexpected\n  {expected | {'leaves': leaves}}"
            if stopped and got["end"] == "stopped" and got["error"] is None:
                continue
            if count != len(want.batches[rank]):
                return f"{where}: got {count} steps, expected {len(want.batches[rank])}; {got['error']}, {want.errors}"
            fits = any(got["error"] and got["error"][0] == each.kind and each.text in got["error"][1] for each in want.errors)
            if not fits and (got["error"] or want.errors):
                return f"{where}: got error {got['error']}, expected {want.errors}"
            if got["end"] not in want.ends:
                return f"{where}: ended as {got['end']}, expected {want.ends}"
    return None


def smaller(run: Json) -> Iterator[Json]:
    """Yields runs that are smaller by one thing."""
    yield from changed(run, "fresh", to=True)
    for number in range(len(run["feeds"])):
        if len(run["feeds"]) > 1:
            yield run | {"feeds": run["feeds"][:number] + run["feeds"][number + 1 :]}
    simple = {"steps": None, "fails_at": None, "leaves_at": None, "stop": None, "depth": 0, "batch": 1, "readers": "one",
              "known_size": True, "ahead": False, "lends": True, "first": 0, "tail": "drop", "divide": "deal"}  # fmt: skip
    for number, feed in enumerate(run["feeds"]):
        changes: list[Callable[[Json], Any]] = []
        changes += [lambda f, k=k, v=v: f.update({k: v}) for k, v in simple.items() if feed[k] != v]  # type: ignore[misc]
        changes += [lambda f, i=i: f["fields"].pop(i) for i in range(len(feed["fields"])) if len(feed["fields"]) > 1]  # type: ignore[misc]
        for name, rule in feed["layout"]["fields"].items():
            changes.append(lambda f, name=name: f["layout"]["fields"].pop(name))  # type: ignore[misc]
            changes += [lambda f, n=name, i=i: f["layout"]["fields"][n].pop(i) for i in range(len(rule))]  # type: ignore[misc]
        changes += [lambda f, i=i: f["layout"]["otherwise"].pop(i) for i in range(len(feed["layout"]["otherwise"]))]  # type: ignore[misc]
        if feed["size"] > 1:
            changes += [lambda f: f.update(size=f["size"] // 2), lambda f: f.update(size=f["size"] - 1)]
        for change in changes:
            less = copy.deepcopy(run)
            change(less["feeds"][number])
            feed = less["feeds"][number]
            if feed["known_size"] or may_learn_size(feed["divide"], feed["readers"]):
                yield less
    axes = run["mesh"].split(",")
    for number in range(len(axes)):
        if len(axes) > 1:
            yield copy.deepcopy(run) | {"mesh": ",".join(axes[:number] + axes[number + 1 :])}

