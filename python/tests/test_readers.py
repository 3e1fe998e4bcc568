"""The ways to iterate a loader: on a thread, or in the caller."""

from __future__ import annotations

import gc
import pathlib
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks
from pipelines import BeginsAgain


def test_the_caller_calls_iter_and_the_reader_calls_next() -> None:
    class Loader:
        def __iter__(self) -> Iterator[int]:
            self.begun_by = threading.current_thread()
            self.made_by: set[threading.Thread] = set()
            return map(self.make, range(3))

        def make(self, number: int) -> int:
            self.made_by.add(threading.current_thread())
            return number

    for iterate in ("thread", "inline"):
        loader = Loader()
        assert list(levada.Feed(loader, iterate=iterate)) == [0, 1, 2]
        assert loader.begun_by is threading.main_thread()
        assert (loader.made_by == {threading.main_thread()}) == (iterate == "inline") and len(loader.made_by) == 1


@pytest.mark.parametrize("readers", ["one", "dp", "all"])
def test_inline_draws_a_batch_when_its_step_is_requested(tmp_path: pathlib.Path, readers: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        import threading
        made = []
        def loader():
            for i in range(9):
                made.append(threading.current_thread() is threading.main_thread())
                yield i
        feed = levada.Feed(loader(), mesh=levada.Mesh(dp=2, tp=2), readers={readers!r}, iterate="inline")
        got, counts = [], []
        for batch in feed:
            time.sleep(0.01)  # time for a thread that would read ahead
            got.append(batch)
            counts.append(len(made))
        tell(got=got, counts=counts, on_caller=all(made), end=feed.end.cause)
        """,
    )
    for rank, (mine,) in enumerate(told):
        dp = rank // 2
        assert mine["got"] == [2 * step + dp for step in range(4)] and mine["on_caller"] and mine["end"] == "exhausted"
        if readers == "one":
            assert mine["counts"] == ([2, 4, 6, 8] if rank == 0 else [0] * 4)
        else:  # each reader skips the items that the others deliver
            reads = readers == "all" or rank % 2 == 0
            assert mine["counts"] == ([1 + dp, 3 + dp, 5 + dp, 7 + dp] if reads else [0] * 4)


@pytest.mark.long
def test_leaving_early_draws_no_further_batch(tmp_path: pathlib.Path) -> None:
    for leaver in (0, 1):
        folder = tmp_path / str(leaver)
        folder.mkdir()
        told = ranks.succeed(
            folder,
            2,
            f"""
            import itertools
            made = []
            def loader():
                for i in itertools.count():
                    made.append(i)
                    yield i
            feed = levada.Feed(loader(), mesh=levada.Mesh(tp=2), iterate="inline", max_steps=5000)
            try:
                for number in feed:
                    if rank == {leaver} and number == 5: break
            except levada.PeerLost as error:
                assert error.rank == {leaver}
            tell(made=len(made), step=feed.step, end=feed.end)
            made.clear()
            tell(list=list(levada.Feed(loader(), mesh=levada.Mesh(tp=2), iterate="inline", max_steps=3)), made=len(made))
            """,
        )
        for rank, mine in enumerate(told):
            assert mine[0]["end"]["cause"] == ("left" if rank == leaver else "abandoned")
            assert mine[0]["end"]["rank"] == leaver
            assert mine[1] == {"list": [0, 1, 2], "made": 0 if rank else 3}
        # A rank that is drawing when it learns that another has left has drawn one item too many.
        assert told[0][0]["made"] - told[0][0]["end"]["step"] in ((0,) if leaver == 0 else (0, 1))
        if leaver == 0:
            assert told[0][0]["made"] == told[0][0]["step"] == 6


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_an_exception_reaches_every_rank_with_its_traceback(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        class Broken:
            def __iter__(self):
                yield from range(8)
                raise KeyError("no such record")
        if __name__ == "__main__":
            got = []
            try:
                for batch in levada.Feed(Broken(), mesh=levada.Mesh(dp=2, tp=2), iterate={iterate!r}):
                    got.append(batch)
            except levada.SourceError as error:
                tell(steps=len(got), text=str(error))
        """,
    )
    for (mine,) in told:
        assert mine["steps"] == 4 and "rank 0 could not read step 4" in mine["text"]
        assert "in __iter__" in mine["text"] and "KeyError: 'no such record'" in mine["text"]
        assert mine["text"].count("Traceback") == 1


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_an_exception_whose_text_is_not_utf8_reaches_every_rank(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Mute(Exception):
            def __str__(self): return 1 / 0
        class Broken:
            def __init__(self, error): self.error = error
            def __iter__(self):
                yield from range(4)
                tell(raised=time.monotonic())
                raise self.error
        if __name__ == "__main__":
            for error in (ValueError("caf\\udce9"), Mute()):
                try:
                    list(levada.Feed(Broken(error), iterate={iterate!r}, timeout=60))
                except levada.SourceError as failed:
                    tell(heard=time.monotonic(), text=str(failed))
        """,
    )
    raised = [each["raised"] for each in told[0] if "raised" in each]
    for mine in told:
        heard = [each for each in mine if "heard" in each]
        for each, at, text in zip(heard, raised, (r"ValueError: caf\udce9", "Mute: <exception str() failed>"), strict=True):
            assert text in each["text"] and each["heard"] - at < ranks.CAP


def test_ctrl_c_in_an_inline_loader_is_raised_there_and_reported_to_the_others(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def loader():
            yield 0
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        try:
            for number in levada.Feed(loader(), mesh=levada.Mesh(tp=2), iterate="inline"):
                pass
        except (KeyboardInterrupt, levada.SourceError) as error:
            tell(kind=type(error).__name__, number=number, text=str(error))
        """,
    )
    assert told[0] == [{"kind": "KeyboardInterrupt", "number": 0, "text": ""}]
    assert told[1][0]["kind"] == "SourceError" and "KeyboardInterrupt" in told[1][0]["text"]


