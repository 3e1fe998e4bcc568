#!/usr/bin/env python3
"""Measures how long a corpus of many files takes to open, and to deliver its first batch.

Makes N pairs of .bin and .idx and N texts, each of one document. Texts are tokenized once, and then opened from the
cache.

  bench/open_corpus.py [--files N] [--texts N] [--tokens N] [--descriptors N] [--runs N] [--folder DIR]
"""

import argparse
import pathlib
import resource
import statistics
import struct
import tempfile
import time

import levada
from record import record

SEQUENCE = 32


def write_pairs(folder, count, tokens):
    """Writes pairs of one document each, in Megatron-LM's format."""
    folder.mkdir()
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2)
    index = header + struct.pack("<iqqq", tokens, 0, 0, 1)
    for number in range(count):
        (folder / f"{number:06}.bin").write_bytes(struct.pack("<H", number % 1000) * tokens)
        (folder / f"{number:06}.idx").write_bytes(index)


def write_texts(folder, count, tokens):
    """Writes texts of about `tokens` bytes, which are as many tokens."""
    folder.mkdir()
    for number in range(count):
        text = f"the text of file {number}. " * max(tokens // 24, 1)
        (folder / f"{number:06}.jsonl").write_text(f'{{"text": "{text}"}}\n')


def open_once(folder, cache):
    """Returns the seconds until the corpus is open, and until the first batch arrives."""
    begin = time.perf_counter()
    corpus = levada.Corpus(folder, seq_length=SEQUENCE, shuffle=True, seed=7, cache_dir=cache, tokenizer="bytes")
    len(corpus)
    opened = time.perf_counter() - begin
    with levada.Feed(corpus, batch_size=8) as feed:
        next(iter(feed))
        return opened, time.perf_counter() - begin


def report(what, runs):
    opened, first = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{what:<40} open {opened:8.3f} s   first batch {first:8.3f} s   (median of {len(runs)})", flush=True)
    return {"value": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000, help="pairs of .bin and .idx")
    parser.add_argument("--texts", type=int, help="texts, as many as pairs by default")
    parser.add_argument("--tokens", type=int, default=32, help="of a file")
    parser.add_argument("--descriptors", type=int, default=256, help="files that may be open")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/data.json")
    parser.add_argument("--folder", help="where the files are made and removed again")
    options = parser.parse_args()
    texts = options.files if options.texts is None else options.texts
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (options.descriptors, hard))
    figures = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        place = pathlib.Path(folder)
        if options.files > 0:
            write_pairs(place / "pairs", options.files, options.tokens)
            runs = [open_once(place / "pairs", place / "cache") for _ in range(options.runs)]
            figures["open-pairs"] = report(f"{options.files} pairs of .bin and .idx", runs)
        if texts > 0:
            write_texts(place / "texts", texts, options.tokens)
            figures["open-tokenizing"] = report(f"{texts} texts, tokenized", [open_once(place / "texts", place / "cache")])
            runs = [open_once(place / "texts", place / "cache") for _ in range(options.runs)]
            figures["open-texts"] = report(f"{texts} texts, from the cache", runs)
    if options.record:
        record("data", figures)


if __name__ == "__main__":
    main()
