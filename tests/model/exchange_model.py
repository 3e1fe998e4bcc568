"""A reference model of exchanges: given the steps of a run, computes what the stores of all ranks hold after each of
them.

It has no plan, no message and no memory management: a rank that lacks a requested sample copies it from one that has it.
exchanges.py draws and executes the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

Json = dict[str, Any]
VALUES = [1, 2.5, "text", None, True, b"\xff\x00", [1, [2, "x"]], {"a": (1, "z")}, float("inf"), -(2**62)]
"""Values that samples have in addition to their tensors. Runs refer to them by index."""


class Refusal(Exception):
    """An InvalidArgument whose message contains one of these texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.texts = texts


class Part(NamedTuple):
    index: int
    count: int
    zigzag: bool


@dataclass(eq=False)
class Item:
    """A key of a sample in a store: its tokens, and the part of them that the store holds. None means all."""

    tokens: Any
    lengths: list[int]
    part: Part | None = None

    @cached_property
    def held(self) -> tuple[Any, list[int]]:
        """Returns the tokens of the part, and the lengths of its sequences."""
        if self.part is None:
            return self.tokens, self.lengths
        begins = np.cumsum([0, *self.lengths])
        picked = [begin + tokens_of(self.part, length) for begin, length in zip(begins, self.lengths)]
        return self.tokens[np.concatenate([*picked, np.zeros(0, int)]).astype(int)], [len(each) for each in picked]

    def same_as(self, other: Item) -> bool:
        return self.lengths == other.lengths and self.tokens.tobytes() == other.tokens.tobytes()


class Sample(NamedTuple):
    items: dict[str, Item]
    values: Json


Store = dict[str, Sample]


