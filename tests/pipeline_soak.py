#!/usr/bin/env python3
"""Runs a pipeline for LEVADA_SOAK_SECONDS (600), epoch after epoch, and sees to it that no process's memory grows, that no
file stays open and that nothing is left in /dev/shm: pipeline_soak.py, with a Python that has levada.

A dispatching process and two workers shuffle, make and batch arrays, texts and numbers. Most epochs are broken off: some
by the next one in their middle, some at a limit that is lifted, while paused, or to go on from a state; now and then all
processes are new. Exit status 1 where an epoch gives other items than it should, or where something has grown.
"""

import os
import pathlib
import random
import sys
import time
from array import array

import numpy as np

import levada
from soak import ALLOWED_KB, children, kilobytes

ITEMS = 400
BATCH = 4
LOOKS = 200


def make(number):
    """Large and small: what lies beside the pickle and what lies in it."""
    return number, np.full((number % 5) * 4096 + 1, number), "text" * (number % 7)


def numbers_in(batches):
    for batch in batches:
        for number, array, text in batch:
            if not (array == number).all() or text != "text" * (number % 7):
                sys.exit(f"pipeline soak: item {number} did not cross unchanged")
            yield number


def check(condition, what):
    if not condition:
        sys.exit(f"pipeline soak: {what}")


def whole(run, draw):
    """To its end."""
    check(sorted(numbers_in(run)) == list(range(ITEMS)), "an epoch gave other items than the source's")


def broken_off(run, draw):
    """By the next one, in its middle."""
    items = iter(run)
    for _ in range(draw.randrange(ITEMS // BATCH)):
        next(items)


def limited(run, draw):
    """Ends at a limit, and goes on."""
    items = iter(run)
    most = draw.randrange(1, ITEMS // BATCH)
    run.limit(most)
    before = list(items)
    check(len(before) == most, "a limit let another number of batches pass")
    run.resume()
    check(sorted(numbers_in([*before, *items])) == list(range(ITEMS)), "an epoch with a limit gave other items")


def paused(run, draw):
    """Reset while paused."""
    items = iter(run)
    next(items)
    run.pause()
    check(next(items, None) is None, "something came of a pipeline that was paused")


def saved(run, draw):
    """Goes on in the middle, where it was saved."""
    items = iter(run)
    before = [next(items) for _ in range(draw.randrange(1, ITEMS // BATCH))]
    run.load_state_dict(run.state_dict())
    check(sorted(numbers_in([*before, *run])) == list(range(ITEMS)), "an epoch that went on gave other items")


def renewed(run, draw):
    """In other processes."""
    run.close()
    whole(run, draw)


def workers():
    """Processes that multiprocessing has started, but for its resource tracker."""
    return [process for process in children(os.getpid()) if b"spawn_main" in command_of(process)]


def command_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def open_files(process):
    try:
        return len(os.listdir(f"/proc/{process}/fd"))
    except FileNotFoundError:
        return 0


def look(samples):
    """What each process has now."""
    for process in [os.getpid(), *workers()]:
        memory = kilobytes(process)
        if memory:
            for row, value in zip(samples.setdefault(process, [array("q") for _ in range(3)]), (*memory, open_files(process))):
                row.append(value)


def growth(row):
    """Of the least in the second tenth of the time to the least in the last."""
    tenth = max(len(row) // 10, 1)
    return min(row[-tenth:]) - min(row[tenth : 2 * tenth])


def report(samples):
    worst, judged = 0, 0
    for process, seen in sorted(samples.items()):
        if len(seen[0]) < LOOKS // 4:
            continue
        judged += 1
        private, shared, files = map(growth, seen)
        worst = max(worst, private, shared, files * (ALLOWED_KB + 1))
        print(f"process {process}: private {seen[0][-1]} KiB ({private:+} since the second tenth), shared {seen[1][-1]} KiB "
              f"({shared:+}), {seen[2][-1]} files open ({files:+})")
    check(judged >= 4, f"{judged} processes were looked at often enough to judge by, where there should be four")
    return worst


def soak(seconds):
    draw = random.Random(1)
    samples = {}
    pipeline = levada.Pipeline(range(ITEMS)).shuffle(100).dispatch().map(make).batch(BATCH)
    kinds = [whole, broken_off, limited, paused, saved]
    done = dict.fromkeys([*(kind.__name__ for kind in kinds), renewed.__name__], 0)
    begin = time.monotonic()
    last = begin
    with pipeline.run(2, worker_prefetch=4, main_prefetch=4, seed=1) as run:
        whole(run, draw)
        look(samples)
        check(len(workers()) == 3, f"{len(workers())} processes beside this one where there should be three")
        while time.monotonic() - begin < seconds:
            kind = draw.choice(kinds)
            kind(run, draw)
            done[kind.__name__] += 1
            if time.monotonic() - last > seconds / LOOKS:
                look(samples)
                last = time.monotonic()
    # Processes come and go, and this one stays as it is.
    with pipeline.run(2, seed=2) as run:
        whole(run, draw)
        files = []
        for _ in range(5):
            renewed(run, draw)
            done["renewed"] += 1
            files.append(open_files(os.getpid()))
    check(files[-1] <= files[0], f"{files[-1]} files are open after five runs, {files[0]} after one")
    print(f"{done} epochs in {time.monotonic() - begin:.1f} s")
    return report(samples)


def main():
    before = set(os.listdir("/dev/shm"))
    worst = soak(float(os.environ.get("LEVADA_SOAK_SECONDS", "600")))
    left = set(os.listdir("/dev/shm")) - before
    print(f"the most that grew: {worst} KiB; left in /dev/shm: {sorted(left) or 'nothing'}")
    check(not workers(), f"processes {workers()} are still there")
    sys.exit(worst > ALLOWED_KB or bool(left))


if __name__ == "__main__":
    main()
