#!/usr/bin/env python3
"""Feeds 100,000 batches and checks that no rank's memory grows: soak.py LEVADA CORPUS [STEPS].

Compares the private memory of every rank (heap and stacks; shared memory is counted once, in the arena) after a tenth
of the steps with that at the end. Exits with status 1 if it has grown by more than 2 MiB.
"""

import pathlib
import subprocess
import sys
import time

ALLOWED_KB = 2048


def children(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task")
    try:
        return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def kilobytes(pid):
    """Returns (private, shared) resident memory of a process, or None if it has gone."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return (int(values["RssAnon"]), int(values["RssShmem"])) if "RssAnon" in values else None


def main():
    levada, corpus = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
    command = [levada, "feed", corpus, "--tokenizer", "bytes", "--mesh", "dp=2,tp=2", "--batch", "1", "--seq", "128", "--epochs", "0", "--steps",
               str(steps), "--shuffle", "--json"]
    samples = []
    begin = time.monotonic()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while job.poll() is None:
        now = {pid: memory for pid in children(job.pid) if (memory := kilobytes(pid))}
        if now:
            samples.append(now)
        time.sleep(0.1)
    seconds = time.monotonic() - begin
    if job.returncode != 0 or len(samples) < 20:
        sys.exit(f"soak: the feed ended with {job.returncode} after {len(samples)} looks at it")
    early, late = samples[len(samples) // 10], samples[-2]
    worst = 0
    for pid in sorted(set(early) & set(late)):
        private, shared = late[pid][0] - early[pid][0], late[pid][1] - early[pid][1]
        worst = max(worst, private, shared)
        print(f"process {pid}: private {late[pid][0]} KiB ({private:+} since the first tenth), shared {late[pid][1]} KiB "
              f"({shared:+})")
    print(f"{steps} steps in {seconds:.1f} s; the most that grew: {worst} KiB")
    sys.exit(worst > ALLOWED_KB)


if __name__ == "__main__":
    main()
