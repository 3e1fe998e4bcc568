"""Evaluation: every sample once, on any mesh, with results in the order of the source."""

from __future__ import annotations

import pathlib

import ranks


def test_every_row_is_evaluated_once_on_any_mesh_and_gathered_in_order(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        import random
        for seed in range(30):
            chance = random.Random(seed)
            count, size = chance.randint(1, 40), chance.randint(1, 6)
            rows = [list(range(begin, min(begin + size, count))) for begin in range(0, count, size)]
            batches = [{"x": np.array(each), "names": [f"n{i}" for i in each], "loss_mask": np.ones(len(each))} for each in rows]
            mesh = levada.Mesh(**chance.choice([dict(dp=4), dict(dp=2, tp=2), dict(tp=2, dp=2), dict(tp=4)]))
            tail = chance.choice(["pad", "short"])
            readers = chance.choice(["one", "all", "dp"])
            source = chance.choice([list, iter])(batches)
            feed = levada.Feed(source, mesh, tail=tail, readers=readers, iterate=chance.choice(["thread", "inline"]))
            got, names, alone = [], [], 0
            for batch in feed:
                assert len(batch["x"]) == len(batch["names"]), batch
                assert tail == "short" or len(batch["x"]) > 0
                assert batch["loss_mask"].sum() == feed.valid_rows
                alone += feed.valid_rows
                together = feed.gather({"x": batch["x"] * 1, "names": batch["names"]})
                got += together["x"].tolist()
                names += together["names"]
            right = got == list(range(count)) and names == [f"n{i}" for i in range(count)]
            tell(seed=seed, right=right, got=got, count=count)
        """,
    )
    for mine in told:
        assert len(mine) == 30 and all(each["right"] for each in mine), mine


def test_rows_of_a_split_batch_are_gathered_without_padding(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for tail in ("pad", "short"):
            batches = [{"x": np.arange(8)}, {"x": np.arange(8, 13)}]
            feed = levada.Feed(batches, divide="split", batch_size=4, tail=tail)
            tell(got=[feed.gather(batch["x"] * 2).tolist() for batch in feed])
        feed = levada.Feed([{"x": np.arange(4)}] * 2)
        for batch in feed:
            try: feed.gather(batch["x"][:1])
            except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    for rank, mine in enumerate(told):
        assert [each["got"] for each in mine[:2]] == [[list(range(0, 16, 2)), list(range(16, 26, 2))]] * 2
        assert "the batch has 4 rows, but there are results of 1" in mine[2]["text"]


def test_lists_are_cut_along_the_rows_of_the_batch(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import random
        for seed in range(20):
            chance = random.Random(seed)
            rows = chance.choice([2, 4, 8])
            item = {"x": np.arange(rows)}
            for name in "abc":
                item[name] = chance.choice([
                    [f"{i}é" for i in range(rows)], tuple(i * 1.5 for i in range(rows)), [[i] * i for i in range(rows)],
                    {"deep": [None if i % 2 else i for i in range(rows)]}, [np.arange(rows), np.arange(rows) + 1], "text", 7])
            def part(value):
                begin, end = rank * rows // 2, (rank + 1) * rows // 2
                if isinstance(value, np.ndarray): return value[begin:end].tolist()
                if isinstance(value, dict): return {key: part(each) for key, each in value.items()}
                if isinstance(value, list) and isinstance(value[0], np.ndarray): return [part(each) for each in value]
                return value[begin:end] if isinstance(value, (list, tuple)) else value
            def plain(value):
                if isinstance(value, np.ndarray): return value.tolist()
                if isinstance(value, dict): return {key: plain(each) for key, each in value.items()}
                return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value
            got = plain(next(iter(levada.Feed([item], divide="split"))))
            tell(right=got == part(item), got=repr(got), wanted=repr(part(item)))
        try: list(levada.Feed([{"x": np.arange(4), "names": ["a", "b", "c"]}], divide="split"))
        except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    for mine in told:
        assert all(each["right"] for each in mine[:20]), [each for each in mine[:20] if not each["right"]]
        assert "names of item 0 is a list of 3, but the batch has 4 rows" in mine[20]["text"]
