"""Small compressed files that hold large texts."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import zlib
from collections.abc import Iterable

LIMITED = """
import resource, sys, levada
corpus = levada.Corpus(sys.argv[1], seq_length=64, cache_dir=sys.argv[2], tokenizer="bytes")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (768 << 20),) * 2)
try:
    print(corpus.documents)
except levada.Error as error:
    print(type(error).__name__, error)
"""


def gzip(path: pathlib.Path, parts: Iterable[bytes]) -> pathlib.Path:
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    path.write_bytes(b"".join(compressor.compress(part) for part in parts) + compressor.flush())
    return path


def read_within_768_mib(path: pathlib.Path) -> str:
    command = [sys.executable, "-c", LIMITED, str(path), str(path.parent / "cache")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert not list((path.parent / "cache" / "tokens").glob("*.bin"))
    return ran.stdout


def test_a_text_that_exceeds_memory_is_refused_before_it_is_loaded(tmp_path: pathlib.Path) -> None:
    path = gzip(tmp_path / "a.txt.gz", [b"\n" * (1 << 20)] * 256)
    assert path.stat().st_size < 4 << 20
    said = read_within_768_mib(path)
    assert said.startswith(f"InvalidArgument tokenizing {path} takes about") and "cut the text into documents" in said, said


def test_a_line_that_does_not_end_is_refused(tmp_path: pathlib.Path) -> None:
    path = gzip(tmp_path / "a.jsonl.gz", [b'{"text":"', *[b"a" * (1 << 20)] * 256])
    said = read_within_768_mib(path)
    assert said.startswith(f"SourceError {path}:1: the line cannot be used: it is longer than 64.0 MiB"), said
