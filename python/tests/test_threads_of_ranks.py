"""Several threads of each rank on one collective object, and on other shared objects: each call returns a correct
result or an error that explains itself, and no rank hangs."""

from __future__ import annotations

import pathlib

import pytest
from racing import TIMES, run

pytestmark = pytest.mark.timeout(120 * TIMES)


def test_threads_of_each_rank_exchange_samples_one_call_at_a_time(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        job, rank = levada.join(), levada.rank()
        store = exchange.Store()
        store.store(exchange.SampleBatch([f"s{rank}"], {"x": np.full(3, rank)}, {"x": [3]}))
        def until_done(call):
            def work():
                done = 0
                while done < 20:
                    try:
                        call()
                        done += 1
                    except levada.InvalidArgument as error:
                        if "thread" not in str(error): raise
                        time.sleep(0.001)
                return done
            return work
        def gather():
            held = exchange.all_gather(store, timeout=60)
            assert [held.holders(f"s{each}", "x")[0] for each in range(2)] == [0, 1]
        outcomes = together(until_done(gather), until_done(gather))
        assert outcomes == [20, 20], outcomes
        wants = {each: ["s0", "s1"] for each in range(2)}
        outcomes = together(*[until_done(lambda: exchange.redistribute(store, wants, ["x"], timeout=60))] * 2)
        assert outcomes == [20, 20], outcomes
        assert store.get(["s0", "s1"]).item("x", 1).tolist() == [1, 1, 1]
        """,
        ranks=2,
    )


def test_threads_of_each_rank_on_one_reduce_scatter_get_their_sums_or_are_refused(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        rank = levada.rank()
        with levada.ReduceScatter(timeout=60) as reduce:
            def once(call):
                while True:
                    try:
                        return call()
                    except levada.InvalidArgument as error:
                        if "thread" not in str(error): raise
                        time.sleep(0.001)
            def work():
                for done in range(50):
                    handle = once(lambda: reduce.all_reduce(np.full(8, rank + 1.0, np.float32)))
                    assert once(handle.wait).tolist() == [3.0] * 8
                return 50
            outcomes = together(work, work)
            assert outcomes == [50, 50], outcomes
        """,
        ranks=2,
    )


def test_a_thread_may_leave_the_job_while_others_use_it(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        job = levada.join()
        def until_gone(use):
            def work():
                try:
                    while True: use()
                except levada.Error as error:
                    return type(error).__name__, str(error)
            return work
        def reduce():
            with levada.ReduceScatter(timeout=60) as reduce:
                reduce.all_reduce(np.ones(4)).wait()
        store = exchange.Store()
        store.store(exchange.SampleBatch([f"s{levada.rank()}"], {"x": np.zeros(3)}, {"x": [3]}))
        def leave():
            time.sleep(0.2)
            for _ in range(20): job.leave()
        outcomes = together(until_gone(lambda: list(levada.Feed([np.zeros(4)] * 20, timeout=60))), until_gone(reduce),
                            until_gone(lambda: exchange.all_gather(store, timeout=60)), leave, leave)
        assert outcomes[3:] == [None, None], outcomes
        assert all(kind in ("PeerLost", "Unsupported") and "left" in text for kind, text in outcomes[:3]), outcomes
        """,
        ranks=2,
    )


def test_a_thread_may_leave_a_group_while_others_call_it(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        job = levada.join()
        sys.setswitchinterval(1e-5)
        for number in range(300):
            part = job.subgroup([0], f"part {number}")
            def until_gone(use):
                def work():
                    try:
                        while True: use()
                    except levada.Unsupported as error:
                        return str(error)
                return work
            note = until_gone(lambda: part.note_exception("text", -1))
            outcomes = together(note, note, until_gone(lambda: part.host_of), until_gone(lambda: part.subgroup([0], "")), part.leave)
            assert outcomes == ["this rank has left its job"] * 4 + [None], outcomes
        """,
    )
