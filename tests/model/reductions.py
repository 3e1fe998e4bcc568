"""Draws runs of reductions, executes them on ranks, and compares every sum with the model."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import ranks
import reduction_model as model
from shrink import changed, without_one

Json = dict[str, Any]
DTYPES = ["float32", "float32", "float16", "float64", "int64", "int32", "int8", "uint16", "complex64"]
COLLECTIVES = ["all_reduce", "all_gather"]


# Drawing


def draw_input(r: random.Random, run: Json, kinds: list[str]) -> Json:
    group, dtype, do = r.randrange(len(run["groups"])), r.choice(DTYPES), r.choice(kinds)
    rows = r.choice([0, 1, 2, 3, 8, 100])
    return {
        "do": do,
        "object": r.randrange(len(run["objects"])),
        "group": group,
        "dtype": dtype,
        "op": r.choice(["sum", "average"]) if dtype[0] in "fc" else "sum",
        "rows": rows * len(run["groups"][group]) if do == "empty" else rows,
        "trailing": r.choice([[], [], [3], [0], [7, 2], [500]]),
        "seed": r.randrange(1000),
        "count": r.choice([1, 2, 3]) if do == "empty" else 1,
        "reversed": r.random() < 0.5,
        "nested": r.choice([0, 0, 0, 1, 2]),
        "waits": r.random() < 0.1,
        "lacking": None,
    }


def may_lack(run: Json) -> bool:
    """Returns whether ranks may omit the inputs that they omit: later inputs reveal all omissions before the end, and
    no two ranks wait for each other in different objects or groups."""
    left_out = [number for number, step in enumerate(run["steps"]) if step.get("lacking") is not None]
    together = len(run["groups"]) == 1 and (run["threads"] or len(run["objects"]) == 1)
    return not left_out or together and all(unspecified_by(run, number) for number in left_out)


def unspecified_by(run: Json, number: int) -> set[int]:
    """Returns the steps of an object whose sums are unspecified because a rank omits step `number`: up to the next
    flush, or, if a rank has no input before that flush, up to the flush after its next input. Empty if there is
    none."""
    steps, object, unspecified, absent = run["steps"], run["steps"][number]["object"], set[int](), set[int]()
    flushes = [at for at, step in enumerate(steps) if step["do"] == "flush" and step["object"] == object] + [len(steps)]
    for begin, end in zip([-1, *flushes], flushes):
        if end > number:
            window = [at for at in range(begin + 1, end) if steps[at]["object"] == object]
            unspecified |= {*window, end}
            absent = {rank for rank in range(run["ranks"]) if (window or rank in absent) and
                      all(steps[at]["lacking"] == rank for at in window)}  # fmt: skip
            if not absent:
                return unspecified
    return set()


def draw(seed: int) -> list[Json]:
    r = random.Random(f"reduction {seed}")
    size = r.choice([1, 2, 2, 3, 3, 4, 4])
    groups = [list(range(size))]
    while size > 1 and r.random() < 0.4 and len(groups) < 4:
        groups.append(r.sample(range(size), r.randrange(1, size + 1)))
    objects = [
        {"capacity_mb": r.choice([0, 0.0005, 0.001, 0.01, 0.1, 25]), "in_flight": r.choice([1, 2, 5]), "named": r.random() < 0.5}
        for _ in range(r.choice([1, 1, 2, 3]))
    ]
    run: Json = {"ranks": size, "groups": groups, "objects": objects, "threads": len(objects) > 1 and r.random() < 0.6, "steps": []}
    # As a framework's bucketer uses it: lists, or tensors of empty(); or everything.
    kinds = r.choice([["list"], ["sum"], ["empty"], COLLECTIVES, ["sum", "sum", "sum", "list", "empty", *COLLECTIVES]])
    like = draw_input(r, run, kinds)
    for _ in range(r.randrange(1, 40)):
        step = draw_input(r, run, kinds)
        if r.random() < 0.5:  # gradients of one dtype and group
            step |= {name: like[name] for name in ("group", "dtype", "op", "rows", "do")}
        run["steps"].append(step)
        if r.random() < 0.08:
            run["steps"].append({"do": "flush", "object": r.randrange(len(objects)), "teardown": r.random() < 0.3})
    for number, step in enumerate(run["steps"]):
        if step["do"] != "flush" and r.random() < 0.04:
            step["lacking"] = r.randrange(size) if size > 1 else None
            if not may_lack(run):
                step["lacking"] = None
    return [run]


def smaller(run: Json) -> Iterator[Json]:
    yield from filter(may_lack, without_one(run, "steps"))
    simple = {"nested": 0, "waits": False, "count": 1, "lacking": None, "trailing": [], "dtype": "float32", "op": "sum",
              "teardown": False}  # fmt: skip
    for number, step in enumerate(run["steps"]):
        for name, value in simple.items():
            if name in step:
                yield from changed(run, "steps", number, name, to=value)
    yield from changed(run, "threads", to=False)


# Executing, on every rank


def perform(run: Json, group: Any) -> Json:
    """Executes a run on this rank. Returns the results, in the order of callbacks, and the errors."""
    this = Rank(run, group)
    if run["threads"]:
        threads = [threading.Thread(target=this.carry_out, args=([object],)) for object in this.objects]
        for thread in threads[:: 1 if group.rank % 2 else -1]:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        this.carry_out(list(this.objects))
    for reduce in this.objects.values():
        reduce.close()
    # Results are inspected only now, after all later ones have arrived.
    shown = {name: [[*where, ranks.leaf_of(result)] for *where, result in results] for name, results in this.results.items()}
    return shown | {"errors": this.errors}


class Rank:
    """One rank's state in a run."""

    def __init__(self, run: Json, group: Any) -> None:
        import levada

        self.run, self.rank = run, group.rank
        self.groups = [group.subgroup(ranks, f"group {number}") if group.rank in ranks else None
                       for number, ranks in enumerate(run["groups"])]  # fmt: skip
        self.objects: dict[int, Any] = {}
        numbers = range(len(run["objects"]))
        # Ranks create named objects in any order.
        order = sorted(numbers, key=lambda number: number * (1 if group.rank % 2 else -1) if run["objects"][number]["named"] else 0)
        for number in order:
            options = dict(run["objects"][number])
            name = f"object {number}" if options.pop("named") else None
            self.objects[number] = levada.ReduceScatter(group, name=name, timeout=20, **options)
        self.now = {number: 0 for number in numbers}  # the current step of each object
        self.results: dict[str, list[Any]] = {"called": [], "waited": []}
        self.errors: list[Any] = []

    def carry_out(self, objects: list[int]) -> None:
        """Executes the steps of some objects, in order, and then flushes the objects."""
        end = len(self.run["steps"])
        steps = [(number, step) for number, step in enumerate(self.run["steps"]) if step["object"] in objects]
        steps += [(end, {"do": "flush", "object": object, "teardown": False}) for object in sorted(objects)]
        for number, step in steps:
            self.now[step["object"]] = number
            try:
                if step["do"] == "flush":
                    self.objects[step["object"]].flush()
                    if step["teardown"]:
                        self.objects[step["object"]].teardown()
                elif self.groups[step["group"]] is not None and step["lacking"] != self.rank:
                    self.enqueue_all(number, step)
            except Exception as error:
                self.errors.append([number, type(error).__name__, str(error)])

    def enqueue_all(self, number: int, step: Json) -> None:
        inputs: list[Any] = [self.input_of(step, which) for which in range(step["count"])]
        order = list(range(step["count"]))
        for which in order[::-1] if step["reversed"] else order:
            handle = self.enqueue(number, step, which, inputs[which])
            if step["waits"]:
                self.results["waited"].append([number, which, handle.wait()])

    def input_of(self, step: Json, which: int) -> Any:
        group = self.run["groups"][step["group"]]
        if step["do"] == "list":
            return [model.tensor(step, which, self.rank, part) for part in range(len(group))]
        values = model.tensor(step, which, self.rank)
        if step["do"] != "empty" or which >= step["count"]:
            return values
        made = self.objects[step["object"]].empty(*values.shape, dtype=step["dtype"], group=self.groups[step["group"]])
        made[...] = values
        return made

    def enqueue(self, number: int, step: Json, which: int, inputs: Any) -> Any:
        """Enqueues an input, whose callback may enqueue another one."""

        def called(result: Any) -> None:
            self.results["called"].append([number, which, self.now[step["object"]], result])
            if which < step["count"] * step["nested"]:
                after = which + step["count"]
                self.enqueue(number, step, after, self.input_of(step, after))

        reduce, group = self.objects[step["object"]], self.groups[step["group"]]
        if step["do"] == "all_gather":
            handle = reduce.all_gather(inputs, called, group=group)
        elif step["do"] == "all_reduce":
            handle = reduce.all_reduce(inputs, called, op=step["op"], group=group)
        else:
            handle = reduce(inputs, called, op=step["op"], group=group)
        if step["do"] != "empty":  # the inputs may be used again
            for each in inputs if step["do"] == "list" else [inputs]:
                each.fill(1)
        return handle


