"""The examples that need torch, run as their readers would run them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import levada
import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> pathlib.Path:
    texts = [path.read_text() for path in sorted(EXAMPLES.iterdir()) if path.is_file()]
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def losses(corpus: pathlib.Path, readers: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script = [EXAMPLES / "train_gpt.py", corpus, "--steps", "6", "--sequence", "32", "--readers", readers]
    ran = subprocess.run([*command, *script], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_gpt_has_the_same_losses_with_any_readers(corpus: pathlib.Path) -> None:
    one = losses(corpus, "one")
    assert len(one) == 6 and float(one[-1].split()[1]) < float(one[0].split()[1])
    assert losses(corpus, "all") == one


def test_a_mesh_can_be_made_from_a_device_mesh() -> None:
    class DeviceMesh:
        """The part of a torch DeviceMesh that Mesh uses; a real one needs a process group."""

        def __init__(self, ranks: list[list[int]], names: tuple[str, ...] | None) -> None:
            self.mesh = torch.tensor(ranks)
            self.mesh_dim_names = names

        def get_coordinate(self) -> list[int] | None:
            return None

    assert levada.Mesh.from_device_mesh(DeviceMesh([[0, 1], [2, 3]], ("dp", "tp"))) == levada.Mesh(dp=2, tp=2)
    assert levada.Mesh.from_device_mesh(DeviceMesh([[1, 3, 5]], ("dp", "tp"))) == levada.Mesh(dp=1, tp=3)
    with pytest.raises(levada.InvalidArgument, match="name its axes"):
        levada.Mesh.from_device_mesh(DeviceMesh([[0, 1]], None))
    with pytest.raises(levada.InvalidArgument, match="ascend in row-major order"):
        levada.Mesh.from_device_mesh(DeviceMesh([[0, 2], [1, 3]], ("dp", "tp")))
