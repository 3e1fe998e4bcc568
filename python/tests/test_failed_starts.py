"""Passes that cannot begin, or that a rank cannot leave in order: the next pass begins as if they had not been tried."""

from __future__ import annotations

import pathlib

import pytest
import ranks

PASSES = """
import threading

def generator():
    for number in range(40): yield number

class Loader:
    "Counts the items that it makes in all passes."
    made = 0
    def __iter__(self):
        for number in range(12):
            self.made += 1
            yield 100 * self.made + number

def corpus(): return levada.Corpus({folder!r} + "/text.txt", tokenizer="bytes", seq_length=32, shuffle=True, seed=1)

def feeds():
    yield "corpus", levada.Feed(corpus(), levada.Mesh(dp=2), batch_size=2)
    for iterate in ("inline", "thread"):
        yield "generator", levada.Feed(generator(), levada.Mesh(dp=2), max_steps=3, iterate=iterate, readers="all")
        yield "generator", levada.Feed(generator() if rank == 0 else None, levada.Mesh(tp=2), max_steps=3, iterate=iterate)
    yield "loader", levada.Feed(Loader(), levada.Mesh(tp=2))
    yield "DataLoader", levada.DataLoader(list(range(24)), 2, shuffle=True, mesh=levada.Mesh(dp=2))

def numbers(batch): return (batch["tokens"] if isinstance(batch, dict) else np.asarray(batch)).ravel().tolist()[:8]
"""


def test_a_start_that_failed_changes_no_later_pass(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.txt").write_text("A levada carries water from where it falls to where it is needed. " * 10)
    told = ranks.succeed(
        tmp_path,
        2,
        PASSES.format(folder=str(tmp_path))
        + """
def passes(feed, fails):
    got = [[numbers(batch) for batch in feed]]
    for _ in range(2 * fails):
        steps, feed.max_steps = feed.max_steps, 3 + rank
        try:
            next(iter(feed))
            got.append("begun")
        except levada.InvalidArgument as error:
            assert "number of steps" in str(error), error
        feed.max_steps = steps
    got.append([numbers(batch) for batch in feed])
    state = feed.state_dict()
    return got, feed.epoch, [state.get(key) for key in ("samples", "item", "epoch", "position")]

for (name, plain), (_, failing) in zip(feeds(), feeds()):
    tell(name=name, plain=passes(plain, False), failing=passes(failing, True))
""",
    )
    for mine in told:
        assert len(mine) == 7
        for each in mine:
            assert each["plain"] == each["failing"], each
            assert all(each["plain"][0]), each


def test_a_loaded_state_outlives_a_start_that_failed(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        PASSES.format(folder=str(tmp_path))
        + """
def make(): return levada.DataLoader(list(range(24)), 2, shuffle=True, mesh=levada.Mesh(dp=2))
stopped = make()
before = [numbers(batch) for _, batch in zip(range(2), stopped)]
resumed = make()
resumed.load_state_dict(stopped.state_dict())
stopped.close()
resumed.prefetch = 3 + rank
try:
    next(iter(resumed))
except levada.InvalidArgument as error:
    assert "prefetch" in str(error), error
resumed.prefetch = 0
tell(same=before + [numbers(batch) for batch in resumed] == [numbers(batch) for batch in make()])
""",
    )
    assert told == [[{"same": True}]] * 2


@pytest.mark.long
def test_ranks_stay_in_phase_while_a_hanging_loader_delays_one_of_them(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        go_on = threading.Event()
        class Hanging:
            def __iter__(self):
                yield 0
                go_on.wait()
                yield from (1, 2)
        feed = levada.Feed(Hanging(), levada.Mesh(tp=2), iterate="thread", timeout=2)
        for batch in feed: break
        for attempt in range(2):
            try:
                list(feed)
            except levada.Error as error:
                tell(error=type(error).__name__, text=str(error))
            barrier(f"attempt {attempt}")
        go_on.set()
        tell(got=[list(feed), list(feed)])
        """,
    )
    for mine in told:
        assert [each.get("error") for each in mine[:2]] == ["Timeout", "Timeout"], mine
        assert all("__iter__ > wait" in each["text"] for each in mine[:2]), mine
        assert mine[2:] == [{"got": [[0, 1, 2], [0, 1, 2]]}], mine


def test_a_rank_whose_copies_have_failed_still_leaves_the_feed(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        from levada.batch.devices import Sender
        class Failing(Sender):
            def begin(self, job):
                return self.end
            def end(self):
                raise RuntimeError("the device has failed")
        feed = levada.Feed(range(100), levada.Mesh(tp=2))
        if rank == 1: feed._sender = Failing(lambda batch: batch)
        try:
            for batch in feed:
                if rank == 1 and batch == 2: raise ValueError("step failed")
        except (levada.PeerLost, ValueError) as error:
            tell(error=str(error))
        barrier("told")  # both ranks are still running
        """,
    )
    assert "rank 1 left the feed at step 3 with ValueError: step failed" in told[0][0]["error"]
    assert told[1] == [{"error": "step failed"}]
