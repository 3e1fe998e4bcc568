#!/usr/bin/env python3
"""Makes docs/balance.svg: one step of 64 samples over 8 data-parallel ranks, in their order, balanced, and balanced in
micro-batches, as plan_steps divides it; and docs/balance-wait.svg: ranks that wait for each other in each micro-batch of
such a step, as both objectives divide it.

    docs/balance.py PLAN_STEPS [--check]    # build/release/bench/plan_steps; --check: only says whether it is up to date
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
import random
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
RANKS, SAMPLES, MAX_TOKENS = 8, 64, 8192
Steps = list[list[list[int]]]
"""By rank, then micro-batch: lengths of samples."""


def lengths() -> list[int]:
    numbers = random.Random(3)
    drawn = (numbers.lognormvariate(math.log(1500) - 1.2**2 / 2, 1.2) for _ in range(SAMPLES))
    return [min(max(round(each), 16), MAX_TOKENS) for each in drawn]


def work_of(length: int) -> int:
    return 24576 * length + length * length


def divided(plan_steps: str, max_tokens: int, how: str = "any") -> Steps:
    samples = lengths()
    command = [plan_steps, "flops(linear=24576,quadratic=1)", str(RANKS), how, str(max_tokens)]
    run = subprocess.run(command, input=" ".join(map(str, samples)) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    plan = json.loads(run.stdout)
    micros = [[samples[index] for index in micro] for micro in plan["micros"]]
    return [micros[rank * plan["num_micro"] : (rank + 1) * plan["num_micro"]] for rank in range(RANKS)]


def in_order() -> Steps:
    samples, share = lengths(), SAMPLES // RANKS
    return [[samples[rank * share : (rank + 1) * share]] for rank in range(RANKS)]


STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .back { fill: #ffffff }
  .sample { fill: #2f7ed8; stroke: #ffffff; stroke-width: 1 }
  .other { fill: #2e9e5b; stroke: #ffffff; stroke-width: 1 }
  .idle { fill: #d0d7de }
  .bound { stroke: #57606a; stroke-width: 1; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .back { fill: #161b22 }
    .sample, .other { stroke: #161b22 }
    .idle { fill: #30363d }
    .bound { stroke: #8b949e }
  }
"""
WIDTH, ROW, GAP = 310.0, 20.0, 6.0


def begins_of(works: list[list[int]], meets: bool) -> list[list[int]]:
    """Returns when micro-batches begin, by rank, and behind them the end of the last one; `meets`: ranks wait in each."""
    if not meets:
        return [[0, *itertools.accumulate(of_rank)] for of_rank in works]
    return [[0, *itertools.accumulate(map(max, zip(*works, strict=True)))]] * len(works)


def panel(left: float, title: str, ranks: Steps, scale: float, bound: float, meets: bool = False) -> list[str]:
    begins = begins_of([[sum(map(work_of, micro)) for micro in micros] for micros in ranks], meets)
    end, top = max(of_rank[-1] for of_rank in begins), 58.0
    parts = [f'<text class="title" x="{left:g}" y="30">{title}</text>']
    for rank, micros in enumerate(ranks):
        y = top + rank * (ROW + GAP)
        parts.append(f'<text x="{left - 8:g}" y="{y + 14:g}" text-anchor="end">dp {rank}</text>')
        for number, micro in enumerate(micros):
            x = left + begins[rank][number] * scale
            for length in micro:
                width = work_of(length) * scale
                style = "sample" if number % 2 == 0 else "other"
                parts.append(f'<rect class="{style}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{ROW:g}"/>')
                x += width
            idle = left + (end if number + 1 == len(micros) else begins[rank][number + 1]) * scale - x
            if idle > 0.05:
                parts.append(f'<rect class="idle" x="{x:.1f}" y="{y + ROW / 2 - 1:g}" width="{idle:.1f}" height="2"/>')
    bottom = top + RANKS * (ROW + GAP)
    x = left + bound * scale
    parts.append(f'<path class="bound" d="M{x:.1f} {top - 6:g}V{bottom:g}"/>')
    least = "the mean of the ranks" if meets else "the least possible"
    parts.append(f'<text x="{left:g}" y="{bottom + 16:g}">the step takes {end / bound:.2f}x of {least}</text>')
    return parts


def picture(title: str, *parts: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1160 310" role="img">\n<title>{title}</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", '<rect class="back" width="1160" height="310" rx="6"/>', *parts, "</svg>\n"])


def least_work() -> float:
    works = [work_of(length) for length in lengths()]
    return max(sum(works) / RANKS, max(works))


def of_steps(plan_steps: str) -> str:
    steps = {
        "In the order of the samples": in_order(),
        "Balanced": divided(plan_steps, 0),
        f"In micro-batches of {MAX_TOKENS:,} tokens": divided(plan_steps, MAX_TOKENS),
    }
    longest = max(sum(map(work_of, itertools.chain(*micros))) for ranks in steps.values() for micros in ranks)
    parts = []
    for number, (title, ranks) in enumerate(steps.items()):
        parts += panel(60 + number * (WIDTH + 70), title, ranks, WIDTH / longest, least_work())
    return picture("The work of one step on eight data-parallel ranks, with and without balance", *parts)


def of_waits(plan_steps: str) -> str:
    width, bound = 480.0, least_work()
    steps = {f'wait="{wait}"': divided(plan_steps, MAX_TOKENS, how) for wait, how in (("step", "any"), ("micro", "micro"))}
    works = [[[sum(map(work_of, micro)) for micro in micros] for micros in ranks] for ranks in steps.values()]
    scale = width / max(begins_of(each, True)[0][-1] for each in works)
    parts = []
    for number, (title, ranks) in enumerate(steps.items()):
        parts += panel(70 + number * (width + 80), title, ranks, scale, bound, meets=True)
    return picture("One step on eight data-parallel ranks that wait for each other in each micro-batch", *parts)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan_steps", metavar="PLAN_STEPS", help="the benchmark program that plans steps")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args(arguments)
    for name, draw in {"balance.svg": of_steps, "balance-wait.svg": of_waits}.items():
        drawn, file = draw(options.plan_steps), FOLDER / name
        if not options.check:
            file.write_text(drawn)
        elif not file.exists() or file.read_text() != drawn:
            sys.exit(f"docs/{name} is not what the planner does any more; run docs/balance.py {options.plan_steps}")


if __name__ == "__main__":
    main(sys.argv[1:])
