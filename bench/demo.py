#!/usr/bin/env python3
"""bench/demo.py CORPUS.jsonl TOKENIZER: shows what one reader saves. Four ranks need the same batches (tp=4). First
each rank reads and tokenizes the text separately, as four jobs of one rank with a token cache each; then one rank does
it for all. Later epochs read the cached tokens, under a limit that simulates storage shared by all readers. All runs
are `levada feed` with the same options, and the ranks' batches are compared by their digests. `script/run` calls it."""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

RANKS = 4
LIMIT = 50  # MB/s of all readers together
EPOCHS = 10  # epochs under the limit
TITLES = ("each rank for itself", "one for all, through Levada")


class Outcome(NamedTuple):
    seconds: float
    cpu: float
    read: int
    """Bytes that all ranks together have read: the text, and the tokens in the cache."""
    ranks: list
    """The number of each rank's batches, and the digests of their fields."""


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report_of(process):
    output = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"bench/demo.py: {' '.join(process.args)} ended with status {process.returncode}")
    return json.loads(output)


def received_by(rank):
    return rank["batches"], {name: field["digest"] for name, field in rank["fields"].items()}


def feed(options, corpus, jobs, is_limited):
    """Feeds all ranks in `jobs` jobs, which run concurrently. The second call uses the caches of the first."""
    command = [options.levada, "feed", corpus, "--tokenizer", options.tokenizer, "--mesh", f"tp={RANKS // jobs}", "--json"]
    command += ["--timeout", "5m"]  # a busy machine may take long to start ranks
    if is_limited:
        command += ["--epochs", str(EPOCHS), "--io-limit", str(LIMIT / jobs)]
    begun, cpu = time.monotonic(), children_cpu()
    commands = [[*command, "--cache-dir", f"{corpus}.cache-{jobs}-{job}"] for job in range(jobs)]
    processes = [subprocess.Popen(each, stdout=subprocess.PIPE) for each in commands]
    reports = [report_of(process) for process in processes]
    seconds, cpu = time.monotonic() - begun, children_cpu() - cpu
    read = sum(report["prepare_bytes"] + report["bytes_read"] for report in reports)
    return Outcome(seconds, cpu, read, [received_by(rank) for report in reports for rank in report["ranks"]])


def copy_beginning(path, to, size):
    """Copies whole lines, about `size` bytes. Returns the number of bytes copied."""
    with open(path, "rb") as lines, open(to, "wb") as copy:
        return sum(copy.write(line) for line in lines.readlines(size))


def megabytes(size):
    return f"{size / 1e6:.1f} MB"


def print_summary(first, later):
    alone, together = first
    print(f"All {RANKS} ranks got the same batches, whether each read for itself or one for all: their digests are equal.")
    print(
        f"Each for itself: {alone.seconds:.2f} s, {alone.cpu:.2f} s of CPU, {megabytes(alone.read)} read. "
        f"One for all, through Levada: {together.seconds:.2f} s, {together.cpu:.2f} s of CPU, {megabytes(together.read)} read."
    )
    print(
        f"Reading cost nothing here: all was in memory. With reads limited to {LIMIT} MB/s (simulated), {EPOCHS} more epochs take "
        f"{later[0].seconds:.2f} s and {later[1].seconds:.2f} s."
    )


def print_table(title, pair, is_verbose):
    print(f"\n{title:48} seconds  CPU seconds      read  batches of a rank")
    for name, outcome in zip(TITLES, pair, strict=True):
        read = megabytes(outcome.read)
        print(f"  {name:46} {outcome.seconds:7.2f}  {outcome.cpu:11.2f}  {read:>8}  {outcome.ranks[0][0]:17,}")
        if is_verbose:
            for rank, (_, digests) in enumerate(outcome.ranks):
                print(f"    rank {rank}: {'  '.join(f'{name} {digest[:8]}' for name, digest in digests.items())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("--levada", default="build/release/levada", help="the command [build/release/levada]")
    parser.add_argument("--mb", type=float, default=1.5, help="how much of the corpus to read [1.5]")
    parser.add_argument("--verbose", action="store_true", help="show the digests of each rank")
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback

    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(options.corpus))) as folder:
        corpus = os.path.join(folder, "demo.jsonl")
        size = copy_beginning(options.corpus, corpus, int(options.mb * 1e6))  # leaves it in the page cache
        first, later = ([feed(options, corpus, jobs, is_limited) for jobs in (RANKS, 1)] for is_limited in (False, True))

    is_same = all(rank == pair[0].ranks[0] for pair in (first, later) for outcome in pair for rank in outcome.ranks)
    if is_same:
        print_summary(first, later)
    else:
        print("DIFFERENT: not all ranks got the same batches.")
    print_table("First epoch: text is read and tokenized", first, options.verbose or not is_same)
    print_table(f"{EPOCHS} more: tokens are read, {LIMIT} MB/s (simulated)", later, options.verbose or not is_same)
    print(f"\nThe text has {megabytes(size)}. The mesh is tp={RANKS}, so all ranks need the same batches. Ranks along dp need different")
    print("ones: if each reads only its own, there is less to save.")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
