"""A feed that copies the next batch to a device while the caller works on this one."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import levada
import pytest
import ranks
import torch
from levada.feed import makers, passes

PATIENT = """
import time
from levada.feed import passes
once = passes._send_ahead
def send_ahead(core, *more):
    "Waits for the next batch, of so many, where otherwise it is as it happens."
    ahead = once(core, *more)
    while ahead is None and core.taken_step < send_ahead.batches:
        time.sleep(0.001)
        ahead = once(core, *more)
    return ahead
passes._send_ahead = send_ahead
"""


def wait_ahead(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Makes next() wait until the batch after the returned one has arrived, for the first `batches` batches."""
    monkeypatch.setattr(passes, "_send_ahead", passes._send_ahead)
    exec(PATIENT, {})
    passes._send_ahead.batches = batches  # type: ignore[attr-defined]


def test_peers_compare_returned_batches_and_not_those_copied_ahead(tmp_path: pathlib.Path) -> None:
    body = f"""
import torch
{PATIENT}
def batches():
    for number in range(9): yield {{"x": torch.full((4,), number), "y": number}}
for options in ({{}}, {{"max_steps": 5}}, {{"prefetch_to_device": True}}, {{"prefetch_to_device": True, "max_steps": 5}}):
    send_ahead.batches = options.get("max_steps", 9) if rank else 0  # rank 0 has nothing ahead
    feed = levada.Feed(batches(), levada.Mesh(tp=2), device="meta", check="digests", **options)
    tell(devices=[batch["x"].device.type for batch in feed])
"""
    for mine in ranks.succeed(tmp_path, 2, body):
        assert [each["devices"] for each in mine] == [["meta"] * 9, ["meta"] * 5] * 2


