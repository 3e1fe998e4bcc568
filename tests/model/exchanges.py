"""Draws runs of exchanges, executes them on ranks, and compares their stores with the model after every step."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import exchange_model as model
import numpy as np
import ranks
from shrink import changed, without_one

Json = dict[str, Any]
DTYPES = ["int64", "int64", "float32", "uint8", "float16", "bool", "int8", "complex64", "uint16", "float64"]
STORES = ["rollouts", "rollouts", "rollouts", "trained"]


# Drawing


def draw_samples(r: random.Random, ids: list[str], keys: Json, seeds: Json) -> Json:
    """Draws samples with some of the keys. Mostly the same ones, regardless of the rank."""
    common = r.sample(list(keys), r.randrange(1, len(keys) + 1))
    is_odd = r.random() < 0.05
    samples = {}
    for id in ids:
        items, values = {}, {}
        for key in common:
            if r.random() < 0.85:
                items[key] = list(seeds.setdefault((id, key), [r.randrange(100), draw_lengths(r)]))
                if is_odd and r.random() < 0.3:
                    items[key] = [r.randrange(100), r.choice([items[key][1], draw_lengths(r)])]
        if r.random() < 0.3:
            values["reward"] = seeds.setdefault((id, "reward"), r.randrange(len(model.VALUES)))
        if r.random() < 0.1:
            values["note"] = r.randrange(len(model.VALUES)) if is_odd else 2
        samples[id] = {"items": items, "values": values}
    return samples


def draw_lengths(r: random.Random) -> list[int]:
    """Draws the lengths of an item's sequences; mostly it has one."""
    return [r.choice([0, 1, 2, 5, 17, 100, r.randrange(1000)]) for _ in range(r.choice([1, 1, 1, 0, 2, 3]))]


