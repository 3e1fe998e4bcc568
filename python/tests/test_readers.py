"""The ways to iterate a loader: on a thread, by the caller, in a process of its own."""

from __future__ import annotations

import pathlib
import time

import levada
import pytest
import ranks


@pytest.mark.parametrize("readers", ["one", "dp", "all"])
def test_inline_draws_batches_when_their_step_is_asked_for(tmp_path: pathlib.Path, readers: str) -> None:
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
        feed = levada.Feed(loader(), mesh=levada.Mesh(dp=2, tp=2), readers={readers!r}, reader="inline")
        got, counts = [], []
        for batch in feed:
            time.sleep(0.01)  # for who would read ahead
            got.append(batch)
            counts.append(len(made))
        tell(got=got, counts=counts, on_caller=all(made), end=feed.end["cause"])
        """,
    )
    for rank, (mine,) in enumerate(told):
        dp = rank // 2
        assert mine["got"] == [2 * step + dp for step in range(4)] and mine["on_caller"] and mine["end"] == "exhausted"
        if readers == "one":
            assert mine["counts"] == ([2, 4, 6, 8] if rank == 0 else [0] * 4)
        else:  # each reader goes past the items that the others give
            reads = readers == "all" or rank % 2 == 0
            assert mine["counts"] == ([1 + dp, 3 + dp, 5 + dp, 7 + dp] if reads else [0] * 4)


def test_who_leaves_early_has_drawn_no_batch_more(tmp_path: pathlib.Path) -> None:
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
            feed = levada.Feed(loader(), mesh=levada.Mesh(tp=2), reader="inline", steps=50)
            for number in feed:
                if rank == {leaver} and number == 5: break
            tell(made=len(made), step=feed.step, end=feed.end)
            made.clear()
            tell(list=list(levada.Feed(loader(), mesh=levada.Mesh(tp=2), reader="inline", steps=3)), made=len(made))
            """,
        )
        for rank, mine in enumerate(told):
            assert mine[0]["end"]["cause"] == "left" and mine[0]["end"]["rank"] == leaver
            assert mine[1] == {"list": [0, 1, 2], "made": 0 if rank else 3}
        # Who hears while it draws that another one has left has drawn in vain, once.
        assert told[0][0]["made"] - told[0][0]["end"]["step"] in ((0,) if leaver == 0 else (0, 1))
        if leaver == 0:
            assert told[0][0]["made"] == told[0][0]["step"] == 6


def test_an_exception_inline_reaches_every_rank_with_its_traceback(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        def broken_loader():
            yield from range(8)
            raise KeyError("no such record")
        got = []
        try:
            for batch in levada.Feed(broken_loader(), mesh=levada.Mesh(dp=2, tp=2), reader="inline"):
                got.append(batch)
        except levada.SourceError as error:
            tell(steps=len(got), text=str(error))
        """,
    )
    for (mine,) in told:
        assert mine["steps"] == 4 and "rank 0 could not read step 4" in mine["text"]
        assert "in broken_loader" in mine["text"] and "KeyError: 'no such record'" in mine["text"]


def test_ctrl_c_in_an_inline_loader_is_raised_there_and_told_to_the_others(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def loader():
            yield 0
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        try:
            for number in levada.Feed(loader(), mesh=levada.Mesh(tp=2), reader="inline"):
                pass
        except (KeyboardInterrupt, levada.SourceError) as error:
            tell(kind=type(error).__name__, number=number, text=str(error))
        """,
    )
    assert told[0] == [{"kind": "KeyboardInterrupt", "number": 0, "text": ""}]
    assert told[1][0]["kind"] == "SourceError" and "KeyboardInterrupt" in told[1][0]["text"]


def test_a_slow_inline_loader_takes_nothing_from_its_own_timeout(tmp_path: pathlib.Path) -> None:
    def slow() -> object:
        for i in range(2):
            time.sleep(0.3)
            yield i

    assert list(levada.Feed(slow(), timeout=0.2, reader="inline")) == [0, 1]  # type: ignore[arg-type]


def test_the_reader_is_one_of_three() -> None:
    with pytest.raises(levada.InvalidArgument, match="it must be one of background, inline, process"):
        levada.Feed([1], reader="thread")
    with pytest.raises(levada.InvalidArgument, match="read by the C\\+\\+ core"):
        levada.Feed(levada.Corpus("a.txt"), reader="inline")
