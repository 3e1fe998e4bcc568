"""Types and memory of items that cross from one process of a pipeline to another."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fractions
import gc
import pickle
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

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
