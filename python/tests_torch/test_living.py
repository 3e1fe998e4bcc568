"""`python bench/living` with few samples, for the loaders that are installed. Run by `script/check python-torch`."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

LIVING = pathlib.Path(__file__).parents[2] / "bench" / "living"
PACKAGES = {
    "torch": "torch",
    "torchdata": "torchdata",
    "datasets": "datasets",
    "litdata": "litdata",
    "mosaic": "streaming",
    "energon": "megatron.energon",
    "grain": "grain",
    "spdl": "spdl",
    "levada": "levada",
    "levada-fork": "levada",
}


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def rows(*arguments: str) -> list[dict[str, Any]]:
    ran = subprocess.run([sys.executable, LIVING, "--smoke", "--json", *arguments], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arm", PACKAGES)
def test_each_rank_of_a_mesh_gets_its_samples_once(arm: str) -> None:
    if not installed(PACKAGES[arm]):
        pytest.skip(f"{PACKAGES[arm]} is not installed")
    (row,) = rows("--workload", "c", "--mesh", "dp=2,tp=2", "--arm", arm)
    assert "says" not in row, row["says"]
    assert 0 < row["first"] <= row["seconds"] and row["cpu"] > 0 and row["memory"] >= 0
    assert row["made"] == (1 if PACKAGES[arm] == "levada" else 2)


@pytest.mark.timeout(300)
def test_levada_resumes_exactly_and_feeds_tokens() -> None:
    found = rows("--workload", "a,e", "--mesh", "dp=2,tp=2", "--arm", "levada")
    assert [(row["workload"], row.get("says")) for row in found] == [("a", None), ("e", None)]


def test_an_unknown_arm_is_refused() -> None:
    ran = subprocess.run([sys.executable, LIVING, "--arm", "dali"], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 2 and "dali: choose from torch" in ran.stderr
