"""Measures what the checks of a feed cost each rank: the default, which digests a part of each item for states, and
check="digests", with which peers compare all bytes. Interleaved with a feed that digests nothing; prints the medians as
shares of a step of 1 ms.

    levada run -n 2 bench/feed_checks.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import levada
import numpy as np

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
STEPS, STEP = 201, 1e-3  # the last step is compared, too
CASES = {
    "4 x 8 x 4096 of int64 (1 MiB)": {name: np.zeros((8, 4096), np.int64) for name in ("tokens", "labels", "mask", "ids")},
    "tokens 2 x 2048 of int64 (64 KiB)": {name: np.zeros((2, 2048), np.int64) for name in ("tokens", "labels")},
    "images 8 x 3 x 224 x 224 of float32 (5 MiB)": {"images": np.zeros((8, 3, 224, 224), np.float32), "labels": np.zeros(8, np.int64)},
}  # fmt: skip


class Loader:
    def __init__(self, batch: dict[str, Any]) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.batch


def seconds_a_step(batch: dict[str, Any], check: str, iterate: str) -> float:
    """Returns this rank's processor time per step. Steps compute nothing, since waiting for the peer would count."""
    original = levada.feed.makers.Maker.__init__
    digest = {"digest": lambda: 0} if check == "none" else {}
    with mock.patch.object(levada.feed.makers.Maker, "__init__", lambda *given, **more: original(*given, **(more | digest))):
        with levada.Feed(Loader(batch), levada.Mesh(tp=levada.world_size()), max_steps=STEPS, check=check, iterate=iterate) as feed:
            batches = iter(feed)
            next(batches)  # starts the pass
            began = time.process_time()
            for _ in batches:
                pass
            return (time.process_time() - began) / (STEPS - 1)


CHECKS = ("none", "items", "digests")
for name, batch in CASES.items():
    for iterate in ("inline", "thread"):
        rounds = [[seconds_a_step(batch, check, iterate) for check in CHECKS] for _ in range(ROUNDS)]
        none, *others = (statistics.median(each) for each in zip(*rounds, strict=True))
        noise = statistics.median(abs(each[0] - none) for each in rounds)
        extra = [statistics.median(each[at] - each[0] for each in rounds) for at in (1, 2)]
        if levada.rank() in (0, levada.world_size() - 1):
            reads = "reads" if levada.rank() == 0 else "does not read"
            print(
                f"{name:46} {iterate:7} rank {levada.rank()} ({reads}): without {none * 1e6:7.1f} us a step; "
                f"items {extra[0] / STEP:+.2%}, digests {extra[1] / STEP:+.2%} of 1 ms; deviation {noise / STEP:.2%}",
                flush=True,
            )
