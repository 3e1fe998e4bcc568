#!/usr/bin/env python3
"""Runs a pipeline for LEVADA_SOAK_SECONDS (600), epoch after epoch. Checks that neither the private memory of a process
nor the shared memory grows, that no file stays open and that nothing is left in /dev/shm: pipeline_soak.py, with a
Python that has levada.

Shared memory is counted once, in the files that hold it; how much of them a process has mapped and touched does not
matter. The files keep the high-water mark of memory in flight. With items of many sizes it depends on chance and rises
ever more rarely, but may still rise after hours. The first epochs, which are not measured, therefore have only items of
the largest size.

A dispatching process and two workers shuffle, make and batch arrays, texts and numbers. Most epochs are interrupted:
some by the next one, some at a limit that is lifted, while paused, or by loading a state; now and then all processes
are replaced. Exits with status 1 if an epoch yields other items than it should, or if something has grown.
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
SHARED = "shared"


WARM_EPOCHS = 200
LARGEST = 4


class Items:
    """Yields numbers, and the sizes of the items to make from them."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((number, LARGEST if self.epoch < WARM_EPOCHS else number % (LARGEST + 1)) for number in range(ITEMS))


def make(item):
    """Returns an item with large and small parts: those sent next to the pickle, and those inside it."""
    number, size = item
    return number, np.full(size * 4096 + 1, number), "text" * (number % 7)


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
    """Reads an epoch to its end."""
    check(sorted(numbers_in(run)) == list(range(ITEMS)), "an epoch gave other items than the source's")


def broken_off(run, draw):
    """Abandons an epoch in its middle; the next one begins instead."""
    items = iter(run)
    for _ in range(draw.randrange(ITEMS // BATCH)):
        next(items)


def limited(run, draw):
    """Reads an epoch up to a limit, and then the rest."""
    items = iter(run)
    most = draw.randrange(1, ITEMS // BATCH)
    run.limit(most)
    before = list(items)
    check(len(before) == most, "a limit let another number of batches pass")
    run.resume()
    check(sorted(numbers_in([*before, *items])) == list(range(ITEMS)), "an epoch with a limit gave other items")


def paused(run, draw):
    """Leaves an epoch paused; the next one resets it."""
    items = iter(run)
    next(items)
    run.pause()
    check(next(items, None) is None, "something came of a pipeline that was paused")


def saved(run, draw):
    """Saves a state in the middle of an epoch and resumes from it."""
    items = iter(run)
    before = [next(items) for _ in range(draw.randrange(1, ITEMS // BATCH))]
    run.load_state_dict(run.state_dict())
    check(sorted(numbers_in([*before, *run])) == list(range(ITEMS)), "an epoch that went on gave other items")


def renewed(run, draw):
    """Reads an epoch in new processes."""
    run.close()
    whole(run, draw)


def workers():
    """Returns the processes that multiprocessing has started, except its resource tracker."""
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


def shared_kilobytes(processes):
    """Returns the size of all memory files that Levada's processes share."""
    files = {}
    for process in processes:
        for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
            try:
                if os.readlink(entry).startswith("/memfd:levada-data"):
                    status = entry.stat()
                    files[status.st_ino] = status.st_blocks // 2
            except FileNotFoundError:
                continue
    return sum(files.values())


def look(samples):
    """Records the current memory of each process, and the shared memory."""
    processes = [os.getpid(), *workers()]
    for process in processes:
        memory = kilobytes(process)
        if memory:
            for row, value in zip(samples.setdefault(process, [array("q") for _ in range(2)]), (memory[0], open_files(process))):
                row.append(value)
    samples.setdefault(SHARED, array("q")).append(shared_kilobytes(processes))


def growth(row):
    """Returns the growth of the minimum from the second tenth of the time to the last tenth."""
    tenth = max(len(row) // 10, 1)
    return min(row[-tenth:]) - min(row[tenth : 2 * tenth])


def report(samples):
    shared = samples.pop(SHARED)
    worst, judged = growth(shared), 0
    print(f"shared {shared[-1]} KiB ({worst:+} since the second tenth)")
    for process, seen in sorted(samples.items()):
        if len(seen[0]) < LOOKS // 4:
            continue
        judged += 1
        private, files = map(growth, seen)
        worst = max(worst, private, files * (ALLOWED_KB + 1))
        print(f"process {process}: private {seen[0][-1]} KiB ({private:+}), {seen[1][-1]} files open ({files:+})")
    check(judged >= 4, f"{judged} processes were looked at often enough to judge by, where there should be four")
    return worst


def soak(seconds):
    draw = random.Random(1)
    samples = {}
    pipeline = levada.Pipeline(Items()).shuffle(100).dispatch().map(make).batch(BATCH)
    kinds = [whole, broken_off, limited, paused, saved]
    done = dict.fromkeys([*(kind.__name__ for kind in kinds), renewed.__name__], 0)
    with pipeline.run(2, worker_prefetch=4, main_prefetch=4, seed=1) as run:
        for _ in range(WARM_EPOCHS):
            draw.choice(kinds)(run, draw)
        begin = last = time.monotonic()
        look(samples)
        check(len(workers()) == 3, f"{len(workers())} processes beside this one where there should be three")
        while time.monotonic() - begin < seconds:
            kind = draw.choice(kinds)
            kind(run, draw)
            done[kind.__name__] += 1
            if time.monotonic() - last > seconds / LOOKS:
                look(samples)
                last = time.monotonic()
    # The run's processes are replaced, while this process continues.
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
    until = time.monotonic() + 10  # other programs of this machine use /dev/shm, too, for a moment each
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < until:
        time.sleep(0.1)
    print(f"the most that grew: {worst} KiB; left in /dev/shm: {sorted(left) or 'nothing'}")
    check(not workers(), f"processes {workers()} are still there")
    sys.exit(worst > ALLOWED_KB or bool(left))


if __name__ == "__main__":
    main()
