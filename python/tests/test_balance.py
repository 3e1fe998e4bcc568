"""Steps whose work is divided over ranks."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import levada
import numpy as np
import pytest
import ranks

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
        ('balance="weights", batch=10', "a function of a sample that returns its weight"),
        ('balance=lambda sample: -1, batch=10', "sample 0 of the step: the cost of a sample is -1; it must be a whole number"),
        ('balance=lambda sample: float("nan"), batch=10', "whole number of 0 or more"),
        ('balance=lambda sample: 0.5, batch=10', "whole number of 0 or more"),
        ('balance=lambda sample: sample["missing"], batch=10', "is not known: KeyError: 'missing'; the sample is {'tokens'"),
        ('balance=levada.Balance(length=lambda sample: 0), batch=10', "must have a token"),
        ('balance=levada.Balance(order="random"), batch=10', "as-read"),
        ('balance=levada.Balance(max_delay=2), batch=10', "for a Corpus"),
        ('balance=levada.Balance(max_delay=-1), batch=10', "0 or more"),
        ('balance=levada.Balance(too_long="drop"), batch=10', '"error" or "cut"'),
        ('balance=levada.Balance(pad_to=8), max_tokens=7, batch=10', "no sample fits"),
        ('balance=levada.Balance(too_long="cut", length=lambda sample: None), max_tokens=70, batch=10', "is None"),
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


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "at least one sample"),
        ([{"tokens": [1]}, {"tokens": [1], "more": 2}], "sample 1 of a packed row has fields"),
        ([{"tokens": np.ones(1)}, {"tokens": np.ones(1, np.float32)}], "field tokens of sample 1"),
        ([{"tokens": [1], "cu_seqlens": 1}], "gets itself"),
        ([{"text": "a"}], "length="),
    ],
)
def test_samples_that_fit_no_row_are_refused(samples: list[Any], why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why):
        levada.collate_packed(samples)
