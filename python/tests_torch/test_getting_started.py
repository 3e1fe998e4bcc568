"""What docs/getting-started.md shows is run: its programs, by its commands. Run by `script/check python-torch`."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "getting-started.md").read_text()
PROGRAMS = {"levada": "levada", "torchrun": "torch.distributed.run"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.timeout(600)  # two dozen processes that import torch
def test_programs_and_commands(tmp_path: pathlib.Path) -> None:
    for program in blocks("python"):
        name = program.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(program)
    (tmp_path / "build").mkdir()
    with open(tmp_path / "build" / "corpus.jsonl", "w") as file:
        for i in range(100):
            print(json.dumps({"text": f"words of document {i} " * 1500}), file=file)

    told: dict[str, list[str]] = {}
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] not in PROGRAMS or words[1] == "doctor":
            continue
        command = [sys.executable, "-m", PROGRAMS[words[0]], *words[1:]]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, f"{line}: {ran.stderr}"
        told[shlex.join(words)] = re.findall(r"rank \d: [^\n]*?(?=rank \d:|\n)", ran.stdout + ran.stderr)

    first = told["levada run -n 4 first.py"]
    assert sorted(re.findall(r"rank (\d): batch (\d)", " ".join(first))) == [
        (str(rank), str(batch)) for rank in range(4) for batch in range(rank // 2, 8, 2)
    ]
    trained = [set(told["levada run -n 4 train.py"]), set(told["torchrun --standalone --nproc-per-node 4 train.py"])]
    assert trained[0] == trained[1] and len(trained[0]) == 8
    weights = [line.split(": ")[1] for line in sorted(told["levada run -n 2 ddp.py"])]
    assert len(weights) == 4 and weights[:2] == weights[2:] and weights[0] != weights[1]
    assert (tmp_path / "report.html").stat().st_size > 0
    assert len(told["levada run -n 4 resume.py build/corpus.jsonl"]) == 4
    assert set(told["levada run -n 2 resume.py build/corpus.jsonl"]) == {f"rank {rank}: 819200 tokens" for rank in (0, 1)}
    assert (tmp_path / "feed.state").exists()
