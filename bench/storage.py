#!/usr/bin/env python3
"""Measures what one reader saves on slow storage, and what resuming from a saved state costs.

    bench/storage.py CORPUS [--build build/release] [--seq 4096]

- Tokens a second of `--readers one` over those of `--readers all`, with an --io-limit that all readers share: half the
  rate of one unlimited reader.
- Milliseconds that `levada feed --load-state` takes longer than a fresh start, at step 1,000,000 of a corpus of 100
  million samples (a sparse .bin of zeros).
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time

from record import record

DOCUMENTS, TOKENS = 100, 8_000_010


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def compare_readers(levada, corpus, sequence, mesh, divide):
    feed = [levada, "feed", corpus, "--mesh", mesh, "--divide", divide, "--batch", "8", "--seq", str(sequence), "--json"]
    if not corpus.endswith(".bin"):
        feed += ["--tokenizer", "bytes"]
    free = json.loads(run([*feed, "--epochs", "5"]))
    limit = free["bytes_read"] / free["seconds"] / 2e6
    feed += ["--epochs", "3", "--io-limit", f"{limit:.1f}"]
    one, every = (json.loads(run([*feed, "--readers", who])) for who in ("one", "all"))
    print(f"{mesh:10} {divide:6} {limit:6.0f} MB/s: one reader {one['tokens_per_s'] / 1e6:6.1f} M tokens/s, all ranks "
          f"{every['tokens_per_s'] / 1e6:6.1f}: {one['tokens_per_s'] / every['tokens_per_s']:.2f}x; read "
          f"{every['read_amplification']:.2f} times")
    times = one["tokens_per_s"] / every["tokens_per_s"]
    return {"value": times, "peers": {"every rank reads": {"times": times}}}


def write_large_corpus(prefix):
    """The documents follow each other, all of one length, all zeros."""
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.truncate(DOCUMENTS * TOKENS)
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, DOCUMENTS, DOCUMENTS + 1))
        index.write(struct.pack(f"<{DOCUMENTS}i", *[TOKENS] * DOCUMENTS))
        index.write(struct.pack(f"<{DOCUMENTS}q", *range(0, DOCUMENTS * TOKENS, TOKENS)))
        index.write(struct.pack(f"<{DOCUMENTS + 1}q", *range(DOCUMENTS + 1)))


def compare_starts(levada, folder):
    prefix, state = folder / "large", folder / "state"
    write_large_corpus(prefix)
    feed = [levada, "feed", str(prefix), "--batch", "8", "--seq", "8", "--shuffle", "--steps", "5", "--json"]
    run([*feed, "--skip", "1000000", "--save-state", str(state)])
    fresh, resumed = [], []
    for _ in range(9):
        for command, times in ((feed, fresh), ([*feed, "--load-state", str(state)], resumed)):
            begin = time.perf_counter()
            run(command)
            times.append(1e3 * (time.perf_counter() - begin))
    print(f"fresh start {statistics.median(fresh):.1f} ms, at step 1,000,000 {statistics.median(resumed):.1f} ms")
    return {"value": statistics.median(resumed), "limit": {"value": statistics.median(fresh)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/feed.json")
    options = parser.parse_args()
    levada = f"{options.build}/levada"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run([levada, "convert", options.corpus, str(folder / "corpus"), "--tokenizer", "bytes"])
        cases = {"tp4": ("tp=4", "deal"), "dp2tp2-split": ("dp=2,tp=2", "split"), "dp2tp2": ("dp=2,tp=2", "deal")}
        figures = {f"storage-{key}": compare_readers(levada, str(folder / "corpus"), options.seq, *case) for key, case in cases.items()}
        figures["resume"] = compare_starts(levada, folder)
    if options.record:
        record("feed", figures)


if __name__ == "__main__":
    main()