def test_a_slow_inline_loader_does_not_use_up_its_own_timeout(tmp_path: pathlib.Path) -> None:
    def slow() -> object:
        for i in range(2):
            time.sleep(0.3)
            yield i

    assert list(levada.Feed(slow(), timeout=0.2, iterate="inline")) == [0, 1]  # type: ignore[arg-type]


def test_the_reader_is_one_of_two() -> None:
    with pytest.raises(levada.InvalidArgument, match="iterate must be one of thread, inline, got 'daemon'"):
        levada.Feed([1], iterate="daemon")
    with pytest.raises(levada.InvalidArgument, match=r"worker of torch's DataLoader \(num_workers=1\), .* levada.DataLoader"):
        levada.Feed([1], iterate="process")
    with pytest.raises(levada.InvalidArgument, match="the C\\+\\+ core reads a Corpus"):
        levada.Feed(levada.Corpus("a.txt", tokenizer="bytes"), iterate="inline")


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_loaders_state_belongs_to_the_last_taken_batch(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Loader:
            def __init__(self): self.at = 0
            def state_dict(self): return {{"at": self.at}}
            def load_state_dict(self, state): self.at = state["at"]
            def __iter__(self):
                while self.at < 20:
                    self.at += 1
                    yield self.at - 1
        if __name__ == "__main__":
            feed = levada.Feed(Loader(), iterate={iterate!r})
            batches = iter(feed)
            before = [next(batches) for _ in range(3)]
            state = feed.state_dict()
            feed.close()
            feed = levada.Feed(Loader(), iterate={iterate!r})
            feed.load_state_dict(state)
            tell(before=before, after=list(feed))
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine == {"before": [rank, 2 + rank, 4 + rank], "after": [i + rank for i in range(6, 20, 2)]}


@pytest.mark.parametrize("iterate", ["thread", "inline"])
@pytest.mark.parametrize("make", [lambda: (n for n in range(6)), lambda: iter(range(6)), lambda: map(abs, range(6))])
def test_a_pass_over_an_iterator_that_an_earlier_pass_has_ended_is_an_error(make: Any, iterate: str) -> None:
    source = make()
    feed = levada.Feed(source, iterate=iterate, max_steps=2)
    assert [list(feed) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], []]
    feeds = [feed]
    if isinstance(source, types.GeneratorType):  # other sources are only remembered by their feed
        feeds += [levada.Feed(source, iterate=iterate), levada.Feed(source, iterate=iterate, skip=1)]
    for again in feeds:
        with pytest.raises(levada.InvalidArgument, match="an earlier pass has read all items of this .*levada.Pipeline"):
            list(again)
    other = levada.Feed(make(), iterate=iterate)
    assert list(other) == list(range(6))
    with pytest.raises(levada.InvalidArgument, match="an earlier pass"):
        list(other)


