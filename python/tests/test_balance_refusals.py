"""Balance options that are refused, and errors within balanced steps."""

from __future__ import annotations

import pathlib
from typing import Any

import levada
import numpy as np
import pytest
import ranks
from balanced import indented, job


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('balance="flops", batch_size=10, divide="split"', "dealt"),
        ('balance="flops", batch_size=10, tail="pad"', "dropped or short"),
        ('max_tokens=100, batch_size=10', "raise max_tokens"),
        ('max_tokens=0, batch_size=10', "max_tokens must be at least 1, got 0"),
        ('balance="work", batch_size=10', "tokens"),
        ('balance="weights", batch_size=10', "name the field that holds a sample's weight"),
        ('balance="field(missing)", batch_size=10', "is not known: KeyError: 'missing'"),
        ('balance="field()", batch_size=10', "field()"),
        ('balance=lambda sample: -1, batch_size=10', "sample 0 of the step: the cost of a sample is -1; it must be a whole number"),
        ('balance=lambda sample: float("nan"), batch_size=10', "whole number of 0 or more"),
        ('balance=lambda sample: 0.5, batch_size=10', "whole number of 0 or more"),
        (
            'balance=lambda sample: sample["missing"], batch_size=10',
            "raised KeyError: 'missing'; it must return a whole number of 0 or more, or two of them; the sample is {'tokens'",
        ),
        ('balance=lambda sample: (1,) * 3, batch_size=10', "the cost of a sample is (1, 1, 1); it must return a whole number of 0"),
        ('balance=lambda sample: (), batch_size=10', "the cost of a sample is (); it must return"),
        ('balance=lambda sample: [1, "a"], batch_size=10', "the cost of a sample is 'a'; it must be a whole number"),
        ('balance=levada.Balance(length=lambda sample: 1 // 0), batch_size=10', "raised ZeroDivisionError"),
        ('balance=levada.Balance(length=lambda sample: 0), batch_size=10', "must have a token"),
        ('balance=levada.Balance(order="random"), batch_size=10', "as-read"),
        ('balance=levada.Balance(wait="end"), batch_size=10', "micro"),
        ('balance=levada.Balance(counts="equal", wait="micro"), max_tokens=70, batch_size=10', "counts must be free"),
        ('balance=levada.Balance(max_delay=2), batch_size=10', "use a Corpus"),
        ('balance=levada.Balance(max_delay=-1), batch_size=10', "0 or more"),
        ('balance=levada.Balance(too_long="drop"), batch_size=10', '"error" or "cut"'),
        ('balance=levada.Balance(pad_to=8), max_tokens=7, batch_size=10', "no sample fits"),
        ('balance=levada.Balance(too_long="cut", length=lambda sample: None), max_tokens=70, batch_size=10', "is None"),
        (
            'balance=levada.Balance(too_long="cut", length=lambda sample: 99), max_tokens=70, batch_size=10',
            "was cut to 70, but length= still returns 99",
        ),
        ('collate_fn=list', "balance="),
        ('balance="flops"', "ranks"),
    ],
)
def test_samples_that_cannot_be_balanced_are_one_error_on_every_rank(tmp_path: pathlib.Path, options: str, why: str) -> None:
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
def test_errors_name_the_step_instead_of_counting_micro_batches(
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
        feed = levada.Feed({source}, {options}, batch_size=20, max_tokens=1000)
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
        feed = levada.Feed(samples(), batch_size=20, balance="flops", max_tokens=1000, prefetch=1)
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


def test_different_balances_on_ranks_are_an_error(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        try:
            next(iter(levada.Feed(samples(), batch_size=10, max_tokens=1000 + rank)))
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
        ('balance=levada.Balance(wait=["step", "micro"][rank])', "ranks wait in each micro-batch"),
        ('balance=levada.Balance(too_long=["error", "cut"][rank])', "too_long cut"),
        ("balance=levada.Balance(length=[None, square][rank])", "length square (script.py:"),
        ('balance=["field(weight)", "field(name)"][rank]', "cost field(name)"),
        ("balance=[weigh, square][rank]", "cost square (script.py:"),
        ("balance=functools.partial(weigh, scale=1 + rank)", "with (scale=2)"),
        ("balance=weigh, collate_fn=[None, list][rank]", "collate_fn list"),
    ],
)
def test_balances_that_differ_in_python_values_are_an_error(
    tmp_path: pathlib.Path, options: str, shown: str
) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job(f"""
{indented(FUNCTIONS)}
        try:
            next(iter(levada.Feed(samples(), batch_size=10, readers="all", {options})))
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
{indented(FUNCTIONS)}
        feed = levada.Feed(samples(), batch_size=10, readers="all", balance={cost})
        tell(numbers=[number for batch in feed for number in numbers_of(batch)])
        """),
    )
    assert sorted(number for (mine,) in told for number in mine["numbers"]) == list(range(200))


def test_functions_of_one_name_that_divide_differently_are_an_error_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        job("""
        cost = [lambda sample: 1 + len(sample["tokens"]), lambda sample: 300 - len(sample["tokens"])][rank]
        try:
            for batch in levada.Feed(samples(), batch_size=10, readers="all", balance=cost):
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
            tell(steps=len(list(levada.Feed(list(samples())[:19], batch_size=10, balance="tokens"))))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """),
    )
    for (mine,) in told:
        assert "one step takes 20 samples, but there are only 19; lower the batch size" in mine["error"]


def test_a_corpus_with_a_sequence_that_fits_no_micro_batch_is_refused() -> None:
    corpus = levada.Corpus("c.jsonl", seq_length=1024, packing="documents", tokenizer="bytes")
    with pytest.raises(levada.InvalidArgument, match="seq_length of the corpus is 1024 and max_tokens 1000, .*lower seq_length"):
        levada.Feed(corpus, balance="flops", max_tokens=1000)
    levada.Feed(corpus, balance="flops", max_tokens=1024)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "at least one sample"),
        ([{"tokens": [1]}, {"tokens": [1], "more": 2}], "sample 1 of a packed row has fields"),
        ([{"tokens": np.ones(1)}, {"tokens": np.ones(1, np.float32)}], "field tokens of a packed row: sample 1 is float32"),
        ([{"labels": np.ones(1, np.uint8), "tokens": [1]}], "cannot be padded with -100"),
        ([{"tokens": [1], "cu_seqlens": 1}], "adds itself"),
        ([{"text": "a"}], "length="),
        ([[1, 2], np.ma.masked_array([1, 2], [0, 1])], "field tokens has type MaskedArray, which is more than its elements; pass its .filled"),
    ],
)
def test_samples_longer_than_a_row_are_refused(samples: list[Any], why: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=why):
        levada.collate_packed(samples, pad_to=2)
