"""Copies and pickles of the values that describe a job."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import levada

VALUES = [
    levada.Mesh(),
    levada.Mesh(pp=2, dp=4, tp=2),
    levada.Mesh(data_axes=["experts"], experts=2, model=3),
    levada.Shard("dp"),
    levada.Shard("tp", 3),
    levada.Replicate("tp"),
    levada.Zigzag("cp"),
    levada.Zigzag("cp", 0),
    levada.Stages("pp", "first", "last"),
    levada.Stages("pp"),
    levada.Layout({}),
    levada.Layout.gpt(),
    levada.Layout({"a": [levada.Shard("dp"), "zigzag(cp,1)"]}, otherwise="shard(dp,0)", optional=["a"], stages={"mtp": [1]}),
    levada.Balance("flops", wait="micro", pad_to=8),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_copied_and_pickled(value: Any) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    for each in (copy.copy(value), copy.deepcopy(value)):
        assert each == value and type(each) is type(value) and repr(each) == repr(value)


def test_a_corpus_is_pickled_by_its_options() -> None:
    corpus = levada.Corpus(["a.txt", "b.txt"], tokenizer="bytes", seq_length=128, split=(9, 1))
    assert repr(pickle.loads(pickle.dumps(corpus))) == repr(corpus)
