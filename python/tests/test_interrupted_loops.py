"""Exceptions of signal handlers while next() makes a batch: a state counts the batches that the loop has got."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import levada
import numpy as np
import pytest
from levada.feed import passes
from levada.loader import passes as loader_passes

# The handler raises only while next() runs: the first statement of the loop's body disarms it.
PROGRAM = """
import os, random, signal, sys, threading, levada, numpy as np
class Interrupted(BaseException): pass
armed = False
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise Interrupted
    threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGTERM)).start()
signal.signal(signal.SIGTERM, interrupt)
class Batches:
    def __len__(self): return 400
    def __getitem__(self, number): return np.full(200_000, number)
class Stream:
    def __iter__(self): return (Batches()[number] for number in range(400))
def make():
    return levada.Feed(Stream(), timeout=60) if sys.argv[1] == "Feed" else levada.DataLoader(Batches(), batch_size=None, timeout=60)
interrupts = 0
for trial in range(30):
    feed, last = make(), -1
    threading.Timer(random.uniform(0.004, 0.02), os.kill, (os.getpid(), signal.SIGTERM)).start()
    armed = True
    try:
        for batch in feed:
            armed = False
            last = int(batch[0])
            armed = True
    except Interrupted: interrupts += 1
    except levada.SourceError: interrupts += 1
    armed = False
    if last == 399: continue  # the loop ended before the signal
    state = feed.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert int(next(iter(resumed))[0]) == last + 1, (trial, last)
    assert feed.step in (0, last + 1), (feed.step, last)
    resumed.close()
assert interrupts > 0
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["Feed", "DataLoader"])
def test_a_signal_within_next_loses_no_batch_of_the_state(kind: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("kind", ["Feed", "DataLoader", "Corpus"])
def test_a_batch_that_next_has_dropped_is_the_first_of_the_resumed_run(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(20)))

    def make() -> Any:
        if kind == "Corpus":
            return levada.Feed(levada.Corpus(tmp_path / "text.jsonl", seq_length=7, tokenizer="bytes"), batch_size=1)
        rows = [np.array([number]) for number in range(8)]
        return levada.Feed(rows) if kind == "Feed" else levada.DataLoader(rows, batch_size=None)

    def first_of(batch: Any) -> Any:
        return (batch["tokens"] if kind == "Corpus" else batch).tolist()

    expected = list(map(first_of, make()))
    feed, got = make(), []
    module = loader_passes if kind == "DataLoader" else passes
    counted = module.num_rows
    with pytest.raises(KeyboardInterrupt):
        for batch in feed:
            got.append(first_of(batch))
            if len(got) == 3:
                monkeypatch.setattr(module, "num_rows", lambda batch: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(module, "num_rows", counted)
    assert feed.step == 3
    resumed = make()
    resumed.load_state_dict(feed.state_dict())
    assert got + list(map(first_of, resumed)) == expected


class Numbers:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> int:
        if number in (0, 2, 5):
            raise ValueError("no item")
        return number


def test_a_batch_that_next_has_dropped_is_in_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = levada.DataLoader(Numbers(), 2, epochs=2, on_error="skip", max_skipped=6)
    batches = iter(loader)

    def seen() -> Any:
        return loader.step, loader.epoch, loader.valid, loader.global_valid, loader.numbers, loader.skipped, loader.stats.samples

    expected = [(1, 0, 1, 2, [1], 1, 1), (2, 0, 1, 2, [3], 2, 2), (3, 0, 1, 2, [4], 3, 3), (4, 1, 1, 2, [1], 4, 4)]
    assert [seen() for _ in expected[:3] if next(batches) is not None] == expected[:3]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        note = loader._note_taken

        def interrupted(*arguments: Any) -> None:
            note(*arguments)
            signal.raise_signal(signal.SIGINT)

        patched.setattr(loader, "_note_taken", interrupted)
        next(batches)
    assert seen() == expected[2]
    next(batches)  # the step after the dropped one
    assert seen() == (5, 1, 1, 2, [3], 5, 5)
