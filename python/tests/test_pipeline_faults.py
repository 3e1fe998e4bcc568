"""Faults in a pipeline reach the loop, and no process is left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import pathlib
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import levada
import pytest
from levada import Pipeline
from levada.pipeline import failures as _failures

multiprocessing.set_forkserver_preload(["levada.pipeline.workers", "cloudpickle"])
OPTIONS: dict[str, Any] = {"context": "forkserver", "seed": 1}


class Odd(Exception):
    """An exception that cannot be recreated from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second
        self.kept = object()


def fail_at(number: int) -> Any:
    def check(item: int) -> int:
        if item == number:
            raise KeyError(f"no item {item}")
        return item

    return check


def own(_: Any = None) -> int:
    return os.getpid()


def is_gone(process: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            if pathlib.Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_is_raised_in_place_of_its_item(workers: int) -> None:
    for pipeline, stage, process in (
        (Pipeline(range(20)).dispatch().map(fail_at(7), name="check"), "check", "worker 1"),
        (Pipeline(range(20)).map(fail_at(7), name="before").dispatch().map(str), "before", "the dispatching process"),
        (Pipeline(range(20)).dispatch().map(fail_at(7), name="check").transform(iter), "check", "worker 1"),
    ):
        given = []
        with pipeline.run(workers, **OPTIONS) as run:
            with pytest.raises(KeyError, match="no item 7") as caught:
                for item in run:
                    given.append(item)
        assert [int(item) for item in given] == list(range(7))
        told = caught.value.__cause__
        assert isinstance(told, levada.StageFailed)
        assert told.stage == stage and (process if workers else "the consumer") in told.process
        assert "check" in told.traceback and 'raise KeyError(f"no item' in told.traceback
        assert f'stage "{stage}"' in str(told) or f"stage {stage}" in str(told)
        if not workers:
            assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "check"  # the original exception


def test_any_stage_can_fail_and_the_next_epoch_is_whole() -> None:
    def broken_source() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    def broken_transform(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            yield item // (3 - item)

    numbers = Pipeline(range(6))
    cases: list[tuple[Pipeline[Any], type[BaseException], str]] = [
        (Pipeline(broken_source).dispatch().map(str), OSError, "disk"),
        (numbers.dispatch().filter(fail_at(2)), KeyError, "no item 2"),
        (numbers.dispatch().flat_map(lambda n: [n] if n < 2 else 5), TypeError, "iter"),  # type: ignore[arg-type, return-value]
        (numbers.dispatch().transform(broken_transform), ZeroDivisionError, "zero"),
        (numbers.dispatch().map(lambda n: n if n < 3 else (lambda: n)), Exception, "pickle"),
        (numbers.dispatch().unbatch(), TypeError, "item"),
        (numbers.dispatch().map(lambda n: next(iter(()))), levada.StageFailed, "StopIteration"),
    ]
    for pipeline, kind, text in cases:
        with pipeline.run(1, **OPTIONS) as run:
            for _ in range(2):  # a failed epoch does not affect the next
                with pytest.raises(kind, match=text):
                    list(run)


def test_an_exception_that_cannot_be_recreated_is_reported() -> None:
    def fail(item: int) -> int:
        class Local(Exception):
            pass

        raise Local(item, 2)

    with Pipeline(range(3)).dispatch().map(fail).run(1, **OPTIONS) as run:
        with pytest.raises(levada.StageFailed, match=r"\(0, 2\)") as caught:
            list(run)
    assert "raise Local" in caught.value.traceback


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("caf\udce9"), r"ValueError: caf\udce9"),
        (FileNotFoundError(2, "not found", "caf\udce9"), r"not found: 'caf\udce9'"),
        (ValueError(["caf\udce9"]), r"ValueError: ['caf\udce9']"),
        (Mute(1), "Mute: <exception str() failed>"),
    ],
)
def test_an_exception_whose_text_has_no_utf8_is_raised_again(workers: int, error: Exception, text: str) -> None:
    def fail(_: int) -> int:
        raise error

    with Pipeline(range(3)).dispatch().map(fail).run(workers, **OPTIONS) as run:
        with pytest.raises(type(error)) as caught:
            list(run)
    assert isinstance(caught.value.__cause__, levada.StageFailed) and text in str(caught.value.__cause__)
    assert repr(caught.value.args) in (repr(error.args), repr((str(error.args[0]),)))
    assert getattr(caught.value, "filename", None) == getattr(error, "filename", None)


