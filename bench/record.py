#!/usr/bin/env python3
"""Enters measured figures into bench/results/, with the checkout's version and today's date. bench/README.md describes
the fields.

    bench/record.py TOPIC KEY VALUE [VALUE] [--range LOW HIGH] [--peer NAME TIMES [TIMES]]
    bench/record.py gpu    # enters the figures of bench/gpu.json

Benchmarks that have --record call record()."""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"


def text_of(results: dict[str, Any]) -> str:
    """Returns a file of results as JSON, with each list on one line."""
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: "[" + re.sub(r",\s+", ", ", match[1]) + "]", text)


def rounded(value: Any) -> Any:
    """Returns figures with four significant digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def record(topic: str, figures: dict[str, dict[str, Any]]) -> None:
    """Enters the fields of each record. Other fields of the record, its peers and its limit stay."""
    file = RESULTS / f"{topic}.json"
    results = json.loads(file.read_text())
    revision = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    for key, fields in figures.items():
        if key not in results["results"]:
            raise KeyError(f"bench/results/{topic}.json has no record {key}; enter its name, unit and command first")
        found = results["results"][key]
        for name, value in rounded(fields).items():
            if name == "peers":
                for peer, of_peer in value.items():
                    found.setdefault("peers", {}).setdefault(peer, {}).update(of_peer)
            elif name == "limit":
                found["limit"].update(value)
            else:
                found[name] = value
        found.update(version=revision.stdout.strip(), date=datetime.date.today().isoformat())
    file.write_text(text_of(results))


def record_gpu() -> None:
    """Enters the figures that script/gpu has measured."""
    measured = json.loads((ROOT / "bench/gpu.json").read_text())
    file = RESULTS / "gpu.json"
    results = json.loads(file.read_text())
    for found in results["results"].values():
        value = measured
        for step in found["source"]:
            value = value[step]
        ends = sorted({min(value), max(value)}) if isinstance(value, list) else [value]
        value = ends if len(ends) == 2 else ends[0]
        if value != found["value"]:
            found.update(value=value, version=measured["machine"]["levada"], date=datetime.date.today().isoformat())
    file.write_text(text_of(results))


def main(arguments: list[str]) -> None:
    if arguments == ["gpu"]:
        record_gpu()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("value", metavar="VALUE", type=float, nargs="+", help="a median, or the lowest and the highest")
    parser.add_argument("--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="the ends of several runs")
    parser.add_argument("--peer", nargs="+", action="append", default=[], metavar="NAME TIMES", help="how many times as long it takes")
    options = parser.parse_args(arguments)
    if len(options.value) > 2:
        parser.error("a value is one number or two")
    fields: dict[str, Any] = {"value": options.value[0] if len(options.value) == 1 else options.value}
    if options.range:
        fields["range"] = options.range
    for name, *times in options.peer:
        numbers = [float(each) for each in times]
        fields.setdefault("peers", {})[name] = {"times": numbers[0] if len(numbers) == 1 else numbers}
    try:
        record(options.topic, {options.key: fields})
    except (KeyError, FileNotFoundError) as why:
        sys.exit(f"bench/record.py: {why.args[0] if isinstance(why, KeyError) else why}")


if __name__ == "__main__":
    main(sys.argv[1:])
