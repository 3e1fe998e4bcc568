"""Runs the programs of docs/getting-started.md by its commands, and compares their output with the page. Run by
`script/check python-torch`."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "getting-started.md").read_text()
PROGRAMS = {"levada": ["-m", "levada"], "torchrun": ["-m", "torch.distributed.run"], "python": []}
NUMBER = r"\d+\.\d+(?!\.)"


def blocks(language: str) -> list[str]:
    return [text for kind, text in all_blocks() if kind == language]


def all_blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def run(folder: pathlib.Path, line: str) -> str:
    """Runs a command line. Returns its output, or nothing if it is not one of PROGRAMS."""
    words = shlex.split(line, comments=True)
    if words[0] == "rm":
        (folder / words[1]).unlink()
    if words[0] not in PROGRAMS:
        return ""
    command = [sys.executable, *PROGRAMS[words[0]], *words[1:]]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, f"{line}: {ran.stderr}"
    return ran.stdout


def lines_of(printed: str) -> list[str]:
    """Returns the sorted lines. With PYTHONUNBUFFERED, a rank may print in the middle of another rank's line."""
    return sorted(line for line in re.sub(r"(?=rank \d: )", "\n", printed).splitlines() if line)


def form_of(printed: str) -> list[str]:
    return [re.sub(NUMBER, "0", line) for line in lines_of(printed)]


def numbers_of(printed: str) -> list[float]:
    return [float(number) for line in lines_of(printed) for number in re.findall(NUMBER, line)]


@pytest.mark.timeout(900)  # starts forty processes that import torch
def test_programs_and_commands(tmp_path: pathlib.Path) -> None:
    compared = 0
    following = [*all_blocks()[1:], ("", "")]
    for (language, text), (next_language, shown) in zip(all_blocks(), following, strict=True):
        if language == "python":
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
        if language != "sh" or text.startswith("script/"):
            continue
        printed = "".join(run(tmp_path, line) for line in text.splitlines())
        if next_language == "text":
            assert form_of(printed) == form_of(shown)
            assert numbers_of(printed) == pytest.approx(numbers_of(shown), abs=0.03)
            compared += 1
    assert compared == 6 and (tmp_path / "report.html").stat().st_size > 0


def test_the_loss_falls_and_is_the_same_on_one_and_four_ranks() -> None:
    shown = blocks("text")
    losses = [[float(loss) for loss in re.findall(r"loss ([\d.]+)", text)] for text in shown]
    (one, four) = (each for each in losses if len(each) == 5)
    assert one == four == sorted(one, reverse=True) and one[-1] < 0.5 * one[0]


def test_every_command_is_run_except_for_the_build() -> None:
    commands = {line.split()[0] for text in blocks("sh") for line in text.splitlines()}
    assert commands == {*PROGRAMS, "rm", "script/wheel"}


def test_the_wheel_is_installed_by_the_line_that_is_printed() -> None:
    printed = blocks("text")[0]
    script = (pathlib.Path(__file__).parents[2] / "script/wheel").read_text()
    assert printed.startswith("To install it: pip install ") and 'echo "To install it: pip install ' in script
