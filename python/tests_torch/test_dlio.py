"""`python bench/dlio` with few samples, if DLIO is installed. Run by `script/check python-torch`."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

DLIO = pathlib.Path(__file__).parents[2] / "bench" / "dlio"


@pytest.mark.timeout(300)
def test_ranks_of_tp_read_each_sample_once_with_levada_and_twice_with_torch() -> None:
    if importlib.util.find_spec("dlio_benchmark") is None:
        pytest.skip("dlio_benchmark is not installed")
    ran = subprocess.run([sys.executable, DLIO, "--smoke", "--json"], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    found = {(row["loader"], row["mesh"]): row for row in json.loads(ran.stdout)}
    once = found["levada", "tp"]["read"]
    for loader, mesh in (("torch", "tp"), ("torch", "dp"), ("levada", "dp")):
        assert found[loader, mesh]["read"] == pytest.approx(2 * once, rel=0.2), (loader, mesh)
    assert all(0 < row["au"] <= 100 and row["rate"] > 0 for row in found.values())
