"""Faults in one process, and their effects on the others."""

from __future__ import annotations

import multiprocessing
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import levada
import pytest
import ranks
from levada.base import exits


def test_an_item_or_loader_that_fails_is_an_error_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Broken:
            def __iter__(self):
                raise OSError("the disk is gone")

        for source in ([{"meta": [1, len]}] * 2, Broken(), None, levada.Corpus("/no/such/file.txt", tokenizer="bytes")):
            try:
                list(levada.Feed(source))
            except levada.SourceError as error:
                tell(text=str(error))
        """,
    )
    for mine in told:
        assert "batch['meta'][1] cannot cross" in mine[0]["text"]
        assert "the disk is gone" in mine[1]["text"]
        assert "its source is None" in mine[2]["text"]
        assert "/no/such/file.txt" in mine[3]["text"]


def test_a_rank_that_does_not_read_leaves_its_loader_untouched(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Loader:
            touched = []
            def __len__(self): return 4
            def __iter__(self):
                self.touched.append("iter")
                for i in range(4):
                    self.touched.append(i)
                    yield 10 * rank + i
        if __name__ == "__main__":
            for iterate in ("thread", "inline"):
                loader = Loader()
                tell(got=list(levada.Feed(loader, mesh=levada.Mesh(tp=2), iterate=iterate)))
            tell(touched=loader.touched)
        """,
    )
    for rank, mine in enumerate(told):
        assert [each["got"] for each in mine[:2]] == [[0, 1, 2, 3]] * 2
        assert mine[2]["touched"] == (["iter", 0, 1, 2, 3] * 2 if rank == 0 else [])


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_reader_that_ends_early_ends_all_at_its_step(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        if __name__ == "__main__":
            items = range(20 if rank == 0 else 9)  # rank 2 reads items 1, 3, 5, 7 and has no more
            feed = levada.Feed(items, mesh=levada.Mesh(dp=2, tp=2), readers="dp", iterate={iterate!r})
            tell(got=list(feed), end=feed.end)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert mine["got"] == [i + rank // 2 for i in range(0, 8, 2)]
        assert mine["end"] == {"cause": "exhausted", "step": 4, "rank": 2, "message": ""}


def test_a_layout_of_an_absent_field_is_refused_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        items = [{"x": np.ones((2, 4))}] * 4
        absent = {"x": [], "ids*": "shard(dp,0)"}
        for layout in ({"x": [], "ids": "shard(dp,0)"}, absent, levada.Layout(absent, optional=["ids*"])):
            try:
                tell(batches=len(list(levada.Feed(items, layout=layout))))
            except levada.InvalidArgument as error:
                tell(text=str(error))
        """,
    )
    for mine in told:
        assert "has no field ids, which layout custom requires; it has x" in mine[0]["text"]
        assert "has no field ids*, which" in mine[1]["text"] and mine[2] == {"batches": 2}


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_kept_batches_stall_no_rank(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        class Loader:
            def __iter__(self): return ({{"x": np.full(100_000, i)}} for i in range(48))
        def run():
            everything = list(levada.Feed(Loader(), iterate={iterate!r}))
            kept, sums = [], []
            for step, batch in enumerate(levada.Feed(Loader(), iterate={iterate!r})):
                kept.append(batch)
                if step % 8 == 7:  # gradients accumulated
                    sums.append(sum(int(each["x"][-1]) for each in kept))
                    kept.clear()
            tell(sums=sums, all=[int(batch["x"][-1]) for batch in everything])
        if __name__ == "__main__":
            run()
        """,
    )
    for rank, (mine,) in enumerate(told):
        numbers = list(range(rank, 48, 2))
        assert mine["all"] == numbers and mine["sums"] == [sum(numbers[at : at + 8]) for at in (0, 8, 16)]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_killed_rank_is_named_to_the_others(tmp_path: pathlib.Path, victim: int, iterate: str) -> None:
    job = ranks.start(
        tmp_path,
        3,
        f"""
        import itertools
        try:
            for number in levada.Feed(itertools.count(), mesh=levada.Mesh(tp=3), iterate={iterate!r}):
                if rank == {victim} and number == 10:
                    os.kill(os.getpid(), signal.SIGKILL)
        except levada.PeerLost as error:
            tell(rank=error.rank)
        """,
    )
    outcome = ranks.finish(job, tmp_path, 3)
    assert outcome.status != 0
    assert outcome.told == [[] if rank == victim else [{"rank": victim}] for rank in range(3)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("iterate", "place"),
    [("thread", "__iter__ > fetch (script.py:"), ("inline", "__iter__ > fetch (script.py:")],
)
def test_a_loader_that_hangs_is_named_and_does_not_block_the_exit(
    tmp_path: pathlib.Path, iterate: str, place: str
) -> None:
    began = time.monotonic()
    outcome = ranks.run(
        tmp_path,
        2,
        f"""
        def fetch(): time.sleep(6 if {iterate!r} == "inline" else 1000)  # which nothing can leave but its own end
        class SlowLoader:
            def __iter__(self):
                yield from range(4)
                fetch()
        def run():
            levada.join()  # with more time than a pass has
            got = []
            try:
                for number in levada.Feed(SlowLoader(), timeout=3.0, iterate={iterate!r}):
                    got.append(number)
            except (levada.Timeout, levada.PeerLost) as error:  # the other rank's Timeout, if that came first
                tell(steps=len(got), text=str(error))
        if __name__ == "__main__":
            run()
        """,
    )
    assert time.monotonic() - began < 90  # rank 0 waits 30 s for the thread to leave the loader before it exits
    for (mine,) in outcome.told[1 if iterate == "inline" else 0 :]:
        assert mine["steps"] == 2
        assert "step 2" in mine["text"] and "rank 0" in mine["text"] and f"a batch of SlowLoader, in {place}" in mine["text"]


@pytest.mark.long
def test_a_rank_that_waits_for_a_computing_rank_reports_its_step(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        2,
        """
        try:
            for number in levada.Feed(range(5000), timeout=2, prefetch=2):
                if rank == 1 and number == 11: time.sleep(8)  # of step 5
        except (levada.Timeout, levada.PeerLost) as error:
            tell(text=str(error))
        """,
    )
    assert "; rank 1: computing step 5, for " in outcome.told[0][0]["text"]


def test_only_the_loader_ends_its_data(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class Odd:
            def __init__(self, ids): self.ids = ids
        levada.register(Odd, lambda odd: ((next(iter(())),), None), lambda state, children: Odd(*children))
        class Stateful(list):
            def state_dict(self): return next(iter(()))
        def run(iterate):
            try: list(levada.Feed([0, 1, Odd(1), Odd(2)], iterate=iterate))
            except levada.SourceError as error: tell(text=str(error))
            feed = levada.Feed(Stateful(range(4)), iterate=iterate)
            tell(got=list(feed))
            try: feed.state_dict()
            except levada.Unsupported as error: tell(text=str(error))
        if __name__ == "__main__":
            for iterate in ("thread", "inline"): run(iterate)
        """,
    )
    for rank, mine in enumerate(told):
        for odd, stateful, unsaved in (mine[:3], mine[3:]):
            assert "StopIteration" in odd["text"] and "StopIteration" in unsaved["text"]
            assert stateful == {"got": [rank, rank + 2]}


@pytest.mark.long
def test_a_pass_may_be_closed_while_its_next_batch_is_waited_for(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        class Hanging:
            over = threading.Event()
            def __iter__(self):
                yield from range(4)
                self.over.wait(1000)
        def take_all(iterator):
            got = []
            try:
                for number in iterator:
                    got.append(number)
                    if len(got) == 2: has_two.set()
            except levada.PeerLost as error:  # the other rank has closed its pass
                tell(lost=error.rank)
            return got
        def on_alarm(*_):
            feed.close()
            try: next(feed_iterator)
            except levada.InvalidArgument as error: tell(text=str(error))
        def await_both(name):
            has_two.wait()
            barrier(name)
            time.sleep(0.3)  # for the loop to wait for its next batch
        def interrupt(name):
            await_both(name)
            if rank == 0: os.kill(os.getpid(), signal.SIGALRM)
        if __name__ == "__main__":
            signal.signal(signal.SIGALRM, on_alarm)
            has_two = threading.Event()
            feed = levada.Feed(Hanging(), iterate="thread", timeout=300)
            feed_iterator = iter(feed)
            threading.Thread(target=interrupt, args=("thread",)).start()
            tell(got=take_all(feed_iterator), cause=feed.end.cause, rank=feed.end.rank)
            def take(): tell(got=take_all(feed_iterator))
            has_two = threading.Event()
            feed = levada.Feed(Hanging(), iterate="thread", timeout=300)
            feed_iterator = iter(feed)
            taker = threading.Thread(target=take)
            taker.start()
            await_both("other thread")
            tell(batches=feed.stats.batches, end=feed.end)
            if rank == 1: taker.join()
            feed.close()
            taker.join()
            tell(batches=feed.stats.batches, cause=feed.end.cause)
            Hanging.over.set()
        """,
    )
    for rank, mine in enumerate(told):
        assert mine.count({"lost": 0}) == (2 if rank == 1 else 0)
        mine = [each for each in mine if "lost" not in each and "under way" not in each.get("text", "")]
        cause = "abandoned" if rank == 1 else "left"
        assert mine[0] == {"got": [rank, 2 + rank], "cause": cause, "rank": 0}
        assert {"got": [rank, 2 + rank]} in mine[1:] and mine[-1] == {"batches": 2, "cause": cause}
    assert {"batches": 2, "end": None} in told[0]


def test_a_closed_pass_is_over() -> None:
    feed = levada.Feed(range(5))
    taken = iter(feed)
    assert next(taken) == 0
    feed.close()
    assert next(taken, None) is None
    feed.request_stop()
    feed = levada.Feed(range(2))
    for _ in feed:
        time.sleep(0.2)  # time in which the feed learns of the end
        break
    assert feed.end is not None and feed.end.cause in ("exhausted", "left")


@pytest.mark.long
def test_a_second_close_waits_for_the_first(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        class Slow:
            def __iter__(self):
                yield from range(4)
                time.sleep(7)  # longer than one waits for another thread that does not close
                yield from range(4, 6)
        feed = levada.Feed(Slow(), timeout=60)
        taken = iter(feed)
        if rank == 0:
            got = []
            try:
                for number in taken:
                    got.append(number)
                    if len(got) == 2: barrier("two")
            except levada.PeerLost as error:
                tell(got=got, lost=error.rank)
        else:
            def take():
                got = []
                for number in taken:
                    got.append(number)
                    if len(got) == 2: has_two.set()
                tell(got=got)
            has_two = threading.Event()
            taker = threading.Thread(target=take)
            taker.start()
            has_two.wait()
            barrier("two")
            time.sleep(0.3)  # for the thread to wait for its next batch
            feed.close()
            tell(closed=feed.end.cause)
            taker.join()
        """,
    )
    assert {"closed": "left"} in told[1] and {"got": [1, 3]} in told[1]
    assert told[0] == [{"got": [0, 2], "lost": 1}]


@pytest.mark.long
def test_a_thread_that_waits_for_a_batch_does_not_block_the_exit(tmp_path: pathlib.Path) -> None:
    for iterate in ("thread", "inline"):
        told = ranks.succeed(
            tmp_path,
            2,
            f"""
            import threading
            from levada.job import job
            job._LOADERS = 3.0
            class Hanging:
                def __iter__(self):
                    yield from range(2)
                    time.sleep(1000 if {iterate!r} == "thread" else 2)
            feed = iter(levada.Feed(Hanging(), iterate={iterate!r}, timeout=300))
            first = next(feed)
            threading.Thread(target=next, args=(feed, None), daemon=True).start()
            barrier({iterate!r})
            time.sleep(0.3)  # for the thread to wait for its batch
            tell(first=first)
            """,
        )
        assert [mine[-1] for mine in told] == [{"first": 0}, {"first": 1}]


def test_ctrl_c_ends_a_wait(tmp_path: pathlib.Path) -> None:
    job = ranks.start(
        tmp_path,
        2,
        """
        import threading
        over = threading.Event()
        def loader():
            yield from range(2)
            tell(waiting=True)
            over.wait(1000)
        passing = iter(levada.Feed(loader(), iterate="thread", timeout=300))
        try:
            for number in passing:
                tell(number=number)
        except KeyboardInterrupt:
            barrier("interrupted")  # A rank that leaves earlier is PeerLost on the other.
            over.set()
            tell(interrupted=True)
        """,
    )
    # A rank that is interrupted while it is still starting aborts the other ranks' feed.
    while not all(len(ranks.told_by(tmp_path, rank)) == 2 - rank for rank in range(2)):
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    outcome = ranks.finish(job, tmp_path, 2)
    for told in outcome.told:
        assert {"interrupted": True} in told, outcome.errors


def test_a_forked_child_cannot_use_the_feed(tmp_path: pathlib.Path) -> None:
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


def test_the_error_for_a_refused_thread_names_the_limits_to_raise(tmp_path: pathlib.Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text " * 1000)
    code = f"""
import resource
import levada, numpy
corpus = levada.Corpus({str(text)!r}, seq_length=16, tokenizer="bytes")
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 4 * 2**20  # less than the stack of a thread
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    list(levada.Feed(corpus))
except levada.EngineError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "cannot start a thread" in ran.stdout and "(ulimit -u" in ran.stdout, ran.stderr


REFUSED = "cannot start a thread for .*: Resource temporarily unavailable; allow more processes .ulimit -u"


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the system refuse the threads that Levada starts in Python."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("levada"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("iterate", ["thread", "inline"])
@pytest.mark.usefixtures("no_more_threads")
def test_a_feed_whose_thread_is_refused_names_the_limits_to_raise(iterate: str) -> None:
    with pytest.raises(levada.EngineError, match=REFUSED):
        list(levada.Feed(range(3), iterate=iterate, timeout=60))
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("no_more_threads")
def test_an_exporter_whose_thread_is_refused_frees_its_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(levada.EngineError, match=REFUSED):
            levada.MetricsExporter(f"127.0.0.1:{port}", levada.Feed(range(3)))


@pytest.mark.usefixtures("no_more_threads")
def test_a_process_is_not_started_without_a_thread_to_start_it() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    exits._starter.cache_clear()
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(levada.EngineError, match=REFUSED):
            pool.submit(exits.start, process).result(60)
    assert process.pid is None
