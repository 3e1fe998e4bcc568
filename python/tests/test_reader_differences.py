"""Readers of one batch whose loaders yield different items."""

from __future__ import annotations

import pathlib
import random

import pytest
import ranks

DIFFERENCE = """
class Loader:
    def __init__(self, seed, items=12):
        self.seed, self.items = seed, items
    def __iter__(self):
        order = np.random.default_rng(self.seed).permutation(1000)
        for i in range(self.items):
            yield {"x": order[4 * i : 4 * i + 4], "name": f"item {i}", "weights": np.ones(3)}
def outcome(loader, mesh, **options):
    got = []
    try:
        for batch in levada.Feed(loader, mesh=mesh, **options):
            got.append(batch)
        return {"got": len(got), "text": "none"}
    except levada.SourceError as error:
        return {"got": len(got), "text": str(error)}
"""


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_loaders_that_shuffle_differently_are_an_error_on_every_rank(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        {DIFFERENCE.replace(chr(10), chr(10) + 8 * " ")}
        if __name__ == "__main__":
            mesh = levada.Mesh(dp=2, tp=2)
            for readers in ("all", "tp", "dp"):
                tell(**outcome(Loader(rank), mesh, readers=readers, iterate={iterate!r}))
                tell(**outcome(Loader(7), mesh, readers=readers, iterate={iterate!r}))
        """,
    )
    for mine in told:
        assert [each["got"] for each in mine] == [0, 6, 0, 6, 0, 6]
        for different, same in zip(mine[::2], mine[1::2], strict=True):
            assert same["text"] == "none"
            assert "could not read step 0: the batch of data-parallel rank" in different["text"]
            assert "in x; every rank that reads" in different["text"] and 'readers="one"' in different["text"]
        assert [each["text"] for each in mine] == [each["text"] for each in told[0]]


def test_a_state_before_a_difference_is_of_the_last_equal_step(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Loader:
            def __iter__(self):
                yield from ({"x": np.full(3, i if i < 5 else i + 10 * rank)} for i in range(20))
        feed = levada.Feed(Loader(), mesh=levada.Mesh(tp=2), readers="all")
        got = []
        try:
            for batch in feed:
                got.append(int(batch["x"][0]))
        except levada.SourceError as error:
            state = feed.state_dict()
            again = levada.Feed([{"x": np.full(3, i)} for i in range(20)], mesh=levada.Mesh(tp=2), readers="all")
            again.load_state_dict(state)
            tell(got=got, text=str(error), next=int(next(iter(again))["x"][0]))
        """,
    )
    for (mine,) in told:
        assert mine["got"] == [0, 1, 2, 3, 4] and mine["next"] == 5 and "could not read step 5" in mine["text"]


def test_bytes_are_compared_but_pickles_are_not(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Pickled:
            def __init__(self, value): self.value = value
        def outcome(item):
            try:
                return len(list(levada.Feed([item], mesh=levada.Mesh(tp=2), readers="all", allow_pickle=True)))
            except levada.SourceError as error:
                return str(error)
        tell(pickled=outcome({"a": 1, "b": Pickled(rank)}), plain=outcome({"a": 1, "b": b"%d" % rank}),
             same=outcome({"a": 1, "b": b"0"}))
        """,
    )
    for (mine,) in told:
        assert mine["pickled"] == mine["same"] == 1 and "between rank 0 and rank 1, in b;" in mine["plain"]


def test_any_value_that_differs_is_noticed_at_its_step(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(3)
    cases = [(numbers.randrange(8), numbers.randrange(4), numbers.randrange(6)) for _ in range(12)]
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        def items(at, field, altered):
            for i in range(8):
                kinds = [np.zeros((3, 5), np.int16), [i, "a"], "text", {{"deep": (np.ones(2), 1.5)}}, True, None]
                others = [np.eye(3, 5, dtype=np.int16), [i, "b"], "texts", {{"deep": (np.ones(2), 1.25)}}, False, 0]
                if i == at and rank == altered:
                    kinds[field] = others[field]
                yield {{f"f{{k}}": value for k, value in enumerate(kinds)}}
        for at, altered, field in {cases!r}:
            got = 0
            try:
                for batch in levada.Feed(items(at, field, altered), mesh=levada.Mesh(dp=2, tp=2), readers="all"):
                    got += 1
                tell(got=got, text="none")
            except levada.SourceError as error:
                tell(got=got, text=str(error))
        """,
    )
    for mine in told:
        for (at, altered, field), found in zip(cases, mine, strict=True):
            if altered // 2 != at % 2:  # it does not read that item for its ranks
                assert found == {"got": 4, "text": "none"}
                continue
            first = altered - altered % 2
            assert found["got"] == at // 2 and f"between rank {first} and rank {first + 1}, in" in found["text"]
            assert f"f{field}" in found["text"] or "its structure" in found["text"]
