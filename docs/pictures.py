#!/usr/bin/env python3
"""Makes the pictures docs/readers.svg, docs/mesh.svg and docs/zigzag.svg, of what `levada plan` says.

    docs/pictures.py LEVADA [--check]    # LEVADA: the command; --check: only says whether they are up to date
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).resolve().parent
AXES = {"dp": 2, "cp": 2, "tp": 2}
RANKS = 8
CP = 4
"""Ranks of the zigzag's picture."""

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .on { fill: #ffffff; font-weight: 600 }
  .back { fill: #ffffff }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .group { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
  .line { fill: none; stroke: #57606a; stroke-width: 1.5 }
  .tip { fill: #57606a }
  .part0 { fill: #1f6fc4 } .part1 { fill: #21854a } .part2 { fill: #b35f14 } .part3 { fill: #7a5bc7 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .on { fill: #ffffff }
    .back { fill: #161b22 }
    .box { fill: #21262d; stroke: #6e7681 }
    .group { stroke: #6e7681 }
    .line { stroke: #8b949e }
    .tip { fill: #8b949e }
  }
"""


class Part(NamedTuple):
    """A part of a batch, which one message brings to some ranks."""

    batch: int
    ranks: list[int]
    positions: list[list[int]]
    """A part of a sequence, as [begin, end)."""


def parts_of(command: str, mesh: str, sequence: int) -> list[Part]:
    """The parts of the field `tokens` on a mesh."""
    options = ["--mesh", mesh, "--batch", "1", "--seq", str(sequence), "--json"]
    plan: dict[str, Any] = json.loads(subprocess.run([command, "plan", *options], check=True, stdout=subprocess.PIPE).stdout)
    audiences, tokens = plan["audiences"], [field["path"] for field in plan["fields"]].index("tokens")
    return [
        Part(audiences[move["audience"]]["unit"], audiences[move["audience"]]["to"], move["region"][1])
        for move in plan["moves"]
        if move["field"] == tokens
    ]


def box(style: str, x: float, y: float, width: float, height: float, *lines: str) -> list[str]:
    shape = f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'
    on = ' class="on"' if style.startswith("part") else ""
    first = y + height / 2 + 4 - 8 * (len(lines) - 1)
    texts = [
        f'<text{on} x="{x + width / 2:g}" y="{first + 16 * number:g}" text-anchor="middle">{line}</text>'
        for number, line in enumerate(lines)
    ]
    return [shape, *texts]


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="line" marker-end="url(#tip)" d="M{x:g} {y:g}L{to_x:g} {to_y - 3:g}"/>'


def text(x: float, y: float, line: str, style: str = "", anchor: str = "start") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{line}</text>'


def part_of_rank(parts: list[Part]) -> dict[int, int]:
    return {rank: number for number, part in enumerate(parts) for rank in part.ranks}


def readers(command: str) -> str:
    """The same job twice: every rank reads, or one does."""
    parts = parts_of(command, ",".join(f"{axis}={size}" for axis, size in AXES.items()), 16)
    of_rank = part_of_rank(parts)
    width, step, bottom, right = 50.0, 56.0, 228.0, 516.0
    drawn: list[str] = []
    for left, title in ((24.0, "Every rank reads"), (right, "One rank reads")):
        drawn.append(text(left, 30, title, "title"))
        drawn += box("box", left, 50, RANKS * step - 6, 30, "storage")
        for rank in range(RANKS):
            drawn += box(f"part{of_rank[rank]}", left + rank * step, bottom, width, 36, f"rank {rank}")
    for rank in range(RANKS):
        middle = 24 + rank * step + width / 2
        drawn += [arrow(middle, 80, middle, 104), arrow(middle, 160, middle, bottom)]
        drawn += box("box", middle - width / 2, 104, width, 56, "read", "decode", "cut")
    drawn += [arrow(right + width / 2, 80, right + width / 2, 104), *box("box", right, 104, width, 56, "read", "decode", "cut")]
    drawn.append(arrow(right + width / 2, 160, right + width / 2, 172))
    tops = [right + part.ranks[0] * step + step - 3 for part in parts]
    drawn.append(f'<path class="line" d="M{right + width:g} 148H{tops[-1]:g}"/>')
    drawn += [arrow(x, 148, x, 172) for x in tops[1:]]
    for number, part in enumerate(parts):
        x = right + part.ranks[0] * step
        drawn += box(f"part{number}", x, 172, step * len(part.ranks) - 6, 24, f"dp{part.batch} cp{number % AXES['cp']}")
        drawn += [arrow(right + rank * step + width / 2, 196, right + rank * step + width / 2, bottom) for rank in part.ranks]
    drawn.append(text(right + 4.5 * step, 138, "each part is written once, into shared memory", anchor="middle"))
    times = RANKS // AXES["dp"]
    drawn.append(text(24, bottom + 60, f"each batch is read and decoded {times} times, by the {times} ranks that use it"))
    below = f"each batch is read and decoded once; {len(parts)} messages reach all {RANKS} ranks"
    drawn.append(text(right, bottom + 60, below))
    return picture(984, 306, "Eight ranks that all read, and eight ranks of which one reads", drawn)


def mesh(command: str) -> str:
    """The ranks of a mesh by their coordinates, and which of them get the same."""
    parts = parts_of(command, ",".join(f"{axis}={size}" for axis, size in AXES.items()), 16)
    of_rank = part_of_rank(parts)
    drawn = [text(24, 30, "Mesh dp=2, cp=2, tp=2", "title")]
    for rank in range(RANKS):
        dp, cp, tp = rank // 4, rank // 2 % 2, rank % 2
        x, y = 70 + dp * 330 + tp * 130, 92 + cp * 72
        drawn += box(f"part{of_rank[rank]}", x, y, 116, 52, f"rank {rank}", f"dp{dp} cp{cp} tp{tp}")
    for dp in range(2):
        x = 70 + dp * 330
        drawn.append(f'<rect class="group" x="{x - 12:g}" y="56" width="270" height="172" rx="6"/>')
        drawn.append(text(x + 123, 76, f"dp {dp}: batch {dp}", anchor="middle"))
    drawn += [text(50, 122 + 72 * cp, f"cp {cp}", anchor="end") for cp in range(2)]
    drawn.append(text(24, 254, "Rank numbers count along tp first, then cp, then dp: the last axis varies fastest."))
    drawn.append(text(24, 274, "Ranks of one color need the same part of the same batch: they share one message."))
    return picture(690, 294, "The ranks of a mesh with data, context and tensor parallelism", drawn)


def zigzag(command: str) -> str:
    """The chunks of a sequence that each context-parallel rank gets, and its work in causal attention."""
    chunks = 2 * CP
    parts = parts_of(command, f"cp={CP}", chunks)
    owner = {at: part.ranks[0] for part in parts for begin, end in part.positions for at in range(begin, end)}
    drawn = [text(24, 30, f"A sequence in {chunks} chunks, over cp={CP}", "title")]
    size, left = 52.0, 110.0
    ways = {"consecutive": {at: at // 2 for at in range(chunks)}, "zigzag": owner}
    # With a causal mask, a token of chunk k attends to the k chunks before it and to half of its own.
    work = {way: [sum(2 * at + 1 for at in owners if owners[at] == rank) for rank in range(CP)] for way, owners in ways.items()}
    for row, (way, owners) in enumerate(ways.items()):
        y = 50.0 + row * 40
        drawn.append(text(left - 12, y + 19, way, anchor="end"))
        for at in range(chunks):
            drawn += box(f"part{owners[at]}", left + at * size, y, size - 4, 28, f"{at}")
    drawn.append(text(left, 152, "Work of each rank in causal attention", "title"))
    for column, way in enumerate(ways):
        x = left + column * 225
        drawn.append(text(x, 174, way))
        for rank, amount in enumerate(work[way]):
            y = 184 + rank * 24
            width = 5.0 * amount
            drawn.append(f'<rect class="part{rank}" x="{x:g}" y="{y:g}" width="{width:g}" height="18" rx="3"/>')
            drawn.append(text(x + width + 6, y + 13, f"cp {rank}"))
    return picture(560, 296, "Consecutive chunks and the zigzag of context parallelism", drawn)


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<defs>{tip}<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("levada", metavar="LEVADA", help="the command")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    stale = []
    for draw in (readers, mesh, zigzag):
        file, drawn = FOLDER / f"{draw.__name__}.svg", draw(options.levada)
        if not options.check:
            file.write_text(drawn)
        elif not file.exists() or file.read_text() != drawn:
            stale.append(f"docs/{file.name}")
    if stale:
        sys.exit(f"{', '.join(stale)}: not what the command says any more; run docs/pictures.py {options.levada}")


if __name__ == "__main__":
    main(sys.argv[1:])
