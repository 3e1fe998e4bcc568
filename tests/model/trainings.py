"""Draws training loops, in which ranks take batches of feeds and reduce values made from them, stop and resume, and
whose sources fail. Executes them on ranks, and compares each batch and each sum with the model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import ranks
from shrink import changed, without_one

Json = dict[str, Any]
MESHES = {1: ["dp=1"], 2: ["dp=2", "tp=2"], 3: ["dp=3", "cp=3"], 4: ["dp=4", "dp=2,tp=2", "tp=2,dp=2", "tp=4"]}


# Drawing


def draw(seed: int) -> list[Json]:
    r = random.Random(f"training {seed}")
    size = r.choice([1, 2, 2, 3, 4, 4])
    feeds = [
        {
            "mesh": r.choice(MESHES[size]),
            "items": r.choice([0, 3, 10, 40]),
            "rows": r.choice([1, 5, 3000]),
            "readers": r.choice(["one", "one", "host", "all"]),
            "iterate": r.choice(["thread", "inline"]),
            "prefetch": r.choice([0, 0, 1, 4]),
            "has_state": r.random() < 0.5,
            "fails_at": r.choice([None, None, None, 2, 7]),
        }
        for _ in range(r.choice([1, 1, 2]))
    ]
    reductions = [{"capacity_mb": r.choice([0, 0.001, 25]), "in_flight": r.choice([1, 2])} for _ in range(r.choice([1, 1, 2]))]
    loop = [{"do": "take", "feed": r.randrange(len(feeds))}]
    for _ in range(r.randrange(4)):
        do = r.choice(["take", "scatter", "scatter", "sum", "sum", "flush"])
        if do == "take":
            loop.append({"do": do, "feed": r.randrange(len(feeds))})
        else:
            on = {"object": r.randrange(len(reductions)), "feed": r.randrange(len(feeds)), "alike": r.random() < 0.5}
            loop.append({"do": do, **on})
    steps = [dict(each) for _ in range(r.choice([1, 5, 20])) for each in loop]
    for _ in range(r.choice([0, 0, 1, 3])):
        steps.insert(r.randrange(len(steps) + 1), {"do": "resume", "feed": r.randrange(len(feeds)), "anew": r.random() < 0.7})
    return [{"ranks": size, "feeds": feeds, "reductions": reductions, "steps": steps}]


def smaller(run: Json) -> Iterator[Json]:
    yield from without_one(run, "steps")
    for number in range(len(run["feeds"])):
        for name, value in (("fails_at", None), ("readers", "one"), ("iterate", "inline"), ("has_state", False), ("rows", 1)):
            yield from changed(run, "feeds", number, name, to=value)


# The model


def axes_of(mesh: str) -> dict[str, int]:
    return {name: int(extent) for name, extent in (axis.split("=") for axis in mesh.split(","))}


def dp_of(mesh: str, rank: int) -> tuple[int, int]:
    """Returns a rank's coordinate along dp, and the extent of dp. The last axis varies fastest."""
    for name, extent in reversed(axes_of(mesh).items()):
        if name == "dp":
            return rank % extent, extent
        rank //= extent
    return 0, 1


def item(feed: Json, number: int) -> Any:
    return np.arange(number, number + feed["rows"], dtype=np.float64)


def made_of(step: Json, numbers: list[int | None], rank: int) -> Any:
    """Returns a rank's input of a reduction, made from the number of the item that it took last, or from 0."""
    value = numbers[step["feed"]] or 0
    return np.full(12, value * (1 if step["alike"] else rank + 1), np.float64)


def expected(run: Json) -> list[list[Any]]:
    """Returns the expected results of each step, for each rank."""
    size, taken = run["ranks"], [0] * len(run["feeds"])
    ended: list[str | None] = [None] * len(run["feeds"])
    numbers: list[list[int | None]] = [[None] * len(run["feeds"]) for _ in range(size)]
    gives: list[list[Any]] = [[] for _ in range(size)]
    for step in run["steps"]:
        feed = run["feeds"][step["feed"]]
        if step["do"] == "take":
            which, extent = step["feed"], dp_of(feed["mesh"], 0)[1]
            end = (taken[which] + 1) * extent
            fails = feed["fails_at"] is not None and feed["fails_at"] < min(end, feed["items"])
            ended[which] = ended[which] or ("SourceError" if fails else "end" if end > feed["items"] else None)
            for rank in range(size):
                if ended[which] is None:
                    number = numbers[rank][which] = taken[which] * extent + dp_of(feed["mesh"], rank)[0]
                    gives[rank].append(ranks.leaf_of(item(feed, number)))
                else:
                    gives[rank].append(ended[which])
            taken[which] += ended[which] is None
        elif step["do"] in ("scatter", "sum"):
            total = sum(made_of(step, numbers[rank], rank) for rank in range(size))
            part = 12 // size
            for rank in range(size):
                gives[rank].append(ranks.leaf_of(total if step["do"] == "sum" else total[rank * part : (rank + 1) * part]))
        else:
            if step["do"] == "resume":
                ended[step["feed"]] = None
            for rank in range(size):
                gives[rank].append(None)
    return gives


