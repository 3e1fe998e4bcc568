"""Report pages and traces of pipelines, and of feeds that read them."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import levada
import pytest
import ranks
from levada import Pipeline

LOADER = """
import time
import levada
import numpy as np

def slow(i):
    time.sleep(0.02)  # in all, many times what it takes two workers to begin
    return {"x": np.full(4, i)}

def batches():
    return levada.Pipeline(range(120), name="numbers").dispatch().map(slow, name="parse")

def broken():
    return batches().map(lambda batch: 1 // (5 - int(batch["x"][0])) and batch, name="divide")
"""


def feed(folder: pathlib.Path, callable: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "loaders.py").write_text(LOADER)
    command = [sys.executable, "-m", "levada", "feed", f"loaders:{callable}", "--mesh", "dp=1,tp=2", "--workers", "2"]
    command += ["--report", "page.html", "--trace", "trace.json", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


def drawn(page: pathlib.Path) -> dict[str, Any]:
    """Returns the JSON data of the page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


def where(pipeline: dict[str, Any], stage: str) -> list[str]:
    """Returns the names of the processes that run a stage, without process numbers."""
    processes = [each for each in pipeline["processes"] if stage in [of["name"] for of in each["stages"]]]
    return [re.sub(r" \(process \d+\)", "", each["name"]) for each in processes]


def tracks(trace: dict[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns the slices of each track of each process, by process and track name, without process numbers."""
    events = trace["traceEvents"]
    processes = {e["pid"]: re.sub(r" \(process \d+\)", "", e["args"]["name"]) for e in events if e["name"] == "process_name"}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in processes.values()}
    for (pid, _), track in named.items():
        found[processes[pid]][track] = []
    for event in events:
        if event["ph"] == "X":
            found[processes[event["pid"]]][named[event["pid"], event["tid"]]].append(event)
    return found


def seconds(slices: list[dict[str, Any]], name: str) -> float:
    return sum(each["dur"] for each in slices if each["name"].startswith(name)) / 1e6


def test_a_feed_of_a_pipeline_names_the_bottleneck_of_its_pipeline(tmp_path: pathlib.Path) -> None:
    ran = feed(tmp_path, "batches", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["steps"] == 120
    page = drawn(tmp_path / "page.html")
    [pipeline] = page["pipelines"]
    assert pipeline["rank"] == 0 and pipeline["report"]["bottleneck"] == "parse"
    assert pipeline["report"]["finding"].startswith("parse is the bottleneck: it takes")
    assert where(pipeline["report"], "parse") == ["worker 0", "worker 1"]
    assert where(pipeline["report"], "numbers") == ["the dispatching process"]
    assert "rank 0 was waiting for its pipeline. parse is the bottleneck" in page["feed"]["finding"]
    assert [rank["place"] for rank in page["feed"]["ranks"]] == ["dp0 tp0", "dp0 tp1"]

    found = tracks(json.loads((tmp_path / "trace.json").read_text()))
    assert set(found) == {
        "rank 0 dp0 tp0",
        "rank 1 dp0 tp1",
        *(f"rank 0 pipeline: {name}" for name in ("the dispatching process", "worker 0", "worker 1", "the consumer")),
    }
    workers = [found[f"rank 0 pipeline: worker {number}"] for number in (0, 1)]
    assert sum(seconds(worker["parse"], "parse") for worker in workers) >= 120 * 0.02
    assert seconds(found["rank 0 pipeline: the consumer"]["waits and messages"], "waiting for items of worker") > 0
    reads = [each for each in found["rank 0 dp0 tp0"]["reader"] if each["name"] == "reading storage"]
    begin, end = min(each["ts"] for each in reads), max(each["ts"] + each["dur"] for each in reads)
    parses = [each for worker in workers for each in worker["parse"]]
    assert all(begin - 5e6 < each["ts"] < end for each in parses), "one clock"


class Slow:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> int:
        time.sleep(0.03)
        return number


def test_a_report_names_its_source(tmp_path: pathlib.Path) -> None:
    sources: list[tuple[Any, str]] = [
        (range(3), "a range"),
        (itertools.islice(range(9), 3), "an islice"),
        (Pipeline(range(3)), "a Pipeline"),
    ]
    feeds = [(levada.Feed(source, record=True), name) for source, name in sources]
    feeds.append((levada.DataLoader(Slow(), 4, num_workers=1, record=True), "a DataLoader of a Slow"))
    for feed, name in feeds:
        assert len(list(feed)) > 0
        feed.write_report(tmp_path / "page.html")
        page = drawn(tmp_path / "page.html")
        assert page["feed"]["paths"] == [name]
    assert "making items of Slow is the bottleneck: it takes" in page["feed"]["finding"]
    feed.close()


def test_a_feed_that_fails_is_shown_too(tmp_path: pathlib.Path) -> None:
    ran = feed(tmp_path, "broken")
    assert ran.returncode == 1 and "ZeroDivisionError" in ran.stderr
    page = drawn(tmp_path / "page.html")
    assert "ZeroDivisionError" in page["feed"]["error"] and page["pipelines"][0]["rank"] == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_unwritable_files_are_reported_before_anything_starts(tmp_path: pathlib.Path) -> None:
    ran = feed(tmp_path, "batches", "--report", "nowhere/page.html")
    assert ran.returncode == 2 and "nowhere" in ran.stderr and not (tmp_path / "trace.json").exists()


def heavy(i: int) -> int:
    time.sleep(0.01)
    return i


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_writes_a_page_and_a_trace(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    pipeline = Pipeline(range(100), name="numbers").dispatch().map(heavy, name="heavy")
    with pipeline.run(workers, context="forkserver", record=True) as run:
        assert len(list(run)) == 100
        run.write_report(tmp_path / "at work.html")
        assert capfd.readouterr().err == ""
    run.write_report(tmp_path / "after.html")
    run.write_trace(tmp_path / "trace.json")
    for name in ("at work.html", "after.html"):
        page = drawn(tmp_path / name)
        report = page["pipelines"][0]["report"]
        assert page["feed"] is None and report["bottleneck"] == "heavy"
        assert sum(of["items"] for each in report["processes"] for of in each["stages"] if of["name"] == "heavy") == 100
    found = tracks(json.loads((tmp_path / "trace.json").read_text()))
    process = "worker 0" if workers else "the consumer"
    assert sum(each["args"].get("items", 0) for each in found[process]["heavy"]) > 50
    assert set(found) == ({"the dispatching process", "worker 0", "the consumer"} if workers else {"the consumer"})


def test_a_trace_of_a_running_pipeline_has_the_spans_of_slow_workers(tmp_path: pathlib.Path) -> None:
    def slow(i: int) -> int:
        time.sleep(0.05)
        return i

    pipeline = Pipeline(range(1000)).dispatch().map(slow, name="slow")
    with pipeline.run(2, context="forkserver", record=True) as run:
        items = iter(run)
        for _ in range(6):
            next(items)
        run.write_trace(tmp_path / "trace.json")
    found = tracks(json.loads((tmp_path / "trace.json").read_text()))
    assert found["worker 0"]["slow"] and found["worker 1"]["slow"]


def test_a_report_that_cannot_be_written_is_an_error_on_all_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        feed = levada.Feed([{"x": np.zeros(2)}], mesh=levada.Mesh(dp=1, tp=2), record=True)
        assert len(list(feed)) == 1
        try:
            feed.write_report("nowhere/page.html")
        except levada.SourceError as error:
            tell(error=str(error))
        feed.write_report(os.path.join(os.path.dirname(__file__), "page.html"))  # ranks are still in step
        """,
    )
    assert all("nowhere/page.html" in rank[0]["error"] for rank in told)


def test_a_report_without_a_record_is_an_error(tmp_path: pathlib.Path) -> None:
    run = Pipeline(range(3)).run()
    with pytest.raises(levada.InvalidArgument, match="has yielded no items yet"):
        run.write_report(tmp_path / "page.html")
    list(run)
    with pytest.raises(levada.InvalidArgument, match=r"run\(record=True\)"):
        run.write_trace(tmp_path / "trace.json")
    with pytest.raises(levada.InvalidArgument, match="record=True"):
        levada.Feed([1, 2]).write_report(tmp_path / "page.html")
