"""Types and memory of items that cross from one process of a pipeline to another."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fractions
import functools
import gc
import pickle
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import levada
from levada import _levada


def crossed(*items: Any) -> list[Any]:
    received, _ = _levada.ItemTraits().copy(list(items))
    return received


@dataclasses.dataclass
class Sample:
    name: str
    pixels: Any


def test_plain_values_come_back_as_they_were() -> None:
    items = [0, -1, 2**80, 1.5, True, None, "words", b"bytes", (1, [2, {"a": {3}}]), fractions.Fraction(1, 3), range(4)]
    items += [bytearray(b"more"), collections.Counter("abca"), "x" * 100_000, b"y" * 100_000]
    received = crossed(*items)
    assert received == items and [type(each) for each in received] == [type(each) for each in items]


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f8", "c16", ">i4", ml_dtypes.bfloat16, "U7", "M8[s]"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (700, 3)])
def test_arrays_of_all_kinds_come_back_bit_for_bit(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    (received,) = crossed(array)
    assert received.dtype == array.dtype and received.shape == array.shape and received.tobytes() == array.tobytes()


def test_large_arrays_are_outside_the_pickle_and_small_ones_in_it() -> None:
    traits = _levada.ItemTraits()
    large, small = np.arange(5000), np.arange(10)
    assert traits.copy([large, small])[1] == large.nbytes
    assert traits.copy([{"one": large, "again": [large]}, small])[1] == large.nbytes
    (first, _), _ = traits.copy([{"one": large, "again": [large]}, small])
    assert first["one"] is first["again"][0]  # an object that occurs twice in an item crosses once
    first["one"][0] = 7
    assert large[0] == 0
    (first, second), copied = traits.copy([large, {"again": [large]}])
    assert copied == 2 * large.nbytes  # an object that two items share crosses twice
    first[0] = 7
    assert second["again"][0][0] == large[0] == 0


def test_strided_arrays_and_views_send_only_their_own_elements() -> None:
    base = np.arange(1_000_000).reshape(1000, 1000)
    traits = _levada.ItemTraits()
    for view in (base[3], base.T, base[::7, 5], base[10:20, ::-1], np.broadcast_to(base[0], (3, 1000))):
        (received,), beside = traits.copy([view])
        assert np.array_equal(received, view) and beside <= view.nbytes


def test_read_only_arrays_stay_read_only() -> None:
    array = np.arange(2000)
    array.flags.writeable = False
    received, other = crossed(array, np.arange(2000))
    assert not received.flags.writeable and other.flags.writeable and other.ctypes.data % 64 == 0


def test_objects_keep_their_attributes() -> None:
    (received,) = crossed(Sample("a", np.ones((30, 30))))
    assert received.name == "a" and np.array_equal(received.pixels, np.ones((30, 30)))
    ring: list[Any] = [1]
    ring.append(ring)
    (received,) = crossed(ring)
    assert received[1] is received


def test_an_object_that_cannot_be_pickled_is_an_error_with_the_reason() -> None:
    traits = _levada.ItemTraits()
    with pytest.raises(Exception, match="lambda") as caught:
        traits.copy([np.arange(1000), lambda: 0])
    assert isinstance(caught.value.__cause__, Exception)
    assert traits.copy([1, "a"])[0] == [1, "a"]


NUM_REUSED = 2000
ROW = np.zeros(700, np.int64)
PAIR = np.zeros(1, [("a", "i8")])
NUMBERS, FIELDS, SAMPLE, LISTS, TWICE, BYTES = [0], {"a": 0}, Sample("", 0), collections.UserList([0]), [0], bytearray(8)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def rewritten(kind: str, number: int) -> Any:
    """Returns an item of this number, in memory or objects that the next call changes."""
    ROW[:] = PAIR["a"] = NUMBERS[0] = FIELDS["a"] = SAMPLE.pixels = LISTS[0] = TWICE[0] = number
    BYTES[:] = number.to_bytes(8, "little")
    return {
        "view": ROW[3:600], "small view": {"x": (ROW[:4], number)}, "read-only view": read_only(ROW[:300]), "list": NUMBERS,
        "dict": [FIELDS], "data class": SAMPLE, "other class": LISTS, "twice": (TWICE, {"a": TWICE}), "bytearray": BYTES,
        "fields of an array": PAIR[0], "own": [np.full(300, number), number],
    }[kind]  # fmt: skip


def number_in(kind: str, item: Any) -> int:
    if kind == "twice":
        assert item[0] is item[1]["a"]
    if kind == "read-only view":
        assert not item.flags.writeable
    while not isinstance(item, (int, np.integer)):
        item = (
            int.from_bytes(item, "little") if isinstance(item, bytearray)
            else item.pixels if isinstance(item, Sample)
            else next(iter(item.values())) if isinstance(item, dict)
            else item["a"] if isinstance(item, np.void)
            else item[0]
        )  # fmt: skip
    return int(item)


REUSED = ["view", "small view", "read-only view", "list", "dict", "data class", "other class", "twice", "bytearray", "fields of an array", "own"]


@pytest.mark.parametrize("kind", REUSED)
@pytest.mark.parametrize("dispatches", [False, True], ids=["workers", "dispatch"])
def test_items_may_be_in_memory_and_objects_that_the_next_item_changes(kind: str, dispatches: bool) -> None:
    make = functools.partial(rewritten, kind)
    numbers = levada.Pipeline(range(NUM_REUSED))
    made = numbers.map(make).dispatch().filter(bool_of) if dispatches else numbers.shard().map(make)
    with made.run(1) as run:
        assert [number_in(kind, item) for item in run] == list(range(NUM_REUSED))


def bool_of(item: Any) -> bool:
    return item is not None


def test_sent_objects_are_released() -> None:
    traits = _levada.ItemTraits()
    for beside in (0, lambda: 0):  # the second value cannot be pickled
        sample = Sample("a", np.ones(1000))
        gone = weakref.ref(sample), weakref.ref(sample.pixels)
        with contextlib.suppress(AttributeError, pickle.PicklingError):
            traits.copy([sample, beside])
        del sample
        gc.collect()
        assert [each() for each in gone] == [None, None]


def test_memory_lives_as_long_as_its_views() -> None:
    received = crossed(*(np.full(10_000, at) for at in range(20)))
    kept = received[7][5:10]
    del received
    crossed(*(np.full(10_000, -1) for _ in range(40)))
    assert kept.tolist() == [7] * 5