def difference(run: Json, outcomes: list[Json]) -> str | None:
    """Returns how the ranks' results differ from the model, or None."""
    for rank, (got, gives) in enumerate(zip(outcomes, expected(run))):
        if got["error"] is not None:
            return f"step {got['error'][0]}, rank {rank}: {got['error'][1:]}"
        results = dict(got["results"])
        for number, leaf in enumerate(gives):
            if results.get(number, "nothing") != leaf:
                return f"step {number}, {run['steps'][number]}, rank {rank}: got {results.get(number)}, expected {leaf}"
    return None


# Executing, on every rank


class Source:
    """A source of numbered items that raises at one of them."""

    def __init__(self, feed: Json) -> None:
        self.feed, self.next, self.loaded = feed, 0, False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.next = 0
        self.loaded = False
        while self.next < self.feed["items"]:
            if self.next == self.feed["fails_at"]:
                raise ValueError(f"item {self.next} is damaged")
            self.next += 1
            yield {"x": item(self.feed, self.next - 1), "number": self.next - 1}


class SourceWithState(Source):
    def state_dict(self) -> Json:
        return {"next": self.next}

    def load_state_dict(self, state: Json) -> None:
        self.next, self.loaded = state["next"], True


def perform(run: Json, group: Any) -> Json:
    """Executes a run on this rank. Returns the results, by step, and the error that ended it."""
    import levada

    warnings.simplefilter("ignore")  # passes without steps
    this, number, error = Rank(run, group), 0, None
    try:
        for number, step in enumerate(run["steps"]):
            this.carry_out(number, step)
        for reduction in this.reductions:
            reduction.flush()
        for each in [*this.feeds, *this.reductions]:
            each.close()
    except levada.Error as raised:
        error = [number, type(raised).__name__, str(raised)]
    results = [[number, ranks.leaf_of(leaf) if isinstance(leaf, np.ndarray) else leaf] for number, leaf in this.results]
    return {"results": results, "error": error}


class Rank:
    """One rank's state in a run."""

    def __init__(self, run: Json, group: Any) -> None:
        import levada

        self.run, self.group = run, group
        self.feeds = [self.feed(number) for number in range(len(run["feeds"]))]
        self.passes = [iter(feed) for feed in self.feeds]
        self.reductions = [levada.ReduceScatter(group, timeout=30, **options) for options in run["reductions"]]
        self.numbers: list[int | None] = [None] * len(run["feeds"])
        self.results: list[Any] = []

    def feed(self, number: int) -> Any:
        import levada

        drawn = self.run["feeds"][number]
        source = (SourceWithState if drawn["has_state"] else Source)(drawn)
        options = {name: drawn[name] for name in ("readers", "iterate", "prefetch")}
        return levada.Feed(source, levada.Mesh(**axes_of(drawn["mesh"])), group=self.group, timeout=30, **options)

    def carry_out(self, number: int, step: Json) -> None:
        import levada

        which = step["feed"]
        if step["do"] == "take":
            try:
                batch = next(self.passes[which], None)
            except levada.SourceError:
                return self.results.append([number, "SourceError"])
            if batch is None:
                return self.results.append([number, "end"])
            self.numbers[which] = batch["number"]
            return self.results.append([number, batch["x"].copy()])
        if step["do"] == "resume":
            state = self.feeds[which].state_dict()
            if step["anew"]:
                self.feeds[which].close()
                self.feeds[which] = self.feed(which)
            self.feeds[which].load_state_dict(state)
            self.passes[which] = iter(self.feeds[which])
            return self.results.append([number, None])
        reduction = self.reductions[step["object"]]
        if step["do"] == "flush":
            reduction.flush()
            return self.results.append([number, None])
        mine = made_of(step, self.numbers, self.group.rank)
        if step["do"] == "sum":
            return self.results.append([number, reduction.all_reduce(mine, group=self.group).wait()])
        reduction(mine, lambda sum: self.results.append([number, sum.copy()]), group=self.group)
