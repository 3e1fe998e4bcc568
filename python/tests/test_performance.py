"""Figures on pages are those in bench/results/, and the charts are made from them."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # last, since some of its modules have the names of tests' modules

import charts  # noqa: E402
import record as recording  # noqa: E402

RESULTS = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "bench/results").glob("*.json"))}
RECORDS = [(topic, key, record) for topic, results in RESULTS.items() for key, record in results["results"].items()]
FIELDS = {"name", "unit", "value", "range", "p99", "max", "aim", "short", "peers", "limit", "source", "command", "machine", "version", "date"} | {
    "first", "cpu", "read", "memory", "made"
}  # fmt: skip
NUMBER = r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?)(?!\w*\d)"
PARTS = {"times": "times", "read_times": "times", "share": "", "read": "MB", "memory": "MB", "made": "items"}
"""The units of parts of a record that are not the record's."""
FIGURE = re.compile(rf"{NUMBER}(?: (?:to|and) {NUMBER})? ?(%|x\b|[A-Za-z/]+)?")
"""A number, or two of one unit."""


def figures_in(text: str) -> list[tuple[str, str]]:
    """Returns the numbers of a text with their units, or the words that follow them."""
    found = [(number, unit) for *pair, unit in FIGURE.findall(text) for number in pair if number]
    return [(number, "times" if unit in ("x", "of") else unit) for number, unit in found]


def known_figures(data: Any, unit: str = "") -> set[tuple[float, str]]:
    """Returns the figures of results with their units, and those of their texts."""
    if isinstance(data, dict):
        unit = figures_in(f"1 {data['unit']}")[0][1] if "unit" in data else unit
        known: set[tuple[float, str]] = set()
        for key, each in data.items():
            if key not in ("version", "date"):
                known |= known_figures(each, PARTS.get(key, unit))
        return known
    if isinstance(data, list):
        return {figure for each in data for figure in known_figures(each, unit)}
    if isinstance(data, str):
        return {(float(number.replace(",", "")), word) for number, word in figures_in(data)}
    return {(float(data), unit)}


UNITS = {"%", "times", "us", "ms", "s", "KB", "MB", "GB", "KiB", "MiB", "GiB", "Gb/s", "MB/s", "GB/s", "items/s", "tokens/s", "crossings"}


def unknown(text: str, *results: Any) -> list[str]:
    """Returns the figures of a text that are not in the results, rounded as the text has them."""
    known = {figure for each in results for figure in known_figures(each)}
    missing = []
    for number, unit in figures_in(text):
        value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
        if not any(round(each, digits) == value and (of == unit or unit not in UNITS) for each, of in known):
            missing.append(f"{number} {unit}")
    return missing


def prose(page: str) -> str:
    """Returns a page without code, targets of links and what bench/charts.py makes."""
    page = re.sub(r"<!-- \w+: made by bench/charts.py -->.*?<!-- end -->", "", page, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", "", page, flags=re.DOTALL)


PAGE = (ROOT / "docs/performance.md").read_text()
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", [text for _, text in SECTIONS], ids=[title for title, _ in SECTIONS])
def test_figures_of_a_section_are_in_the_results_that_it_links(text: str) -> None:
    linked = re.findall(r"\(\.\./bench/results/(\w+)\.json\)", text) or [*RESULTS]
    assert unknown(prose(text), *(RESULTS[topic] for topic in linked)) == []


def test_figures_of_the_readme_equal_those_of_their_commands() -> None:
    rows = re.findall(r"^\|(.*)\|(.*)\|(.*)\| `(.*)` \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    for *cells, command in rows:
        measured = [record for _, _, record in RECORDS if record["command"] == command]
        assert measured, f"no result has the command {command}"
        assert unknown(prose(" ".join(cells)), *measured) == []


def test_a_figure_without_a_result_is_found() -> None:
    assert unknown("378 items/s, 377.9 in 1.4 ms and 4.1x on an H100", RESULTS["loader"]) == []
    assert unknown("379 items/s, 377.8 in 4.1 to 1.4 ms and 4.15x", RESULTS["loader"]) == ["379 items/s", "377.8 in", "4.1 ms", "4.15 times"]


def test_charts_and_tables_match_the_results() -> None:
    stale = [file.name for file, text in charts.made().items() if file.read_text() != text]
    assert stale == [], "run bench/charts.py"
    shown = set(re.findall(r"\]\(performance/(\w+)\.svg\)", PAGE))
    assert shown == charts.CHARTS.keys() == {file.stem for file in (ROOT / "docs/performance").iterdir()}


@pytest.mark.parametrize("topic", RESULTS)
def test_a_results_file_has_the_form_that_recording_writes(topic: str) -> None:
    assert recording.text_of(RESULTS[topic]) == (ROOT / f"bench/results/{topic}.json").read_text()
    assert RESULTS[topic].keys() == {"title", "machine", "results"}


def test_a_record_has_known_fields_and_the_command_that_repeats_it() -> None:
    for topic, key, record in RECORDS:
        assert {"name", "unit", "command", "version", "date"} <= record.keys() <= FIELDS, f"{topic}/{key}"
        assert re.fullmatch(r"[0-9a-f]{7,8}|\d+\.\d+\.\d+", record["version"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        for program in re.findall(r"\b(?:bench|script)/[\w.]+", record["command"].replace("build/openmpi/", "").replace("build/release/", "")):
            assert any((ROOT / f"{program}{suffix}").exists() for suffix in ("", ".py", ".cc")), f"{topic}/{key}: {program}"


def test_only_a_figure_that_misses_its_aim_has_a_reason() -> None:
    for topic, key, record in RECORDS:
        for peer, part, value in charts.parts_of(record):
            missed = "aim" in part and charts.misses(part, value)
            assert missed == ("short" in part), f"{topic}/{key} {peer}"


def test_figures_of_the_gpu_were_measured_on_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (ROOT / "bench/results/gpu.json").read_text()
    (tmp_path / "gpu.json").write_text(before.replace("11.927", "12.5"))
    monkeypatch.setattr(recording, "RESULTS", tmp_path)
    recording.main(["gpu"])
    after = (tmp_path / "gpu.json").read_text()
    assert re.sub(r'"date": .*', "", after) == re.sub(r'"date": .*', "", before) and '"value": 11.927' in before


def test_recording_changes_only_value_version_and_date(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "RESULTS", tmp_path)
    before = RESULTS["loader"]["results"]["tp4"]
    (tmp_path / "loader.json").write_text(recording.text_of(RESULTS["loader"]))
    recording.main(["loader", "tp4", "380.04", "--peer", charts.PEERS[0].peer, "4.25"])
    after = json.loads((tmp_path / "loader.json").read_text())["results"]["tp4"]
    assert after["value"] == 380 and after["peers"][charts.PEERS[0].peer] == before["peers"][charts.PEERS[0].peer] | {"times": 4.25}
    assert after.keys() == before.keys() and after["limit"] == before["limit"] and after["date"] == datetime.date.today().isoformat()
    with pytest.raises(SystemExit, match="no record nothing"):
        recording.main(["loader", "nothing", "1"])
