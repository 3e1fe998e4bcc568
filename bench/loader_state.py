"""Measures what the state of a loader costs a feed: the processor time of each rank with a loader that has a state, and
with one that has none, as a share of wall time.

    levada run -n 4 bench/loader_state.py [BYTES [SECONDS]]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np

STATE_BYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
STEP, PAIRS = 0.005, 5
"""Seconds of a step, and the number of turns that each loader has."""


class Loader:
    def __init__(self) -> None:
        self.batch = np.zeros(64 << 10, np.uint8)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.batch


class LoaderWithState(Loader):
    def __init__(self) -> None:
        super().__init__()
        self.state = bytes(STATE_BYTES)

    def state_dict(self) -> dict[str, Any]:
        return {"state": bytes(bytearray(self.state))}  # a new copy each time

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


def busy_share(loader: Loader) -> float:
    steps = max(2, int(SECONDS / STEP))
    with levada.Feed(loader, levada.Mesh(dp=levada.world_size()), max_steps=steps) as feed:
        batches = iter(feed)
        next(batches)  # starts the pass
        began, busy = time.monotonic(), time.process_time()
        for _ in range(steps - 1):
            next(batches)
            time.sleep(STEP)
        return (time.process_time() - busy) / (time.monotonic() - began)


pairs = [(busy_share(Loader()), busy_share(LoaderWithState())) for _ in range(PAIRS)]
without, with_state = (statistics.median(each) for each in zip(*pairs, strict=True))
print(f"rank {levada.rank()} of {levada.world_size()}: {without:.2%} of the time busy without a state, {with_state:.2%} "
      f"with one of {STATE_BYTES:,} bytes: {with_state - without:+.2%}")
