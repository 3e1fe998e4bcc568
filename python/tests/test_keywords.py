"""Arguments that a function does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import levada

PIPELINE = levada.Pipeline(range(3))


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        (levada.Feed, "batch", r"levada.Feed\(\) has no argument 'batch'; did you mean batch_size\?"),
        (levada.Feed, "depth", "did you mean prefetch"),
        (levada.Feed, "steps", "did you mean max_steps"),
        (levada.Feed, "collate", "did you mean collate_fn"),
        (levada.Feed, "device_mesh", "did you mean mesh"),
        (levada.Feed, "drop_last", 'did you mean tail="drop"'),
        (levada.Feed, "split_batches", 'did you mean divide="split"'),
        (levada.Feed, "prefech", "did you mean prefetch"),
        (levada.Feed, "num_workers", "it is an argument of levada.DataLoader$"),
        (levada.Feed, "batch_sampler", "it is an argument of levada.DataLoader$"),
        (levada.Feed, "pin_memory", "it is an argument of levada.DataLoader$"),
        (levada.Feed, "shuffle", "it is an argument of levada.Corpus and of levada.DataLoader$"),
        (levada.Feed, "qqq", r"^levada.Feed\(\) has no argument 'qqq'$"),
        (levada.Corpus, "sequence", "did you mean seq_length"),
        (levada.Corpus, "max_length", "did you mean seq_length"),
        (levada.Corpus, "shuffle_seed", "did you mean shuffle=True, seed=...?"),
        (levada.Corpus, "batch_size", "it is an argument of levada.DataLoader and of levada.Feed$"),
        (levada.DataLoader, "steps", "did you mean max_steps"),
        (levada.DataLoader, "even_batches", "did you mean pad_last=True"),
        (levada.DataLoader, "divide", "it is an argument of levada.Feed$"),
        (PIPELINE.run, "num_workers", r"levada.Pipeline.run\(\) has no argument 'num_workers'; did you mean workers\?"),
        (PIPELINE.run, "batch_size", "it is an argument of levada.DataLoader and of levada.Feed$"),
    ],
)
def test_an_unknown_argument_suggests_the_right_one(call: Callable[..., Any], given: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(*(() if call == PIPELINE.run else ([1],)), **{given: 1})


def test_signatures_show_the_arguments() -> None:
    assert "batch_size" in inspect.signature(levada.Feed).parameters
    assert list(inspect.signature(levada.Corpus).parameters)[:3] == ["paths", "seq_length", "shuffle"]
    assert "batch_size" in inspect.signature(levada.DataLoader).parameters
    assert "workers" in inspect.signature(PIPELINE.run).parameters
