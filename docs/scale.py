#!/usr/bin/env python3
"""Makes docs/scale.svg, and the table in docs/scale.md, of what `levada plan --hosts` says of 1 to 8,192 hosts.

    docs/scale.py LEVADA [--check]    # LEVADA: the command; --check: only says whether both are up to date
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).resolve().parent
HOSTS = [2**power for power in range(14)]
RANKS_PER_HOST = 8
HOSTS_A_REPLICA = 16
CONSTANTS = ["--link", "100Gb/s", "--memory", "10GB/s", "--message", "200us", "--step", "1s"]
JOB = ["--batch", "8", "--seq", "8192"]
STEP_SHARE = 0.1
"""The part of a step of one second that a recommended choice may take."""


class Choice(NamedTuple):
    label: str
    color: str
    """Readable on both backgrounds."""


CHOICES = {
    "one": Choice("one reader", "#2f7ed8"),
    "dp_shard": Choice("16 readers", "#8a6fd1"),
    "dp_replicate": Choice("one for 16 hosts", "#d9822b"),
    "dp": Choice("one on each host", "#2e9e5b"),
    "all": Choice("every rank reads", "#b5527f"),
}
Point = tuple[float, float]


def compare(command: str, hosts: int) -> dict[str, Any]:
    replicas = f"dp_replicate={hosts // HOSTS_A_REPLICA}," if hosts > HOSTS_A_REPLICA else ""
    mesh = f"{replicas}dp_shard={min(hosts, HOSTS_A_REPLICA)},tp={RANKS_PER_HOST}"
    options = ["--hosts", f"{hosts}x{RANKS_PER_HOST}", "--mesh", mesh, *JOB, *CONSTANTS, "--json"]
    told = subprocess.run([command, "plan", *options], check=True, stdout=subprocess.PIPE).stdout
    compared: dict[str, Any] = json.loads(told)
    compared["by_readers"] = {each["readers"]: each for each in compared["choices"] if each["readers"] in CHOICES}
    return compared


def time_text(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0 s"


def bytes_text(count: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.3g} B"


class Panel:
    """Lines over numbers of hosts, both axes logarithmic."""

    WIDTH, HEIGHT, TOP = 330.0, 300.0, 58.0

    def __init__(self, left: float, title: str, decades: tuple[int, int], text_of: Any) -> None:
        self.left, self.decades = left, decades
        self.parts = [f'<text class="title" x="{left:g}" y="30">{title}</text>']
        for decade in range(decades[0], decades[1] + 1):
            y = self.y_of(10.0**decade)
            self.parts.append(f'<path class="grid" d="M{left:g} {y:.1f}h{self.WIDTH:g}"/>')
            label = text_of(10.0**decade)
            self.parts.append(f'<text class="tick" x="{left - 8:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        for hosts in (*HOSTS[:-3:3], HOSTS[-1]):
            x, y = self.x_of(hosts), self.TOP + self.HEIGHT + 18
            self.parts.append(f'<text class="tick" x="{x:.1f}" y="{y:g}" text-anchor="middle">{hosts:,}</text>')
        middle, bottom = left + self.WIDTH / 2, self.TOP + self.HEIGHT + 40
        self.parts.append(f'<text class="tick" x="{middle:g}" y="{bottom:g}" text-anchor="middle">hosts</text>')

    def x_of(self, hosts: float) -> float:
        return self.left + self.WIDTH * math.log2(hosts) / math.log2(HOSTS[-1])

    def y_of(self, value: float) -> float:
        low, high = self.decades
        return self.TOP + self.HEIGHT * (high - math.log10(value)) / (high - low)

    def add_line(self, choice: Choice, points: list[Point]) -> None:
        places = [f"{self.x_of(hosts):.1f} {self.y_of(value):.1f}" for hosts, value in points]
        self.parts.append(f'<path class="line" stroke="{choice.color}" d="M{" L".join(places)}"/>')
        x, y = self.x_of(points[-1][0]) + 6, self.y_of(points[-1][1]) + 4
        name = f'<text class="name" style="fill: {choice.color}" x="{x:.1f}" y="{y:.1f}">{choice.label}</text>'
        self.parts.append(name)

    def add_mark(self, value: float, text: str) -> None:
        y = self.y_of(value)
        self.parts.append(f'<path class="mark" d="M{self.left:g} {y:.1f}h{self.WIDTH:g}"/>')
        self.parts.append(f'<text class="tick" x="{self.left + 4:g}" y="{y - 5:.1f}">{text}</text>')


STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .name { font-weight: 600 }
  .back { fill: #ffffff }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .mark { stroke: #57606a; stroke-width: 1; stroke-dasharray: 5 4 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .back { fill: #161b22 }
    .grid { stroke: #30363d }
    .mark { stroke: #8b949e }
  }
"""


def draw(compared: list[dict[str, Any]]) -> str:
    times = Panel(70, "Time of a step", (-4, 2), time_text)
    links = Panel(640, "Bytes over the busiest link in a step", (6, 11), bytes_text)
    for readers, choice in CHOICES.items():
        costs = [(each["hosts"], each["by_readers"][readers]) for each in compared if readers in each["by_readers"]]
        times.add_line(choice, [(hosts, cost["seconds"]) for hosts, cost in costs])
        carried = [(hosts, cost["link"]["bytes"]) for hosts, cost in costs if cost["link"]["bytes"]]
        if carried:
            links.add_line(choice, carried)
    times.add_mark(STEP_SHARE, "a tenth of a step of 1 s")
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1140 420" role="img">',
            "<title>What a step of a feed costs with each choice of readers, on 1 to 8,192 hosts</title>",
            f"<style>{STYLE}</style>",
            '<rect class="back" width="1140" height="420" rx="6"/>',
            *times.parts,
            *links.parts,
            "</svg>\n",
        ]
    )


BEGIN, END = "<!-- made by scale.py -->\n", "<!-- end -->\n"


def table(compared: list[dict[str, Any]]) -> str:
    rows = ["| hosts | " + " | ".join(choice.label for choice in CHOICES.values()) + " | recommended |\n"]
    rows.append("|---|" + "---|" * (len(CHOICES) + 1) + "\n")
    for each in compared:
        cells = []
        for readers in CHOICES:
            cost = each["by_readers"].get(readers)
            cells.append(f"{time_text(cost['seconds'])}, {cost['limit']}" if cost else "")
        rows.append(f"| {each['hosts']:,} | {' | '.join(cells)} | `{each['recommended']}` |\n")
    return "".join(rows)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", metavar="LEVADA", help="the command")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    compared = [compare(options.command, hosts) for hosts in HOSTS]
    page = (FOLDER / "scale.md").read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    made = {"scale.svg": draw(compared), "scale.md": f"{before}{BEGIN}{table(compared)}{END}{after}"}
    for name, text in made.items():
        file = FOLDER / name
        if not options.check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.exit(f"docs/{name} is not what `levada plan` says any more; run docs/scale.py {options.command}")


if __name__ == "__main__":
    main(sys.argv[1:])
