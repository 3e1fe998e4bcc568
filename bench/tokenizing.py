#!/usr/bin/env python3
"""Measures tokenizing text with the package `tokenizers`, on all cores, through Levada and directly.

Compares Levada's whole path (reading, parsing, encoding, writing .bin/.idx) with Tokenizer.encode_batch_fast and
encode_batch on the same texts. Prints medians of interleaved runs.

  bench/tokenizing.py CORPUS.jsonl TOKENIZER.json [--runs N] [--field NAME]
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import levada
import tokenizers
from record import record

BATCH_BYTES = 4 << 20


def batches(corpus, field):
    """Yields the texts in batches of some MiB."""
    batch, size = [], 0
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            batch.append(json.loads(line)[field])
            size += len(batch[-1])
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def encode_alone(tokenizer, texts, name):
    encode = getattr(tokenizer, name)
    begin = time.perf_counter()
    for batch in texts:
        encode(batch, add_special_tokens=False)
    return time.perf_counter() - begin


def tokenize(options):
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        levada.Corpus(
            options.corpus, tokenizer=options.tokenizer, text_field=options.field, cache_dir=folder
        ).open()
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--field", default="text")
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/data.json")
    options = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(options.tokenizer)
    texts = list(batches(options.corpus, options.field))
    seconds = {"encode_batch": [], "encode_batch_fast": [], "levada": []}
    for _ in range(options.runs):
        for name in ("encode_batch", "encode_batch_fast"):
            seconds[name].append(encode_alone(tokenizer, texts, name))
        seconds["levada"].append(tokenize(options))
    size = pathlib.Path(options.corpus).stat().st_size
    whole = statistics.median(seconds["levada"])
    for name, runs in seconds.items():
        median = statistics.median(runs)
        print(f"{name:<18}{median:8.2f} s  {size / median / 1e6:8.2f} MB/s  {median / whole:6.2f} of levada's time")
    if options.record:
        medians = {f"{name} of tokenizers": statistics.median(seconds[name]) for name in ("encode_batch", "encode_batch_fast")}
        peers = {name: {"value": size / median / 1e6, "times": median / whole} for name, median in medians.items()}
        record("data", {"tokenize": {"value": size / whole / 1e6, "peers": peers}})


if __name__ == "__main__":
    main()
