"""The totals of a step, which every rank knows, against the batches that each rank receives."""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from typing import Any

import levada
import numpy as np
import pytest
import ranks

JOB = """
mesh = levada.Mesh.parse({mesh!r})
def samples():
    for i in range(52):
        text = np.arange(1 + 7 * i % 30) + i
        yield {{"input_ids": text, "labels": np.where(text % 5 == 0, -100, text), "class": i % 2}}
def batches():
    for i in range(13):
        tokens = np.arange(6 * (i + 2)).reshape(6, -1) + i
        yield {{"tokens": tokens, "loss_mask": (tokens % 3 > 0).astype(np.float32), "names": [f"row {{i}}"] * 6}}
def rows():
    for i in range(5):
        tokens = np.arange(32 if i < 4 else 12).reshape(-1, 4) + i
        labels = np.where((tokens % 3 == 0) | (np.arange(tokens.shape[1]) == 0), -100, tokens)
        yield {{"input_ids": tokens, "labels": labels}}
def global_batches():
    return [{{"tokens": np.arange(32).reshape(8, 4) + i, "loss_mask": np.ones((8, 4), np.float32)}} for i in range(3)]
def corpus():
    return levada.Corpus({texts!r}, tokenizer="bytes", seq_length=64, packing="documents")
def count(batch, rows):
    if "loss_mask" in batch:
        labels = batch["loss_mask"][:rows]
    else:
        labels = batch["labels"][:rows] != -100
    tokens = batch["tokens" if "tokens" in batch else "input_ids"][:rows]
    return {{"tokens": tokens.size, "labels": int(np.count_nonzero(labels))}}
rows_of_rank = 8 // mesh.data_size
for case, feed in enumerate([
    levada.Feed(batches(), mesh),
    levada.Feed(batches(), mesh, tail="pad"),
    levada.Feed(batches(), mesh, tail="short", iterate="thread"),
    levada.Feed(rows(), mesh, divide="split", batch_size=rows_of_rank),
    levada.Feed(rows(), mesh, divide="split", batch_size=rows_of_rank, tail="pad"),
    levada.Feed(rows(), mesh, divide="split", batch_size=rows_of_rank, tail="short"),
    levada.Feed(global_batches(), mesh, divide="split"),
    levada.Feed(samples(), mesh, batch_size=6, balance="tokens", max_tokens=64),
    levada.Feed(samples(), mesh, batch_size=6, balance="flops", tail="short"),
    levada.Feed(corpus(), mesh, batch_size=3, tail="pad"),
    levada.Feed(corpus(), mesh, batch_size=6, balance="flops", max_tokens=64),
]):
    assert feed.totals is None
    for batch in feed:
        valid = None if feed.balance else feed.valid_rows
        tell(case=case, step=feed.step, micro=feed.micro, num_micro=feed.num_micro, at=mesh.data_coordinate(rank),
             samples=feed.valid_rows, totals=feed.totals, **count(batch, valid))
"""


@pytest.mark.parametrize("mesh", ["dp=4", "dp=2,tp=2", "tp=4"])
def test_totals_are_the_sums_over_all_ranks(tmp_path: pathlib.Path, mesh: str) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": "word " * (1 + i % 9)}) + "\n" for i in range(60)))
    outcome = ranks.run(tmp_path, 4, JOB.format(mesh=mesh, texts=str(texts)))
    assert outcome.status == 0, outcome.errors
    parts = {tuple(each[key] for key in ("case", "step", "micro", "at")): each for told in outcome.told for each in told}
    sums: dict[tuple[int, ...], dict[str, int]] = defaultdict(lambda: {"samples": 0, "tokens": 0, "labels": 0})
    for (case, step, micro, _), each in parts.items():
        for later in range(micro, each["num_micro"]):
            for name in ("samples", "tokens", "labels"):
                sums[case, step, later][name] += each[name]
    for case in range(11):
        assert sum(each["labels"] for key, each in sums.items() if key[0] == case) > 0, case
    for each in [each for told in outcome.told for each in told]:
        place = each["case"], each["step"], each["micro"]
        assert each["totals"] == sums[place], place


def test_totals_are_unknown_if_several_ranks_read(tmp_path: pathlib.Path) -> None:
    body = """
for readers in ("all", "dp"):
    feed = levada.Feed([{"tokens": np.arange(4)}] * 6, levada.Mesh(dp=2, tp=2), readers=readers)
    tell(totals=[feed.totals for _ in feed])
"""
    outcome = ranks.run(tmp_path, 4, body)
    assert outcome.told == [[{"totals": [None] * 3}] * 2] * 4, outcome.errors


@pytest.mark.parametrize(
    ("batch", "tokens", "labels"),
    [
        ({"x": np.ones(3)}, None, None),
        ({"tokens": [1, 2, 3], "labels": [1, 2, 3]}, None, None),
        ({"input_ids": np.ones((2, 3), int), "labels": np.ones((2, 3), int)}, 6, None),  # shifted or not
        ({"input_ids": np.ones((2, 3), int), "labels": np.array([[-100, 5, 6], [-100, -100, 7]])}, 6, 3),
        ({"input_ids": np.ones((2, 3), int), "labels": np.array([1, 0])}, 6, 2),
        ({"tokens": np.arange(8)[:-1], "labels": np.arange(8)[1:]}, 7, 7),
        ({"chosen": {"tokens": np.ones((2, 3))}, "rejected": [{"tokens": np.ones((2, 5))}]}, 16, None),
    ],
)
def test_totals_count_tensors_by_their_names_and_never_guess(batch: dict[str, Any], tokens: int | None, labels: int | None) -> None:
    feed = levada.Feed([batch])
    for _ in feed:
        assert feed.totals is not None
        assert (feed.totals.tokens, feed.totals.labels) == (tokens, labels)


def test_totals_describe_the_returned_batch_however_far_ahead_the_reader_is() -> None:
    feed = levada.Feed(({"tokens": np.zeros(i + 1)} for i in range(5)), iterate="thread")
    for batch in feed:
        assert feed.totals is not None
        assert feed.totals.tokens == len(batch["tokens"]) == feed.step