# Comparing


def difference(run: Json, outcomes: list[Json]) -> str | None:
    """Returns how the ranks' results differ from the model, or None."""
    steps = run["steps"]
    unspecified = set[int]()
    for number, step in enumerate(steps):
        if step.get("lacking") is not None:
            places = unspecified_by(run, number)
            unspecified |= places
            for rank, got in enumerate(outcomes):
                texts = [text for at, kind, text in got["errors"] if at in places and kind == "InvalidArgument"]
                if not any("ranks disagree about" in text for text in texts):
                    return f"rank {rank}: no error in steps {sorted(places)}, where rank {step['lacking']} lacks step {number}"
    expected = expected_results(run, unspecified)
    for rank, got in enumerate(outcomes):
        for at, kind, text in got["errors"]:
            if at not in unspecified or kind != "InvalidArgument":
                return f"step {at}, rank {rank}: {kind}: {text}"
        called = {(number, which): leaf for number, which, _, leaf in got["called"]}
        waited = {(number, which): leaf for number, which, leaf in got["waited"]}
        for (number, which), leaves in expected.items():
            if rank not in leaves:
                continue
            step = steps[number]
            results = [called.pop((number, which), "nothing")]
            if step["waits"] and which < step["count"]:
                results.append(waited.pop((number, which), "nothing"))
            if any(result != leaves[rank] for result in results):
                return f"step {number}, {step['do']}, input {which}, rank {rank}: got {results}, expected {leaves[rank]}"
        if more := [key for key in called if key[0] not in unspecified]:
            return f"rank {rank}: callbacks that were called twice, or for nothing: {more}"
    return difference_of_order(run, outcomes, unspecified)


