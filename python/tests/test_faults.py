"""What goes wrong in one process, and what the others see."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time

import ranks


def test_what_cannot_cross_or_be_iterated_reaches_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        for source in ([{"meta": [1, len]}] * 2, 5, None, levada.Corpus("/no/such/file.txt")):
            try:
                list(levada.Feed(source))
            except levada.SourceError as error:
                tell(text=str(error))
        """,
    )
    for mine in told:
        assert "batch['meta'][1] cannot cross" in mine[0]["text"]
        assert "'int' object is not iterable" in mine[1]["text"]
        assert "its source is None" in mine[2]["text"]
        assert "/no/such/file.txt" in mine[3]["text"]


def test_a_rank_that_breaks_ends_the_loop_of_all(tmp_path: pathlib.Path) -> None:
    for leaver in (0, 1):
        folder = tmp_path / str(leaver)
        folder.mkdir()
        told = ranks.succeed(
            folder,
            2,
            f"""
            import itertools
            for _ in range(2):  # and the next pass is whole
                feed = levada.Feed(itertools.count())
                for number in feed:
                    if rank == {leaver} and number >= 20: break
                tell(end=feed.end)
            tell(rest=list(levada.Feed(range(4))))
            """,
        )
        for rank, mine in enumerate(told):
            assert [each["end"]["cause"] for each in mine[:2]] == ["left"] * 2
            assert mine[0]["end"]["rank"] == leaver and mine[2]["rest"] == [rank, 2 + rank]
        assert told[0][:2] == told[1][:2]


def test_a_killed_rank_is_named_to_the_others(tmp_path: pathlib.Path) -> None:
    job = ranks.start(
        tmp_path,
        3,
        """
        import itertools
        try:
            for number in levada.Feed(itertools.count(), mesh=levada.Mesh(tp=3)):
                if rank == 2 and number == 10:
                    os.kill(os.getpid(), signal.SIGKILL)
        except levada.PeerLost as error:
            tell(rank=error.rank)
        """,
    )
    outcome = ranks.finish(job, tmp_path, 3)
    assert outcome.status != 0
    assert outcome.told == [[{"rank": 2}], [{"rank": 2}], []]


def test_a_loader_that_hangs_is_named_and_does_not_keep_the_process(tmp_path: pathlib.Path) -> None:
    began = time.monotonic()
    outcome = ranks.run(
        tmp_path,
        2,
        """
        class SlowLoader:
            def __iter__(self):
                yield from range(4)
                time.sleep(1000)
        got = []
        try:
            for number in levada.Feed(SlowLoader(), timeout=1.0):
                got.append(number)
        except levada.Timeout as error:
            tell(steps=len(got), text=str(error))
        """,
        within=30,
    )
    assert time.monotonic() - began < 20
    for (mine,) in outcome.told:
        assert mine["steps"] == 2
        assert "step 2" in mine["text"] and "rank 0" in mine["text"] and "a batch of SlowLoader" in mine["text"]


def test_ctrl_c_ends_a_wait(tmp_path: pathlib.Path) -> None:
    job = ranks.start(
        tmp_path,
        2,
        """
        def loader():
            yield from range(2)
            tell(waiting=True)
            time.sleep(1000)
        try:
            for number in levada.Feed(loader(), timeout=300):
                tell(number=number)
        except KeyboardInterrupt:
            tell(interrupted=True)
        """,
    )
    # A rank that is interrupted while it still starts aborts the others' feed.
    while not all(len(ranks.told_by(tmp_path, rank)) == 2 - rank for rank in range(2)):
        time.sleep(0.05)
    began = time.monotonic()
    job.send_signal(signal.SIGINT)
    outcome = ranks.finish(job, tmp_path, 2, within=20)
    assert time.monotonic() - began < 15
    for told in outcome.told:
        assert {"interrupted": True} in told, outcome.errors


def test_a_forked_child_is_told_that_it_has_no_part(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        feed = levada.Feed(range(8))
        passing = iter(feed)
        kept = [next(passing)]
        child = os.fork()
        if child == 0:
            for use in (lambda: next(passing), lambda: list(levada.Feed(range(2)))):
                try:
                    use()
                except levada.Unsupported as error:
                    tell(text=str(error))
            sys.exit(0)  # and nothing of the parent's is ended by that
        tell(status=os.waitpid(child, 0)[1])
        tell(got=kept + list(passing))
        """,
    )
    for rank, mine in enumerate(told):
        assert "forked" in mine[0]["text"] and "forked" in mine[1]["text"]
        assert mine[2] == {"status": 0} and mine[3] == {"got": list(range(rank, 8, 2))}


def test_a_failing_rank_fails_the_run(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(tmp_path, 2, "if rank == 1: raise RuntimeError('on purpose')")
    assert outcome.status == 1 and "on purpose" in outcome.errors


def test_run_tells_what_it_takes() -> None:
    def levada(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "levada", *arguments], capture_output=True, text=True, timeout=30)

    assert levada("run").returncode == 2
    assert levada("run", "-n", "0", "x.py").returncode == 2
    assert "Example" in levada("run", "--help").stdout
    assert levada("nonsense").returncode == 2
    assert "levada" in levada("--version").stdout
