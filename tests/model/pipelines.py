"""Draws pipelines and what a program does with their runs, and compares the items with the model.

A run that is stopped, saved, resumed, killed or interrupted by an error yields the same items as an undisturbed run of
two epochs. The model knows these items unless they depend on random draws.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pipeline_model as model
from shrink import changed, without_one

Json = dict[str, Any]
RANKS = 1
"""The number of processes that are ranks: pipelines start further processes."""


# Drawing

DRAWS: dict[str, Callable[[random.Random], Json]] = {
    "map": lambda r: {"threads": r.choice([0, 0, 2])},
    "skips": lambda r: {"threads": r.choice([0, 2])},
    "filter": lambda r: {},
    "flat_map": lambda r: {"function": r.choice(["copies", "Parts"])},
    "batch": lambda r: {"size": r.choice([1, 3]), "drop_last": r.random() < 0.5},
    "unbatch": lambda r: {},
    "bucket_batch": lambda r: {"boundaries": [10, 20], "size": 3},
    "shuffle": lambda r: {"buffer": r.choice([3, 20, 1000])},
    "pack": lambda r: r.choice([{"method": "cut", "partial": "pad"}, {"method": "cut", "partial": "drop"},
                                {"method": "best-fit", "buffer": 1}, {"method": "best-fit", "buffer": 6}]),
    "take": lambda r: {"count": r.choice([0, 5, 30])},
    "skip": lambda r: {"count": r.choice([0, 5, 30])},
    "repeat": lambda r: {"times": r.choice([1, 2])},
    "zip": lambda r: {"count": 60},
    "concat": lambda r: {"count": 20},
    "interleave": lambda r: {"count": r.choice([0, 30]), "stop": r.choice(["first", "last", "cycle"]),
                             "weights": r.choice([None, [2, 1]])},
    "fork": lambda r: {"buffer": r.choice([4, 1000]), "prefetches": r.random() < 0.5},
    "prefetch": lambda r: {"depth": r.choice([1, 5])},
    "transform": lambda r: {"function": r.choice(["echo", "pairs", "Numbering", "merged"])},
}  # fmt: skip
LOOKING_BACK = ("shuffle", "flat_map", "unbatch", "map", "bucket_batch", "fork", "pack")
"""Stages that keep earlier cursors of their input."""


def draw_pipeline(r: random.Random) -> Json:
    workers = r.choice([0, 0, 1, 2, 3])
    names = [r.choice(list(DRAWS)) for _ in range(r.randint(1, 4))]
    boundary = r.choice(["dispatch", "dispatch", "shard"]) if workers else "dispatch"
    at = 0 if boundary == "shard" else r.randint(0, len(names) - 1)
    if r.random() < 0.3:
        names[at : at + 2] = ["transform", r.choice(LOOKING_BACK)]
    stages = [{"do": name, **DRAWS[name](r)} for name in names]
    stages.insert(at, {"do": boundary})
    if r.random() < 0.2:  # only as the last stage: others may hold items
        stages.append({"do": "reuses"})
    return {
        "source": r.choice(["range", "list", "function", "Stateful"]),
        "items": r.choice([0, 1, 7, 40, 90, 400]),
        "stages": stages,
        "workers": workers,
        "ordered": r.random() < 0.4,
        "options": {
            "seed": r.randrange(100),
            "snapshot_every": r.choice([0, 0, 1, 5]),
            "worker_prefetch": r.choice([1, 10]),
            "main_prefetch": r.choice([1, 10]),
        },
    }


def draw_act(r: random.Random, others: list[str]) -> Json:
    do = r.choice(["take", "take", "resume", "resume", r.choice(others)])
    if do in ("take", "limit"):
        return {"do": do, "count": r.choice([1, 5, r.randrange(100), r.randrange(600)])}
    if do == "resume":
        return {
            "do": do,
            "anew": r.random() < 0.7,
            "workers": r.choice([None, None, 0, 1, 2, 3]),
            "ordered": r.choice([None, None, None, True, False]),
            "seeded": r.random() < 0.5,
        }
    return {"do": do}


def draw(seed: int) -> list[Json]:
    r = random.Random(f"pipeline {seed}")
    pipeline = draw_pipeline(r)
    fails, kills = r.random() < 0.4, r.random() < 0.3
    others = ["kill", "limit", "pause"] if kills and not fails else ["limit", "pause"]
    acts = [draw_act(r, others) for _ in range(r.randint(1, 6))]
    if fails:
        fuse = {"do": "fuse", "calls": r.choice([1, 2, 5, 12, 50]), "kind": r.choice(["OSError", "KeyboardInterrupt"])}
        pipeline["stages"].insert(r.randint(0, len(pipeline["stages"])), fuse)
        if pipeline["stages"].index(fuse) == 0 and pipeline["stages"][1]["do"] == "shard":
            pipeline["stages"][:2] = pipeline["stages"][1::-1]
        if pipeline["workers"] or any(act.get("workers") for act in acts):
            fuse["kind"] = "OSError"  # Ctrl-C is not meant for the other processes
    return [{"ranks": 1, "pipeline": pipeline, "acts": acts}]


def smaller(run: Json) -> Iterator[Json]:
    yield from without_one(run, "acts")
    for at, do in enumerate(run["pipeline"]["stages"]):
        if do["do"] not in ("dispatch", "shard"):
            for less in without_one(run, "pipeline", "stages"):
                if len(less["pipeline"]["stages"]) == len(run["pipeline"]["stages"]) - 1 and do not in less["pipeline"]["stages"]:
                    yield less
        if "threads" in do:
            yield from changed(run, "pipeline", "stages", at, "threads", to=0)
    for name, value in (("source", "range"), ("items", 7), ("items", 40), ("workers", 0), ("workers", 1), ("ordered", False)):
        if isinstance(value, str) or value < run["pipeline"][name]:
            yield from changed(run, "pipeline", name, to=value)
    for name, value in (("snapshot_every", 0), ("worker_prefetch", 1), ("main_prefetch", 1)):
        yield from changed(run, "pipeline", "options", name, to=value)
    for at, act in enumerate(run["acts"]):
        if act.get("count", 0) > 1:
            yield from changed(run, "acts", at, "count", to=act["count"] // 2)
            yield from changed(run, "acts", at, "count", to=act["count"] - 1)
        if act["do"] == "resume":
            yield from changed(run, "acts", at, "ordered", to=None)
            yield from changed(run, "acts", at, "workers", to=None)


# Making


class Stateful:
    """A source with a state."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.loaded = count, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.loaded = self.loaded, 0
        while self.at < self.count:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state["at"]