def expected_results(run: Json, unspecified: set[int]) -> dict[tuple[int, int], Json]:
    """Returns the model's results by step and input, as JSON by rank."""
    leaves = {}
    for number, step in enumerate(run["steps"]):
        if step["do"] != "flush" and number not in unspecified:
            group = run["groups"][step["group"]]
            for which in range(step["count"] * (1 + step["nested"])):
                results = model.results(step, which, group)
                leaves[number, which] = {rank: ranks.leaf_of(result) for rank, result in zip(group, results)}
    return leaves


def difference_of_order(run: Json, outcomes: list[Json], unspecified: set[int]) -> str | None:
    """Callbacks of a group run in the same order, and in the same steps, on all of its ranks."""
    for object in range(len(run["objects"])):
        for group, members in enumerate(run["groups"]):
            steps = [step["do"] != "flush" and (step["object"], step["group"]) == (object, group) for step in run["steps"]]
            orders = [[each[:3] for each in outcomes[rank]["called"] if steps[each[0]] and each[0] not in unspecified]
                      for rank in members]  # fmt: skip
            for rank, order in zip(members, orders):
                if order != orders[0]:
                    return f"object {object}, group {group}: callbacks on rank {members[0]}: {orders[0]}, on rank {rank}: {order}"
    return None
