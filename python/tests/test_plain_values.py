"""The same plain values cross a feed, a pipeline and the values of an exchange."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import levada
import numpy as np
import plain_values
import pytest
import ranks
from levada import exchange

PROLOGUE = f"""
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from plain_values import PLAIN_VALUES, same
def tell_wrong(received):
    tell(wrong=[repr(pair) for pair in zip(received, PLAIN_VALUES, strict=True) if not same(*pair)])
"""


def all_right(folder: pathlib.Path, body: str) -> None:
    assert ranks.succeed(folder, 2, PROLOGUE + body) == [[{"wrong": []}]] * 2


def test_plain_values_cross_a_feed(tmp_path: pathlib.Path) -> None:
    all_right(
        tmp_path,
        """
with levada.Feed([{"values": PLAIN_VALUES}], mesh=levada.Mesh(tp=2)) as feed:
    for batch in feed:
        tell_wrong(batch["values"])
""",
    )


def test_plain_values_cross_a_pipeline() -> None:
    source = plain_values.PLAIN_VALUES
    with levada.Pipeline(source).dispatch().run(1) as run:
        received = list(run)
    assert len(received) == len(source) and all(map(plain_values.same, received, source))


def test_plain_values_cross_as_values_of_an_exchange(tmp_path: pathlib.Path) -> None:
    # Both ranks have the values, and each process orders sets of strings differently.
    all_right(
        tmp_path,
        """
from levada import exchange
store = exchange.Store()
values = {str(number): value for number, value in enumerate(PLAIN_VALUES)}
store.store(exchange.SampleBatch(["s"], {["tokens", "reward"][rank]: np.ones(1)}, values=[values]))
exchange.redistribute(store, {0: ["s"], 1: ["s"]}, ["tokens", "reward"])
received = store.get(["s"]).values(0)
tell_wrong([received[name] for name in values])
""",
    )


@pytest.mark.parametrize("value", [b"bytes", *plain_values.PLAIN_VALUES, (1, [None, {"a": (2, 3)}]), np.float32(0.1)])
def test_a_meta_a_directory_and_json_keep_plain_values(value: Any) -> None:
    batch = exchange.SampleBatch(["a"], {"x": np.ones(1)}, values=[{"v": value, "w": 1}])
    held = exchange.SampleDirectory()
    held.add(0, batch.meta())
    copies = [exchange.SampleBatch.from_json(batch.to_json()), pickle.loads(pickle.dumps(held)).meta()]
    for each in (batch, *copies):
        assert plain_values.same(each.values(0)["v"], value)
    assert copies[0] == batch.meta()
    assert exchange.SampleBatch(["a"], values=[{"v": None, "w": 1}]).values(0) != batch.values(0)


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "bc\U0001f600"]),
        np.array([[b"x\0y"], [b""]]),
        np.array([], "<U3"),
        np.array("alone"),
        np.array(["x", "yz"], ">U2")[::-1],
        np.array(["2026-01-01", "NaT"], "datetime64[ns]"),
        np.array([3], "timedelta64[s]"),
        np.str_("x"),
        np.bytes_(b"x"),
        np.datetime64("2026-01-01"),
        np.timedelta64(5, "m"),
    ],
)
def test_arrays_of_text_and_time_cross_unchanged(value: Any) -> None:
    received = levada.unpack(levada.pack({"value": value}))["value"]
    assert type(received) is type(value) and received.dtype == value.dtype and received.shape == value.shape
    assert received.tobytes() == value.tobytes()
    assert not isinstance(received, np.ndarray) or received.flags.writeable


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="value.*cannot cross between ranks: .*numpy's dtype object"):
        levada.pack({"value": np.array([1, "x"], object)})