class Numbers:
    """Makes an iterator that has no state and cannot seek."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self) -> Iterator[int]:
        yield from range(self.count)


class Fuse:
    """Raises at its n-th call in a process, as long as a file exists."""

    def __init__(self, path: str, calls: int, kind: str) -> None:
        self.path, self.calls, self.kind = path, calls, kind

    def __call__(self, item: Any) -> Any:
        self.calls -= 1
        if self.calls == 0 and os.path.exists(self.path):
            raise {"OSError": OSError, "KeyboardInterrupt": KeyboardInterrupt}[self.kind]("the fuse has blown")
        return item


def with_stage(pipeline: Any, do: Json, fuse: str) -> Any:
    """Returns the levada.Pipeline with one more stage."""
    import levada

    what, others = do["do"], {key: value for key, value in do.items() if key != "do"}
    if what == "map":
        return pipeline.map(model.tag, threads=do["threads"])
    if what == "reuses":
        return pipeline.map(model.reuses)
    if what == "skips":
        return pipeline.map(model.refuses, on_error="skip", threads=do["threads"])
    if what == "filter":
        return pipeline.filter(model.keeps)
    if what == "flat_map":
        return pipeline.flat_map(model.FUNCTIONS[do["function"]])
    if what == "unbatch":
        return pipeline.batch(4).unbatch()
    if what == "bucket_batch":
        return pipeline.bucket_batch(model.length, **others)
    if what == "pack":
        return pipeline.map(model.document).pack(16, **others)
    if what in ("zip", "concat"):
        return getattr(pipeline, what)(levada.Pipeline(range(do["count"])))
    if what == "interleave":
        return pipeline.interleave(levada.Pipeline(range(do["count"])), weights=do["weights"], stop=do["stop"])
    if what == "fork":
        first, second = pipeline.fork(2, buffer=do["buffer"])
        return first.map(model.tag).zip(second.prefetch(2) if do["prefetches"] else second)
    if what == "transform":
        more = [levada.Pipeline(range(10))] if do["function"] == "merged" else []
        return pipeline.transform(model.FUNCTIONS[do["function"]], *more)
    if what == "fuse":
        return pipeline.map(Fuse(fuse, do["calls"], do["kind"]))
    return getattr(pipeline, what)(**others)  # batch, shuffle, take, skip, repeat, prefetch, dispatch, shard


def make(drawn: Json, fuse: str) -> Any:
    import levada

    count = drawn["items"]
    sources = {"range": range(count), "list": list(range(count)), "function": Numbers(count), "Stateful": Stateful(count)}
    pipeline: Any = levada.Pipeline(sources[drawn["source"]])
    for do in drawn["stages"]:
        pipeline = with_stage(pipeline, do, fuse)
    return pipeline


# Executing


def shown(item: Any) -> str:
    text = repr(model.plain(item))
    return text if len(text) < 60 else f"{text[:40]}... {model.digest(item)}"


class Program:
    """The actions of a program on a pipeline. Keeps a log: ["items", ...], ["raised", text], ["refused", text]."""

    def __init__(self, run: Json, fuse: str) -> None:
        self.drawn, self.fuse = run["pipeline"], fuse
        self.replaces = any(act["do"] == "kill" for act in run["acts"])
        self.log: list[Any] = []
        self.run: Any = None
        self.epochs = 0

    def start(self, workers: int | None = None, ordered: bool | None = None, seeded: bool = True) -> Any:
        options = dict(self.drawn["options"])
        if not seeded:
            options.pop("seed")  # the state contains it
        if self.replaces:
            options["on_worker_death"] = "replace"
        return make(self.drawn, self.fuse).run(
            self.drawn["workers"] if workers is None else workers,
            ordered=self.drawn["ordered"] if ordered is None else ordered,
            context="forkserver",
            timeout=20,
            **options,
        )

    def act(self, act: Json) -> None:
        import levada

        if act["do"] == "take":
            self.take(act["count"])
        elif act["do"] == "limit":
            self.run.limit(act["count"])
            self.take(act["count"] + 1, held_after=act["count"])
            self.run.resume()
        elif act["do"] == "pause":
            self.run.pause()
            self.take(1, held_after=0)
            self.run.resume()
        elif act["do"] == "kill":
            for child in random.Random(len(self.log)).sample(children := multiprocessing.active_children(), min(len(children), 1)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid or 0, signal.SIGKILL)
            time.sleep(0.01)
        else:
            state = pickle.loads(pickle.dumps(self.run.state_dict()))
            if act["anew"]:
                self.run.close()
                saved = self.run.options
                try:
                    self.run = self.start(act["workers"], act["ordered"], act["seeded"])
                    return self.resume(state)
                except levada.InvalidArgument as refused:
                    self.log.append(["refused", str(refused)])
                    self.run.close()
                    self.run = self.start(saved.workers, saved.ordered)
            self.resume(state)

    def resume(self, state: Any) -> None:
        self.run.load_state_dict(state)
        self.items = iter(self.run)

    def take(self, count: int, held_after: int | None = None) -> None:
        """Takes up to `count` items. At the end of an epoch, begins the next one unless a limit or a pause holds it."""
        taken: list[str] = []
        self.log.append(["items", taken])
        try:
            for item in itertools.islice(self.items, count):
                taken.append(shown(item))
        except (OSError, KeyboardInterrupt) as error:
            self.log.append(["raised", str(error)])
            os.unlink(self.fuse)
            self.resume(pickle.loads(pickle.dumps(self.run.state_dict())))
            return
        if len(taken) < (count if held_after is None else held_after):
            self.log.append(["end"])
            self.epochs += 1
            self.items = iter(self.run)


def perform(run: Json, group: Any) -> Json:
    """Executes a run. Returns two undisturbed epochs and the log, or why the pipeline is refused."""
    import levada

    multiprocessing.set_forkserver_preload(["levada.pipeline.workers", "multiprocessing.popen_forkserver", "cloudpickle", "numpy.random", "pipelines", "freeze"])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        fuse = str(pathlib.Path(folder) / "fuse")
        program = Program(run, fuse)
        try:
            with program.start() as alone:
                length = None
                with contextlib.suppress(TypeError):  # the length is unknown
                    length = len(alone)
                epochs = [[shown(item) for item in alone] for _ in range(2)]
        except levada.InvalidArgument as refused:
            return {"refused": str(refused)}
        pathlib.Path(fuse).touch()
        try:
            program.run = program.start()
            program.items = iter(program.run)
            for act in [*run["acts"], {"do": "take", "count": 10**9}, {"do": "take", "count": 10**9}]:
                if program.epochs < 2:
                    program.act(act)
        except Exception as error:
            program.log.append(["error", f"{type(error).__name__}: {error}"])
        finally:
            program.run.close()
        return {"length": length, "epochs": epochs, "log": program.log}


# Comparing


def difference(run: Json, outcomes: list[Json]) -> str | None:
    """Returns how the items differ from the model or from the undisturbed run, or None."""
    [outcome] = outcomes
    if "refused" in outcome:
        return None
    epochs = outcome["epochs"]
    if outcome["length"] not in (None, len(epochs[0])):
        return f"len() is {outcome['length']}, and an epoch has {len(epochs[0])} items"
    known = model.epoch(run["pipeline"])
    if known is not None:
        for number, epoch in enumerate(epochs):
            if epoch != [shown(item) for item in known]:
                return f"epoch {number}: {apart(epoch, [shown(item) for item in known])}"
    epoch, taken = 0, 0
    for number, (what, *of) in enumerate(outcome["log"]):
        where = f"entry {number} of the log, after {taken} items of epoch {epoch}"
        if what == "items":
            if of[0] != epochs[epoch][taken : taken + len(of[0])]:
                return f"{where}: {apart(of[0], epochs[epoch][taken:])}; {told(outcome['log'])}"
            taken += len(of[0])
        elif what == "end":
            if taken != len(epochs[epoch]):
                return f"{where}: the epoch of {len(epochs[epoch])} items ended; {told(outcome['log'])}"
            epoch, taken = epoch + 1, 0
        elif what == "error":
            return f"{where}: {of[0]}; {told(outcome['log'])}"
    return None


def apart(got: list[str], expected: list[str]) -> str:
    at = next((at for at, (one, other) in enumerate(zip(got, expected)) if one != other), min(len(got), len(expected)))
    return f"{len(got)} items, expected {len(expected)}; item {at} on: got {got[at : at + 3]}, expected {expected[at : at + 3]}"


def told(log: list[Any]) -> str:
    return "log: " + ", ".join(f"{len(each[1])} items" if each[0] == "items" else " ".join(each) for each in log)
