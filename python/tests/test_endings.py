"""A rank that leaves its feed, and the errors on the other ranks."""

from __future__ import annotations

import pathlib
import re
import time
from typing import Any

import pytest
import ranks

ITEMS = "items = [{'x': np.full(4, i)} for i in range(4000)]"

LOOPS = {
    "plain": "for batch in feed: step()",
    "with": """
    with feed:
        for batch in feed: step()""",
    "iterator": """
    it = iter(feed)
    while True:
        next(it)
        step()""",
    "swallowed": """
    try:
        for batch in feed: step()
    except ValueError:
        time.sleep(1)""",
    "next": """
    batches = iter(feed)
    while True:
        next(batches)
        step()""",
    "generator": """
    def batches(): yield from feed
    for batch in batches(): step()""",
}


def _outcomes(folder: pathlib.Path, loop: str, failure: str) -> list[dict[str, Any]]:
    """Returns the reports of ranks 0 and 2 from _failure(), and checks that their errors are prompt."""
    told = _failure(folder, loop, failure)
    ranks.assert_prompt(told, failing=1)
    return [told[0][0], told[2][0]]


def _failure(folder: pathlib.Path, loop: str, failure: str) -> list[list[dict[str, Any]]]:
    """Runs a loop in which rank 1 fails, on three ranks without a launcher. Returns the ranks' reports."""
    body = f"""
{ITEMS}
feed = levada.Feed(items, timeout=60)
def step():
    if rank == 1 and feed.step == 5:
        tell(failed=time.monotonic())
        {failure}
    time.sleep(0.005)
try:
    {loop.strip()}
    tell(finished=True)
except levada.PeerLost as error:
    tell(heard=time.monotonic(), rank=error.rank, text=str(error), end=feed.end)
"""
    return ranks.run_without_launcher(folder, 3, body)


def test_the_others_get_the_error_within_a_second(tmp_path: pathlib.Path) -> None:
    delays = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        told = _failure(folder, LOOPS["plain"], 'raise ValueError("loss is NaN")')
        delays.append(ranks.assert_prompt(told, failing=1))
    ranks.assert_prompt_in_most_runs(delays)


@pytest.mark.long
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ('raise ValueError("disk is full")', "rank 1 .*with ValueError: disk is full"),
        (r'raise ValueError("caf\udce9")', r"rank 1 .*with ValueError: caf\\udce9"),
        ("sys.exit(0)", "rank 1 "),
        ("os._exit(0)", "rank 1 "),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 "),
    ],
)
def test_a_rank_that_ends_between_passes_is_an_error_on_those_that_begin_the_next(
    tmp_path: pathlib.Path, failure: str, text: str
) -> None:
    told = ranks.run_without_launcher(
        tmp_path,
        3,
        f"""
        feed = levada.Feed(range(9), timeout=60)
        for batch in feed: pass
        if rank == 1:
            time.sleep(0.5)   # the others wait
            tell(failed=time.monotonic())
            {failure}
        try:
            for batch in feed: pass
            tell(finished=True)
        except levada.PeerLost as error:
            tell(heard=time.monotonic(), text=str(error))
        """,
    )
    ranks.assert_prompt(told, failing=1)
    for mine in told[0] + told[2]:  # perhaps through rank 0, which got the error before
        assert re.search(text, mine["text"]), mine


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_rank_whose_step_raises_is_an_error_that_names_it_on_the_others(tmp_path: pathlib.Path, loop: str) -> None:
    for mine in _outcomes(tmp_path, LOOPS[loop], 'raise ValueError("loss is NaN")'):
        assert mine["rank"] == 1, mine
        assert "rank 1 left the feed at step 5 with ValueError: loss is NaN" in mine["text"]
        assert mine["end"]["cause"] == "abandoned" and mine["end"]["message"] == "ValueError: loss is NaN"


@pytest.mark.long
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("sys.exit(3)", "at step 5 with SystemExit: 3"),
        ("raise levada.Timeout('rank 1 waited')", "at step 5 with Timeout: rank 1 waited"),
        ("feed.close()", "rank 1 left the feed at step 5, but rank"),
        ("os._exit(0)", "rank 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1"),
    ],
)
def test_a_rank_that_exits_times_out_closes_or_is_killed_is_an_error_on_the_others(
    tmp_path: pathlib.Path, failure: str, text: str
) -> None:
    for mine in _outcomes(tmp_path, LOOPS["plain"], failure):
        assert text in mine["text"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (r'raise ValueError("caf\udce9")', r"with ValueError: caf\udce9"),
        ("raise type('Mute', (ValueError,), {'__str__': lambda self: 1 / 0})", "with Mute: <exception str() failed>"),
    ],
)
def test_a_rank_whose_exception_is_not_utf8_is_an_error_on_the_others(
    tmp_path: pathlib.Path, failure: str, text: str
) -> None:
    loop = """
    try:
        for batch in feed: step()
    except ValueError:
        time.sleep(10)"""
    for mine in _outcomes(tmp_path, loop, failure):
        assert f"rank 1 left the feed at step 5 {text}" in mine["text"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["break", "raise StopIteration('enough')", "feed.close()", "sys.exit(0)"])
