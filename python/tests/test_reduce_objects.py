"""Several ReduceScatters, several groups, and inputs that a rank omits: every sum is over the inputs of one object in
one group."""

from __future__ import annotations

import pathlib

import levada
import numpy as np
import pytest
import ranks


@pytest.mark.parametrize("seed", range(3))
def test_objects_first_used_in_any_order_keep_separate_sums(tmp_path: pathlib.Path, seed: int) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        f"""
        import random, threading
        drawn, mine = random.Random({seed}), random.Random(1000 * rank + {seed})
        whole = levada.join()
        groups = dict(job=None, whole=whole)
        if rank < 2: groups["pair"] = whole.subgroup([0, 1], "pair")
        objects = []
        for number in range(5):
            group, named, capacity = drawn.choice(["job", "whole", "pair"]), drawn.random() < 0.5, drawn.choice([0, 0.1])
            if group not in groups: continue
            objects.append((number, levada.ReduceScatter(groups[group], timeout=20, capacity_mb=capacity,
                            name=f"object {{number}}" if named else None), 2 if group == "pair" else 3))
        wrong = []
        def use(number, reduce, size):
            time.sleep(mine.random() * 0.2)
            for call in range(4):
                value = 100.0 * (number + 1) + call
                results = [reduce.all_reduce(np.full(2, value)).wait()[0], reduce(np.full(size, value)).wait()[0]]
                if results != [size * value] * 2: wrong.append([number, call, results])
            reduce.flush()
        threads = [threading.Thread(target=use, args=each) for each in mine.sample(objects, len(objects))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        tell(wrong=wrong, used=len(objects))
        """,
    )
    assert all(each["wrong"] == [] for (each,) in told) and told[0][0]["used"] == 5


def test_objects_created_in_another_order_match_by_name(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        made = {name: levada.ReduceScatter(name=name, timeout=20) for name in (["grads", "losses"] if rank else ["losses", "grads"])}
        value = {"grads": 1.0, "losses": 100.0}
        handles = {name: reduce.all_reduce(np.full(2, value[name])) for name, reduce in made.items()}
        tell(sums={name: float(handle.wait()[0]) for name, handle in handles.items()})
        """,
    )
    assert all(each["sums"] == {"grads": 2.0, "losses": 200.0} for (each,) in told)


def test_a_name_is_a_number_or_the_passed_one() -> None:
    first, second = levada.ReduceScatter(), levada.ReduceScatter()
    assert first.name.startswith("reduce-scatter ") and first.name != second.name
    named = [levada.ReduceScatter(name="test of names").name for _ in range(3)]
    assert named == ["test of names", "test of names 2", "test of names 3"]
    for name in ("", 3):
        with pytest.raises(levada.InvalidArgument, match="name must be a string that is not empty"):
            levada.ReduceScatter(name=name)  # type: ignore[arg-type]
    assert first.all_reduce(np.ones(2)).wait().tolist() == [1.0, 1.0]


def test_a_timeout_names_the_object_in_which_the_other_rank_waits(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        2,
        """
        reduce = levada.ReduceScatter(name=["A", "B"][rank], timeout=[1, 30][rank])
        try:
            reduce.all_reduce(np.ones(2)).wait()
        except levada.Error as error:
            tell(error=f"{type(error).__name__}: {error}")
        """,
    )
    (first,), (second,) = outcome.told
    assert first["error"].startswith("Timeout: rank 0 waited") and "all-reduce step 1, B, waiting for rank 0" in first["error"]
    assert second["error"].startswith("PeerLost: rank 0 left") and "Timeout" in second["error"]


def test_a_wait_in_one_group_closes_no_bucket_of_another(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        import random
        job = levada.join()
        groups = {members: job.subgroup(list(members), "pair") for members in [(0, 1), (0, 2), (1, 2)] if rank in members}
        wrong = []
        for seed in range(10):
            drawn, reduce = random.Random(seed), levada.ReduceScatter(timeout=20)
            for number in range(30):
                members, waits, flushes = drawn.choice([(0, 1), (0, 2), (1, 2)]), drawn.random() < 0.3, drawn.random() < 0.1
                if rank in members:
                    def judge(result, number=number):
                        if result[0] != 2 * number: wrong.append([seed, number, float(result[0])])
                    handle = reduce(np.full(2, float(number)), judge, group=groups[members])
                    if waits: handle.wait()
                if flushes: reduce.flush()
            reduce.flush()
        tell(wrong=wrong)
        """,
    )
    assert told == [[{"wrong": []}]] * 3


@pytest.mark.parametrize("capacity", [0, 0.0001, 25])
def test_an_input_that_a_rank_lacks_is_an_error_on_all_ranks_in_its_step(tmp_path: pathlib.Path, capacity: float) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import random
        for seed in range(8):
            drawn, errors, sums = random.Random(seed), [], []
            reduce = levada.ReduceScatter(capacity_mb={capacity}, timeout=20)
            steps, inputs = 4, 5
            bad, lacking, where = drawn.randrange(steps - 1), drawn.randrange(inputs), drawn.randrange(2)
            for step in range(steps):
                for number in range(inputs):
                    if (step, number, rank) == (bad, lacking, where): continue
                    value = 100.0 * step + number
                    def judge(result, value=value, step=step):
                        if step > bad and result[0] != 2 * value: sums.append([step, value, float(result[0])])
                    try:
                        reduce(np.full(2, value), judge)
                    except levada.InvalidArgument:
                        pass
                try:
                    reduce.flush()
                except levada.InvalidArgument as error:
                    errors.append([step, str(error)])
            tell(first=errors[0][0] - bad if errors else None, text=errors[0][1] if errors else "", wrong=sums)
            reduce.close()
        """,
    )
    for of_rank in told:
        assert len(of_rank) == 8
        for each in of_rank:
            assert each["first"] == 0 and each["wrong"] == [], each
            assert "ranks disagree about" in each["text"] and ("flush" in each["text"] or "missing on" in each["text"]), each


def test_errors_in_a_group_also_name_ranks_by_their_numbers_in_the_job(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        3,
        """
        job = levada.join()
        if rank != 1:
            pair = job.subgroup([0, 2], "pair")
            reduce = levada.ReduceScatter(pair, timeout=20)
            reduce(np.zeros(2 if rank == 0 else 4))
            try:
                reduce.flush()
            except levada.InvalidArgument as error:
                tell(error=str(error))
        """,
    )
    text = "input 0 is float64 [1] on rank 0, float64 [2] on rank 1 of the group (rank 2 of the job)"
    assert all(text in each["error"] for at in (0, 2) for each in told[at])
    assert told[0] and told[2]
