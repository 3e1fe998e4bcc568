"""Balanced steps, whose work is divided over ranks."""

from __future__ import annotations

import pathlib

import levada
import numpy as np
import pytest
import ranks
from balanced import by_step, job, length_of
from levada.batch.balance import Samples


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_samples_of_an_iterable_become_micro_batches_that_cost_the_same(tmp_path: pathlib.Path, iterate: str) -> None:
    body = job(
        f"""
        if __name__ == "__main__":
            feed = levada.Feed(samples(), batch_size=20, balance="flops", max_tokens=1000, iterate={iterate!r})
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
            tell(got=got, batches=feed.stats.batches, samples=feed.stats.samples)
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
        feed = levada.Feed(samples(), batch_size=10, balance="flops")
        tell(got=[[feed.step, feed.micro, feed.num_micro, numbers_of(batch)] for batch in feed])
        """),
    )
    for (mine,) in told:
        assert [place[:3] for place in mine["got"]] == [[step, 0, 1] for step in range(1, 6)]
        assert all(len(numbers) == 10 for *_, numbers in mine["got"])
    works = [sum(24576 * (n := length_of(number)) + n * n for number in mine["got"][0][3]) for (mine,) in told]
    assert max(works) < 1.02 * sum(works) / 4


def test_a_step_resumes_from_its_state_on_another_mesh(tmp_path: pathlib.Path) -> None:
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
        feed = levada.Feed(Loader(), batch_size=24 // levada.world_size(), max_tokens=700)
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
        feed = levada.Feed(samples(), batch_size=50, balance=cost)
        tell(got=[numbers_of(batch) for batch in feed])
        """),
    )
    lengths = [[sum(length_of(number) for number in mine["got"][0]) for (mine,) in told]]
    weights = [[sum(length_of(number) % 7 for number in mine["got"][0]) for (mine,) in told]]
    for parts in (*lengths, *weights):
        assert max(parts) < 1.05 * sum(parts) / 2


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_costs_may_be_a_field_of_the_samples(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        if __name__ == "__main__":
            source = list(samples())
            by = levada.Balance("field(weight)", counts="free")
            feed = levada.Feed(source, batch_size=50, balance=by, iterate={iterate!r})
            tell(got=[numbers_of(batch) for batch in feed], report=feed.balance_report)
        """),
    )
    weights = [[sum(length_of(number) % 7 for number in numbers) for numbers in mine["got"]] for (mine,) in told]
    for first, second in zip(*weights, strict=True):
        assert abs(first - second) <= 1
    assert told[0][0]["report"]["mean"] == sum(length_of(number) % 7 for number in range(200)) / 2