def test_all_ranks_may_leave_at_the_same_step_at_different_times(tmp_path: pathlib.Path, how: str) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        f"""
        {ITEMS}
        feed = levada.Feed(items)
        try:
            with feed:
                for batch in feed:
                    if feed.step == 5:
                        time.sleep(0.3 * rank)
                        {how}
        except (StopIteration, SystemExit): pass
        tell(end=feed.end)
        rest = [int(batch["x"][0]) for batch in levada.Feed(items[:6])]
        tell(rest=rest)
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0]["end"] == {"cause": "left", "step": 5, "rank": rank, "message": ""}
        assert mine[1]["rest"] == [rank, 3 + rank]


def test_an_exception_handled_before_a_loop_is_not_its_cause(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        {ITEMS}
        try:
            open("/no/such/state")
        except FileNotFoundError:
            feed = levada.Feed(items)
            for batch in feed:
                if rank == 0 and feed.step == 2: feed.request_stop()
            with levada.Feed(items) as feed:
                for batch in feed:
                    if feed.step == 2: time.sleep(0.3 * rank); break
            tell(end=feed.end.cause)
        """,
    )
    assert [mine[0] for mine in told] == [{"end": "left"}] * 2


def test_all_ranks_may_catch_the_error_and_begin_the_next_pass(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        feed = levada.Feed(list(range(120)))  # enough that no rank is at the end when another raises
        got = []
        for attempt in range(4):
            try:
                for number in feed:
                    got.append(number)
                    if rank == attempt and feed.step == 2: raise ValueError("again")
                break
            except (ValueError, levada.PeerLost) as error:
                got = []
        tell(got=got, attempt=attempt)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine == {"got": list(range(rank, 120, 3)), "attempt": 3}


def test_after_a_timeout_that_some_ranks_catch_no_rank_gets_batches_of_another_pass(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        levada.join()  # with more time than a pass has
        feed = levada.Feed(list(range(3000)), timeout=0.4)
        for attempt in range(12):
            if attempt: feed.timeout = 20
            mine = []
            try:
                for number in feed:
                    mine.append(number)
                    if rank == 1 and attempt == 0 and feed.step == 4: time.sleep(1.0)
                    if feed.step == 30: break
            except levada.Error as error:
                if isinstance(error, levada.InvalidArgument): raise
                continue
            assert mine == list(range(rank, 90, 3)), mine
            tell(attempt=attempt)
            break
        """,
    )
    assert told[0] and told[0] == told[1] == told[2]


def test_feeds_iterated_in_another_order_are_refused_on_all_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        train, evaluation = levada.Feed(range(8)), levada.Feed(range(100, 108))
        try:
            for number in (train, evaluation)[rank]: tell(got=number)
        except levada.InvalidArgument as error:
            tell(text=str(error))
        """,
    )
    for (mine,) in told:
        assert "rank 1 starts pass 1 of feed 2, but rank 0 starts pass 1 of feed 1" in mine["text"]


def test_a_loop_over_a_feed_inside_a_loop_over_it_is_an_error(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        feed = levada.Feed(list(range(8)))
        try:
            for outer in feed:
                tell(inner=list(feed))
        except levada.InvalidArgument as error:
            tell(text=str(error))
        it = iter(feed)
        next(it)
        it = iter(feed)  # as for another epoch
        tell(got=list(it))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"inner": list(range(rank, 8, 2))}
        assert "a newer pass of this feed" in mine[1]["text"] and mine[2] == {"got": list(range(rank, 8, 2))}


@pytest.mark.parametrize("difference", ["path", "shuffle", "seed", "seq_length", "epochs"])
def test_readers_of_different_corpora_are_refused_on_all_ranks(tmp_path: pathlib.Path, difference: str) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name * 2000)
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        given = {{"path": {str(tmp_path / "a.txt")!r}, "shuffle": True, "seed": 1, "seq_length": 64, "epochs": 1}}
        other = {{"path": {str(tmp_path / "b.txt")!r}, "shuffle": False, "seed": 2, "seq_length": 32, "epochs": 2}}
        if rank == 1: given[{difference!r}] = other[{difference!r}]
        try:
            tell(steps=len(list(levada.Feed(levada.Corpus(given.pop("path"), tokenizer="bytes", **given), readers="all"))))
        except levada.InvalidArgument as error:
            tell(text=str(error))
        """,
    )
    for (mine,) in told:
        assert "ranks disagree on what they read" in mine["text"] and "rank 1 has" in mine["text"]


@pytest.mark.long
def test_the_start_obeys_the_timeout(tmp_path: pathlib.Path) -> None:
    began = time.monotonic()
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        if rank == 0:
            try:
                list(levada.Feed(range(4), timeout=1))
            except levada.Timeout as error:
                tell(text=str(error))
                os._exit(0)
        threading.Event().wait(20 if rank == 1 else 0)
        os._exit(0)
        """,
    )
    assert told[0] and time.monotonic() - began < 60


OPERATIONS = {
    "all_gather": "exchange.all_gather(exchange.Store())",
    "redistribute": "exchange.redistribute(exchange.Store(), {0: ['a']}, ['x'])",
    "reduce": "reduce.all_reduce(np.ones(8, np.float32)).wait()",
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("batches", "how"), [("[4 + rank]", "left"), ("levada.Feed(range(8))", "left at step 3")])
def test_waiting_ranks_get_the_rank_and_exception_of_an_ended_rank_in(
    tmp_path: pathlib.Path, operation: str, batches: str, how: str
) -> None:
    told = ranks.run_without_launcher(
        tmp_path,
        2,
        f"""
        from levada import exchange
        levada.join()
        reduce = levada.ReduceScatter(timeout=30)
        try:
            for batch in {batches}:
                if batch == 5:
                    tell(failed=time.monotonic())
                    raise ValueError("no")
                if batch == 4: {OPERATIONS[operation]}
        except levada.PeerLost as error:
            tell(heard=time.monotonic(), rank=error.rank, text=str(error))
            os._exit(0)
        """,
    )
    assert len(told[0]) == 1 and told[0][0]["rank"] == 1, told
    ranks.assert_prompt(told, failing=1)
    assert f"rank 1 {how} with ValueError: no before " in told[0][0]["text"]
