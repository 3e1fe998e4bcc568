"""`python bench/peers`. Run by `script/check python-torch`."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

PEERS = pathlib.Path(__file__).parents[2] / "bench" / "peers"
ENGINES = ("shm", "c10d")
SOURCES = ("host", "arena")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PEERS, *arguments], capture_output=True, text=True, timeout=110
    )


def rows(*arguments: str) -> list[dict[str, Any]]:
    ran = bench(*arguments, "--json", "--rounds", "2")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def check(row: dict[str, Any], peers: set[str]) -> None:
    assert set(row["peers"]) == set(row["ratio"]) == set(row["read_ratio"]) == peers
    assert row["levada_us"] > 0 and row["read_us"] > 0
    for name in peers:
        assert row["ratio"][name] == pytest.approx(row["peers"][name] / row["levada_us"], rel=0.02, abs=0.01)
        assert row["read_ratio"][name] == pytest.approx(row["read_peers"][name] / row["read_us"], rel=0.02, abs=0.01)


def test_each_source_and_engine_has_a_row_with_its_peers() -> None:
    found = rows("peers", "--ranks", "3", "--bytes", "40000")
    ways = [(source, engine) for engine in ENGINES for source in SOURCES]
    places = [(row["op"], row["source"], row["engine"]) for row in found]
    assert places == [(op, *way) for op in ("scatter", "broadcast") for way in ways]
    peers = {
        "scatter": {"scatter_object_list", "schema_isend"},
        "broadcast": {"broadcast_object_list", "direct"},
    }
    for row in found:
        assert row["ranks"] == 3 and row["bytes"] == 39936 and row["copy_us"] > 0
        check(row, peers[row["op"]])


def test_the_batches_of_megatron_go_through_the_drop_in() -> None:
    found = rows("bridge", "--ranks", "2", "--tokens", "8192", "--engine", "shm", "--source", "host")
    assert [(row["tokens"], row["extras"]) for row in found] == [(8192, False), (8192, True)]
    assert found[0]["bytes"] == 8192 * 28 < found[1]["bytes"]
    for row in found:
        check(row, {"broadcast_object_list", "direct"})


def test_a_step_of_the_loop_is_timed() -> None:
    found = rows("loop", "--ranks", "2", "--bytes", "40000", "--engine", "shm")
    assert [(row["source"], row["bytes"]) for row in found] == [("host", 39936), ("arena", 39936)]
    for row in found:
        assert 0 < row["levada_us"] < 50_000 and row["tensors_us"] > 0
        assert 0 < row["engine_us"] < row["levada_us"] and 0 < row["beyond_us"] < row["levada_us"]


def test_an_exchange_has_a_row_for_each_engine() -> None:
    found = rows("exchange", "--ranks", "4", "--samples", "16", "--bytes", "20000")
    assert [(row["op"], row["engine"], row["samples"]) for row in found] == [("exchange", e, 16) for e in ENGINES]
    for row in found:
        assert 8_000 < row["bytes"] < 32_000 and row["copy_us"] > 0
        check(row, {"all_gather_object", "areal_gather_scatter", "areal_bcast", "packed_isend"})


def test_reduce_scatters_are_compared_with_plain_torch() -> None:
    found = rows("reduce", "--ranks", "2", "--sizes", "5x4KiB")
    assert [(row["engine"], row["source"]) for row in found] == [(e, s) for e in ENGINES for s in SOURCES]
    for row in found:
        assert row["bytes"] == 40960 and row["copy_us"] > 0
        assert set(row["peers"]) <= {"one_by_one", "fairscale"}
        check(row, {"one_by_one"} | set(row["peers"]))


def test_a_pipeline_is_compared_with_what_it_replaces() -> None:
    found = rows("peers", "--op", "dispatch", "--item-bytes", "4096", "--seconds", "0.2", "--workers", "1")
    (row,) = found
    assert [row[key] for key in ("op", "workers", "item_bytes")] == ["dispatch", 1, 4096]
    assert row["items_per_s"] > 0 and row["wakeups_per_item"] > 0 and 0.5 < row["copies_per_byte"] < 5
    assert {"dataloader", "mp_queue"} <= set(row["peers"]) == set(row["ratio"])
    for name, rate in row["peers"].items():
        assert row["ratio"][name] == pytest.approx(row["items_per_s"] / rate, rel=0.02, abs=0.01)


def test_the_default_output_is_a_table() -> None:
    ran = bench("peers", "--op", "broadcast", "--ranks", "2", "--bytes", "4096", "--rounds", "1", "--source", "host")
    head, rule, *lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and head.split()[:2] == ["work", "bytes"] and set(rule) == {"-", " "}
    assert [line.split()[:4] for line in lines] == [["broadcast", "4,096", "host", engine] for engine in ("shm", "c10d")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["peers", "--ranks", "1"], "--ranks is 1"),
        (["peers", "--bytes", "12"], "--bytes is 12"),
        (["peers", "--rounds", "0"], "--rounds is 0"),
        (["bridge", "--tokens", "0"], "--tokens"),
        (["exchange", "--ranks", "3"], "--ranks must be even"),
        (["exchange", "--samples", "3"], "--samples"),
        (["peers", "--op", "gather"], "gather"),
        (["reduce", "--sizes", "4KiB"], "--sizes is 4KiB"),
        (["peers", "--op", "dispatch", "--item-bytes", "0"], "--item-bytes is 0"),
        ([], "command"),
    ],
)
def test_bad_usage_is_reported(arguments: list[str], text: str) -> None:
    ran = bench(*arguments)
    assert ran.returncode == 2 and text in ran.stderr and ran.stdout == ""
