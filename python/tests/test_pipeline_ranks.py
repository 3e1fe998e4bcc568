"""States of ranks, loaded on different ranks from those that saved them."""

from __future__ import annotations

import itertools
import pathlib
import pickle
import random
import re
from typing import Any

import levada
import pytest
import ranks
from levada import Pipeline
from levada.pipeline.position import Position, position_of_rank
from levada.pipeline.steps import takes_turns

MAKE = """
import pickle
from operator import neg
def one_each(): return levada.Pipeline(list(range(41))).shard().map(neg)
def batches(): return levada.Pipeline(list(range(41))).shard().batch(2)
def load(name): return pickle.load(open(os.path.join({folder!r}, name), "rb"))
def rest(pipeline, state):
    run = pipeline.run(seed=1, group=levada.join())
    run.load_state_dict(state)
    try: return list(run)
    except levada.InvalidArgument as refused: return str(refused)
"""


def negated(first: int, step: int = 1) -> list[int]:
    return [-number for number in range(first, 41, step)]


def test_states_of_all_ranks_resume_on_any_number_of_ranks_or_are_refused(tmp_path: pathlib.Path) -> None:
    make = MAKE.replace("{folder!r}", repr(str(tmp_path)))
    two = ranks.succeed(
        tmp_path,
        2,
        make
        + """
run = one_each().run(seed=1, group=levada.join())
items = iter(run)
taken = [next(items) for _ in range(5)]
even = run.state_dict()
if rank == 1: next(items)
uneven = run.state_dict()
batched = batches().run(seed=1, group=levada.join())
next(iter(batched))
pickle.dump((even, uneven, batched.state_dict()), open(os.path.join({folder!r}, f"state{rank}"), "wb"))
barrier("saved")
states = [load(f"state{each}") for each in range(2)]
tell(taken=taken, own=rest(one_each(), even), of_all=rest(one_each(), [each[0] for each in states]),
     of_other=rest(one_each(), states[1 - rank][0]), batches=rest(batches(), [each[2] for each in states]))
""".replace("{folder!r}", repr(str(tmp_path))),
    )
    for rank, (told,) in enumerate(two):
        assert told["taken"] == [-number for number in range(rank, 10, 2)]
        assert told["own"] == told["of_all"] == negated(10 + rank, 2)
        assert "load a list of the states of all 2 ranks" in told["of_other"]
        assert told["batches"] == [list(range(4 + rank, 41, 2))[at : at + 2] for at in range(0, 20, 2)][: len(told["batches"])]
    states = [pickle.loads((tmp_path / f"state{rank}").read_bytes()) for rank in range(2)]

    def here(pipeline: Pipeline[Any], state: Any) -> list[Any]:
        with pipeline.run() as run:
            run.load_state_dict(state)
            return list(run)

    one_each, batches = Pipeline(list(range(41))).shard().map(lambda number: -number), Pipeline(list(range(41))).shard().batch(2)
    assert here(one_each, [states[1][0], states[0][0]]) == negated(10)
    for pipeline, state, why in [
        (one_each, states[0][0], "this is rank 0 of 1, and the state is of rank 0 of 2: load a list of the states"),
        (one_each, [states[0][0]] * 2, "load a list of the states of all 2 ranks"),
        (one_each, [state[1] for state in states], "the 2 ranks had taken 5, 6 items"),
        (batches, [state[2] for state in states], "not every stage after its shard() makes one item from each; resume on 2"),
        (one_each.map(abs), [state[0] for state in states], "of the stages source > shard > map, and this one is of source >"),
    ]:
        with pytest.raises(levada.InvalidArgument, match=re.escape(why)):
            here(pipeline, state)
    with one_each.run(seed=1) as run:
        list(itertools.islice(run, 7))
        (tmp_path / "of_one").write_bytes(pickle.dumps(run.state_dict()))
    folder = tmp_path / "three"
    folder.mkdir()
    three = ranks.succeed(
        folder,
        3,
        make
        + """
states = [load(f"state{each}")[0] for each in range(2)]
tell(of_two=rest(one_each(), states), of_one=rest(one_each(), load("of_one")))
""",
    )
    for rank, (told,) in enumerate(three):
        assert told["of_two"] == negated(next(n for n in range(10, 13) if n % 3 == rank), 3)
        assert told["of_one"] == negated(next(n for n in range(7, 10) if n % 3 == rank), 3)


