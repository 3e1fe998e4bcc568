"""Steps whose work is divided over ranks."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from typing import Any

import levada
import numpy as np
import pytest
import ranks
from levada.batch.balance import Samples

SAMPLES = """
import random
def lengths(count=200, seed=1):
    numbers = random.Random(seed)
    return [numbers.randint(1, 300) for _ in range(count)]
def samples():
    for number, length in enumerate(lengths()):
        yield {"tokens": np.full(length, number), "labels": np.arange(length), "name": f"s{number}", "weight": length % 7}
def numbers_of(batch):
    return [int(name[1:]) for name in batch["name"]]
"""


def job(body: str) -> str:
    return "\n".join(" " * 8 + line if line else "" for line in (SAMPLES + "\n").splitlines()) + body


def _indented(text: str) -> str:
    return "\n".join(" " * 8 + line if line else "" for line in text.splitlines())


def by_step(told: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for (mine,) in told:
        for step, _, _, numbers in mine["got"]:
            steps.setdefault(step, []).extend(numbers)
    return steps


@pytest.mark.parametrize("iterate", ["thread", "inline", "process"])
def test_samples_of_an_iterable_become_micro_batches_that_cost_the_same(tmp_path: pathlib.Path, iterate: str) -> None:
    body = job(
        f"""
        if __name__ == "__main__":
            source = list(samples()) if {iterate!r} == "process" else samples()
            feed = levada.Feed(source, batch=20, balance="flops", max_tokens=1000, iterate={iterate!r})
            got = []
            for batch in feed:
                ends = batch["cu_seqlens"][0].tolist()
                numbers = numbers_of(batch)
                assert batch["tokens"].shape == batch["labels"].shape == batch["position_ids"].shape == (1, ends[-1])
                assert ends[0] == 0 and ends[-1] <= 1000 and len(ends) == len(numbers) + 1
                assert batch["max_seqlen"].tolist() == [max(np.diff(ends))]
                for number, begin, end in zip(numbers, ends, ends[1:]):
                    assert end - begin == lengths()[number]
                    assert (batch["tokens"][0, begin:end] == number).all()
                    assert (batch["labels"][0, begin:end] == np.arange(end - begin)).all()
                    assert (batch["position_ids"][0, begin:end] == np.arange(end - begin)).all()
                assert numbers == sorted(numbers)
                got.append([feed.step, feed.micro, feed.num_micro, numbers])
            tell(got=got, batches=feed.stats["batches"], samples=feed.stats["samples"])
        """
    )
    told = ranks.succeed(tmp_path, 2, body)
    steps = by_step(told)
    assert {step: sorted(numbers) for step, numbers in steps.items()} == {
        step: list(range(40 * (step - 1), 40 * step)) for step in range(1, 6)
    }
    first, second = ([each[:3] for each in mine["got"]] for (mine,) in told)
    assert first == second, "as many micro-batches on each rank"
    assert [micro for _, micro, _ in first] == [micro for step in range(5) for micro in range(_micros(first, step + 1))]
    assert sum(mine["samples"] for (mine,) in told) == 200


def _micros(places: list[list[int]], step: int) -> int:
    (number,) = {num_micro for at, _, num_micro in places if at == step}
    return number


def test_ranks_have_equal_counts_of_samples_without_micro_batches(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job("""
        feed = levada.Feed(samples(), batch=10, balance="flops")
        tell(got=[[feed.step, feed.micro, feed.num_micro, numbers_of(batch)] for batch in feed])
        """),
    )
    for (mine,) in told:
        assert [place[:3] for place in mine["got"]] == [[step, 0, 1] for step in range(1, 6)]
        assert all(len(numbers) == 10 for *_, numbers in mine["got"])
    works = [sum(24576 * (n := _length(number)) + n * n for number in mine["got"][0][3]) for (mine,) in told]
    assert max(works) < 1.02 * sum(works) / 4


def _length(number: int) -> int:
    numbers = random.Random(1)
    return [numbers.randint(1, 300) for _ in range(200)][number]


def test_a_step_goes_on_from_its_states_on_another_mesh(tmp_path: pathlib.Path) -> None:
    body = job("""
        class Loader:
            def __init__(self):
                self.at = 0
            def __iter__(self):
                everything = list(samples())
                while self.at < len(everything):
                    self.at += 1
                    yield everything[self.at - 1]
            def state_dict(self):
                return {"at": self.at}
            def load_state_dict(self, state):
                self.at = state["at"]
        import pickle, pathlib
        path = pathlib.Path(PATH)
        feed = levada.Feed(Loader(), batch=24 // levada.world_size(), max_tokens=700)
        if path.exists():
            feed.load_state_dict(pickle.loads(path.read_bytes()))
        got, states = [], []
        for batch in feed:
            got.append([feed.step, feed.micro, feed.num_micro, numbers_of(batch)])
            states.append(feed.state_dict())
            if LAST and feed.step == LAST and feed.micro == 1:
                break
        if rank == 0:
            path.write_bytes(pickle.dumps(states[-1]))
        tell(got=got)
        """)
    body = body.replace("PATH", repr(str(tmp_path / "state")))
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = ranks.succeed(tmp_path / "first", 2, body.replace("LAST", "3"))
    second = ranks.succeed(tmp_path / "second", 4, body.replace("LAST", "0"))
    before, after = by_step(first), by_step(second)
    assert sorted(before[1] + before[2]) == list(range(48)), "the third step was not gone through whole"
    assert sorted(number for numbers in after.values() for number in numbers) == list(range(48, 192))


def test_costs_may_be_functions_with_two_parts(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        cost = levada.Balance(lambda sample: (len(sample["tokens"]), sample["weight"]), counts="free")
        feed = levada.Feed(samples(), batch=50, balance=cost)
        tell(got=[numbers_of(batch) for batch in feed])
        """),
    )
    lengths = [[sum(_length(number) for number in mine["got"][0]) for (mine,) in told]]
    weights = [[sum(_length(number) % 7 for number in mine["got"][0]) for (mine,) in told]]
    for parts in (*lengths, *weights):
        assert max(parts) < 1.05 * sum(parts) / 2


