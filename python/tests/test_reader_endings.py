"""Readers that are interrupted, abandoned, or still in their loader when a pass or the interpreter ends."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import levada
import pytest
import ranks
from levada.base.abandoned import abandoned
from levada.feed import passes, readers


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupt_while_a_process_starts_leaves_no_process(tmp_path: pathlib.Path) -> None:
    source = "levada.Pipeline(range(5)).dispatch().map(str).run(2, context='spawn')"
    run_interrupted_start(tmp_path, f"next(iter({source}))", "print(multiprocessing.active_children() == [])")


def test_a_process_whose_start_is_interrupted_does_not_outlive_the_interpreter(tmp_path: pathlib.Path) -> None:
    process = "multiprocessing.get_context('spawn').Process(target=time.sleep, args=(1000,))"
    run_interrupted_start(tmp_path, f"process = {process}; exits.start(process)", "print(process.is_alive())")


def run_interrupted_start(folder: pathlib.Path, begin: str, then: str) -> None:
    """Runs a program that gets SIGINT as soon as its first process has started. Checks that it then prints True."""
    script = folder / "script.py"
    script.write_text(
        f"""
import multiprocessing, os, signal, time
import levada
from levada.base import exits
start = multiprocessing.process.BaseProcess.start
def interrupted(process):
    start(process)
    os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    multiprocessing.process.BaseProcess.start = interrupted
    try:
        {begin}
    except KeyboardInterrupt:
        {then}
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "True\nFalse\n"), ran.stderr


def test_an_interrupt_while_a_pass_is_dropped_is_raised_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = passes._leave

    def interrupted(*arguments: Any) -> None:
        leave(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "_leave", interrupted)
    passing = iter(levada.Feed(range(3)))
    assert next(passing) == 0
    with pytest.raises(KeyboardInterrupt):
        del passing
        time.sleep(1)


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_loop_that_was_left_has_no_python_thread(iterate: str) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        for _ in levada.Feed(range(3), iterate=iterate):
            break
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert not {"levada watch", "levada reader"} & names


def test_an_interrupt_ends_a_close_that_waits_for_another_thread() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Loader:
        def __iter__(self) -> Iterator[int]:
            inside.set()
            go_on.wait(60)
            yield 1

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    feed = levada.Feed(Loader(), iterate="inline", timeout=60)
    passing = iter(feed)

    def take() -> None:
        with contextlib.suppress(levada.PeerLost):  # the pass ends in any case
            list(passing)

    taking = threading.Thread(target=take)
    taking.start()
    assert inside.wait(60)
    before = signal.signal(signal.SIGALRM, interrupt)
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            feed.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 4  # close() waits 5 s and raises Timeout
    go_on.set()
    taking.join(60)
    assert not taking.is_alive()
    feed.close()


class Held:
    """Sets `inside` and blocks until `go_on` is set before it yields its second item."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.items = self.make()

    def make(self) -> Iterator[int]:
        yield 0
        self.inside.set()
        self.go_on.wait(60)
        yield from range(1, 4)

    def __iter__(self) -> Iterator[int]:
        return self.items


def test_a_pass_waits_until_the_previous_thread_has_left_the_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, lines = Held(), list[str]()

    def remind(line: str) -> None:
        lines.append(line)
        loader.go_on.set()

    monkeypatch.setattr(readers, "REMIND_AFTER", 0.1)
    monkeypatch.setattr(readers, "write_line", remind)
    for first in levada.Feed(loader, iterate="thread"):
        assert first == 0 and loader.inside.wait(60)
        break
    assert list(levada.Feed(loader, iterate="thread")) == [2, 3]
    line = r"an earlier pass over Held on rank 0 has been left, but its thread is in make > wait > wait \(threading.py:\d+\)"
    assert re.fullmatch(line + "; still waiting", lines[0])
    assert not abandoned()


@pytest.mark.long
def test_a_pass_waits_for_the_previous_thread_with_a_timeout() -> None:
    loader = Held()
    feed = levada.Feed(loader, iterate="thread", timeout=3)
    for _ in feed:
        assert loader.inside.wait(60)
        break
    other = levada.Feed(range(3))
    assert list(other) == [0, 1, 2]
    with pytest.raises(levada.Timeout, match=r"pass over Held on rank 0 .* within 3 s, .* in make > wait > wait \(threading.py:"):
        next(iter(feed))
    loader.go_on.set()
    with pytest.raises(levada.InvalidArgument, match="this Held continues where the last pass was left"):
        list(feed)  # item 1 had been read ahead


@pytest.mark.long
def test_the_interpreter_ends_after_an_abandoned_loader_has_been_released(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        1,
        """
        def loader():
            try:
                yield 0
                time.sleep(2.5)  # longer than the loop waits when it is left
                yield 1
            finally:
                time.sleep(1.5)
                tell(released=True)
        for _ in levada.Feed(loader(), iterate="thread"):
            break
        time.sleep(1.5)  # until the thread has left the loader and releases it
        """,
    )
    assert outcome.status == 0 and outcome.told[0] == [{"released": True}], outcome.errors


@pytest.mark.long
def test_the_interpreter_waits_for_a_slow_loader_and_reports_it(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        1,
        """
        import threading
        inside = threading.Event()
        def loader():
            yield 0
            inside.set()
            time.sleep(6)
            tell(has_left=True)
        for _ in levada.Feed(loader(), iterate="thread"):
            inside.wait()
            break
        """,
    )
    assert outcome.status == 0 and outcome.told == [[{"has_left": True}]]
    line = r"levada: process \d+ waits up to 30 s before it exits, because a loader is still in loader \(script.py:\d+\); Ctrl-C .*\n"
    assert re.fullmatch(line, outcome.errors), outcome.errors


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_the_interpreter_ends_in_the_middle_of_a_pass(tmp_path: pathlib.Path, iterate: str) -> None:
    outcome = ranks.run(
        tmp_path,
        2,
        f"""
        class Loader:
            def __iter__(self):
                for i in range(10**9):
                    yield {{"x": np.full(100_000, i), "pid": os.getpid()}}
        if __name__ == "__main__":
            feed = levada.Feed(Loader(), iterate={iterate!r})
            passing = iter(feed)
            kept = [next(passing) for _ in range(7)]
            cycle = [feed, passing, kept]
            cycle.append(cycle)
            tell(first=[int(batch["x"][0]) for batch in kept], reader=kept[0]["pid"])
        """,
    )
    assert outcome.status == 0 and outcome.errors == "", outcome.errors
    assert [told[0]["first"] for told in outcome.told] == [list(range(rank, 14, 2)) for rank in range(2)]
    assert not is_running(outcome.told[0][0]["reader"])
