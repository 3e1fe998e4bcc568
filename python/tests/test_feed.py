"""Feeds over processes: which rank gets which items."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks


def test_whole_batches_are_dealt_over_dp_and_replicated_over_tp(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        made = []
        def loader():
            for i in range(9):
                made.append(i)
                yield {"x": np.full((2, 3 + i), i), "meta": ("item", i)}
        feed = levada.Feed(loader(), mesh=levada.Mesh(dp=2, tp=2))
        got = [[batch["meta"][1], batch["x"].shape[1], int(batch["x"].min()), int(batch["x"].max())] for batch in feed]
        tell(got=got, made=len(made), end=feed.end, step=feed.step)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["got"] == [[i, 3 + i, i, i] for i in range(rank // 2, 8, 2)]
        assert mine["made"] == (9 if rank == 0 else 0)
        assert mine["end"]["cause"] == "exhausted" and mine["step"] == 4


def test_a_global_batch_is_split_along_dim_0(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        items = [{"x": np.arange(8).reshape(4, 2) + 100 * i, "n": i} for i in range(3)]
        feed = levada.Feed(items if rank == 0 else None, divide="split")
        tell(got=[[batch["n"], batch["x"].tolist()] for batch in feed])
        """,
    )
    for rank, (mine,) in enumerate(told):
        rows = [[[100 * i + 4 * rank + 2 * row + c for c in range(2)] for row in range(2)] for i in range(3)]
        assert mine["got"] == [[i, rows[i]] for i in range(3)]


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_the_last_global_batch_may_have_fewer_rows(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        f"""
        class Loader:
            def __init__(self, last): self.last = last
            def __iter__(self):
                for first, rows in ((0, 6), (6, 6), (12, self.last)):
                    row = np.arange(first, first + rows)
                    yield {{"x": row[:, None] * [1, 1], "loss_mask": np.ones(rows), "name": str(first)}}
        for last in (6, 3, 0) if __name__ == "__main__" else ():
            for tail in ("drop", "pad", "short"):
                feed = levada.Feed(Loader(last), divide="split", batch_size=2, tail=tail, iterate={iterate!r})
                got = [[batch["x"][:, 0].tolist(), batch["loss_mask"].tolist()] for batch in feed]
                tell(got=got, samples=feed.stats.samples, end=feed.end.cause)
        """,
    )
    for rank, mine in enumerate(told):
        full = [[[6 * item + 2 * rank, 6 * item + 2 * rank + 1], [1, 1]] for item in range(3)]
        rows = [12, 13, 14][2 * rank : 2 * rank + 2]
        padded = [[[12, 13], [1, 1]], [[14, 14], [1, 0]], [[14, 14], [0, 0]]][rank]
        last = [full[2]] * 3 + [None, padded, [rows, [1] * len(rows)]] + [None] * 3
        for each, expected, samples in zip(mine, last, [6] * 3 + [4, 4 + len(rows), 4 + len(rows)] + [4] * 3, strict=True):
            assert each["got"] == full[:2] + ([] if expected is None else [expected])
            assert each["samples"] == samples and each["end"] == "exhausted"


@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_fields_whose_extent_is_not_the_rows_require_a_layout_for_any_tail(tmp_path: pathlib.Path, tail: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        for layout in ({{"x": "shard(dp,0)", "scales": "replicate(dp)"}}, None):
            batches = [{{"x": np.arange(rows), "scales": np.arange(2)}} for rows in (8, 8, 5)]
            feed = levada.Feed(batches, divide="split", batch_size=4, tail={tail!r}, layout=layout)
            try:
                tell(got=[[len(batch["x"]), batch["scales"].tolist()] for batch in feed])
            except levada.InvalidArgument as error:
                tell(step=feed.step, text=str(error))
        """,
    )
    for rank, (cut, refused) in enumerate(told):
        rows = [4, 4, *{"drop": [], "pad": [4], "short": [[4, 1][rank]]}[tail]]
        assert cut["got"] == [[each, [0, 1]] for each in rows]
        assert refused["step"] == 0 and "scales of item 0 has 2 rows, but the batch has 8" in refused["text"]
        assert 'layout={"scales": "replicate(dp)"}' in refused["text"]


def test_only_the_last_global_batch_may_have_fewer_rows(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for rows in ((4, 3, 4), (4, 5), (4, 3)):
            feed = levada.Feed([{"x": np.ones((n, 2))} for n in rows], divide="split", batch_size=2, tail="short")
            if rows == (4, 3): feed = levada.Feed([{"x": np.ones((n, 2))} for n in rows], divide="split")
            try:
                for batch in feed: pass
            except levada.Error as error:
                tell(kind=type(error).__name__, step=feed.step, text=str(error))
        """,
    )
    for mine in told:
        assert [(each["kind"], each["step"]) for each in mine] == [("SourceError", 1)] * 2 + [("InvalidArgument", 1)]
        assert "item 1 has 3 rows where a step takes 4, and is not the last" in mine[0]["text"]
        assert "item 1 has 5 rows where a step takes 4; yield batches of batch x dp rows" in mine[1]["text"]
        assert "x has 3 along dim 0, which dp=2 does not divide" in mine[2]["text"]


