"""Shrinks a failing run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]


def shrink(run: Json, smaller: Callable[[Json], Iterator[Json]], fails: Callable[[Json], str | None], tries: int = 300) -> Json:
    """Returns the smallest run found that still fails. smaller: yields runs that are smaller by one thing."""
    found = True
    while found:
        found = False
        for less in smaller(run):
            tries -= 1
            if tries < 0:
                return run
            if fails(less):
                run, found = less, True
                break
    return run


def without_one(run: Json, *path: str | int) -> Iterator[Json]:
    """Yields the run without some entries of the list or dict at `path`: without the first half, the second half, and
    each one."""
    whole = run
    for key in path:
        whole = whole[key]
    keys = list(whole) if isinstance(whole, dict) else list(range(len(whole)))
    half = len(keys) // 2
    for gone in ([keys[:half], keys[half:]] if half > 1 else []) + [[key] for key in keys]:
        less = copy.deepcopy(run)
        kept = less
        for key in path:
            kept = kept[key]
        for key in reversed(gone):
            del kept[key]
        yield less


def changed(run: Json, *path: str | int, to: Any) -> Iterator[Json]:
    """Yields the run with another value at `path`, unless it already has that value."""
    less = copy.deepcopy(run)
    place = less
    for key in path[:-1]:
        place = place[key]
    if place[path[-1]] != to:
        place[path[-1]] = to
        yield less
