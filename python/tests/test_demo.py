"""The demo of script/run: bench/demo.py, with a model of script/make-model."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import sentencepiece

ROOT = pathlib.Path(__file__).parents[2]

FAKE = """#!{python}
import json, os
digest = "{digest}" or f"{{os.getpid():08x}}"
fields = {{"tokens": {{"digest": digest}}}}
print(json.dumps({{"prepare_bytes": 10, "bytes_read": 20, "ranks": [{{"batches": 5, "fields": fields}}]}}))
raise SystemExit({status})
"""


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "corpus.jsonl"
    texts = [f"def function_{i}(x):\n    return x + {i}  # ünïcode {i % 7}\n" * 40 for i in range(300)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run([ROOT / "script/make-model", path, tmp_path / "corpus.model"], check=True)
    return path


def run(corpus: pathlib.Path, *options: str, levada: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "bench/demo.py", corpus, corpus.with_suffix(".model"), "--levada", levada, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def fake(folder: pathlib.Path, digest: str, status: int) -> pathlib.Path:
    path = folder / "fake"
    path.write_text(FAKE.format(python=sys.executable, digest=digest, status=status))
    path.chmod(0o755)
    return path


def test_three_lines_come_first_and_digests_only_on_request(corpus: pathlib.Path) -> None:
    shown = [run(corpus, *options, levada=os.environ["LEVADA_COMMAND"]) for options in ([], ["--verbose"])]
    for ran in shown:
        assert ran.returncode == 0 and ran.stderr == "", ran.stderr
        first, second, third, blank, *_ = ran.stdout.splitlines()
        assert re.fullmatch(r"All 4 ranks got the same batches, .*: their digests are equal\.", first)
        alone, together = map(float, re.findall(r"([\d.]+) MB read", second))
        assert alone == pytest.approx(4 * together, abs=0.25), "one reader reads a fourth of what four read"
        assert third.startswith("Reading cost nothing here") and "50 MB/s (simulated)" in third and blank == ""
    digests = [re.findall(r"rank \d: tokens ([0-9a-f]{8})  labels", ran.stdout) for ran in shown]
    first, later = digests[1][:8], digests[1][8:]
    assert digests[0] == [] and len(first) == len(later) == 8 and len(set(first)) == len(set(later)) == 1
    assert sorted(corpus.parent.iterdir()) == [corpus, corpus.with_suffix(".model")], "nothing is left"


def test_the_readers_of_a_limited_run_share_the_limit_and_tokenize_nothing(corpus: pathlib.Path) -> None:
    recorder = corpus.parent / "recorder"
    recorder.write_text(f'#!/bin/sh\necho "$*" >>{corpus.parent}/commands\nexec {os.environ["LEVADA_COMMAND"]} "$@"\n')
    recorder.chmod(0o755)
    assert run(corpus, levada=recorder).returncode == 0
    commands = (corpus.parent / "commands").read_text().splitlines()
    caches = [re.findall(r"--cache-dir (\S+)", command) for command in commands]
    assert sorted(caches[:5]) == sorted(caches[5:]) and len({each for (each,) in caches}) == 5
    limits = [float(limit) for command in commands for limit in re.findall(r"--io-limit (\S+)", command)]
    assert len(commands) == 10 and limits == [12.5] * 4 + [50]


def test_ranks_that_differ_are_an_error_that_shows_their_digests(corpus: pathlib.Path) -> None:
    ran = run(corpus, levada=fake(corpus.parent, "", 0))
    assert ran.returncode == 1 and ran.stdout.startswith("DIFFERENT: ")
    assert len(set(re.findall(r"rank \d: tokens (.*)", ran.stdout))) == 10
    assert run(corpus, levada=fake(corpus.parent, "0123456789abcdef", 0)).returncode == 0


def test_a_command_that_fails_ends_it(corpus: pathlib.Path) -> None:
    ran = run(corpus, levada=fake(corpus.parent, "0123456789abcdef", 3))
    assert ran.returncode == 1 and ran.stdout == "" and "ended with status 3" in ran.stderr


def test_the_model_encodes_every_text_and_decodes_it_again(corpus: pathlib.Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(corpus.with_suffix(".model")))
    for text in ("def function_3(x):\n    return x", "  tabs\t and 漢字, \0", "", "ünïcode"):
        assert model.decode(model.encode(text)) == text
    assert model.vocab_size() <= 8192 and model.eos_id() == 2