def draw_wants(r: random.Random, ids: list[str], size: int) -> list[Json]:
    some = lambda: [id for id in ids if r.random() < share]  # noqa: E731
    share, parts = r.choice([0.1, 0.5, 1]), r.choice([1, 1, 2, 3, 4])
    zigzag = r.random() < 0.5
    if r.random() < 0.5:  # as for a mesh: whole batches for ranks along dp, parts of sequences along cp
        cp = parts if size % parts == 0 else 1
        dealt = [some() for _ in range(size // cp)]
        return [{"ranks": [rank], "ids": dealt[rank // cp], "part": rank % cp, "parts": cp, "zigzag": zigzag}
                for rank in range(size)]  # fmt: skip
    return [{"ranks": r.sample(range(size), r.randrange(size + 1)), "ids": some(), "part": r.randrange(parts),
             "parts": parts, "zigzag": zigzag} for _ in range(r.randrange(1, 4))]  # fmt: skip


def draw_step(r: random.Random, run: Json, ids: list[str], seeds: Json) -> Json:
    what = r.choice(["put", "put", "put", "update", "remove", "get", "move", "redistribute", "redistribute", "redistribute",
                     "all_gather"])  # fmt: skip
    store, rank = r.choice(STORES), r.randrange(run["ranks"])
    some = [id for id in ids if r.random() < r.choice([0.1, 0.5, 1])] or ids[:1]
    earlier = [step for step in run["steps"] if step["do"] == what]
    if what in ("put", "update") and earlier and r.random() < 0.4:
        return {**r.choice(earlier), "rank": rank}  # another rank makes the same samples
    if what in ("put", "update"):
        held = run["steps"] and r.random() < 0.9
        known = [id for step in run["steps"] if step["do"] == "put" and step["rank"] == rank for id in step["samples"]]
        chosen = [id for id in some if (id in known) == (what == "update")] if held else some
        samples = draw_samples(r, chosen, run["keys"], seeds if what == "put" or r.random() < 0.5 else {})
        return {"do": what, "store": store, "rank": rank, "samples": samples, "copy": r.random() < 0.8}
    if what in ("remove", "get"):
        return {"do": what, "store": store, "rank": rank, "ids": some}
    if what == "move":
        return {"do": what, "store": store, "to": r.choice(STORES), "rank": rank, "ids": some, "keep": r.random() < 0.5,
                "copy": r.random() < 0.5}  # fmt: skip
    if what == "all_gather":
        return {"do": what, "store": store}
    if earlier and r.random() < 0.4:
        return r.choice(earlier)
    keys = r.sample(list(run["keys"]), r.randrange(1, len(run["keys"]) + 1))
    return {
        "do": what,
        "store": store,
        "wants": draw_wants(r, ids, run["ranks"]),
        "keys": keys,
        "cut_keys": [key for key in keys if r.random() < 0.5],
        "allow_absent": r.random() < 0.8,
        "chunk_bytes": r.choice([None, None, 100, 5000]),
        "in_flight_bytes": r.choice([1, 64 << 20]),
    }


def draw(seed: int) -> list[Json]:
    r = random.Random(f"exchange {seed}")
    ids = [f"{r.choice(['prompt-', 'a', ''])}{number}{'x' * r.choice([0, 0, 9, 40])}" for number in range(r.choice([1, 3, 10, 40]))]
    keys = {key: [r.choice(DTYPES), r.choice([[], [], [3], [2, 2], [0]])] for key in "abcd"[: r.randrange(1, 5)]}
    run: Json = {"ranks": r.choice([1, 2, 2, 3, 3, 4, 4]), "keys": keys, "limits": {}, "steps": []}
    for store in ("rollouts", "trained"):
        run["limits"][store] = [r.choice([0, 1000, 20000]) if r.random() < 0.05 else None for _ in range(run["ranks"])]
    seeds: Json = {}
    for _ in range(r.randrange(2, 16)):
        run["steps"].append(draw_step(r, run, ids, seeds))
    return [run]


def smaller(run: Json) -> Iterator[Json]:
    yield from without_one(run, "steps")
    for number, step in enumerate(run["steps"]):
        at = ("steps", number)
        for name in ("samples", "ids", "wants", "cut_keys"):
            if len(step.get(name, [])) > (name != "cut_keys"):
                yield from without_one(run, *at, name)
        for id, sample in step.get("samples", {}).items():
            yield from without_one(run, *at, "samples", id, "values")
            yield from without_one(run, *at, "samples", id, "items")
            for key, (seed, lengths) in sample["items"].items():
                yield from changed(run, *at, "samples", id, "items", key, to=[seed, lengths[:1]])
                yield from changed(run, *at, "samples", id, "items", key, to=[seed, [min(each, 1) for each in lengths]])
        for which in range(len(step.get("wants", []))):
            for name in ("ranks", "ids"):
                yield from without_one(run, *at, "wants", which, name)
        simple = {"chunk_bytes": None, "in_flight_bytes": 64 << 20, "copy": True, "keep": True, "allow_absent": True}
        for name, value in simple.items():
            if name in step:
                yield from changed(run, *at, name, to=value)


# Executing, on every rank


def perform(run: Json, group: Any) -> list[Json]:
    """Executes a run on this rank. Returns what each step returned and left in this rank's store."""
    import levada
    from levada import exchange

    stores = {name: exchange.Store(name=name, **({} if limits[group.rank] is None else {"max_bytes": limits[group.rank]}))
              for name, limits in run["limits"].items()}  # fmt: skip
    outcomes = []
    for step in run["steps"]:
        if step.get("rank", group.rank) != group.rank:
            continue
        outcome: Json = {"error": None, "result": None}
        try:
            outcome["result"] = performed(step, run, stores, group)
        except levada.InvalidArgument as error:
            outcome["error"] = str(error)
        except Exception as error:  # the error may have ended the group
            return [*outcomes, {"error": f"{type(error).__name__}: {error}", "ended": True}]
        outcomes.append(outcome | {"stores": {name: shown(store) for name, store in stores.items()}})
    return outcomes


def performed(step: Json, run: Json, stores: Json, group: Any) -> Any:
    from levada import exchange

    store, what = stores[step["store"]], step["do"]
    if what in ("put", "update"):
        batch = batch_of(step, run["keys"])
        return store.update(batch) if what == "update" else store.store(batch, copy=step["copy"])
    if what == "remove":
        return store.remove(step["ids"])
    if what == "get":
        return shown_batch(store.get(step["ids"]))
    if what == "move":
        batch = store.get(step["ids"])
        if not step["keep"]:
            store.remove(step["ids"])
        return stores[step["to"]].store(batch, copy=step["copy"])
    if what == "all_gather":
        held = exchange.all_gather(store, group, timeout=20)
        return {id: {key: held.holders(id, key) for key in run["keys"] if held.holders(id, key)} for id in held.meta().ids}
    wants = [exchange.Destination(want["ranks"], want["ids"], part=want["part"], parts=want["parts"], zigzag=want["zigzag"])
             for want in step["wants"]]  # fmt: skip
    options = {name: step[name] for name in ("cut_keys", "allow_absent", "chunk_bytes", "in_flight_bytes")}
    return exchange.redistribute(store, wants, step["keys"], group=group, timeout=20, **options).delivered_bytes


def batch_of(step: Json, keys: Json) -> Any:
    from levada import exchange

    samples = model.samples_of(step, keys)
    fields, seqlens = {}, {}
    for key in keys:
        items = [sample.items.get(key) for sample in samples.values()]
        if any(item is not None for item in items):
            fields[key] = [item and item.tokens for item in items]
            seqlens[key] = [item and item.lengths for item in items]
    return exchange.SampleBatch(list(samples), fields, seqlens, values=[sample.values for sample in samples.values()])


def shown(store: Any) -> Json:
    return {"bytes": store.nbytes, "samples": shown_batch(store.get(store.ids))}


def shown_batch(batch: Any) -> Json:
    samples: Json = {}
    seqlens = {key: batch.seqlens(key) for key in batch.keys}
    for at, id in enumerate(batch.ids):
        items = {key: [ranks.leaf_of(np.asarray(batch.item(key, at))), lengths[at]]
                 for key, lengths in seqlens.items() if lengths[at] is not None}  # fmt: skip
        samples[id] = [items, {name: repr(value) for name, value in sorted(batch.values(at).items())}]
    return samples


# Comparing


def shown_samples(samples: model.Store) -> Json:
    """Returns the same for the model."""
    return {id: [{key: shown_item(item) for key, item in sample.items.items()},
                 {name: repr(value) for name, value in sorted(sample.values.items())}]
            for id, sample in samples.items()}  # fmt: skip


@functools.lru_cache(1000)
def shown_item(item: model.Item) -> list[Any]:
    tokens, lengths = item.held
    return [ranks.leaf_of(tokens), lengths]


def expected(step: Json, run: Json, stores: dict[str, list[model.Store]]) -> Any:
    """Executes a step in the model. Returns its result."""
    of_ranks, what, limits = stores[step["store"]], step["do"], run["limits"]
    if what == "redistribute":
        return model.redistribute(of_ranks, step, limits[step["store"]])
    if what == "all_gather":
        return model.holders(of_ranks)
    rank = step["rank"]
    if what in ("put", "update"):
        model.put(of_ranks[rank], model.samples_of(step, run["keys"]), limits[step["store"]][rank], what == "update")
    elif what == "remove":
        for id in step["ids"]:
            of_ranks[rank].pop(id, None)
    else:
        samples = model.get(of_ranks[rank], step["ids"])
        if what == "get":
            return shown_samples(samples)
        if not step["keep"]:
            for id in step["ids"]:
                of_ranks[rank].pop(id, None)
        model.put(stores[step["to"]][rank], samples, limits[step["to"]][rank], is_update=False)
    return None


def difference(run: Json, outcomes: list[list[Json]]) -> str | None:
    """Returns how the ranks' stores differ from the model, or None."""
    stores: dict[str, list[model.Store]] = {name: [{} for _ in range(run["ranks"])] for name in run["limits"]}
    of_ranks = [iter(of_rank) for of_rank in outcomes]
    for number, step in enumerate(run["steps"]):
        texts, result = None, None
        try:
            result = expected(step, run, stores)
        except model.Refusal as refusal:
            texts = refusal.texts
        acting = range(run["ranks"]) if "rank" not in step else [step["rank"]]
        errors = set()
        for rank in acting:
            got = next(of_ranks[rank], {"error": "nothing"})
            where = f"step {number}, {step['do']}, rank {rank}"
            errors.add(got["error"])
            if (got["error"] is None) != (texts is None) or "ended" in got:
                return f"{where}: got error {got['error']}, expected {texts}"
            if texts is not None and not any(text in got["error"] for text in texts):
                return f"{where}: got error {got['error']}, expected one of {texts}"
            if texts is None and got["result"] != result:
                return f"{where}: got {got['result']}, expected {result}"
            for name, mine in stores.items():
                want = {"bytes": model.nbytes(mine[rank]), "samples": shown_samples(mine[rank])}
                if got["stores"][name] != want:
                    return f"{where}: store {name} is\n  {got['stores'][name]}\nexpected\n  {want}"
        if len(errors) > 1:
            return f"step {number}, {step['do']}: ranks raise different errors: {errors}"
    return None