def story(feed: levada.Feed, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        stats = {name: number for name, number in dataclasses.asdict(feed.stats).items() if not name.endswith("seconds")}
        for name in ("bytes_read", "bytes_sent"):  # run ahead of the steps
            stats.pop(name, None)
        yield {
            "shapes": {key: list(value.shape) for key, value in batch.items()},
            "at": [feed.step, feed.micro, feed.num_micro, feed.epoch, feed.end],
            "stats": stats,
            "metrics": [each.value for each in feed.metrics() if not any(word in each.name for word in ("seconds", "read", "sent"))],
            "state": feed.state_dict(),
        }


class Loader:
    """Has a state with the position of the last read."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < 6:
            self.position += 1
            yield {"x": torch.ones(self.position)}

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def corpus(folder: pathlib.Path) -> levada.Corpus:
    (folder / "text.txt").write_text("".join(f"some text, number {i}\n" for i in range(40)))
    return levada.Corpus([folder / "text.txt"], seq_length=16, tensors="torch", cache_dir=folder / "cache", tokenizer="bytes")


SOURCES: dict[str, tuple[Callable[[pathlib.Path], Any], dict[str, Any]]] = {
    "a corpus": (corpus, {"batch_size": 4}),
    "a loader with a state": (lambda _: Loader(), {}),
    "an iterable": (lambda _: [{"x": torch.ones(step + 1)} for step in range(6)], {}),
    "micro-batches": (
        lambda _: [{"input_ids": torch.ones(8 + 5 * (i % 7), dtype=torch.int64)} for i in range(24)],
        {"batch_size": 4, "max_tokens": 64},
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_feeds_attributes_describe_the_returned_batch_and_a_state_resumes_at_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, name: str
) -> None:
    make, options = SOURCES[name]
    # Makes the feed ask for a loader's state after each item, even on a slow machine, so that states are comparable.
    monkeypatch.setattr(makers, "_FREE", float("inf"))

    def feed(**ahead: Any) -> levada.Feed:
        return levada.Feed(make(tmp_path), device="meta", **options, **ahead)

    plain = feed()
    expected = list(story(plain, iter(plain)))
    wait_ahead(monkeypatch, plain.step)
    fed = feed(prefetch_to_device=True)
    assert list(story(fed, iter(fed))) == expected and fed.end == plain.end
    passes._send_ahead.batches = 0  # type: ignore[attr-defined]
    for at in range(0, len(expected), 2):
        whole = expected[at]["at"][1] + 1 == expected[at]["at"][2]  # else it resumes before its step
        first = at + 1 if whole else at - expected[at]["at"][1]
        resumed = feed(prefetch_to_device=True)
        resumed.load_state_dict(expected[at]["state"])
        assert [each["shapes"] for each in story(resumed, iter(resumed))] == [each["shapes"] for each in expected[first:]]


def failing(at: int) -> Iterator[Any]:
    for step in range(at):
        yield {"x": torch.ones(step + 1)}
    raise ValueError("the well is dry")


def test_an_error_of_the_source_is_raised_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_ahead(monkeypatch, 3)
    feed, steps = levada.Feed(failing(3), device="meta", prefetch_to_device=True), []
    with pytest.raises(levada.SourceError, match=r"step 3.*the well is dry|the well is dry"):
        for _ in feed:
            time.sleep(0.01)
            steps.append((feed.step, feed.end))
    assert steps == [(1, None), (2, None), (3, None)]


def test_an_error_of_moving_a_batch_is_raised_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_ahead(monkeypatch, 4)
    feed, steps = levada.Feed([{"x": step} for step in range(4)], device="meta", prefetch_to_device=True), []
    sender = feed._sender
    assert sender is not None
    send = sender.send

    def refuse(batch: Any) -> Any:
        if batch["x"] == 2:
            raise RuntimeError("out of memory")
        return send(batch)

    sender.send = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        for batch in feed:
            steps.append((batch["x"], feed.step))
    assert steps == [(0, 1), (1, 2)] and feed.step == 2, "the batch has not been delivered"


def test_an_interrupt_is_raised_at_once_and_skips_no_batch_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_ahead(monkeypatch, 4)
    feed = levada.Feed([{"x": step} for step in range(4)], device="meta", prefetch_to_device=True)
    sender = feed._sender
    assert sender is not None
    send = sender.send

    def interrupted(batch: Any) -> Any:
        if batch["x"] == 2:
            raise KeyboardInterrupt
        return send(batch)

    sender.send = interrupted  # type: ignore[method-assign]
    batches = iter(feed)
    assert next(batches) == {"x": 0}
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(levada.InvalidArgument, match="begin a new pass"):
        next(batches)
    feed.close()


def test_a_loop_that_waits_for_a_batch_raises_when_another_thread_begins_a_pass() -> None:
    waits, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Any]:
        yield {"x": torch.ones(1)}
        waits.set()
        go_on.wait(60)
        yield {"x": torch.ones(1)}

    def supersede() -> None:
        waits.wait()
        while feed.step < 1:
            time.sleep(0.001)
        time.sleep(0.05)
        iter(feed)

    feed = levada.Feed(slow(), device="meta", prefetch_to_device=True)
    other = threading.Thread(target=supersede)
    items = iter(feed)
    other.start()
    with pytest.raises(levada.InvalidArgument, match="a newer pass"):
        list(items)
    go_on.set()
    other.join()


@pytest.mark.parametrize("how", ["break", "close", "raise", "supersede"])
def test_leaving_releases_the_batch_ahead(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    wait_ahead(monkeypatch, 5)
    feed = levada.Feed([{"x": torch.ones(3)} for _ in range(5)], device="meta", prefetch_to_device=True)
    sender, moved = feed._sender, []
    assert sender is not None
    send = sender.send

    def watched(batch: Any) -> Any:
        arrive = send(batch)
        moved.append(weakref.ref(arrive()["x"]))
        return arrive

    sender.send = watched  # type: ignore[method-assign]

    def leave() -> None:
        for step, _ in enumerate(feed):
            if step == 1 and how == "close":
                feed.close()
            elif step == 1 and how == "supersede":
                iter(feed)
            elif step == 1:
                assert moved[2]() is not None
                if how == "raise":
                    raise ValueError
                break

    if how in ("raise", "supersede"):
        with pytest.raises(ValueError if how == "raise" else levada.InvalidArgument):
            leave()
    else:
        leave()
    assert len(moved) == 3 and feed.step == (0 if how == "supersede" else 2)
    assert [each() for each in moved] == [None] * 3


def test_ranks_may_leave_with_a_batch_ahead_and_a_rank_that_requests_more_gets_an_error(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        PATIENT
        + """
import torch
send_ahead.batches = 3
feed = levada.Feed([{"x": torch.ones(i + 1)} for i in range(10)], device="meta", prefetch_to_device=True)
for step, batch in enumerate(feed):
    if step == 2: break
send_ahead.batches = 5
tell(step=feed.step, sizes=[len(batch["x"]) for batch in feed])
send_ahead.batches = 2
feed = levada.Feed(range(200), device="meta", prefetch_to_device=True)
error = ""
try:
    for step, batch in enumerate(feed):
        if rank == 0 and step == 1: break
except levada.PeerLost as lost:
    error = str(lost)
tell(error=error, step=feed.step)
""",
    )
    for rank, (first, second) in enumerate(told):
        assert first == {"step": 3, "sizes": [2 * step + rank + 1 for step in range(5)]}
        assert (second["step"] == 2 if rank == 0 else 2 <= second["step"] < 100) and bool(second["error"]) == (rank == 1)


def test_prefetching_requires_a_device_and_a_thread() -> None:
    with pytest.raises(levada.InvalidArgument, match="device is None"):
        levada.Feed([1], prefetch_to_device=True)
    with pytest.raises(levada.InvalidArgument, match="iterate is inline"):
        levada.Feed([1], device="meta", prefetch_to_device=True, iterate="inline")
    assert list(levada.Feed([1, 2], device="cpu", prefetch_to_device=True)) == [1, 2], "where there is nothing to copy"