@pytest.mark.parametrize("iterate", ["thread", "process"])
def test_costs_may_be_a_field_of_the_samples(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        if __name__ == "__main__":
            source = list(samples())
            by = levada.Balance("field(weight)", counts="free")
            feed = levada.Feed(source, batch=50, balance=by, iterate={iterate!r})
            tell(got=[numbers_of(batch) for batch in feed], report=feed.balance_report)
        """),
    )
    weights = [[sum(_length(number) % 7 for number in numbers) for numbers in mine["got"]] for (mine,) in told]
    for first, second in zip(*weights, strict=True):
        assert abs(first - second) <= 1
    assert told[0][0]["report"]["mean"] == sum(_length(number) % 7 for number in range(200)) / 2


@pytest.mark.parametrize("has_state", [True, False])
def test_an_iterable_gives_the_samples_of_each_step_once_through_100_stops_on_any_meshes(
    tmp_path: pathlib.Path, has_state: bool
) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job(f"""
        import random
        class Plain:
            def __iter__(self):
                return iter(samples())
        class Loader:
            at = 0
            def __iter__(self):
                everything = list(samples())
                while self.at < len(everything):
                    self.at += 1
                    yield everything[self.at - 1]
            def state_dict(self):
                return {{"at": self.at}}
            def load_state_dict(self, state):
                self.at = state["at"]
        numbers = random.Random(5)  # the same on every rank
        stops = 0
        def runs():
            global stops
            by = levada.Balance(numbers.choice(["tokens", "flops(hidden=8)", "field(weight)"]),
                                counts=numbers.choice(["free", "equal"]),
                                order=numbers.choice(["as-read", "long-first", "paired"]))
            max_tokens = numbers.choice([None, 400, 1000])
            state, ended, got = None, False, {{}}
            while not ended:
                dp = numbers.choice([1, 2, 4])
                mesh = levada.Mesh(dp=dp, tp=4 // dp)
                source = Loader() if {has_state} else Plain()
                feed = levada.Feed(source, mesh, batch=24 // dp, balance=by, max_tokens=max_tokens,
                                   readers=numbers.choice(["one", "all"]), iterate=numbers.choice(["thread", "inline"]))
                if state is not None:
                    feed.load_state_dict(state)
                begun, batches, whole = len(got), numbers.randint(1, 12), {{}}
                for batch in feed:
                    if mesh.coordinate("tp") == 0:
                        whole.setdefault(feed.step, []).extend(numbers_of(batch))
                    batches -= 1
                    if not batches:
                        break
                else:
                    ended = True
                stops += not ended
                state = feed.state_dict()
                steps = feed.step - (feed.micro + 1 < feed.num_micro)
                for step in range(1, steps + 1):
                    got[begun + step] = whole.get(step, [])
                feed.close()
            return got
        got = []
        while stops < 100:
            got.append(list(runs().values()))
        tell(got=got, stops=stops)
        """),
    )
    for run in zip(*(mine["got"] for (mine,) in told), strict=True):
        steps = [sorted(number for part in parts for number in part) for parts in zip(*run, strict=True)]
        assert steps == [list(range(24 * step, 24 * step + 24)) for step in range(200 // 24)]


@pytest.mark.parametrize("order", ["as-read", "long-first", "paired"])
def test_micro_batches_come_in_the_order_that_was_asked_for(tmp_path: pathlib.Path, order: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        feed = levada.Feed(samples(), batch=40, balance=levada.Balance("flops(hidden=8)", order={order!r}), max_tokens=700)
        got = []
        for batch in feed:
            ends = batch["cu_seqlens"][0].tolist()
            cost = sum(48 * (end - begin) + (end - begin) ** 2 for begin, end in zip(ends, ends[1:]))
            got.append([feed.step, numbers_of(batch)[0], cost])
        tell(got=got)
        """),
    )
    for (mine,) in told:
        for step in (1, 2):
            firsts = [first for at, first, _ in mine["got"] if at == step]
            costs = [cost for at, _, cost in mine["got"] if at == step]
            assert len(costs) > 4
            falling = sorted(costs, reverse=True)
            if order == "as-read":
                assert firsts == sorted(firsts) and costs != falling
            elif order == "long-first":
                assert costs == falling
            else:
                assert costs == [falling[at // 2] if at % 2 == 0 else falling[-1 - at // 2] for at in range(len(costs))]


def test_samples_that_are_too_long_are_cut_where_asked(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        feed = levada.Feed(samples(), batch=20, balance=levada.Balance(too_long="cut", pad_to=4), max_tokens=103)
        got = []
        for batch in feed:
            ends = batch["cu_seqlens"][0].tolist()
            assert ends[-1] <= 103
            for number, begin, end in zip(numbers_of(batch), ends, ends[1:]):
                kept = min(lengths()[number], 100)
                assert end - begin == -(-kept // 4) * 4
                assert batch["labels"][0, begin : begin + kept].tolist() == list(range(kept))
            got.append([feed.step, feed.micro, feed.num_micro, numbers_of(batch)])
        tell(got=got, report=feed.balance_report)
        """),
    )
    report = told[0][0]["report"]
    kept = [min(_length(number), 100) for number in range(200)]
    assert report["padding"] == sum(-length % 4 for length in kept) == report["tokens"] - sum(kept)
    assert sorted(number for numbers in by_step(told).values() for number in numbers) == list(range(200))


def test_the_reader_says_what_steps_come_to(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        feed = levada.Feed(samples(), batch=20, balance="flops", max_tokens=1000, record=True)
        before = feed.balance_report
        rounds = sum(1 for batch in feed)
        feed.write_report({str(page)!r})
        tell(before=before, after=feed.balance_report, rounds=rounds)
        """),
    )
    ((reader,), (other,)) = told
    assert reader["before"] is None and other["before"] is None and other["after"] is None
    report = reader["after"]
    assert report["steps"] == 5 and report["samples"] == 200 and report["ranks"] == 2
    assert report["micro_batches"] == reader["rounds"] == other["rounds"]
    assert report["tokens"] == sum(_length(number) for number in range(200))
    assert report["bound"] <= report["busiest"] < report["busiest_unbalanced"]
    assert [entry["steps"] for entry in report["series"]] == [1] * 5
    assert '"balance":{"steps":5,' in page.read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('balance="flops", batch=10, divide="split"', "dealt"),
        ('balance="flops", batch=10, tail="pad"', "dropped or short"),
        ('max_tokens=100, batch=10', "raise max_tokens"),
        ('max_tokens=0, batch=10', "at least one token"),
        ('balance="work", batch=10', "tokens"),
        ('balance="weights", batch=10', "name the field that holds a sample's weight"),
        ('balance="field(missing)", batch=10', "is not known: KeyError: 'missing'"),
        ('balance="field()", batch=10', "field()"),
        ('balance=lambda sample: -1, batch=10', "sample 0 of the step: the cost of a sample is -1; it must be a whole number"),
        ('balance=lambda sample: float("nan"), batch=10', "whole number of 0 or more"),
        ('balance=lambda sample: 0.5, batch=10', "whole number of 0 or more"),
        (
            'balance=lambda sample: sample["missing"], batch=10',
            "raised KeyError: 'missing'; it must return a whole number of 0 or more, or two of them; the sample is {'tokens'",
        ),
        ('balance=lambda sample: (1,) * 3, batch=10', "the cost of a sample is (1, 1, 1); it must return a whole number of 0"),
        ('balance=lambda sample: (), batch=10', "the cost of a sample is (); it must return"),
        ('balance=lambda sample: [1, "a"], batch=10', "the cost of a sample is 'a'; it must be a whole number"),
        ('balance=levada.Balance(length=lambda sample: 1 // 0), batch=10', "raised ZeroDivisionError"),
        ('balance=levada.Balance(length=lambda sample: 0), batch=10', "must have a token"),
        ('balance=levada.Balance(order="random"), batch=10', "as-read"),
        ('balance=levada.Balance(max_delay=2), batch=10', "use a Corpus"),
        ('balance=levada.Balance(max_delay=-1), batch=10', "0 or more"),
        ('balance=levada.Balance(too_long="drop"), batch=10', '"error" or "cut"'),
        ('balance=levada.Balance(pad_to=8), max_tokens=7, batch=10', "no sample fits"),
        ('balance=levada.Balance(too_long="cut", length=lambda sample: None), max_tokens=70, batch=10', "is None"),
        (
            'balance=levada.Balance(too_long="cut", length=lambda sample: 99), max_tokens=70, batch=10',
            "was cut to 70, and length= still returns 99",
        ),
        ('collate=list', "balance="),
        ('balance="flops"', "ranks"),
    ],
)
def test_what_cannot_be_balanced_is_one_error_on_every_rank(tmp_path: pathlib.Path, options: str, why: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        def few():
            for number, sample in enumerate(samples()):
                yield sample
                if {options!r} == 'balance="flops"':
                    return
        try:
            for batch in levada.Feed(few(), {options}, **({{"tail": "short"}} if {options!r} == 'balance="flops"' else {{}})):
                pass
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    for (mine,) in told:
        assert why in mine["error"]


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("samples()", "balance=lambda sample: -(sample['name'] == 's123')", "sample 3 of the step: the cost of a sample is -1"),
        ("broken()", "balance='flops'", "the well is dry"),
        ("broken(levada.InvalidArgument)", "balance='flops'", "the well is dry"),
        ("long(samples())", "balance='flops'", "sample 3 of the step has 1001 tokens"),
    ],
)
def test_errors_name_the_step_and_not_how_many_micro_batches_came_before(
    tmp_path: pathlib.Path, source: str, options: str, why: str
) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        def broken(error=ValueError):
            for number, sample in enumerate(samples()):
                if number == 123:
                    raise error("the well is dry")
                yield sample
        def long(samples):
            for number, sample in enumerate(samples):
                yield {{"tokens": np.zeros(1001)}} if number == 123 else {{"tokens": sample["tokens"]}}
        micro_batches = 0
        feed = levada.Feed({source}, {options}, batch=20, max_tokens=1000)
        try:
            for batch in feed:
                micro_batches += 1
        except levada.Error as error:
            tell(error=str(error), end=feed.end, step=feed.step, micro_batches=micro_batches)
        """),
    )
    for (mine,) in told:
        assert f"rank 0 could not read step 3: " in mine["error"] and why in mine["error"]
        assert mine["end"]["step"] == mine["step"] == 3 < mine["micro_batches"]


@pytest.mark.parametrize("leaves", ["raise ValueError('loss is NaN')", "break"])
def test_a_rank_that_leaves_within_a_step_is_an_error_that_names_step_and_micro_batch(
    tmp_path: pathlib.Path, leaves: str
) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        feed = levada.Feed(samples(), batch=20, balance="flops", max_tokens=1000, depth=1)
        try:
            for batch in feed:
                if rank == 1 and feed.step == 4:
                    {leaves}
        except (levada.PeerLost, ValueError) as error:
            tell(error=str(error), end=feed.end)
        else:
            tell(error="none", end=feed.end)
        """),
    )
    (other,), (leaver,) = told
    assert "rank 1 left the feed at step 3, micro-batch 1" in other["error"]
    assert ("ValueError: loss is NaN" in other["error"]) == ("raise" in leaves)
    assert other["end"]["cause"] == "abandoned" and leaver["end"]["cause"] == "left"
    assert other["end"]["step"] == leaver["end"]["step"] == 3


