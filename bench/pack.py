#!/usr/bin/env python3
"""Measures packing documents into rows by Pipeline.pack() in this process, with both methods.

Compares it with copying tokens and labels into rows in numpy, and with the pipeline that yields the documents
unchanged. Prints medians of interleaved runs, in processor time of the thread.

  bench/pack.py [--documents N] [--mean TOKENS] [--sequence N] [--buffer N] [--runs N]
"""

import argparse
import statistics
import time

import levada
import numpy as np


def copied(documents, sequence):
    """Concatenates documents and yields a copy of each row's tokens and labels, without other fields."""
    held, tokens = [], 0
    for document in documents:
        held.append(document)
        tokens += len(document)
        while tokens > sequence:
            whole = np.concatenate(held, dtype=np.int64)
            yield {"tokens": whole[:sequence], "labels": whole[1 : sequence + 1].copy()}
            held, tokens = [document[len(document) - (tokens - sequence) :]], tokens - sequence


def seconds_of(rows):
    begin = time.thread_time()
    count = sum(1 for _ in rows)
    return time.thread_time() - begin, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--mean", type=int, default=600)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--buffer", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    lengths = np.maximum(random.gamma(1.5, options.mean / 1.5, options.documents).astype(int), 2)
    documents = [random.integers(0, 50_000, length, np.int32) for length in lengths]
    tokens = int(lengths.sum())

    source = levada.Pipeline(documents)
    ways = {
        "copy": lambda: copied(documents, options.sequence),
        "documents": lambda: source,
        "cut": lambda: source.pack(options.sequence),
        "best-fit": lambda: source.pack(options.sequence, method="best-fit", buffer=options.buffer),
    }
    runs = {way: [] for way in ways}
    for _ in range(options.runs):
        for way, make in ways.items():
            runs[way].append(seconds_of(make()))
    print(f"{len(documents)} documents of {tokens / len(documents):.0f} tokens, rows of {options.sequence}")
    copy = statistics.median(seconds for seconds, _ in runs["copy"])
    for way, times in runs.items():
        seconds = statistics.median(seconds for seconds, _ in times)
        count = times[0][1]
        positions = tokens - (len(documents) if way == "best-fit" else 1)
        filled = "" if way == "documents" else f", {positions / count / options.sequence:.2%} filled"
        print(f"{way}: {tokens / seconds / 1e6:.0f} million tokens/s, {copy / seconds:.2f} of copy, {count} items{filled}")


if __name__ == "__main__":
    main()
