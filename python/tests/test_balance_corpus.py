"""Balanced steps of a corpus, on meshes with context parallelism, and with delayed samples."""

from __future__ import annotations

import itertools
import json
import pathlib
import random

import levada
import numpy as np
import pytest
import ranks
from balanced import indented, job, length_of


@pytest.mark.parametrize("packing", ["documents", "best-fit", "cut"])
def test_a_corpus_feeds_each_sample_of_a_step_once_on_any_mesh(tmp_path: pathlib.Path, packing: str) -> None:
    numbers = random.Random(2)
    texts = [chr(97 + number % 26) * numbers.randint(1, 400) for number in range(300)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    body = f"""
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, seq_length=512, packing={packing!r}, shuffle=True, seed=1,
                               cache_dir={str(tmp_path / "cache")!r}, epochs=2, tokenizer="bytes")
        feed = levada.Feed(corpus, batch_size=24 // levada.world_size(), balance="flops", max_tokens=4096)
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
def step_of(feed, batches):
    for batch in batches:
        yield batch
        if feed.micro + 1 == feed.num_micro:
            return
"""


def test_context_parallel_ranks_get_their_chunks_of_each_segment_of_balanced_samples(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job(f"""
{indented(PARTS)}
        mesh = levada.Mesh(dp=2, cp=2)
        fields = layout("tokens", "labels", "position_ids")
        by = levada.Balance("flops", pad_to=4)
        got = []
        for batch in levada.Feed(samples(), mesh=mesh, batch_size=20, balance=by, max_tokens=1000, layout=fields):
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
{indented(PARTS)}
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, seq_length=128, packing="documents", pad_to=4,
                               cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
        feed = levada.Feed(corpus, mesh=levada.Mesh(dp=2, cp=2), batch_size=10, balance="flops", max_tokens=512)
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


def test_a_separate_feed_divides_long_samples_over_context_parallel_ranks(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        job(f"""
{indented(PARTS)}
        every = list(samples())
        short = levada.Feed([each for each in every if len(each["tokens"]) <= 200], mesh=levada.Mesh(dp=4), batch_size=8,
                            balance="flops", max_tokens=400)
        long = levada.Feed([each for each in every if len(each["tokens"]) > 200], mesh=levada.Mesh(dp=2, cp=2), batch_size=4,
                           balance=levada.Balance("flops", pad_to=4), max_tokens=800,
                           layout=layout("tokens", "labels", "position_ids"))
        got = [[], []]
        passes = {{short: iter(short), long: iter(long)}}
        for step in range(12):
            feed = long if step % 3 == 2 else short
            for batch in step_of(feed, passes[feed]):
                assert batch["tokens"].shape[1] <= 400
                assert batch["tokens"].shape[1] * (2 if feed is long else 1) == batch["cu_seqlens"][0, -1]
                got[feed is long] += numbers_of(batch)
        short.close(), long.close()
        tell(short=got[0], long=got[1])
        """),
    )
    lengths = [length_of(number) for number in range(200)]
    short, long = ([number for number in range(200) if (lengths[number] > 200) == is_long] for is_long in (False, True))
    assert sorted(number for (mine,) in told for number in mine["short"]) == short[: len(short) // 32 * 32]
    assert told[0][0]["long"] == told[1][0]["long"] and told[2][0]["long"] == told[3][0]["long"]
    assert sorted(told[0][0]["long"] + told[2][0]["long"]) == long[: 4 * 2 * 4]


def test_delayed_long_samples_are_fed_once_also_after_a_resume(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(3)
    lengths = [800 if numbers.random() < 0.06 else numbers.randint(1, 60) for _ in range(480)]
    texts = [chr(97 + number % 26) * length for number, length in enumerate(lengths)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    body = f"""
        import pathlib, pickle
        corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, seq_length=1024, packing="documents", shuffle=True, seed=1,
                               cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
        path = pathlib.Path({str(tmp_path / "state")!r})
        feed = levada.Feed(corpus, batch_size=24 // levada.world_size(), balance=levada.Balance("flops(hidden=8)", max_delay=6))
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


def test_a_state_after_a_short_last_step_has_no_samples_left() -> None:
    samples = [{"tokens": np.arange(3)}] * 10
    for source in (lambda: samples, lambda: levada.Pipeline(samples).run(0, alone=True)):
        feed = levada.Feed(source(), balance="tokens", batch_size=4, tail="short")
        assert len(feed) == len(list(feed)) == 3
        for batch in (4, 3, 1):
            resumed = levada.Feed(source(), balance="tokens", batch_size=batch, tail="short")
            resumed.load_state_dict(feed.state_dict())
            assert list(resumed) == []


def test_samples_delayed_at_the_end_of_an_epoch_are_not_fed_in_the_next(tmp_path: pathlib.Path) -> None:
    lengths = [5, 5, 5, 5, 5, 300, 5, 5, 5]  # in steps of four, the long one is left over
    texts = [chr(97 + number) * length for number, length in enumerate(lengths)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def make(tail="drop"):
            corpus = levada.Corpus({str(tmp_path / "c.jsonl")!r}, seq_length=512, packing="documents",
                                   cache_dir={str(tmp_path / "cache")!r}, tokenizer="bytes")
            balance = levada.Balance("flops(hidden=8)", max_delay=6)
            return levada.Feed(corpus, mesh=levada.Mesh(dp=2), batch_size=2, balance=balance, tail=tail)
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