def test_a_stop_is_counted_in_steps(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        feed = levada.Feed(samples(), batch=20, max_tokens=1000, depth=1)
        for batch in feed:
            if feed.step == 2:
                feed.request_stop()
        tell(end=feed.end, step=feed.step, is_whole=feed.micro + 1 == feed.num_micro)
        """),
    )
    for (mine,) in told:
        assert mine["end"]["cause"] == "stopped" and mine["is_whole"]
        assert mine["end"]["step"] == mine["step"] < 5


@pytest.mark.parametrize("collate", ["None", "levada.collate_packed"])
def test_collate_packed_by_name_is_what_packs_without_it(tmp_path: pathlib.Path, collate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        by = levada.Balance("flops", pad_to=8, length=lambda sample: sample["n"])
        def own(samples):
            for sample in samples:
                tokens = sample["tokens"]
                yield {{"ids": tokens, "labels": sample["labels"], "n": len(tokens), "name": sample["name"]}}
        feed = levada.Feed(own(samples()), batch=20, balance=by, max_tokens=1000, collate={collate})
        positions = 0
        for batch in feed:
            ends = batch["cu_seqlens"][0].tolist()
            positions += ends[-1]
            for number, begin, end in zip(numbers_of(batch), ends, ends[1:]):
                length = lengths()[number]
                assert end - begin == -(-length // 8) * 8
                assert batch["labels"][0, begin:end].tolist() == [*range(length), *[-100] * (end - begin - length)]
        if rank == 0:
            assert feed.balance_report["tokens"] == sum(-(-length // 8) * 8 for length in lengths())
        def mixed():
            for number, sample in enumerate(samples()):
                yield {{"tokens": sample["tokens"].astype(np.int32)}} if number == 50 else {{"tokens": sample["tokens"]}}
        try:
            for batch in levada.Feed(mixed(), batch=20, max_tokens=1000, collate={collate}):
                pass
        except levada.InvalidArgument as error:
            tell(error=str(error), positions=positions)
        """),
    )
    for (mine,) in told:
        assert "rank 0 could not read step 1" in mine["error"] and "field tokens of a packed row: sample" in mine["error"]
        assert "Traceback" not in mine["error"]
    assert sum(mine["positions"] for (mine,) in told) == sum(-(-_length(number) // 8) * 8 for number in range(200))


def test_a_collate_function_of_ones_own_makes_the_batches_of_balanced_samples(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        def padded(samples):
            longest = max(len(sample["tokens"]) for sample in samples)
            tokens = levada.empty((len(samples), longest), "int64")
            tokens[:] = -1
            for row, sample in zip(tokens, samples):
                row[: len(sample["tokens"])] = sample["tokens"]
            return {"tokens": tokens, "name": [sample["name"] for sample in samples]}
        feed = levada.Feed(samples(), batch=20, balance="flops", max_tokens=1000, collate=padded)
        got = []
        for batch in feed:
            numbers = numbers_of(batch)
            for number, row in zip(numbers, batch["tokens"]):
                assert (row[row >= 0] == number).all() and (row >= 0).sum() == lengths()[number]
            got.append([feed.step, feed.micro, feed.num_micro, numbers])
        def refuses(samples):
            raise KeyError("image")
        try:
            next(levada.Feed(samples(), batch=20, balance="flops", collate=refuses))
        except levada.SourceError as error:
            tell(got=got, error=str(error))
        """),
    )
    steps = by_step(told)
    assert {step: sorted(numbers) for step, numbers in steps.items()} == {
        step: list(range(40 * (step - 1), 40 * step)) for step in range(1, 6)
    }
    for (mine,) in told:
        assert "could not read step 0" in mine["error"] and "KeyError: 'image'" in mine["error"] and "refuses" in mine["error"]


def test_ranks_that_ask_for_different_balances_hear_of_it(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        try:
            next(iter(levada.Feed(samples(), batch=10, max_tokens=1000 + rank)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    assert all("ranks disagree on the feed's balance" in mine["error"] for (mine,) in told)


FUNCTIONS = """
import functools, operator
def weigh(sample, scale=1):
    return scale * len(sample["tokens"])
def square(sample):
    return len(sample["tokens"]) ** 2
class Weigher:
    def __init__(self, scale):
        self.scale = scale
    def __call__(self, sample):
        return weigh(sample, self.scale)
"""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("balance=levada.Balance(pad_to=1 + 7 * rank)", "pad_to 8"),
        ('balance=levada.Balance(too_long=["error", "cut"][rank])', "too_long cut"),
        ("balance=levada.Balance(length=[None, square][rank])", "length square (script.py:"),
        ('balance=["field(weight)", "field(name)"][rank]', "cost field(name)"),
        ("balance=[weigh, square][rank]", "cost square (script.py:"),
        ("balance=functools.partial(weigh, scale=1 + rank)", "with (scale=2)"),
        ("balance=weigh, collate=[None, list][rank]", "collate list"),
    ],
)
def test_ranks_whose_balances_differ_in_what_python_knows_hear_of_it(
    tmp_path: pathlib.Path, options: str, shown: str
) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
{_indented(FUNCTIONS)}
        try:
            next(iter(levada.Feed(samples(), batch=10, readers="all", {options})))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    for (mine,) in told:
        assert "ranks disagree on the feed's balance" in mine["error"]
        assert shown in mine["error"] and "pass the same on all ranks" in mine["error"]


@pytest.mark.parametrize(
    "cost",
    [
        "weigh",
        "lambda sample: len(sample['tokens'])",
        "functools.partial(weigh, scale=2)",
        "functools.partial(weigh, scale=np.int64(2))",
        "Weigher(3)",
        "Weigher(3).__call__",
        "operator.itemgetter('weight')",
        "'field(weight)'",
    ],
)
def test_ranks_that_pass_the_same_function_agree(tmp_path: pathlib.Path, cost: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
{_indented(FUNCTIONS)}
        feed = levada.Feed(samples(), batch=10, readers="all", balance={cost})
        tell(numbers=[number for batch in feed for number in numbers_of(batch)])
        """),
    )
    assert sorted(number for (mine,) in told for number in mine["numbers"]) == list(range(200))


def test_functions_of_one_name_that_divide_a_step_differently_are_an_error_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        cost = [lambda sample: 1 + len(sample["tokens"]), lambda sample: 300 - len(sample["tokens"])][rank]
        try:
            for batch in levada.Feed(samples(), batch=10, readers="all", balance=cost):
                pass
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    for (mine,) in told:
        assert "divides the samples of this step" in mine["error"]


def test_too_few_samples_for_a_step_are_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        try:
            tell(steps=len(list(levada.Feed(list(samples())[:19], batch=10, balance="tokens"))))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    for (mine,) in told:
        assert "one step takes 20 samples, but there are only 19; lower batch" in mine["error"]


def test_a_corpus_with_a_sequence_that_fits_no_micro_batch_is_refused() -> None:
    corpus = levada.Corpus("c.jsonl", sequence=1024, packing="documents")
    with pytest.raises(levada.InvalidArgument, match="sequence of the corpus is 1024 and max_tokens 1000, .*lower sequence"):
        levada.Feed(corpus, balance="flops", max_tokens=1000)
    levada.Feed(corpus, balance="flops", max_tokens=1024)


@pytest.mark.parametrize("packing", ["documents", "best-fit", "cut"])
def test_a_corpus_gives_the_samples_of_a_step_once_on_any_mesh(tmp_path: pathlib.Path, packing: str) -> None:
    numbers = random.Random(2)
    texts = [chr(97 + number % 26) * numbers.randint(1, 400) for number in range(300)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    body = f"""
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, sequence=512, packing={packing!r}, shuffle_seed=1,
                               cache_dir={str(tmp_path / "cache")!r}, epochs=2)
        feed = levada.Feed(corpus, batch=24 // levada.world_size(), balance="flops", max_tokens=4096)
        steps = {{}}
        for batch in feed:
            sums = steps.setdefault(feed.step, [0, 0])
            sums[0] += int(batch["loss_mask"].sum())
            sums[1] += int(batch["tokens"].sum())
        tell(steps=list(steps.values()), cursor=feed.state_dict()["cursor"].hex())
    """
    (tmp_path / "1").mkdir()
    (tmp_path / "4").mkdir()
    alone, spread = ranks.succeed(tmp_path / "1", 1, body), ranks.succeed(tmp_path / "4", 4, body)
    expected = alone[0][0]["steps"]
    assert len(expected) > 3
    for step, sums in enumerate(expected):
        assert sums == [sum(each) for each in zip(*(mine["steps"][step] for (mine,) in spread), strict=True)]
    assert {mine["cursor"] for (mine,) in spread} == {alone[0][0]["cursor"]}


PARTS = """
def part(values, ends, at):
    "The chunks `at` and 3 - `at` of four of each segment."
    segments = [np.split(np.asarray(values)[begin:end], 4) for begin, end in zip(ends, ends[1:])]
    return np.concatenate([np.concatenate([chunks[at], chunks[3 - at]]) for chunks in segments]).tolist()
def layout(*fields):
    return {field: "zigzag(cp,1)" for field in fields}
def step_of(feed):
    while (batch := next(feed, None)) is not None:
        yield batch
        if feed.micro + 1 == feed.num_micro:
            return
"""


def test_context_parallel_ranks_get_their_chunks_of_each_segment_of_balanced_samples(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job(f"""
{_indented(PARTS)}
        mesh = levada.Mesh(dp=2, cp=2)
        fields = layout("tokens", "labels", "position_ids")
        by = levada.Balance("flops", pad_to=4)
        got = []
        for batch in levada.Feed(samples(), mesh=mesh, batch=20, balance=by, max_tokens=1000, layout=fields):
            ends, numbers = batch["cu_seqlens"][0].tolist(), numbers_of(batch)
            assert [end - begin for begin, end in zip(ends, ends[1:])] == [-(-lengths()[number] // 4) * 4 for number in numbers]
            row = {{"tokens": np.zeros(ends[-1]), "labels": np.full(ends[-1], -100), "position_ids": np.zeros(ends[-1])}}
            for number, begin, end in zip(numbers, ends, ends[1:]):
                length = lengths()[number]
                row["tokens"][begin:begin + length] = number
                row["labels"][begin:begin + length] = np.arange(length)
                row["position_ids"][begin:end] = np.arange(end - begin)
            for field, values in row.items():
                assert batch[field][0].tolist() == part(values, ends, rank % 2), field
            got += numbers
        tell(got=got)
        """),
    )
    first, second, third, fourth = (mine["got"] for (mine,) in told)
    assert first == second and third == fourth and sorted(first + third) == list(range(200))


def test_context_parallel_ranks_get_their_chunks_of_each_document_of_a_balanced_corpus(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(2)
    texts = ["".join(numbers.choices("abcdefgh", k=numbers.randint(20, 120))) for _ in range(80)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
{_indented(PARTS)}
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, sequence=128, packing="documents", pad_to=4,
                               cache_dir={str(tmp_path / "cache")!r})
        feed = levada.Feed(corpus, mesh=levada.Mesh(dp=2, cp=2), batch=10, balance="flops", max_tokens=512)
        for batch in feed:
            ends = batch["cu_seqlens"][0].tolist()
            positions = np.concatenate([np.arange(end - begin) for begin, end in zip(ends, ends[1:])])
            assert batch["position_ids"][0].tolist() == part(positions, ends, rank % 2)
            places = part(np.arange(ends[-1]), ends, rank % 2)
            tell(step=feed.step, micro=feed.micro, ends=ends, places=places,
                 **{{field: batch[field][0].tolist() for field in ("tokens", "labels", "loss_mask")}})
        """,
    )
    found = []
    for at in (0, 2):
        for pair in zip(*told[at : at + 2], strict=True):
            assert pair[0]["ends"] == pair[1]["ends"] and sorted(pair[0]["places"] + pair[1]["places"]) == list(
                range(pair[0]["ends"][-1])
            )
            order = np.argsort(pair[0]["places"] + pair[1]["places"])
            rows = {
                field: np.asarray(pair[0][field] + pair[1][field])[order].tolist()
                for field in ("tokens", "labels", "loss_mask")
            }
            for begin, end in itertools.pairwise(pair[0]["ends"]):
                length = int(sum(rows["loss_mask"][begin:end]))
                found.append(bytes(rows["tokens"][begin : begin + length]).decode())
                assert rows["labels"][begin : begin + length - 1] == rows["tokens"][begin + 1 : begin + length]
    assert sorted(found) == sorted(texts)


def test_long_samples_of_a_feed_of_their_own_are_divided_over_context_parallel_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job(f"""
{_indented(PARTS)}
        every = list(samples())
        short = levada.Feed([each for each in every if len(each["tokens"]) <= 200], mesh=levada.Mesh(dp=4), batch=8,
                            balance="flops", max_tokens=400)
        long = levada.Feed([each for each in every if len(each["tokens"]) > 200], mesh=levada.Mesh(dp=2, cp=2), batch=4,
                           balance=levada.Balance("flops", pad_to=4), max_tokens=800,
                           layout=layout("tokens", "labels", "position_ids"))
        got = [[], []]
        for step in range(12):
            feed = long if step % 3 == 2 else short
            for batch in step_of(feed):
                assert batch["tokens"].shape[1] <= 400
                assert batch["tokens"].shape[1] * (2 if feed is long else 1) == batch["cu_seqlens"][0, -1]
                got[feed is long] += numbers_of(batch)
        short.close(), long.close()
        tell(short=got[0], long=got[1])
        """),
    )
    lengths = [_length(number) for number in range(200)]
    short, long = ([number for number in range(200) if (lengths[number] > 200) == is_long] for is_long in (False, True))
    assert sorted(number for (mine,) in told for number in mine["short"]) == short[: len(short) // 32 * 32]
    assert told[0][0]["long"] == told[1][0]["long"] and told[2][0]["long"] == told[3][0]["long"]
    assert sorted(told[0][0]["long"] + told[2][0]["long"]) == long[: 4 * 2 * 4]


def test_long_samples_wait_and_come_once_also_behind_a_state(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(3)
    lengths = [800 if numbers.random() < 0.06 else numbers.randint(1, 60) for _ in range(480)]
    texts = [chr(97 + number % 26) * length for number, length in enumerate(lengths)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    body = f"""
        import pathlib, pickle
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, sequence=1024, packing="documents", shuffle_seed=1,
                               cache_dir={str(tmp_path / "cache")!r})
        path = pathlib.Path({str(tmp_path / "state")!r})
        feed = levada.Feed(corpus, batch=24 // levada.world_size(), balance=levada.Balance("flops(hidden=8)", max_delay=6))
        resumes = path.exists()
        if resumes:
            feed.load_state_dict(pickle.loads(path.read_bytes()))
        ends = []
        for batch in feed:
            ends += [int(end) for end in np.diff(batch["cu_seqlens"][0])]
            if not resumes and feed.step == 9:
                break
        if rank == 0:
            path.write_bytes(pickle.dumps(feed.state_dict()))
        tell(lengths=ends, report=feed.balance_report)
    """
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    runs = ranks.succeed(tmp_path / "first", 4, body), ranks.succeed(tmp_path / "second", 2, body)
    assert sorted(each for run in runs for (mine,) in run for each in mine["lengths"]) == sorted(lengths)
    report = runs[0][0][0]["report"]
    assert report["delayed"] > 0 and 0 < report["longest_wait"] <= 6
    assert "delayed up to 6 steps" in report["by"]


def test_nothing_is_left_after_a_state_behind_a_short_last_step() -> None:
    samples = [{"tokens": np.arange(3)}] * 10
    for source in (lambda: samples, lambda: levada.Pipeline(samples).run(0, alone=True)):
        feed = levada.Feed(source(), balance="tokens", batch=4, tail="short")
        assert len(feed) == len(list(feed)) == 3
        for batch in (4, 3, 1):
            resumed = levada.Feed(source(), balance="tokens", batch=batch, tail="short")
            resumed.load_state_dict(feed.state_dict())
            assert list(resumed) == []


def test_samples_that_wait_at_the_end_of_an_epoch_do_not_come_in_the_next(tmp_path: pathlib.Path) -> None:
    lengths = [5, 5, 5, 5, 5, 300, 5, 5, 5]  # in steps of four, the long one is left over
    texts = [chr(97 + number) * length for number, length in enumerate(lengths)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def make(tail="drop"):
            corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, sequence=512, packing="documents",
                                   cache_dir={str(tmp_path / "cache")!r})
            balance = levada.Balance("flops(hidden=8)", max_delay=6)
            return levada.Feed(corpus, mesh=levada.Mesh(dp=2), batch=2, balance=balance, tail=tail)
        def take(feed): return [sorted(set(batch["tokens"].ravel().tolist())) for batch in feed]
        feed = make()
        take(feed)
        state = feed.state_dict()
        feed.set_epoch(1)
        whole = take(feed)
        resumed = make()
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        tell(waits=state["cursor"][:4] == b"LESY", same=take(resumed) == whole, steps=len(whole))
        short = make("short")
        short.load_state_dict(state)
        short.set_epoch(1)
        try: take(short)
        except levada.InvalidArgument as error: tell(error=str(error))
        """,
    )
    for same, refused in told:
        assert same == {"waits": True, "same": True, "steps": 2}
        assert "in epoch 0, and set_epoch() says 1" in refused["error"]


def test_a_cost_is_one_number_or_two_alone_or_in_a_sequence() -> None:
    for cost, weights in ((3, (3, 0)), ((3,), (3, 0)), ([3], (3, 0)), ((3, 4), (3, 4)), ([3, 4.0], (3, 4))):
        samples = Samples(levada.Balance(lambda sample, cost=cost: cost), None, None)
        assert samples.take(iter([[1, 2]]), 1) == [(2, 4, *weights, 0)]


def test_packed_rows_hold_samples_side_by_side() -> None:
    samples = [
        {"input_ids": [1, 2, 3], "labels": np.array([1, 2, 3], np.int32), "image": np.ones((3, 2)), "id": 7},
        {"input_ids": [4], "labels": np.array([4], np.int32), "image": np.zeros((1, 2)), "id": 8},
    ]
    row = levada.collate_packed(samples, pad_to=4)
    assert row["input_ids"].tolist() == [[1, 2, 3, 0, 4, 0, 0, 0]]
    assert row["labels"].tolist() == [[1, 2, 3, -100, 4, -100, -100, -100]] and row["labels"].dtype == np.int32
    assert row["image"].shape == (1, 8, 2) and row["image"].sum() == 6
    assert row["id"] == [7, 8]
    assert row["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert row["cu_seqlens"].tolist() == [[0, 4, 8]] and row["max_seqlen"].tolist() == [4]
    assert levada.collate_packed([[5, 6], [7]])["tokens"].tolist() == [[5, 6, 7]]
    empty = levada.collate_packed([{"tokens": np.arange(0)}, {"tokens": np.arange(2)}], pad_to=4)
    assert empty["tokens"].tolist() == [[0, 1, 0, 0]] and empty["cu_seqlens"].tolist() == [[0, 0, 4]]


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "at least one sample"),
        ([{"tokens": [1]}, {"tokens": [1], "more": 2}], "sample 1 of a packed row has fields"),
        ([{"tokens": np.ones(1)}, {"tokens": np.ones(1, np.float32)}], "field tokens of a packed row: sample 1 is float32"),
        ([{"labels": np.ones(1, np.uint8), "tokens": [1]}], "cannot be padded with -100"),
        ([{"tokens": [1], "cu_seqlens": 1}], "gets itself"),
        ([{"text": "a"}], "length="),
        ([[1, 2], np.ma.masked_array([1, 2], [0, 1])], "field tokens is a MaskedArray, which is more than its elements"),
    ],
)
def test_samples_that_fit_no_row_are_refused(samples: list[Any], why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why):
        levada.collate_packed(samples, pad_to=2)


def test_packed_rows_are_made_of_any_numbers() -> None:
    backwards = np.arange(12, dtype=np.int16).reshape(6, 2)[::-2]
    row = levada.collate_packed(
        [
            {
                "tokens": (1, 2, 3),
                "scores": [0.5, 1, 2],
                "flags": [True, False, True],
                "rows": backwards,
                "words": ["a", "b", "c"],
            },
            {"tokens": [4], "scores": [3.0], "flags": [True], "rows": backwards[:1].astype(">i2"), "words": ["d"]},
        ]
    )
    assert row["tokens"].tolist() == [[1, 2, 3, 4]] and row["tokens"].dtype == np.int64
    assert row["scores"].tolist() == [[0.5, 1, 2, 3]] and row["scores"].dtype == np.float64
    assert row["flags"].tolist() == [[True, False, True, True]] and row["flags"].dtype == bool
    assert row["rows"].tolist() == [[[10, 11], [6, 7], [2, 3], [10, 11]]] and row["rows"].dtype == np.int16
    assert row["words"] == [["a", "b", "c"], ["d"]]
    assert levada.collate_packed([{"tokens": np.array([1]), "text": np.array(["a"])}])["text"] == [np.array(["a"])]
