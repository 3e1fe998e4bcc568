"""Reductions of all ranks' tensors, in buckets."""

from __future__ import annotations

import pathlib

import levada
import numpy as np
import pytest
import ranks


def test_every_rank_gets_the_sum_of_its_part(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        order = []
        with levada.ReduceScatter(capacity_mb=0.01, timeout=[float("inf"), 1e300, 1e12][rank]) as reduce:
            def keep(name):
                return lambda result: order.append([name, result.tolist() if result.size < 9 else None, result.flags.writeable])
            reduce([np.full(2, 10.0 * rank + to) for to in range(3)], keep("small"))
            reduce(np.arange(9000.0), keep("big"))
            last = reduce(np.arange(7.0) + rank, keep("small2"))
            assert not last.done()
        handle = reduce(np.float32([[1, 2], [3, 4], [5, 6]]), op="average")
        placed = reduce.empty(3 * 30_000, dtype=np.float64)
        placed[:] = rank
        in_place = reduce(placed)
        tell(order=order, last=last.wait().tolist(), average=handle.wait().tolist(), placed=float(in_place.wait()[7]),
             copied=reduce.stats.bytes - reduce.stats.bytes_copied,
             all=reduce.all_reduce(np.int64([rank, 2**60])).wait().tolist(),
             gathered=reduce.all_gather(np.uint8([rank])).wait().tolist())
        reduce.teardown()
        """,
    )
    for rank, ((only,),) in enumerate(zip(told, strict=True)):
        small = [30.0 + 3 * rank] * 2
        small2 = [[3.0, 6.0, 9.0], [12.0, 15.0, 18.0], [21.0, 0.0, 0.0]][rank]
        assert only["order"] == [["big", None, True], ["small", small, True], ["small2", small2, True]]
        assert only["last"] == small2
        assert only["average"] == [[1.0 + 2 * rank, 2.0 + 2 * rank]]
        assert only["placed"] == 3.0 and only["copied"] == 3 * 30_000 * 8
        assert only["all"] == [3, 3 * 2**60] and only["gathered"] == [[0], [1], [2]]


def test_a_callback_may_enqueue_and_may_raise(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        reduce, called = levada.ReduceScatter(), []
        def again(result):
            called.append(float(result[0]))
            if len(called) < 4: reduce(np.full(2, 10.0), again)
            raise ValueError(f"after {len(called)}")
        reduce(np.ones(2), again)
        reduce(np.ones(2), lambda result: called.append("other"))
        try:
            reduce.flush()
        except ValueError as error:
            tell(raised=str(error), called=called)
        """,
    )
    for (only,) in told:
        assert only["raised"] == "after 1"
        assert only["called"] == [2.0, "other", 20.0, 20.0]


def test_callbacks_run_after_the_bucketer_was_dropped() -> None:
    held = [levada.ReduceScatter()]
    called: list[float] = []

    def let_go(result: np.ndarray) -> None:  # type: ignore[type-arg]
        called.append(float(result[0]))
        held.clear()

    handle = held[0](np.full(3, 1.0), let_go)
    held[0](np.full(3, 2.0), lambda result: called.append(float(result[0])))
    handle.wait()
    assert called == [1.0, 2.0]


def test_the_error_names_the_difference_between_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        reduce = levada.ReduceScatter()
        reduce(np.zeros(4))
        reduce(np.zeros((6, 2)) if rank else np.zeros((4, 2)))
        try:
            reduce.flush()
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for (only,) in told:
        assert "input 1 is float64 [2, 2] on rank 0, float64 [3, 2] on rank 1" in only["error"]


def test_the_error_names_a_tensor_that_cannot_be_reduced() -> None:
    reduce = levada.ReduceScatter()
    with pytest.raises(levada.InvalidArgument, match="one tensor for each of the 1 ranks of the group, got 2"):
        reduce([np.zeros(2), np.zeros(2)])
    with pytest.raises(levada.Unsupported, match="sum does not support bool"):
        reduce(np.zeros(2, bool))
    with pytest.raises(TypeError, match=r"inputs\[0\] is not a tensor"):
        reduce(["tensor"])
    with pytest.raises(TypeError, match="input is not a tensor"):
        reduce.all_reduce(3)
    with pytest.raises(levada.InvalidArgument, match='op is "max"; it must be one of sum, average'):
        reduce(np.zeros(2), op="max")
    for capacity in (float("nan"), float("inf"), -1):
        with pytest.raises(levada.InvalidArgument, match=f"capacity_mb must be from 0 to 1048576, got {capacity}"):
            levada.ReduceScatter(capacity_mb=capacity)
    for timeout in (0, -1e300, float("nan")):
        with pytest.raises(levada.InvalidArgument, match="timeout must be positive, got"):
            levada.ReduceScatter(timeout=timeout)
    handle = reduce(np.zeros(2))
    with pytest.raises(levada.InvalidArgument, match="still open"):
        handle.get()
    with pytest.raises(levada.InvalidArgument, match="1 inputs are not reduced yet"):
        reduce.teardown()


def test_a_rank_that_is_killed_is_named(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        2,
        """
        reduce = levada.ReduceScatter()
        try:
            for number in range(10**9):
                reduce(np.zeros(2)).wait()
                if rank == 1 and number == 3: os.kill(os.getpid(), signal.SIGKILL)
        except levada.PeerLost as error:
            tell(lost=error.rank)
        """,
    )
    assert outcome.told[0] == [{"lost": 1}], outcome.errors


def test_a_second_thread_is_refused_during_a_call(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        1,
        """
        import threading
        reduce, called, told = levada.ReduceScatter(capacity_mb=0.05), [], []
        reduce(np.ones(2)).wait()
        start = threading.Barrier(3)
        def work():
            start.wait()
            for number in range(300):
                try:
                    handle = reduce(np.ones((64, 8)), callback=lambda result: called.append(float(result[0, 0])))
                    reduce.flush()
                    handle.wait()
                except levada.InvalidArgument as error:
                    told.append(str(error))
        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads: each.start()
        for each in threads: each.join()
        reduce.flush()
        tell(called=sorted(set(called)), right=len(called) == reduce.stats.inputs - 1, told=sorted(set(told)))
        """,
    )
    ((only,),) = told
    assert only["called"] == [1.0] and only["right"]
    assert all("is under way on another thread; let one thread at a time use it" in each for each in only["told"])


def test_a_signal_handler_that_raises_ends_a_wait_and_the_group(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        from levada import exchange
        class Alarm(Exception): pass
        def alarm(*_): raise Alarm
        reduce = levada.ReduceScatter(capacity_mb=0)
        reduce(np.zeros(2)).wait()
        try:
            if rank == 0:
                signal.signal(signal.SIGALRM, alarm)
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                reduce(np.zeros(4)).wait()
            else:
                exchange.all_gather(exchange.Store())
        except (Alarm, levada.EngineError) as error:
            tell(error=f"{type(error).__name__}: {error}")
        """,
    )
    assert told[0] == [{"error": "Alarm: "}]
    assert "a rank was interrupted in a reduction" in told[1][0]["error"]
