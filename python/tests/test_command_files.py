"""The command's files: a list from standard input, and the files that remain after a size limit interrupts a write."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess

import pytest

FEED = ["feed", "--tokenizer", "bytes", "--seq", "8", "--batch", "1", "--steps", "3", "--json"]


def run(folder: pathlib.Path, *arguments: str, listed: str = "", limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder. `limit` is the maximum size of a file that it writes, in bytes."""

    def restrict() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [os.environ["LEVADA_COMMAND"], *arguments],
        input=listed,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        preexec_fn=restrict,
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("one.jsonl", "two.jsonl", "three.jsonl"):
        lines = [json.dumps({"text": f"line {number} of {name}, and more of it"}) for number in range(20)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def digests(ran: subprocess.CompletedProcess[str]) -> object:
    assert ran.returncode == 0, ran.stderr
    return [rank["fields"] for rank in json.loads(ran.stdout)["ranks"]]


@pytest.mark.parametrize("mesh", [[], ["--mesh", "dp=2"]])
def test_a_list_of_files_on_standard_input_is_read_in_its_order(folder: pathlib.Path, mesh: list[str]) -> None:
    wanted = digests(run(folder, *FEED, "two.jsonl", "one.jsonl", *mesh))
    assert digests(run(folder, *FEED, "--files-from", "-", *mesh, listed="two.jsonl\none.jsonl\n")) == wanted
    assert digests(run(folder, *FEED, "--files-from", "-", *mesh, listed="two.jsonl\none.jsonl")) == wanted
    assert digests(run(folder, *FEED, "two.jsonl", "--files-from", "-", *mesh, listed="one.jsonl\n")) == wanted
    assert digests(run(folder, *FEED, "--files-from", "-", *mesh, listed="one.jsonl\ntwo.jsonl\n")) != wanted


def test_convert_reads_a_list_of_files_on_standard_input(folder: pathlib.Path) -> None:
    ran = run(folder, "convert", "out.bin", "--tokenizer", "bytes", "--files-from", "-", "--json", listed="two.jsonl\nthree.jsonl\n")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["documents"] == 40


@pytest.mark.parametrize("listed", ["", "\n\n"])
def test_an_empty_list_on_standard_input_is_refused(folder: pathlib.Path, listed: str) -> None:
    ran = run(folder, *FEED, "--files-from", "-", listed=listed)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith("levada: --files-from -: ") and ran.stderr.count("\n") == 1


def test_the_error_names_a_missing_listed_file(folder: pathlib.Path) -> None:
    ran = run(folder, *FEED, "--files-from", "-", listed="one.jsonl\nfour.jsonl\n")
    assert ran.returncode in (1, 2) and "four.jsonl" in ran.stderr and ran.stderr.count("\n") == 1


@pytest.mark.parametrize("kept", [None, "what an earlier run wrote"])
@pytest.mark.parametrize("option", ["--save-state", "--report", "--trace"])
def test_the_error_names_a_file_over_the_size_limit_and_the_old_file_stays(
    folder: pathlib.Path, option: str, kept: str | None
) -> None:
    limited = [*FEED, "one.jsonl", "--engine", "inproc"]  # inproc needs no file for the ranks' memory
    assert run(folder, *limited).returncode == 0  # also writes the token cache
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if kept is not None:
        (folder / "written").write_text(kept)
        before["written"] = kept.encode()
    ran = run(folder, *limited, option, "written", limit=100)
    assert ran.returncode == 1
    assert ran.stderr == "levada: cannot write written: File too large\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
