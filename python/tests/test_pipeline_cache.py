"""Items that are kept in a file."""

from __future__ import annotations

import pathlib
from typing import Any

import levada
import numpy as np
import pytest


class Parse:
    """Makes an item of a number, and writes down that it did."""

    def __init__(self, log: pathlib.Path) -> None:
        self.log = log

    def __call__(self, number: int) -> dict[str, Any]:
        with self.log.open("a") as log:
            log.write(f"{number}\n")
        return {"ids": np.arange(number), "name": f"n{number}", "pair": (number, None)}

    def calls(self) -> int:
        return len(self.log.read_text().splitlines())


class Zeros:
    def __call__(self, number: int) -> np.ndarray[Any, Any]:
        return np.zeros(4)


def plain(items: list[dict[str, Any]]) -> list[Any]:
    return [(item["ids"].tolist(), item["name"], item["pair"]) for item in items]


@pytest.mark.parametrize("workers", [0, 2])
def test_items_are_made_once(workers: int, tmp_path: pathlib.Path) -> None:
    parse = Parse(tmp_path / "log")
    pipeline = levada.Pipeline(range(100)).shard().map(parse).cache(tmp_path / "cache")
    assert len(pipeline) == 100
    for _ in range(2):
        with pipeline.run(workers=workers, alone=True) as run:
            first, second = plain(list(run)), plain(list(run))
            assert sorted(first) == sorted(second) == sorted(plain([Parse(tmp_path / "other")(i) for i in range(100)]))
    assert parse.calls() == 100


def test_a_state_goes_on_in_the_file(tmp_path: pathlib.Path) -> None:
    pipeline = levada.Pipeline(range(1000)).map(str).cache(tmp_path).shuffle(50)
    whole = list(pipeline.run(seed=3))
    with pipeline.run(seed=3) as run:
        iterator = iter(run)
        given = [next(iterator) for _ in range(321)]
        state = run.state_dict()
    with pipeline.run(seed=3) as run:
        run.load_state_dict(state)
        assert given + list(run) == whole
    for part in tmp_path.iterdir():
        part.unlink()
    with pipeline.run(seed=3) as run:
        run.load_state_dict(state)
        assert given + list(run) == whole


def test_arrays_from_the_file_can_be_written_to(tmp_path: pathlib.Path) -> None:
    cached = levada.Pipeline(range(2)).map(Zeros()).cache(tmp_path)
    for _ in range(3):
        for item in cached:
            assert item.tolist() == [0.0] * 4
            item += 1


def test_what_it_cannot_keep(tmp_path: pathlib.Path) -> None:
    with pytest.raises(levada.InvalidArgument, match=r"it is a object; register its class with levada.register\(\)$"):
        list(levada.Pipeline([object()]).cache(tmp_path / "objects"))
    with pytest.raises(levada.InvalidArgument, match='"shuffle" before it would run in the first pass only'):
        list(levada.Pipeline(range(3)).shuffle().cache(tmp_path / "shuffled"))
    list(levada.Pipeline(range(3)).cache(tmp_path / "numbers", key="1"))
    with pytest.raises(levada.InvalidArgument, match="has the items of another pipeline"):
        list(levada.Pipeline(range(3)).cache(tmp_path / "numbers", key="2"))