def test_states_of_ranks_that_took_items_in_turns_resume_on_any_number_of_ranks() -> None:
    draw = random.Random(1)
    for _ in range(300):
        saved, now, taken = draw.randint(1, 9), draw.randint(1, 9), draw.randint(0, 60)
        counts = [len(range(rank, taken, saved)) for rank in range(saved)]
        positions = [Position(["source"], [""], 0, True, rank, saved, counts[rank], 0, None) for rank in range(saved)]
        draw.shuffle(positions)
        resumed = [position_of_rank(positions, rank, now, takes_turns=True) for rank in range(now)]
        rest = [range(rank, 100, now)[resumed[rank].items :] for rank in range(now)]
        assert sorted(itertools.chain(*rest)) == list(range(taken, 100)) or saved == now, (saved, now, taken)
        at = draw.randrange(saved)
        positions[at] = positions[at]._replace(items=positions[at].items + 2)
        if saved > 1 and saved != now:
            with pytest.raises(levada.InvalidArgument, match="so that no item is the next one of all"):
                position_of_rank(positions, 0, now, takes_turns=True)


def test_only_pipelines_whose_ranks_take_turns_divide_otherwise() -> None:
    numbers = Pipeline(list(range(9)))
    cases: list[tuple[Pipeline[Any], bool]] = [
        (numbers.shard(), True),
        (numbers.shuffle().filter(bool).shard().map(abs).prefetch().fullsync(), True),
        (Pipeline(lambda: iter(range(9))).shard().map(abs, threads=2), True),
        (numbers, False),
        (numbers.shard().shard(), False),
        (numbers.shard().filter(bool), False),
        (numbers.shard().map(abs, on_error="skip"), False),
        (numbers.shard().shuffle(), False),
        (numbers.shard().zip(Pipeline(range(9))), False),
        (Pipeline.from_lines(__file__).shard(), False),
    ]
    for pipeline, expected in cases:
        assert takes_turns(pipeline._stage, "raise") == expected, pipeline
    assert not takes_turns(numbers.shard().map(abs)._stage, "skip")


def test_pipelines_that_end_together_may_begin_in_another_order_on_each_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import threading
        runs = {name: levada.Pipeline(range(count)).map(lambda item, name=name: name + str(item)).fullsync().run(group=levada.join())
                for name, count in (("a", 300), ("b", 30 + rank), ("c", 3))}
        found = {}
        def take(name):
            found[name] = [list(runs[name]) for _ in range(2)]
        threads = [threading.Thread(target=take, args=[name]) for name in ("abc" if rank == 0 else "cba")]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        for thread in threads: thread.join()
        tell(**found)
        """,
    )
    for (found,) in told:
        assert found == {name: [[f"{name}{item}" for item in range(count)]] * 2 for name, count in (("a", 300), ("b", 30), ("c", 3))}


def test_ranks_with_different_sources_resume_from_the_states_of_all(tmp_path: pathlib.Path) -> None:
    script = MAKE.replace("{folder!r}", repr(str(tmp_path))) + """
def own(skipped=None):
    skipped = 20 * rank if skipped is None else skipped
    return levada.Pipeline(list(range(41))).skip(skipped).fullsync()
run = own().run(seed=1, group=levada.join())
taken = list(itertools.islice(run, 5))
pickle.dump(run.state_dict(), open(os.path.join({folder!r}, f"state{rank}"), "wb"))
barrier("saved")
states = [load(f"state{each}") for each in range(2)]
tell(taken=taken, rest=rest(own(), states), other=rest(own(7), states))
""".replace("{folder!r}", repr(str(tmp_path)))
    for rank, (told,) in enumerate(ranks.succeed(tmp_path, 2, "import itertools\n" + script)):
        assert told["taken"] + told["rest"] == list(range(20 * rank, 20 * rank + 21)), told
        assert "stage skip was saved with count=" in str(told["other"])
