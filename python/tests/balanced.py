"""Samples whose lengths differ, for tests of balance."""

from __future__ import annotations

import random
from typing import Any

SAMPLES = """
import random
def lengths(count=200, seed=1):
    numbers = random.Random(seed)
    return [numbers.randint(1, 300) for _ in range(count)]
def samples():
    for number, length in enumerate(lengths()):
        yield {"tokens": np.full(length, number), "labels": np.arange(length), "name": f"s{number}", "weight": length % 7}
def numbers_of(batch):
    return [int(name[1:]) for name in batch["name"]]
"""


def job(body: str) -> str:
    return indented(SAMPLES + "\n") + body


def indented(text: str) -> str:
    return "\n".join(" " * 8 + line if line else "" for line in text.splitlines())


def by_step(told: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for (mine,) in told:
        for step, _, _, numbers in mine["got"]:
            steps.setdefault(step, []).extend(numbers)
    return steps


def length_of(number: int) -> int:
    numbers = random.Random(1)
    return [numbers.randint(1, 300) for _ in range(200)][number]