def test_an_iterator_that_has_ended_is_freed_with_its_feed() -> None:
    class Doubled:
        def __call__(self, number: int) -> int:
            return 2 * number

    double = Doubled()
    freed = weakref.ref(double)
    feed = levada.Feed(map(double, range(3)), iterate="inline")
    pipeline = levada.Pipeline(map(double, range(3)))
    assert list(feed) == list(pipeline) == [0, 2, 4]
    del feed, pipeline, double
    gc.collect()
    assert freed() is None


def test_a_pass_over_samples_of_an_iterator_that_has_ended_is_an_error() -> None:
    samples = ({"tokens": np.arange(4)} for _ in range(4))
    feed = levada.Feed(samples, balance="tokens", batch_size=2)
    assert len(list(feed)) == 2
    with pytest.raises(levada.InvalidArgument, match="an earlier pass"):
        list(feed)


def test_an_empty_pass_is_no_error_if_the_source_can_restart() -> None:
    feed = levada.Feed(BeginsAgain())
    assert [list(feed) for _ in range(3)] == [[1, 2, 3]] * 3
    empty: list[int] = []
    assert [list(feed) for feed in [levada.Feed(empty)] * 3] == [[]] * 3
    assert list(levada.Feed(iter(empty))) == []


@pytest.mark.parametrize("iterate", ["inline", "thread"])
def test_ranks_that_wait_for_a_loader_to_begin_report_its_function(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import threading
        ready = threading.Event()
        class Iterates:
            def __iter__(self):
                ready.wait()
                return iter(range(4))
        class Resumes:
            at = 0
            def __iter__(self):
                for self.at in range(self.at + 1, 9): yield self.at
            def state_dict(self): return {{"at": self.at}}
            def load_state_dict(self, state): ready.wait()
        def initialize(worker): time.sleep(3)
        def release():
            "Lets the loader on rank 0 go on once the other rank has given up."
            for name in ("iter", "state"):
                while not os.path.exists(f"{{name}}.1"): time.sleep(0.01)
                ready.set()
                while not os.path.exists(f"{{name}}.0"): time.sleep(0.01)
        def attempt(name, feed):
            ready.clear()
            try: next(iter(feed))
            except levada.Error as error: tell(text=f"{{type(error).__name__}}: {{error}}")
            else: tell(text="a batch")
            open(f"{{name}}.{{rank}}", "w").close()
            ready.set()
            barrier(name)
        if __name__ == "__main__":
            os.chdir({str(tmp_path)!r})
            levada.join()
            feed = levada.Feed(Resumes(), "tp=2")
            for _ in zip(range(2), feed): pass
            feed.close()
            resuming = levada.Feed(Resumes(), "tp=2", iterate={iterate!r}, timeout=1.5)
            resuming.load_state_dict(feed.state_dict())
            threading.Thread(target=release, daemon=True).start()
            attempt("iter", levada.Feed(Iterates(), "tp=2", iterate={iterate!r}, timeout=1.5))
            attempt("state", resuming)
            attempt("workers", levada.DataLoader(range(8), num_workers=1, worker_init_fn=initialize, mesh="tp=2", timeout=1.5))
        """,
    )
    functions = ["__iter__ > wait > wait (threading.py", "load_state_dict > wait > wait (threading.py", "_"]  # of what starts the workers
    for each, function in zip(told[1], functions, strict=True):
        assert each["text"].startswith("Timeout: rank 1 waited") and "rank 0: reading step 0, a batch of" in each["text"], each
        assert f"in {function}" in each["text"], each
