"""States of feeds that are damaged, or from other data, cause an explicit error, never a loop without steps."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import levada
import numpy as np
import pytest
import ranks
from levada.feed.states import FeedState

ITEMS = 12
READ = 5


class Loader:
    """A loader whose state is its position."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < ITEMS:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "name": "shard-7"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


SOURCES: dict[str, Any] = {"counted": lambda: range(ITEMS), "with a state": Loader}


def saved(source: str) -> dict[str, Any]:
    feed = levada.Feed(SOURCES[source]())
    batches = iter(feed)
    assert [next(batches) for _ in range(READ)] == list(range(READ))
    state = feed.state_dict()
    feed.close()
    return state


def rest(source: str, state: Any) -> list[int]:
    feed = levada.Feed(SOURCES[source]())
    feed.load_state_dict(state)
    return list(feed)


@pytest.mark.parametrize("source", SOURCES)
def test_the_error_names_the_missing_key_of_a_state(source: str) -> None:
    state = saved(source)
    assert rest(source, state) == list(range(READ, ITEMS))
    for key in state:
        with pytest.raises(levada.InvalidArgument, match=f'lacks "{key}"'):
            rest(source, {name: value for name, value in state.items() if name != key})
    for no_state in (None, [], "state", 5, b""):
        with pytest.raises(levada.InvalidArgument, match="is the dict"):
            rest(source, no_state)


UNEQUAL = np.zeros(2)  # whose comparisons have no truth value
NUMBERS = [UNEQUAL, None, "5", 5.0, True, -1, -(2**63), 2**62, 2**63 - 1, 2**63, 2**64, [5], {}]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("samples", [*NUMBERS, READ + 1]),
        ("epoch", [*NUMBERS, 1]),
        ("step", [*NUMBERS, 0, 2]),
        ("item", [UNEQUAL, None, "5", 5.5, True, -2, 2**63, [5], {}]),
        ("cursor", ["bytes", 5, [], {}, b"\x00", b"levada iterable", bytes(200), bytearray(20), UNEQUAL]),
        ("source", [None, 5, "corpus", "Iterable", b"iterable", UNEQUAL]),
        ("checksum", [None, 5, "", "0" * 16, b"", UNEQUAL]),
    ],
)
def test_a_state_with_another_value_is_refused(source: str, key: str, values: list[Any]) -> None:
    state = saved(source)
    for value in values:
        with pytest.raises(levada.InvalidArgument):
            rest(source, {**state, key: value})


def test_a_state_with_any_bit_of_its_cursor_changed_or_cut_short_is_refused() -> None:
    state = saved("with a state")
    cursor = state["cursor"]
    damaged = [cursor[:at] + bytes([cursor[at] ^ 1 << at % 8]) + cursor[at + 1 :] for at in range(len(cursor))]
    for each in [*damaged, *(cursor[:at] for at in range(len(cursor))), cursor + b"\0"]:
        with pytest.raises(levada.InvalidArgument):
            rest("with a state", {**state, "cursor": each})


def test_a_cursor_is_validated_even_if_its_checksum_is_right() -> None:
    cursor = saved("with a state")["cursor"]
    for at in range(len(cursor)):
        for value in (0x00, 0x7F, 0xFF):
            forged = FeedState("iterable", cursor[:at] + bytes([value]) + cursor[at + 1 :], 0, 0).encode()
            try:
                got = rest("with a state", forged)
            except (levada.Error, ValueError, TypeError, KeyError):
                continue
            assert got == list(range(ITEMS - len(got), ITEMS)), (at, value, got)


SHORTER = """
state = None
for count in (50, 20):
    feed = levada.Feed(list(range(count)), timeout=60, **{options})
    if state is None:
        batches = iter(feed)
        got = [next(batches) for _ in range({steps})]
        state = feed.state_dict()
        feed.close()
        continue
    feed.load_state_dict(state)
    try:
        tell(got=list(feed))
    except levada.InvalidArgument as error:
        tell(text=str(error), end=feed.end.cause)
"""


@pytest.mark.parametrize("iterate", ["thread", "inline"])
@pytest.mark.parametrize("readers", ["one", "dp"])
def test_data_that_end_before_the_state_are_an_error_on_every_rank(
    tmp_path: pathlib.Path, iterate: str, readers: str
) -> None:
    options = {"iterate": iterate, "readers": readers}
    body = SHORTER.format(options=options, steps=15)
    told = ranks.succeed(tmp_path, 2, "if __name__ == '__main__':\n" + body.replace("\n", "\n    "))
    for (mine,) in told:
        assert "the state counts 30 items, but the data end after 20" in mine["text"]
        assert mine["end"] == "failed"