def from_elsewhere(packed: bytes) -> BaseException:
    """Returns the exception as it arrives from another process."""
    process, *described = levada.unpack(packed)
    return _failures.unpack("it failed", "map", "worker 0", 3, "", levada.pack([f"not {process}", *described]))


def test_an_exception_keeps_its_plain_attributes_and_runs_no_code_of_its_class() -> None:
    made = from_elsewhere(_failures.pack(Odd(1, 2))[3])
    assert type(made) is Odd and str(made) == "1 and 2" and made.second == 2 and not hasattr(made, "kept")
    assert isinstance(made.__cause__, levada.StageFailed) and made.__cause__.stage == "map"
    for error in (OSError(2, "no such file", "name"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), KeyError("k")):
        made = from_elsewhere(_failures.pack(error)[3])
        assert type(made) is type(error) and str(made) == str(error) and made.args == error.args


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:SystemExit", "builtins:KeyboardInterrupt", "absent:Error", "os:path.sep", "levada", ""]
)
def test_names_sent_by_another_process_are_neither_imported_nor_called(name: str) -> None:
    for packed in (levada.pack(["another", 1, name, ["true"], {}, []]), pickle.dumps(name), b"\0" * 100):
        made = _failures.unpack("it failed", "map", "worker 0", 3, "", packed)
        assert type(made) is levada.StageFailed and made.stage == "map"


def test_a_stage_that_exits_is_an_error_and_not_the_end_of_the_program() -> None:
    def leave(item: int) -> int:
        sys.exit(0)

    with Pipeline(range(3)).dispatch().map(leave).run(1, **OPTIONS) as run:
        with pytest.raises(levada.StageFailed, match="SystemExit"):
            list(run)
    with pytest.raises(levada.StageFailed, match="SystemExit"):
        list(Pipeline(range(3)).dispatch().map(str).run(1, worker_init=leave, **OPTIONS))


