"""`levada feed MODULE:CALLABLE --metrics`: each rank's metrics at a port or in a file."""

from __future__ import annotations

import pathlib
import re
import socket
import subprocess
import sys

import pytest
import ranks

LOADERS = """
import os, pathlib, time, urllib.request
import numpy as np
def plain():
    return ({"x": np.full(8, i)} for i in range(6))
def asking():
    # Asks the ranks' ports while they wait for the batch after four.
    yield from ({"x": np.full(8, i)} for i in range(4))
    ports = [int(port) for port in os.environ["PORTS"].split()]
    texts = [""] * len(ports)
    deadline = time.monotonic() + 60
    while not all('levada_feed_batches_total{rank="%d"} 2' % rank in text for rank, text in enumerate(texts)):
        assert time.monotonic() < deadline, texts
        for rank, port in enumerate(ports):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                texts[rank] = answer.read().decode()
        time.sleep(0.01)
    pathlib.Path("asked.txt").write_text("\\n".join(texts))
    yield {"x": np.full(8, 4)}
    yield {"x": np.full(8, 5)}
"""


def feed(folder: pathlib.Path, *arguments: str, ports: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "loaders.py").write_text(LOADERS)
    command = ["env", f"PORTS={ports}", sys.executable, "-m", "levada", "feed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)


def batches_in(text: str) -> dict[str, float]:
    return {rank: float(count) for rank, count in re.findall(r'levada_feed_batches_total\{rank="(\d+)"\} (\S+)', text)}


def test_each_rank_replaces_its_own_file(tmp_path: pathlib.Path) -> None:
    ran = feed(tmp_path, "loaders:plain", "--mesh", "dp=2", "--metrics", "numbers.prom")
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "numbers.prom").exists()
    for rank in ("0", "1"):
        assert batches_in((tmp_path / f"numbers.rank{rank}.prom").read_text()) == {rank: 3.0}
    assert feed(tmp_path, "loaders:plain", "--metrics", "numbers.prom").returncode == 0
    assert batches_in((tmp_path / "numbers.prom").read_text()) == {"0": 6.0}


def test_each_rank_serves_its_own_port_while_it_waits(tmp_path: pathlib.Path) -> None:
    first = ranks.free_ports()
    metrics, ports = f"127.0.0.1:{first}", f"{first} {first + 1}"
    ran = feed(tmp_path, "loaders:asking", "--mesh", "dp=2", "--metrics", metrics, ports=ports)
    assert ran.returncode == 0, ran.stderr
    assert batches_in((tmp_path / "asked.txt").read_text()) == {"0": 2.0, "1": 2.0}


@pytest.mark.parametrize("target", ["0", "70000", "65535", "nowhere/numbers.prom", "."])
def test_an_impossible_target_is_refused_in_one_sentence(tmp_path: pathlib.Path, target: str) -> None:
    ran = feed(tmp_path, "loaders:plain", "--mesh", "dp=2", "--metrics", target)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith(f"levada: --metrics {target}") and ran.stderr.count("\n") == 1


def test_the_error_names_a_port_in_use(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = feed(tmp_path, "loaders:plain", "--metrics", target)
    assert ran.returncode == 1 and f"--metrics: cannot listen on {target}: Address already in use" in ran.stderr
