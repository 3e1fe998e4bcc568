"""Feeds over processes: who gets what."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.mark.parametrize("reader", ["background", "inline", "process"])
def test_the_last_global_batch_may_have_fewer_rows(tmp_path: pathlib.Path, reader: str) -> None:
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
                feed = levada.Feed(Loader(last), divide="split", batch=2, tail=tail, reader={reader!r})
                got = [[batch["x"][:, 0].tolist(), batch["loss_mask"].tolist()] for batch in feed]
                tell(got=got, samples=feed.stats["samples"], end=feed.end["cause"])
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


def test_only_the_last_global_batch_may_have_fewer_rows(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for rows in ((4, 3, 4), (4, 5), (4, 3)):
            feed = levada.Feed([{"x": np.ones((n, 2))} for n in rows], divide="split", batch=2, tail="short")
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
        assert "item 1 has 5 rows where a step takes 4; give batches of batch x dp rows" in mine[1]["text"]
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


def test_a_loader_may_use_its_buffer_again(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def loader():
            buffer = np.zeros(100_000)
            for i in range(20):
                buffer[:] = i
                yield {"a": buffer, "b": buffer}
        got = list(levada.Feed(loader()))  # more than depth are kept
        tell(got=[sorted(set(batch["a"].tolist())) for batch in got], same=all(b["a"] is b["b"] for b in got))
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["got"] == [[i] for i in range(rank, 20, 2)] and mine["same"]


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


def test_batches_of_one_structure_share_nothing_that_can_be_changed(tmp_path: pathlib.Path) -> None:
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
            length = len(feed)
            passes = []
            for epoch in range(2):
                feed.set_epoch(epoch)
                passes.append(list(feed))
            passes.append([next(feed), next(feed)])
        tell(length=length, passes=passes)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["length"] == 2
        assert mine["passes"] == [[i + rank for i in (2, 4)], [100 + i + rank for i in (0, 2, 4)], [100 + rank, 102 + rank]]


def test_access_says_whether_batches_can_be_written(tmp_path: pathlib.Path) -> None:
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


def test_one_rank_may_ask_all_to_stop(tmp_path: pathlib.Path) -> None:
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


def test_a_corpus_is_the_one_that_the_command_feeds(tmp_path: pathlib.Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT * 500)
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        corpus = levada.Corpus({str(corpus)!r}, sequence=64, shuffle_seed=3, epochs=2)
        digests = levada.Digests()
        feed = levada.Feed(corpus, mesh=levada.Mesh(dp=2, tp=2), batch=4)
        for batch in feed:
            digests.add(batch)
        tell(fields=digests.fields(), steps=feed.step, length=len(feed))
        """,
    )
    command = os.environ.get("LEVADA_COMMAND")
    report = json.loads(
        subprocess.run(
            [*([command] if command else [sys.executable, "-m", "levada"]), "feed", str(corpus), "--mesh", "dp=2,tp=2"]
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


def test_a_corpus_goes_on_from_its_state_and_by_epoch(tmp_path: pathlib.Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT * 100)
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def firsts(feed): return [batch["tokens"][:, :8].tolist() for batch in feed]
        def make(epochs): return levada.Feed(
            levada.Corpus({str(corpus)!r}, sequence=64, shuffle_seed=1, epochs=epochs), batch=2)
        whole = firsts(make(2))
        one = make(1)
        one.set_epoch(1)
        feed = make(2)
        for _ in range(5): next(feed)
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


def test_a_state_that_was_loaded_is_the_state_until_a_batch_is_taken() -> None:
    class Counting:
        at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 6:
                self.at += 1
                yield self.at - 1

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    stopped = levada.Feed(Counting())
    assert [next(stopped) for _ in range(2)] == [0, 1]
    state = stopped.state_dict()
    stopped.close()
    resumed = levada.Feed(Counting())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    items = iter(resumed)
    assert resumed.state_dict() == state
    resumed.close()
    assert resumed.state_dict() == state
    again = levada.Feed(Counting())
    again.load_state_dict(resumed.state_dict())
    assert list(again) == [2, 3, 4, 5]
    del items


class Stateful:
    """A loader that counts, and what else its state holds."""

    def __init__(self, extra: Any = None, items: int = 12) -> None:
        self.at, self.items, self.extra, self.asked = 0, items, extra, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.items:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"at": self.at, "extra": self.extra() if callable(self.extra) else self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.extra = state["at"], state["extra"]


@pytest.mark.parametrize("reader", ["background", "inline", "process"])
def test_a_state_with_large_integers_and_plain_keys_is_restored(reader: str) -> None:
    extra = {"rng": np.random.default_rng(7).bit_generator.state, (0, "worker"): {1, 2}}
    stopped = levada.Feed(Stateful(extra), reader=reader)
    assert [next(stopped) for _ in range(5)] == list(range(5))
    state = stopped.state_dict()
    stopped.close()
    loader = Stateful()
    resumed = levada.Feed(loader)
    resumed.load_state_dict(state)
    assert list(resumed) == list(range(5, 12)) and loader.extra == extra


@pytest.mark.parametrize("reader", ["background", "inline", "process"])
def test_a_state_that_cannot_be_saved_is_an_error_for_who_asks_for_it(reader: str) -> None:
    feed = levada.Feed(Stateful({"pools": [contextlib.nullcontext()]}), reader=reader)
    items = iter(feed)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(levada.Unsupported, match=r"state cannot be saved: .*state\['extra'\]\['pools'\]\[0\] cannot cross"):
        feed.state_dict()
    assert list(items) == list(range(3, 12))


def test_a_state_that_its_loader_refuses_is_an_error_for_who_asks_for_it() -> None:
    def refuse() -> None:
        raise NotImplementedError("this loader has no state")

    feed = levada.Feed(Stateful(refuse))
    items = iter(feed)
    assert next(items) == 0
    with pytest.raises(levada.Unsupported, match="NotImplementedError: this loader has no state"):
        feed.state_dict()
    assert list(items) == list(range(1, 12))


def test_a_state_is_unpickled_only_where_pickles_are_allowed() -> None:
    feed = levada.Feed(Stateful(contextlib.nullcontext), allow_pickle=True)
    next(feed)
    state = feed.state_dict()
    feed.close()
    with pytest.raises(levada.Unsupported, match="allow_pickle"):
        resumed = levada.Feed(Stateful())
        resumed.load_state_dict(state)
        next(resumed)
    resumed = levada.Feed(Stateful(), allow_pickle=True)
    resumed.load_state_dict(state)
    assert next(resumed) == 1


@pytest.mark.parametrize("reader", ["background", "inline", "process"])
def test_a_loader_whose_state_takes_long_is_seldom_asked_and_resumes_exactly(tmp_path: pathlib.Path, reader: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Loader:
            def __init__(self): self.at = self.asked = 0
            def __iter__(self):
                while self.at < 60:
                    self.at += 1
                    yield self.at - 1, self.asked
            def state_dict(self):
                self.asked += 1
                end = time.monotonic() + 0.02  # a hundredth of two seconds
                while time.monotonic() < end: pass
                return {{"at": self.at, "large": bytes(100_000)}}
            def load_state_dict(self, state): self.at = state["at"]
        if __name__ == "__main__":
            whole = [item for item, _ in levada.Feed(Loader(), mesh=levada.Mesh(dp=2), reader={reader!r})]
            for steps in (1, 2, 17):
                began = time.monotonic()
                feed = levada.Feed(Loader(), mesh=levada.Mesh(dp=2), reader={reader!r})
                before = [next(feed) for _ in range(steps)]
                took = time.monotonic() - began
                state = feed.state_dict()
                feed.close()
                feed = levada.Feed(Loader(), mesh=levada.Mesh(dp=2), reader={reader!r})
                feed.load_state_dict(state)
                tell(same=[item for item, _ in before] + [item for item, _ in feed] == whole, size=len(state["cursor"]),
                     seldom=before[-1][1] <= 1 + took / 2)
        """,
    )
    assert [len(mine) for mine in told] == [3, 3]
    for each in [*told[0], *told[1]]:
        assert each["same"] and each["seldom"] and 100_000 < each["size"] < 110_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": "3"}, "timeout must be a number of seconds.*got '3'"),
        ({"timeout": 0}, "timeout must be a number of seconds.*got 0"),
        ({"timeout": float("nan")}, "timeout must be.*got nan"),
        ({"timeout": float("inf")}, "timeout must be.*at most 1e\\+08.*got inf"),
        ({"depth": 2**40}, "depth must be less than 2,147,483,648, got 1,099,511,627,776"),
        ({"depth": 1.5}, "depth must be a whole number, got 1.5"),
        ({"batch": "8", "divide": "split"}, "batch must be a whole number, got '8'"),
        ({"steps": True}, "steps must be a whole number, got True"),
    ],
)
def test_a_number_of_the_wrong_kind_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        levada.Feed([1], **arguments)


def test_a_feed_of_a_feed_is_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="source is a feed already"):
        levada.Feed(levada.Feed([1]))


def test_an_iterable_without_a_state_has_none_to_save() -> None:
    feed = levada.Feed(range(4))
    assert feed.state_dict()["cursor"] == b""
    next(feed)
    with pytest.raises(levada.Unsupported, match="no state_dict.*skip="):
        feed.state_dict()
    feed.close()


@pytest.mark.parametrize("mesh", ["data=4", "fsdp=4", "dp_replicate=2,dp_shard=2", "dp=2,fsdp=2", "ddp=4"])
def test_each_rank_along_any_data_axis_gets_batches_of_its_own(tmp_path: pathlib.Path, mesh: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        mesh = levada.Mesh.parse({mesh!r})
        tell(data=[mesh.data_size, mesh.data_coordinate(rank)])
        for readers in ("one", "dp", "all"):
            tell(got=list(levada.Feed(range(10), mesh=mesh, readers=readers)), size=len(levada.Feed(range(10), mesh=mesh)))
        rows = [np.arange(8) + 8 * step for step in range(2)]
        tell(rows=[list(map(int, batch)) for batch in levada.Feed(rows, mesh=mesh, divide="split")])
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"data": [4, rank]}
        assert mine[1:4] == [{"got": [rank, 4 + rank], "size": 2}] * 3
        assert mine[4] == {"rows": [[2 * rank, 2 * rank + 1], [8 + 2 * rank, 9 + 2 * rank]]}


def test_an_axis_that_nobody_knows_is_asked_about(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        try:
            list(levada.Feed(range(4), mesh=levada.Mesh(replica=2)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2, data_axes=["replica"]))))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2, data_axes=[]))))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2), layout={"*": "replicate(replica)"})))
        """,
    )
    for rank, mine in enumerate(told):
        assert "axis replica" in mine[0]["error"] and "data_axes=" in mine[0]["error"]
        assert [each["got"] for each in mine[1:]] == [[rank, 2 + rank], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_mesh_knows_its_data_axes() -> None:
    mesh = levada.Mesh(dp_replicate=2, tp=2, dp_shard=3)
    assert mesh.data_axes == ["dp_replicate", "dp_shard"] and mesh.data_size == 6 and mesh.data_coordinate(9) == 3
    mesh = levada.Mesh(replica=2, tp=2, data_axes=["replica"])
    assert mesh.data_axes == ["replica"] and mesh == eval(repr(mesh), {"Mesh": levada.Mesh})
    with pytest.raises(levada.InvalidArgument, match="no axis of the mesh"):
        levada.Mesh(dp=2, data_axes=["x"])
    with pytest.raises(levada.InvalidArgument, match="no rank 12"):
        levada.Mesh(dp=2, tp=6).data_coordinate(12)


def test_meshes_fit_the_job(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        tell(mesh=str(levada.Mesh.from_env(tp=2)), size=levada.world_size())
        tell(
            megatron=str(levada.Mesh.from_env(tp=2, pp=2)),
            hybrid=str(levada.Mesh.from_env(dp_replicate=2, dp_shard=2)),
            other=str(levada.Mesh.from_env(tp=2, pp=2, order="tp-pp-dp")),
        )
        try:
            list(levada.Feed([1], mesh=levada.Mesh(dp=3)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        try:
            list(levada.Feed([1], mesh=levada.Mesh(dp=4) if rank else levada.Mesh(tp=4)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for mine in told:
        assert mine[0] == {"mesh": "dp=2,tp=2", "size": 4}
        assert mine.pop(1) == {
            "megatron": "pp=2,dp=1,tp=2",
            "hybrid": "dp_replicate=2,dp_shard=2",
            "other": "dp=1,pp=2,tp=2",
        }
        assert "the job has 4" in mine[1]["error"] and "ranks disagree on the feed's mesh" in mine[2]["error"]
        assert mine[1:] == told[0][1:]


def test_without_a_job_there_is_one_rank() -> None:
    assert list(levada.Feed([1, 2, 3])) == [1, 2, 3]
    with pytest.raises(levada.InvalidArgument, match="tail is \"pad\"; whole batches are dealt"):
        levada.Feed([1], tail="pad")
    with pytest.raises(levada.InvalidArgument, match="batch"):
        levada.Feed([1], batch=2)
    with pytest.raises(levada.InvalidArgument, match="access is secret"):
        iter(levada.Feed([1], access="secret"))