def test_a_layout_cuts_and_prunes(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        layout = {"ids": ["shard(tp,1)"], "extra*": "stages(pp,last)"}
        items = [{"ids": np.arange(8).reshape(2, 4), "extra": {"a": np.ones(3)}, "n": 1}] * 2
        for batch in levada.Feed(items, mesh=levada.Mesh(tp=2), layout=layout):
            tell(ids=batch["ids"].tolist(), keys=sorted(batch))
        """,
    )
    assert [mine[0]["ids"] for mine in told] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("readers", ["one", "dp", "all"])
def test_the_choice_of_readers_changes_no_batch(tmp_path: pathlib.Path, readers: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        def loader():
            for i in range(10):
                yield {{"x": np.random.default_rng(i).random((4, 4))}}
        digests = levada.Digests()
        for batch in levada.Feed(loader(), mesh=levada.Mesh(dp=2, tp=2), readers={readers!r}):
            digests.add(batch)
        tell(fields=digests.fields())
        """,
    )
    import numpy as np

    for rank, (mine,) in enumerate(told):
        plain = levada.Digests()
        for i in range(rank // 2, 10, 2):
            plain.add({"x": np.random.default_rng(i).random((4, 4))})
        assert mine["fields"] == plain.fields()


def test_a_loader_may_reuse_its_buffer(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def loader():
            buffer = np.zeros(100_000)
            for i in range(20):
                buffer[:] = i
                yield {"a": buffer, "b": buffer}
        got = list(levada.Feed(loader()))  # more than prefetch are kept
        tell(got=[sorted(set(batch["a"].tolist())) for batch in got], same=all(b["a"] is b["b"] for b in got))
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["got"] == [[i] for i in range(rank, 20, 2)] and mine["same"]


def test_a_loader_of_balanced_steps_may_reuse_its_buffer(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import collections
        class Own(collections.UserDict): pass
        def loader(make=lambda tokens: {"tokens": tokens}):
            buffer = np.zeros(16, np.int64)
            for number in range(1, 161):
                buffer[:] = number
                yield make(buffer[: 1 + number % 9])
        def merge(samples): return {"tokens": np.concatenate([sample["tokens"] for sample in samples])}
        for options in ({}, {"max_tokens": 24}, {"collate_fn": merge}):
            got = [batch["tokens"].ravel().tolist() for batch in levada.Feed(loader(), batch_size=8, balance="tokens", **options)]
            tell(counts=collections.Counter(token for batch in got for token in batch))
        reused = Own()
        def same(tokens): reused["tokens"] = tokens; return reused
        try: list(levada.Feed(loader(same), batch_size=8, balance=levada.Balance("tokens", length=lambda sample: len(sample["tokens"])), collate_fn=merge))
        except levada.InvalidArgument as error: tell(text=str(error))
        """,
    )
    for step in range(3):
        counts = [{int(token): count for token, count in mine[step]["counts"].items() if token != "0"} for mine in told]
        assert not counts[0].keys() & counts[1].keys()
        assert counts[0] | counts[1] == {number: 1 + number % 9 for number in range(1, 161)}
    assert all("a sample has been changed since it was read" in mine[3]["text"] for mine in told)


def test_samples_without_a_digest_are_copied_until_their_step_is_made() -> None:
    class Own:
        number = 0

    def loader(of: Callable[[int], Any]) -> Iterator[Any]:
        for number in range(4):
            yield {"tokens": [number], "more": of(number)}

    own, masked, opened = Own(), np.ma.array([0, 0], mask=[0, 1]), open(os.devnull)  # noqa: SIM115

    def changed(number: int) -> Any:
        own.number = masked[0] = number
        return [own, masked]

    def numbers(samples: list[Any]) -> list[Any]:
        return [[sample["more"][0].number, int(sample["more"][1][0])] for sample in samples]

    got = list(levada.Feed(loader(changed), batch_size=2, balance="tokens", collate_fn=numbers))
    assert got == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    with opened, pytest.raises(levada.InvalidArgument, match="a part that can be neither compared nor copied until its step"):
        list(levada.Feed(loader(lambda number: opened), batch_size=2, balance="tokens", collate_fn=numbers))


def test_structures_may_differ_from_step_to_step(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        items = [{"x": np.ones(2)}, [1, "two"], (np.float32(3), None), {}, np.arange(3), None, 5]
        got = list(levada.Feed(items * 2, mesh=levada.Mesh(tp=2)))
        tell(types=[type(batch).__name__ for batch in got], last=got[-1])
        """,
    )
    for (mine,) in told:
        assert mine == {"types": ["dict", "list", "tuple", "dict", "ndarray", "NoneType", "int"] * 2, "last": 5}


def test_batches_of_one_structure_share_no_mutable_object(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import collections
        def item(i):
            x = np.full(3, i)
            return {"x": x, "same": [x], "list": [i, [i]], "lists": collections.defaultdict(list, {"k": [i]}), "none": {}}
        got = []
        for i, batch in enumerate(levada.Feed((item(i) for i in range(6)), mesh=levada.Mesh(tp=2))):
            right = batch["list"] == [i, [i]] and batch["lists"] == {"k": [i]} and batch["none"] == {} and len(batch) == 5
            got.append([right, batch["x"] is batch["same"][0], batch["x"].tolist()])
            batch["list"][1].append(7)
            batch["lists"]["other"].append(7)
            batch["lists"].default_factory = None
            batch["none"]["x"] = batch.pop("x")
        tell(got=got)
        """,
    )
    for (mine,) in told:
        assert mine["got"] == [[True, True, [i, i, i]] for i in range(6)]


def test_passes_epochs_skip_and_length(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Loader:
            epoch = 0
            def set_epoch(self, epoch): self.epoch = epoch
            def __len__(self): return 7
            def __iter__(self): return iter([100 * self.epoch + i for i in range(7)])
        with levada.Feed(Loader(), skip=1) as feed:
            length = len(feed)  # of a whole pass
            passes = []
            for epoch in range(2):
                feed.set_epoch(epoch)
                passes.append(list(feed))
            batches = iter(feed)
            passes.append([next(batches), next(batches)])
        tell(length=length, passes=passes)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["length"] == 3
        assert mine["passes"] == [[i + rank for i in (2, 4)], [100 + i + rank for i in (0, 2, 4)], [100 + rank, 102 + rank]]


def test_access_determines_whether_batches_are_writable(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for access in (None, "read_only", "copy", "private"):
            for batch in levada.Feed([[np.zeros(9)]] * 4, access=access):
                tell(writeable=batch[0].flags.writeable)
        """,
    )
    for mine in told:
        assert [each["writeable"] for each in mine] == [False] * 4 + [True] * 4


def test_one_rank_may_request_a_stop_of_all(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import itertools
        feed = levada.Feed(itertools.count())
        for number in feed:
            if number == 11:
                feed.request_stop()
        tell(steps=feed.step, end=feed.end)
        """,
    )
    assert told[0][0] == told[1][0] and told[0][0]["end"]["cause"] == "stopped" and told[0][0]["end"]["rank"] == 1


TEXT = "Water falls in the north of the island, and is needed in the south.\n"


def test_a_corpus_feeds_the_batches_of_the_command(tmp_path: pathlib.Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT * 500)
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        corpus = levada.Corpus({str(corpus)!r}, seq_length=64, shuffle=True, seed=3, epochs=2, tokenizer="bytes")
        digests = levada.Digests()
        feed = levada.Feed(corpus, mesh=levada.Mesh(dp=2, tp=2), batch_size=4)
        for batch in feed:
            digests.add(batch)
        tell(fields=digests.fields(), steps=feed.step, length=len(feed))
        """,
    )
    command = os.environ.get("LEVADA_COMMAND")
    report = json.loads(
        subprocess.run(
            [*([command] if command else [sys.executable, "-m", "levada"]), "feed", str(corpus), "--tokenizer", "bytes", "--mesh", "dp=2,tp=2"]
            + "--batch 4 --seq 64 --shuffle --seed 3 --epochs 2 --json".split(),
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
    )
    for rank, (mine,) in enumerate(told):
        assert mine["steps"] == mine["length"] == report["steps"] > 50
        fields = report["ranks"][rank]["fields"]
        assert mine["fields"] == {name: field["digest"] for name, field in fields.items()}


def test_a_corpus_resumes_from_its_state_and_by_epoch(tmp_path: pathlib.Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT * 100)
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def firsts(feed): return [batch["tokens"][:, :8].tolist() for batch in feed]
        def make(epochs): return levada.Feed(
            levada.Corpus({str(corpus)!r}, seq_length=64, shuffle=True, seed=1, epochs=epochs, tokenizer="bytes"), batch_size=2)
        whole = firsts(make(2))
        one = make(1)
        one.set_epoch(1)
        feed = make(2)
        batches = iter(feed)
        for _ in range(5): next(batches)
        state = feed.state_dict()
        feed = make(2)
        feed.load_state_dict(state)
        tell(whole=whole, second=firsts(one), rest=firsts(feed), epoch=len(make(1)), tail=len(make(1).source) % 4)
        """,
    )
    for (mine,) in told:
        assert mine["rest"] == mine["whole"][5:]
        assert len(mine["second"]) == mine["epoch"]
        if mine["tail"] == 0:
            assert mine["second"] == mine["whole"][mine["epoch"] :]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": "3"}, "timeout must be a number of seconds.*got '3'"),
        ({"timeout": 0}, "timeout must be a number of seconds.*got 0"),
        ({"timeout": float("nan")}, "timeout must be.*got nan"),
        ({"timeout": float("inf")}, "timeout must be.*at most 1e\\+08.*got inf"),
        ({"prefetch": 2**40}, "prefetch must be less than 2,147,483,648, got 1,099,511,627,776"),
        ({"prefetch": 1.5}, "prefetch must be a whole number, got 1.5"),
        ({"batch_size": "8", "divide": "split"}, "batch_size must be a whole number, got '8'"),
        ({"max_steps": True}, "max_steps must be a whole number, got True"),
        ({"max_steps": -1}, "max_steps must be at least 0, got -1"),
        ({"prefetch": -5}, "prefetch must be at least 0, got -5"),
        ({"prefetch": 2**31 - 1}, "prefetch must be at most 1,073,741,824, got 2,147,483,647"),
        ({"skip": -1}, "skip must be at least 0, got -1"),
        ({"batch_size": 0, "divide": "split"}, "batch_size must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"prefetch": 1, "mesh": levada.Mesh(pp=2)}, "prefetch is 1, but pp has 2 stages"),
    ],
)
def test_the_error_names_a_number_of_the_wrong_kind(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        levada.Feed([1], **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"divide": "x"}, "divide must be one of deal, split, got 'x'"),
        ({"tail": "x"}, "tail must be one of drop, pad, short, got 'x'"),
        ({"access": "x"}, "access must be one of private, copy, read_only, got 'x'"),
        ({"access": 3}, "access must be one of .*, got 3"),
        ({"iterate": np.arange(3)}, "iterate must be one of thread, inline, got array"),
        ({"readers": "x"}, "readers 'x' name an axis that the mesh 'dp=1' does not have"),
        ({"readers": ["dp"]}, "readers must be one, all, host, spread or axes of the mesh such as 'dp,pp', got \\['dp'\\]"),
        ({"layout": "gpt"}, "layout must be a levada.Layout or a dict.*got 'gpt'.*levada.Layout.gpt\\(\\)"),
        ({"layout": ["shard(dp,0)"]}, "layout must be a levada.Layout or a dict .*got \\['shard"),
    ],
)
def test_the_error_names_an_invalid_choice(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        levada.Feed([1], **arguments)


def test_a_feed_of_a_feed_is_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="source is a feed already"):
        levada.Feed(levada.Feed([1]))