def tokens_of(part: Part, length: int) -> Any:
    """Returns the positions of a sequence that belong to a part. A zigzag part is chunk `index` of 2 * count and its
    mirror image."""
    chunks = part.count * (2 if part.zigzag else 1)
    bounds = [length // chunks * at + length % chunks * at // chunks for at in range(chunks + 1)]
    of = [part.index, chunks - 1 - part.index] if part.zigzag else [part.index]
    return np.concatenate([np.arange(bounds[at], bounds[at + 1]) for at in of])


def tokens(seed: int, count: int, dtype: str, trailing: list[int]) -> Any:
    """Returns the tokens that a run identifies by a seed."""
    size = count * prod(trailing)
    values = (np.arange(size) * 31 + seed * 7919) & (1 if dtype == "bool" else 0x7F)
    return values.astype(dtype).reshape(count, *trailing)


def samples_of(step: Json, keys: Json) -> Store:
    """Returns the samples that a step puts into a store."""
    return {
        id: Sample(
            {key: Item(tokens(seed, sum(lengths), *keys[key]), lengths) for key, (seed, lengths) in given["items"].items()},
            {name: VALUES[number] for name, number in given["values"].items()},
        )
        for id, given in step["samples"].items()
    }


def nbytes(store: Store) -> int:
    return sum(item.held[0].nbytes for sample in store.values() for item in sample.items.values())


def merged(old: Sample, new: Sample) -> Sample:
    return Sample(old.items | new.items, old.values | new.values)


def put(store: Store, samples: Store, limit: int | None, is_update: bool) -> None:
    """Adds samples, or adds keys to existing ones; either all of them or none."""
    wrong = [id for id in samples if (id in store) != is_update]
    if wrong:
        text = "is not in the store" if is_update else "is in the store already"
        raise Refusal(*[f"sample {id} {text}" for id in wrong])
    result = store | {id: merged(store.get(id, Sample({}, {})), sample) for id, sample in samples.items()}
    if limit is not None and nbytes(result) > limit:
        raise Refusal("but is bounded to")
    store.update(result)


def get(store: Store, ids: list[str]) -> Store:
    """Returns samples as another store receives them, in which a part counts as a whole."""
    if missing := [id for id in ids if id not in store]:
        raise Refusal(*[f"sample {id} is not in the store" for id in missing])
    return {
        id: Sample({key: Item(*item.held) for key, item in store[id].items.items()}, store[id].values) for id in ids
    }


def wanted(step: Json, texts: list[str]) -> dict[tuple[int, str], Part | None]:
    """Returns which part of each sample each rank wants of the divided keys. Appends errors to `texts`."""
    parts: dict[tuple[int, str], set[Part | None]] = {}
    for want in step["wants"]:
        part = Part(want["part"], want["parts"], want["zigzag"]) if want["parts"] > 1 else None
        for rank in want["ranks"]:
            for id in want["ids"]:
                parts.setdefault((rank, id), set()).add(part)
    # A rank that wants the whole sample needs no part of it.
    differing = [id for (_, id), some in parts.items() if len(some) > 1 and None not in some]
    texts += [f"different parts of sample {id} are wanted on" for id in differing]
    return {key: None if None in some else next(iter(some)) for key, some in parts.items()}


def check_alike(stores: list[Store], ids: set[str], keys: list[str] | None) -> None:
    """Raises if ranks hold different forms of a sample. keys: the keys whose contents are compared; None compares only
    lengths."""
    texts = []
    for id in ids:
        held = [store[id] for store in stores if id in store]
        for key in {key for sample in held for key in sample.items} if keys is None else keys:
            items = [sample.items[key] for sample in held if key in sample.items]
            if any(item.lengths != items[0].lengths for item in items):
                texts.append(f"sample {id}, key {key} has sequences of")
            if keys is not None and any(not item.same_as(items[0]) for item in items):
                texts.append(f"sample {id}, key {key} has other contents on rank")
        for name in {name for sample in held for name in sample.values}:
            if len({repr(sample.values[name]) for sample in held if name in sample.values}) > 1:
                texts.append(f"sample {id} has another value of {name} on rank")
    if texts:
        raise Refusal(*texts)


def redistribute(stores: list[Store], step: Json, limits: list[int | None]) -> int:
    """Delivers to every rank the requested samples that it lacks. Returns the bytes that all ranks received."""
    asked = {id for want in step["wants"] if want["ranks"] for id in want["ids"]}
    check_alike(stores, asked, step["keys"])
    incoming: dict[tuple[int, str, str], Item] = {}
    texts: list[str] = []
    parts = wanted(step, texts)
    for (rank, id), part_wanted in parts.items():
        holders = [store[id] for store in stores if id in store]
        if not holders:
            texts.append(f"sample {id}")
        for key in step["keys"]:
            part = part_wanted if key in step["cut_keys"] else None
            own = stores[rank].get(id, Sample({}, {})).items.get(key)
            if own is not None and own.part in (None, part):
                continue
            items = [sample.items[key] for sample in holders if key in sample.items]
            wholes = [item for item in items if item.part is None]
            if wholes:
                incoming[rank, id, key] = replace(wholes[0], part=part)
            elif items or not step["allow_absent"]:
                texts.append(f"sample {id}, key {key} is wanted on")
    if texts:
        raise Refusal(*texts)
    received = [0 for _ in stores]
    for (rank, _, _), item in incoming.items():
        received[rank] += item.held[0].nbytes
    for rank, limit in enumerate(limits):
        if limit is not None and received[rank] > max(limit - nbytes(stores[rank]), 0):
            raise Refusal("is to receive")
    values = {id: {} for _, id, _ in incoming}  # type: dict[str, Json]
    for id in values:
        for store in stores:
            values[id] |= store[id].values if id in store else {}
    for (rank, id, key), item in incoming.items():
        old = stores[rank].get(id, Sample({}, {}))
        stores[rank][id] = merged(old, Sample({key: item}, values[id]))
    return sum(received)


def holders(stores: list[Store]) -> Json:
    """Returns which ranks hold which keys. Samples without keys are not listed."""
    check_alike(stores, {id for store in stores for id in store}, None)
    found: Json = {}
    for rank, store in enumerate(stores):
        for id, sample in store.items():
            for key in sample.items:
                found.setdefault(id, {}).setdefault(key, []).append(rank)
    return found