def test_impossible_options_are_refused_before_anything_starts() -> None:
    pipeline = Pipeline(range(3)).dispatch().map(str)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"workers": 1_000_000}, "workers is 1000000; a pipeline has at most 1022"),
        ({"workers": 1, "timeout": "3"}, "timeout is '3'; it must be a positive number"),
        ({"workers": 1, "start_timeout": 0}, "start_timeout is 0; it must be a positive number"),
        ({"workers": 1.5}, "workers must be a whole number, got 1.5"),
        ({"workers": 1, "seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"worker_init": 5}, "worker_init must be a function, got 5"),
    ]
    for options, why in cases:
        with pytest.raises(levada.InvalidArgument, match=why):
            pipeline.run(**options)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        with pytest.raises(levada.Unsupported, match=r"61 processes take some \d+ file descriptors.*ulimit -n"):
            list(pipeline.run(60, **OPTIONS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_failed_items_can_be_skipped_and_are_counted() -> None:
    pipeline = Pipeline(range(10)).dispatch().map(fail_at(3), name="check").map(fail_at(5), on_error="raise")
    with pipeline.take(5).run(2, on_error="skip", **OPTIONS) as run:
        items = iter(run)
        assert [next(items) for _ in range(4)] == [0, 1, 2, 4]
        with pytest.raises(KeyError):
            list(items)
    with Pipeline(range(10)).dispatch().map(fail_at(3), name="check").run(2, on_error="skip", **OPTIONS) as run:
        assert list(run) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert run.stats().stages["check"].skipped == 1


def test_a_failure_releases_the_objects_of_its_functions() -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def fail(item: int) -> int:
        large = Large()
        held.append(weakref.ref(large))
        try:
            raise OSError("first")
        except OSError:
            raise ValueError(item)

    assert list(Pipeline(range(5)).map(fail, on_error="skip")) == []
    gc.collect()
    assert len(held) == 5 and [each() for each in held] == [None] * 5
    with pytest.raises(ValueError) as caught:
        list(Pipeline(range(5)).map(fail))
    assert "raise OSError" in "".join(traceback.format_exception(caught.value))


def test_a_failure_to_start_is_reported() -> None:
    class Unloadable:
        def __reduce__(self) -> Any:
            return fail_at(1), (1,), {}

    def init(number: int) -> None:
        if number == 1:
            raise RuntimeError("worker 1 has no device")

    def leave(_: int) -> None:
        os._exit(3)

    pipeline = Pipeline(range(3)).dispatch().map(str)
    with pytest.raises(RuntimeError, match="no device") as caught:
        list(pipeline.run(2, worker_init=init, **OPTIONS))
    assert "worker 1" in str(caught.value.__cause__) and "while it started" in str(caught.value.__cause__)
    with pytest.raises(levada.SourceError, match=r"worker 0 \(process \d+\) ended with exit status 3 while it started"):
        list(pipeline.run(1, worker_init=leave, **OPTIONS))
    with pytest.raises(levada.SourceError, match="generator"):
        list(Pipeline(n for n in range(3)).dispatch().run(1, **OPTIONS))


@pytest.mark.parametrize("victim", ["worker", "dispatcher"])
def test_a_killed_process_is_reported_within_a_second(victim: str) -> None:
    def slow(item: int) -> int:
        time.sleep(0.01)
        return item

    pipeline = Pipeline(range(100_000)).map(lambda n: (n, own())).dispatch().map(lambda both: (slow(both[0]), both[1], own()))
    with pipeline.run(2, **OPTIONS) as run:
        items = iter(run)
        _, dispatcher, worker = next(items)
        process = worker if victim == "worker" else dispatcher
        os.kill(process, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(levada.PeerLost, match=rf"process {process}\) was killed by SIGKILL"):
            for _ in items:
                pass
        assert time.monotonic() - begin < 10  # one second on an idle machine


def test_no_process_outlives_its_loop() -> None:
    def numbers() -> Pipeline[Any]:
        return Pipeline(range(10**6)).dispatch().map(own)

    for item in numbers().run(1, **OPTIONS):  # after the break nothing refers to the run
        break
    gc.collect()
    assert is_gone(item)

    iterator = iter(numbers().run(1, **OPTIONS))
    item = next(iterator)
    del iterator
    gc.collect()
    assert is_gone(item)

    with numbers().run(1, **OPTIONS) as run:
        item = next(iter(run))
        assert not run.close() and is_gone(item)  # type: ignore[func-returns-value]
        assert next(iter(run)) != item  # starts again


PROGRAM = """
import os, signal, sys, time
import levada
def own(item):
    return os.getpid()
if __name__ == "__main__":
    run = levada.Pipeline(range(10**6)).dispatch().map(own).run(1, context={context!r})
    items = iter(run)
    print(next(items), os.getpid(), flush=True)
    {then}
"""


def program(tmp_path: pathlib.Path, then: str, context: str = "spawn") -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(then=then, context=context))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("then", "status"),
    [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("os.kill(os.getpid(), 9)", -9), ("os._exit(4)", 4)],
)
def test_the_end_of_a_program_leaves_no_process(tmp_path: pathlib.Path, then: str, status: int) -> None:
    ran = program(tmp_path, then)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == status, err
    assert is_gone(int(out.split()[0])) and ("mine" in err) == ("mine" in then) and "leak" not in err


def test_a_child_forked_during_a_run_ends_quietly(tmp_path: pathlib.Path) -> None:
    then = """
    child = os.fork()
    if child == 0: sys.exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""
    ran = program(tmp_path, then.strip("\n").lstrip())
    out, err = ran.communicate(timeout=60)
    assert out.splitlines()[1:] == ["0"] and ran.returncode == 0 and "Traceback" not in err, err


@pytest.mark.parametrize("context", ["spawn", "fork", "forkserver"])
def test_a_stopped_process_does_not_outlive_its_parent(tmp_path: pathlib.Path, context: str) -> None:
    ran = program(tmp_path, "time.sleep(300)", context)
    assert ran.stdout is not None
    worker = int(ran.stdout.readline().split()[0])
    os.kill(worker, signal.SIGSTOP)
    while pathlib.Path(f"/proc/{worker}/stat").read_text().split(") ")[1][0] not in "tT":
        time.sleep(0.01)
    ran.kill()
    try:
        assert is_gone(worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    ran.communicate(timeout=60)


def test_a_signal_handler_may_close_a_run_while_an_item_is_waited_for(tmp_path: pathlib.Path) -> None:
    then = """
    signal.signal(signal.SIGUSR1, lambda *_: run.close())
    print("given", sum(1 for _ in items) < 10**6, flush=True)
"""
    ran = program(tmp_path, then.strip("\n").lstrip())
    assert ran.stdout is not None
    worker = int(ran.stdout.readline().split()[0])
    os.kill(ran.pid, signal.SIGUSR1)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode in (0, -signal.SIGUSR1) and is_gone(worker), err
    assert not out or out == "given True\n", (out, err)


def test_ctrl_c_ends_a_wait(tmp_path: pathlib.Path) -> None:
    ran = program(tmp_path, "[None for _ in items]; time.sleep(60)")
    assert ran.stdout is not None
    worker = int(ran.stdout.readline().split()[0])
    os.kill(ran.pid, signal.SIGINT)
    _, err = ran.communicate(timeout=60)
    assert ran.returncode in (1, -signal.SIGINT) and err.rstrip().endswith("KeyboardInterrupt"), err
    assert err.count("Traceback") == 1 and is_gone(worker)


@pytest.mark.parametrize(
    ("stage", "workers"),
    [("filter(no)", 0), ("filter(no).prefetch(2)", 0), ("filter(no).transform(iter)", 0), ("flat_map(none)", 1)],
)
def test_ctrl_c_ends_a_stage_that_never_yields(tmp_path: pathlib.Path, stage: str, workers: int) -> None:
    path = tmp_path / "program.py"
    path.write_text(FRUITLESS.format(stage=stage, workers=workers))
    ran = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ran.stdout is not None and ran.stdout.readline() == "begun\n"
    os.kill(ran.pid, signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert out == "interrupted\nclosed\n" and ran.returncode == 0, err


FRUITLESS = """
import itertools, os, signal
import levada
def no(item):
    return False
def none(item):
    return ()
if __name__ == "__main__":
    run = levada.Pipeline(lambda: itertools.count()).shard().{stage}.run({workers}, context="forkserver")
    items = iter(run)
    try:
        print("begun", flush=True)
        next(items)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    run.close(grace=30)
    print("closed", flush=True)
"""


def test_commands_reach_processes_that_never_yield() -> None:
    for pipeline in (
        Pipeline(lambda: itertools.count()).shard().filter(lambda _: False),
        Pipeline(lambda: itertools.count()).filter(lambda _: False).dispatch().map(own),
    ):
        with pipeline.run(2, **OPTIONS) as run:
            for _ in range(3):
                iter(run)
                run.pause()
                run.resume()
                run.limit(1)
        assert not multiprocessing.active_children()


def test_fork_is_refused_while_another_run_is_open(tmp_path: pathlib.Path) -> None:
    then = """
    offset = len(sys.argv)
    again = levada.Pipeline(n for n in range(4)).dispatch().map(lambda n: n + offset)
    try:
        list(again.run(1, context="fork"))
    except levada.Unsupported as error:
        print(error, flush=True)
    run.close(); del run, items
    print(list(again.run(1, context="fork")), flush=True)
"""
    ran = program(tmp_path, then.strip("\n").lstrip(), context="fork")
    out, err = ran.communicate(timeout=60)
    first, refused, fine = out.splitlines()
    assert "threads" in refused and "forkserver" in refused and fine == "[1, 2, 3, 4]", (out, err)


@pytest.mark.long
def test_a_process_that_hangs_is_named_with_its_stage() -> None:
    def hang(item: int) -> int:
        if item == 2:
            time.sleep(300)
        return item

    run = Pipeline(range(5)).dispatch().map(hang).run(1, **{**OPTIONS, "timeout": 5.0})
    items = iter(run)
    begin = time.monotonic()
    with pytest.raises(levada.Timeout, match=r"worker 0 \(process \d+\)") as caught:
        list(items)
    assert 4 < time.monotonic() - begin < 30  # processes get at most 2 s to report their positions
    assert "in hang" in str(caught.value)
    begin = time.monotonic()
    run.close(grace=60)
    assert not multiprocessing.active_children() and time.monotonic() - begin < 30  # it does not wait again


def test_close_ends_a_start_that_another_thread_waits_for() -> None:
    def init(_: int) -> None:
        time.sleep(300)

    raised: list[BaseException] = []

    def begin() -> None:
        try:
            iter(run)
        except levada.InvalidArgument as error:
            raised.append(error)

    run = Pipeline(range(5)).dispatch().map(str).run(1, worker_init=init, **OPTIONS)
    starting = threading.Thread(target=begin)
    starting.start()
    deadline = time.monotonic() + 60
    while not multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.close()
    starting.join(60)
    assert "another thread has closed this run while its processes started" in str(*raised)
    assert not run.is_started and not multiprocessing.active_children()