def test_a_loader_that_ends_before_the_items_since_its_state_is_an_error() -> None:
    class Slow(Loader):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            if self.asked:  # slow, so that later items are counted from an earlier state
                time.sleep(0.02)
            self.asked += 1
            return super().state_dict()

    feed = levada.Feed(Slow())
    batches = iter(feed)
    assert [next(batches) for _ in range(10)] == list(range(10))
    state = feed.state_dict()
    feed.close()

    class Shorter(Slow):
        def __iter__(self) -> Iterator[int]:
            yield from range(self.at, 4)

    resumed = levada.Feed(Shorter())
    resumed.load_state_dict(state)
    with pytest.raises(levada.InvalidArgument, match="the state counts 10 items, but the data end after 4"):
        list(resumed)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("", 10),
        ("divide='split'", 20),
        ("batch_size=4, balance='tokens', tail='short', collate_fn=list", 3),  # 24 samples, of which 4 are missing
    ],
)
def test_a_state_at_the_end_of_the_data_resumes_there(tmp_path: pathlib.Path, options: str, steps: int) -> None:
    body = f"""
    items = [np.full(4, number) for number in range(20)]
    feed = levada.Feed(items, timeout=60, {options})
    batches = iter(feed)
    for _ in range({steps}): next(batches)
    state = feed.state_dict()
    feed.close()
    feed = levada.Feed(items, timeout=60, {options})
    feed.load_state_dict(state)
    tell(got=len(list(feed)), end=feed.end.cause)
    """
    assert ranks.succeed(tmp_path, 2, body) == [[{"got": 0, "end": "exhausted"}]] * 2


def test_skipped_steps_may_exceed_the_data() -> None:
    feed = levada.Feed(range(4), skip=9)
    assert list(feed) == [] and feed.end is not None and feed.end.cause == "exhausted"
    stopped = levada.Feed(range(4))
    batches = iter(stopped)
    assert next(batches) == 0
    resumed = levada.Feed(range(4), skip=9)
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert list(resumed) == []


def write_lines(path: pathlib.Path, lines: int) -> pathlib.Path:
    path.write_text("".join(f'{{"text": "line {number} of {path.name}"}}\n' for number in range(lines)))
    return path


def test_a_state_before_the_first_step_holds_data_and_position(tmp_path: pathlib.Path) -> None:
    path, other = (write_lines(tmp_path / name, 200) for name in ("a.jsonl", "b.jsonl"))

    def feed(path: pathlib.Path, **options: Any) -> levada.Feed:
        return levada.Feed(levada.Corpus(path, seq_length=32, epochs=options.pop("epochs", 1), tokenizer="bytes"), batch_size=8, **options)

    steps = len(feed(path))
    skipping = feed(path, skip=steps + 1000)
    assert list(skipping) == []
    state = skipping.state_dict()
    resumed = feed(path)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert len(list(resumed)) == steps
    further = feed(path, epochs=2)
    further.load_state_dict(state)
    assert len(list(further)) in (steps, steps + 1)
    with pytest.raises(levada.Error, match="belongs to another run of samples"):
        resumed = feed(other)
        resumed.load_state_dict(state)
        list(resumed)
    whole = feed(path)
    assert len(list(whole)) == steps
    skipping = feed(path, skip=1)
    skipping.load_state_dict(whole.state_dict())
    assert list(skipping) == []
    resumed = feed(path)
    resumed.load_state_dict(skipping.state_dict())
    resumed.set_epoch(1)
    assert len(list(resumed)) == steps


def test_a_state_before_the_first_step_of_a_pipeline_holds_its_epoch() -> None:
    def feed() -> levada.Feed:
        return levada.Feed(levada.Pipeline(range(50)).shuffle(50).run(0, seed=3, alone=True))

    first = feed()
    start, epochs, states = first.state_dict(), [], []
    for _ in range(2):
        items = iter(first)
        states.append(first.state_dict())
        epochs.append(list(items))
    assert epochs[0] != epochs[1]
    for epoch in (0, 1):
        resumed = feed()
        resumed.load_state_dict(states[epoch])
        assert [list(resumed), list(resumed)][: 2 - epoch] == epochs[epoch:]
    first.load_state_dict(start)
    assert list(first) == epochs[0]


def test_passes_over_a_pipeline_are_the_same_epochs_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        def feed():
            return levada.Feed(levada.Pipeline(range(20)).shuffle(20), levada.Mesh(tp=2))
        first = feed()
        for _ in range(3):
            items = iter(first)
            got = [next(items) for _ in range(5)]
            state = first.state_dict()
            tell(epoch=first.epoch, saved=state["epoch"], got=got + list(items))
        resumed = feed()
        resumed.load_state_dict(state)
        tell(epoch=resumed.epoch, got=list(resumed))
        tell(epoch=resumed.epoch, got=list(resumed), after=resumed.epoch)
        resumed.set_epoch(1)
        tell(epoch=resumed.epoch, got=list(resumed))
        """,
    )
    assert told[0] == told[1]
    passes, resumed, further, again = told[0][:3], told[0][3], told[0][4], told[0][5]
    assert [(each["epoch"], each["saved"]) for each in passes] == [(0, 0), (1, 1), (2, 2)]
    assert len({str(each["got"]) for each in passes}) == 3
    assert resumed == {"epoch": 2, "got": passes[2]["got"][5:]}
    assert (further["epoch"], further["after"]) == (2, 3) and sorted(further["got"]) == list(range(20))
    assert again == {"epoch": 1, "got": passes[1]["got"]}


def test_an_epoch_that_is_set_on_the_run_itself_is_the_next_pass() -> None:
    run = levada.Pipeline(range(20)).shuffle(20).run(0, seed=3, alone=True)
    feed = levada.Feed(run)
    first, second = list(feed), list(feed)
    run.set_epoch(0)
    assert list(feed) == first != second and feed.epoch == 0