@pytest.mark.long
@pytest.mark.parametrize("has_state", [True, False])
def test_an_iterable_yields_each_sample_once_through_100_stops_on_any_meshes(
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
            counts = numbers.choice(["free", "equal"])
            by = levada.Balance(numbers.choice(["tokens", "flops(hidden=8)", "field(weight)"]),
                                counts=counts, wait=numbers.choice(["step", "micro"]) if counts == "free" else "step",
                                order=numbers.choice(["as-read", "long-first", "paired"]))
            max_tokens = numbers.choice([None, 400, 1000])
            state, ended, got = None, False, {{}}
            while not ended:
                dp = numbers.choice([1, 2, 4])
                mesh = levada.Mesh(dp=dp, tp=4 // dp)
                source = Loader() if {has_state} else Plain()
                feed = levada.Feed(source, mesh, batch_size=24 // dp, balance=by, max_tokens=max_tokens,
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
def test_micro_batches_arrive_in_the_requested_order(tmp_path: pathlib.Path, order: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        feed = levada.Feed(samples(), batch_size=40, balance=levada.Balance("flops(hidden=8)", order={order!r}), max_tokens=700)
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


def test_samples_that_are_too_long_are_cut_on_request(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        feed = levada.Feed(samples(), batch_size=20, balance=levada.Balance(too_long="cut", pad_to=4), max_tokens=103)
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
    kept = [min(length_of(number), 100) for number in range(200)]
    assert report["padding"] == sum(-length % 4 for length in kept) == report["tokens"] - sum(kept)
    assert sorted(number for numbers in by_step(told).values() for number in numbers) == list(range(200))


def test_the_balance_report_has_the_work_of_steps(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        feed = levada.Feed(samples(), batch_size=20, balance="flops", max_tokens=1000, record=True)
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
    assert report["tokens"] == sum(length_of(number) for number in range(200))
    assert report["bound"] <= report["busiest"] < report["busiest_unbalanced"]
    assert report["busiest"] <= report["waiting"] and report["waiting_bound"] <= report["waiting"]
    assert [entry["steps"] for entry in report["series"]] == [1] * 5
    assert '"balance":{"steps":5,' in page.read_text()


def test_a_stop_is_counted_in_steps(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        feed = levada.Feed(samples(), batch_size=20, max_tokens=1000, prefetch=1)
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
def test_collate_packed_by_name_equals_the_default(tmp_path: pathlib.Path, collate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
        by = levada.Balance("flops", pad_to=8, length=lambda sample: sample["n"])
        def own(samples):
            for sample in samples:
                tokens = sample["tokens"]
                yield {{"ids": tokens, "labels": sample["labels"], "n": len(tokens), "name": sample["name"]}}
        feed = levada.Feed(own(samples()), batch_size=20, balance=by, max_tokens=1000, collate_fn={collate})
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
            for batch in levada.Feed(mixed(), batch_size=20, max_tokens=1000, collate_fn={collate}):
                pass
        except levada.InvalidArgument as error:
            tell(error=str(error), positions=positions)
        """),
    )
    for (mine,) in told:
        assert "rank 0 could not read step 1" in mine["error"] and "field tokens of a packed row: sample" in mine["error"]
        assert "Traceback" not in mine["error"]
    assert sum(mine["positions"] for (mine,) in told) == sum(-(-length_of(number) // 8) * 8 for number in range(200))


def test_a_custom_collate_function_makes_the_batches_of_balanced_samples(tmp_path: pathlib.Path) -> None:
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
        feed = levada.Feed(samples(), batch_size=20, balance="flops", max_tokens=1000, collate_fn=padded)
        got = []
        for batch in feed:
            numbers = numbers_of(batch)
            for number, row in zip(numbers, batch["tokens"]):
                assert (row[row >= 0] == number).all() and (row >= 0).sum() == lengths()[number]
            got.append([feed.step, feed.micro, feed.num_micro, numbers])
        def refuses(samples):
            raise KeyError("image")
        try:
            next(iter(levada.Feed(samples(), batch_size=20, balance="flops", collate_fn=refuses)))
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


def test_a_cost_is_one_or_two_numbers() -> None:
    for cost, weights in ((3, (3, 0)), ((3,), (3, 0)), ([3], (3, 0)), ((3, 4), (3, 4)), ([3, 4.0], (3, 4))):
        samples = Samples(levada.Balance(lambda sample, cost=cost: cost), None, None)
        assert samples.take(iter([[1, 2]]), 1) == [(2, 4, *weights, 0)]


def test_packed_rows_hold_samples_next_to_each_other() -> None:
    samples = [
        {"input_ids": [1, 2, 3], "labels": np.array([1, 2, 3], np.int32), "image": np.ones((3, 2)), "id": 7},
        {"input_ids": [4], "labels": np.array([4], np.int32), "image": np.zeros((1, 2)), "id": 8},
    ]
    row = levada.collate_packed(samples, pad_to=4)
    assert row["input_ids"].tolist() == [[1, 2, 3, 0, 4, 0, 0, 0]]
    assert row["labels"].tolist() == [[-100, 2, 3, -100, -100, -100, -100, -100]] and row["labels"].dtype == np.int32
    assert row["image"].shape == (1, 8, 2) and row["image"].sum() == 6
    assert row["id"] == [7, 8]
    assert row["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert row["cu_seqlens"].tolist() == [[0, 4, 8]] and row["max_seqlen"].tolist() == [4]
    assert levada.collate_packed([[5, 6], [7]])["tokens"].tolist() == [[5, 6, 7]]
    empty = levada.collate_packed([{"tokens": np.arange(0)}, {"tokens": np.arange(2)}], pad_to=4)
    assert empty["tokens"].tolist() == [[0, 1, 0, 0]] and empty["cu_seqlens"].tolist() == [[0, 0, 4]]


def test_rows_are_padded_to_one_length_with_separate_segments() -> None:
    samples = [{"tokens": np.arange(1, 4), "labels": np.arange(1, 4)}, {"tokens": np.arange(7, 9), "labels": np.arange(7, 9)}]
    row = levada.collate_packed(samples, row_length=8, max_segments=5)
    assert row["tokens"].tolist() == [[1, 2, 3, 7, 8, 0, 0, 0]]
    assert row["labels"].tolist() == [[-100, 2, 3, -100, 8, -100, -100, -100]]
    assert row["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert row["cu_seqlens"].tolist() == [[0, 3, 5, 8, 8, 8]] and row["max_seqlen"].tolist() == [3]
    full = levada.collate_packed(samples, row_length=5, max_segments=2)
    assert full["cu_seqlens"].tolist() == [[0, 3, 5]] and full["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    with pytest.raises(levada.InvalidArgument, match="2 samples have 5 tokens, which row_length=4 does not hold"):
        levada.collate_packed(samples, row_length=4)
    with pytest.raises(levada.InvalidArgument, match="2 segments and one of padding, more than max_segments=2"):
        levada.collate_packed(samples, row_length=6, max_segments=2)


def test_packed_rows_accept_any_numbers() -> None:
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
