#!/usr/bin/env python3
"""Measures reading a .bin from storage with latency.

The storage is an fsspec file system that answers each request after 50 ms, with 200 MB/s for all requests together.

    bench/remote_storage.py [--latency 0.05] [--rate 200] [--repeats 3]

- Share of the bandwidth that sequential reading achieves at full speed.
- Share of the time that steps wait for their batch of 8 sequences of 4096 tokens when they compute for 50 ms: in order,
  and shuffled.
"""

import argparse
import pathlib
import statistics
import struct
import tempfile
import threading
import time

import fsspec
import levada
import numpy
from record import record

DOCUMENTS, DOCUMENT_TOKENS, TOKEN_BYTES = 1000, 250_000, 4
FILE_BYTES = DOCUMENTS * DOCUMENT_TOKENS * TOKEN_BYTES
WARM_UP, STEPS, STEP_SECONDS = 10, 200, 0.05


class SlowFileSystem(fsspec.AbstractFileSystem):
    """Local files with a latency, and with a rate that all requests share."""

    protocol = "slow"
    cachable = False
    latency, rate = 0.05, 200e6
    _lock, _free = threading.Lock(), 0.0

    def info(self, path, **_):
        time.sleep(self.latency)
        file = pathlib.Path(self._strip_protocol(path))
        return {"name": path, "size": file.stat().st_size, "type": "file", "ETag": str(file.stat().st_mtime_ns)}

    def cat_file(self, path, start=None, end=None, **_):
        time.sleep(self.latency)
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start)
            data = file.read(end - start)
        cls = type(self)
        with cls._lock:
            cls._free = max(cls._free, time.monotonic()) + len(data) / self.rate
            until = cls._free
        time.sleep(max(until - time.monotonic(), 0))
        return data

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("slow://").strip("/")


def write_tokens(prefix):
    """Writes documents of equal length, one after another."""
    length = DOCUMENT_TOKENS * TOKEN_BYTES
    numpy.arange(FILE_BYTES // TOKEN_BYTES, dtype=numpy.int32).tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, DOCUMENTS, DOCUMENTS + 1))
        index.write(numpy.full(DOCUMENTS, DOCUMENT_TOKENS, numpy.int32).tobytes())
        index.write((numpy.arange(DOCUMENTS, dtype=numpy.int64) * length).tobytes())
        index.write(numpy.arange(DOCUMENTS + 1, dtype=numpy.int64).tobytes())


def corpus_of(prefix, folder, **options):
    corpus = levada.Corpus(f"slow://{prefix}.bin", seq_length=4096, cache_dir=folder / "cache", **options)
    corpus.open()
    return corpus


def bandwidth_share(prefix, folder):
    feed = iter(levada.Feed(corpus_of(prefix, folder), batch_size=32))
    begin, batches = time.perf_counter(), 0
    for _ in feed:
        batches += 1
    seconds = time.perf_counter() - begin
    return batches * 32 * 4096 * TOKEN_BYTES / seconds / SlowFileSystem.rate


def waited_share(prefix, folder, **options):
    feed = iter(levada.Feed(corpus_of(prefix, folder, **options), batch_size=8))
    for _ in range(WARM_UP):
        next(feed)
    begin, waited = time.perf_counter(), 0.0
    for _ in range(STEPS):
        asked = time.perf_counter()
        next(feed)
        waited += time.perf_counter() - asked
        time.sleep(STEP_SECONDS)
    return waited / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=SlowFileSystem.latency, help="seconds")
    parser.add_argument("--rate", type=float, default=SlowFileSystem.rate / 1e6, help="MB/s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/data.json")
    options = parser.parse_args()
    SlowFileSystem.latency, SlowFileSystem.rate = options.latency, options.rate * 1e6
    fsspec.register_implementation("slow", SlowFileSystem)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prefix = folder / "tokens"
        write_tokens(prefix)
        shares = {
            "remote-order": ("of the bandwidth, in order", lambda: bandwidth_share(prefix, folder)),
            "remote-waiting": ("of the time waited, in order", lambda: waited_share(prefix, folder)),
            "remote-waiting-shuffled": ("of the time waited, shuffled", lambda: waited_share(prefix, folder, shuffle=True, seed=1)),
        }
        figures = {}
        for key, (what, measure) in shares.items():
            measured = sorted(measure() for _ in range(options.repeats))
            each = ", ".join(f"{share:.2%}" for share in measured)
            print(f"{statistics.median(measured):7.2%} {what} ({each})", flush=True)
            figures[key] = {"value": 100 * statistics.median(measured), "range": [100 * measured[0], 100 * measured[-1]]}
        figures["remote-order"]["limit"] = {"share": figures["remote-order"]["value"] / 100}
    if options.record:
        record("data", figures)


if __name__ == "__main__":
    main()
