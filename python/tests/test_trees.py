"""Batches packed and unpacked, in one process."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import os
import pathlib
import subprocess
import sys
import threading
import types
from typing import Any, NamedTuple

import levada
import ml_dtypes
import numpy as np
import optree
import pytest
from optree.registry import __GLOBAL_NAMESPACE as optree_global

import plain_values
from plain_values import PLAIN_VALUES


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    ids: Any
    name: str = "none"


@dataclasses.dataclass
class Measured:
    ids: Any

    def __post_init__(self) -> None:
        self.longest = max(self.ids)
        self.lock = threading.Lock()

    @functools.cached_property
    def count(self) -> int:
        return len(self.ids)


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """Like a tokenizers result: a UserDict whose keys are attributes, too."""

    def __init__(self, data: Any, **attributes: Any) -> None:
        super().__init__(data)
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Named(dict):  # type: ignore[type-arg]
    pass


class Opaque:
    def __init__(self, ids: Any, unit: str) -> None:
        self.ids, self.unit = ids, unit


class OpaqueToo(Opaque):
    pass


levada.register(Opaque, lambda o: ((o.ids,), {"unit": o.unit}, ("ids",)), lambda s, c: Opaque(c[0], s["unit"]))

def again(batch: Any) -> Any:
    return levada.unpack(levada.pack(batch))


@pytest.mark.parametrize("value", [None, True, False, 0, -(2**63), 2**63 - 1, 0.1, float("inf"), "", "ü", b"", b"\0x"])
def test_plain_values_come_back(value: Any) -> None:
    result = again({"v": value})["v"]
    assert result == value and type(result) is type(value)
    assert again(value) == value  # as the whole message


def test_containers_come_back_as_their_types_in_order() -> None:
    batch = {
        "z": [1, (2, "three")],
        "a": collections.OrderedDict([("y", 1), ("b", 2)]),
        7: collections.defaultdict(list, {"k": [1]}),
        "named": Named(x=1),
        "pair": Pair(1, [2]),
        "counter": collections.Counter("aab"),
        "empty": [(), {}, []],
    }
    result = again(batch)
    assert result == batch
    assert list(result) == list(batch)
    assert {key: type(value) for key, value in result.items()} == {key: type(value) for key, value in batch.items()}
    assert result[7].default_factory is list


@pytest.mark.parametrize("value", PLAIN_VALUES)
def test_plain_values_of_other_classes_come_back(value: Any) -> None:
    result = again({"v": [value], "w": 1})["v"][0]
    assert plain_values.same(result, value)
    assert again(value) == value  # as the whole message


def test_equal_sets_are_equal_messages_in_any_iteration_order() -> None:
    script = "import levada; print(levada.pack([{'a', 'b', 'c', frozenset({'d', 'e', 1}), (1, None)}]).hex())"
    told = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", script]
        told.add(subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout)
    assert len(told) == 1


def test_complex_numbers_come_back_bit_for_bit() -> None:
    result = again([complex(-0.0, float("-nan"))])[0]
    assert np.complex128(result).tobytes() == np.complex128(complex(-0.0, float("-nan"))).tobytes()


@pytest.mark.parametrize(
    "value",
    [
        {(1, 2): [3], True: "yes", 1.5: None, None: 1, "s": 2, 7: 3},
        {2**64: 1, b"x": {(): 0}},
        {"(1, 2)": 1, (1, 2): 2},
        {frozenset({1}): pathlib.Path("x"), pathlib.Path("y"): 1},
        collections.OrderedDict([((2,), 1), ((1,), 2)]),
        collections.defaultdict(list, {(1, 2): [3]}),
        collections.Counter([(1, 2), (1, 2), "a"]),
        Named({None: 1}),
    ],
)
def test_dicts_with_plain_keys_come_back_in_order(value: Any) -> None:
    result = again({"v": value})["v"]
    assert result == value and type(result) is type(value)
    assert list(map(repr, result)) == list(map(repr, value))


def test_a_namespace_holds_tensors() -> None:
    result = again([types.SimpleNamespace(ids=np.arange(3))])[0]
    assert type(result) is types.SimpleNamespace and result.ids.tolist() == [0, 1, 2]


def test_a_message_nested_in_itself_too_deep_is_refused() -> None:
    value: Any = frozenset()
    for _ in range(40):
        value = frozenset({value})
    assert again([value]) == [value]
    for _ in range(40):
        value = frozenset({value})
    with pytest.raises(TypeError, match="nested more than"):
        levada.pack([value])


def test_a_user_dict_keeps_its_attributes() -> None:
    encoding = Encoding({"input_ids": np.arange(4)})
    encoding.n = 3
    result = again([encoding])[0]
    assert type(result) is Encoding
    assert result.input_ids.tolist() == [0, 1, 2, 3] and result.n == 3


def test_a_frozen_data_class_comes_back() -> None:
    result = again(Sample(np.ones(2), "x"))
    assert type(result) is Sample and result.name == "x" and result.ids.tolist() == [1, 1]


def test_a_data_class_keeps_plain_attributes_that_are_not_fields() -> None:
    measured = Measured([1, 7, 2])
    assert measured.count == 3
    result = again([measured])[0]
    assert result == measured and result.longest == 7
    assert "count" not in vars(result) and not hasattr(result, "lock")


def test_a_registered_type_keeps_its_state() -> None:
    result = again({"o": Opaque(np.arange(3), "metre")})["o"]
    assert type(result) is Opaque and result.unit == "metre" and result.ids.tolist() == [0, 1, 2]


def test_the_registry_of_optree_is_honoured() -> None:
    optree.register_pytree_node(OpaqueToo, lambda o: ((o.ids,), o.unit), lambda s, c: OpaqueToo(*c, s), namespace=optree_global)
    result = again([OpaqueToo(np.arange(2), "mile")])[0]
    assert type(result) is OpaqueToo and result.unit == "mile" and result.ids.tolist() == [0, 1]


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_arrays_of_all_dtypes_come_back_bit_for_bit(dtype: Any) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4)
    for view in (array, array[1:, ::2], array.T, array[:0], array[1:2, 1].reshape(()), array[::-1]):
        result = again({"x": view})["x"]
        assert type(result) is np.ndarray
        assert result.dtype == view.dtype and result.shape == view.shape
        assert result.tobytes() == view.tobytes()


def test_an_array_larger_than_memory_is_refused_by_its_path_and_not_kept() -> None:
    array = np.broadcast_to(np.zeros(1, np.int8), (2**61,))
    references = sys.getrefcount(array)
    for _ in range(3):
        with pytest.raises(levada.InvalidArgument, match=r"^batch\['x'\] cannot cross between ranks: .*do not fit in memory"):
            levada.pack({"x": array})
    assert sys.getrefcount(array) == references


def test_numpy_scalars_come_back_as_numpy_scalars() -> None:
    result = again({"x": np.float32(1.5)})["x"]
    assert type(result) is np.float32 and result == 1.5


@pytest.mark.parametrize("value", [np.bytes_(b"ab\0"), np.str_("ab\0"), np.str_("\ud800")], ids=ascii)
def test_scalar_text_of_numpy_keeps_its_last_characters(value: Any) -> None:
    (made,) = levada.unpack(levada.pack([value]))
    assert type(made) is type(value) and list(made) == list(value)


def test_an_array_without_a_container_is_a_batch() -> None:
    assert again(np.arange(3)).tolist() == [0, 1, 2]


def test_any_dlpack_producer_is_a_tensor() -> None:
    class Producer:
        def __dlpack__(self, **arguments: Any) -> Any:
            return np.arange(5).__dlpack__(**arguments)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    assert again([Producer()])[0].tolist() == [0, 1, 2, 3, 4]


def test_aliases_cross_once_and_come_back_aliased() -> None:
    large = np.zeros(100_000)
    message = levada.pack({"a": large, "b": [large], "c": large[:10]})
    assert len(message) < 1.1 * large.nbytes
    result = levada.unpack(message)
    assert result["a"] is result["b"][0] and result["c"] is not result["a"]


def test_arrays_are_read_only_views_that_keep_their_memory() -> None:
    array = again([np.arange(1000)])[0]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert array.sum() == 499_500


class Colour(enum.IntEnum):
    red = 1


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ({"meta": [0, 1, Pair(1, len)]}, r"batch\['meta'\]\[2\]\.right"),
        ({"a": {3: np.array([len])}}, r"batch\['a'\]\[3\]"),
        ({"a": np.array([None])}, r"batch\['a'\]"),
        ([np.zeros(2, ">i4")], r"batch\[0\]"),
        ({"a": [{(1, len): 3}]}, r"batch\['a'\]\[0\]\.state\[2\]\[0\]\[1\]\[1\]"),
        ({"a": {1, len}}, r"batch\['a'\]\.state\[[01]\]"),
        ([Colour.red], r"batch\[0\]"),
        ([np.ma.masked_array([1], [0])], r"batch\[0\]"),
        ([collections.defaultdict(lambda: 0)], r"batch\[0\]\.default_factory"),
        ([collections.defaultdict(functools.partial(int))], r"batch\[0\]\.default_factory"),
        ({"e": Encoding({"ids": 1}, tool=len)}, r"batch\['e'\]\.state\[1\]\['tool'\]"),
        ({"o": Opaque(1, len)}, r"batch\['o'\]\.state\[0\]\['unit'\]"),  # type: ignore[arg-type]
        ({"name": os.fsdecode(b"\xff")}, r"batch\['name'\]"),
        ([{os.fsdecode(b"\xff"): 1}], r"batch\[0\]"),
        (len, "batch"),
    ],
)
def test_the_error_names_the_path_of_a_value_that_cannot_cross(batch: Any, path: str) -> None:
    with pytest.raises(TypeError, match=f"^{path} cannot cross"):
        levada.pack(batch)


@pytest.mark.parametrize("value", [object(), np.zeros(2, ">i4"), collections.defaultdict(lambda: 0), os.fsdecode(b"\xff")])
def test_the_path_in_an_error_escapes_keys(value: Any) -> None:
    with pytest.raises(TypeError) as raised:
        levada.pack({"a\x1b[2J\n\u202e": value})
    text = str(raised.value)
    assert text.startswith(r"batch['a\x1b[2J\n\u202e']") and " cannot cross between ranks: " in text and text.isprintable()


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_batch_that_contains_itself_is_refused(allow_pickle: bool) -> None:
    batch: list[Any] = []
    batch += [batch, batch]
    by_key: dict[str, Any] = {}
    by_key.update(a=[1, by_key], b=by_key)
    measured = Measured([1])
    measured.ids = [measured, (measured,)]
    for value, path in (
        (batch, r"batch\[0\]"),
        ({"x": batch}, r"batch\['x'\]\[0\]"),
        (by_key, r"batch\['a'\]\[1\]"),
        (measured, r"batch\.ids\[0\]"),
    ):
        with pytest.raises(TypeError, match=f"^{path} cannot cross between ranks: it contains itself"):
            levada.pack(value, allow_pickle=allow_pickle)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_batch_of_too_many_nodes_is_refused(allow_pickle: bool) -> None:
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(levada.InvalidArgument, match="more than 262144 values"):
        levada.pack(shared, allow_pickle=allow_pickle)
    assert len(levada.unpack(levada.pack([set(range(200_000)), [0] * 200_000]))[0]) == 200_000


def test_a_container_may_be_in_a_batch_twice() -> None:
    shared = [1]
    assert levada.unpack(levada.pack([shared, {"x": shared}, shared])) == [[1], {"x": [1]}, [1]]


def test_a_batch_nested_too_deep_is_refused() -> None:
    batch: list[Any] = []
    for _ in range(64):
        batch = [batch]
    with pytest.raises(TypeError, match="nested more than 64 deep"):
        levada.pack(batch)
    assert levada.unpack(levada.pack(batch, allow_pickle=True), allow_pickle=True) == batch


def test_a_local_class_is_refused() -> None:
    class Local(NamedTuple):
        x: int

    with pytest.raises(TypeError, match=r"Local is not found by that name"):
        levada.pack([Local(1)])


class Plain:
    def __eq__(self, other: object) -> bool:
        return type(other) is Plain


@pytest.mark.parametrize(
    "value",
    [
        {(1, len): [3]},
        {1, len},
        np.array([{"a": 1}, None]),
        np.ma.masked_array([1, 2], [0, 1]),
        collections.defaultdict(functools.partial(int), a=1),
        Named({len: 1}),
        [os.fsdecode(b"\xff")],
        Plain(),
    ],
)
def test_other_objects_are_pickled_if_pickles_are_allowed(value: Any) -> None:
    message = levada.pack({"x": value, "y": [np.arange(3)]}, allow_pickle=True)
    result = levada.unpack(message, allow_pickle=True)
    assert type(result["x"]) is type(value) and repr(result["x"]) == repr(value) or result["x"] == value
    assert result["y"][0].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"^batch\['x'\]"):
        levada.pack({"x": value})


def test_the_error_names_the_path_of_a_value_that_cannot_be_pickled() -> None:
    with pytest.raises(levada.Unsupported, match=r"^batch\['a'\]\[1\] cannot cross.*generator"):
        levada.pack({"a": [0, (i for i in "x")]}, allow_pickle=True)


class Interrupting:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MemoryError()])
def test_an_exception_that_ends_the_process_is_no_failure_to_pickle(error: BaseException) -> None:
    with pytest.raises(type(error)):
        levada.pack([Interrupting(error)], allow_pickle=True)


def test_pickle_needs_permission_at_both_ends() -> None:
    message = levada.pack({"f": Colour.red}, allow_pickle=True)
    assert levada.unpack(message, allow_pickle=True)["f"] is Colour.red
    with pytest.raises(levada.Unsupported, match="allow_pickle"):
        levada.unpack(message)


def test_a_class_of_an_unimported_module_is_named_but_not_imported() -> None:
    message = levada.pack([Pair(1, 2)]).replace(__name__.encode(), b"x" * len(__name__))
    with pytest.raises(levada.CorruptMessage):
        levada.unpack(message)  # the hash does not match
    module = sys.modules.pop(__name__)
    try:
        with pytest.raises(levada.Unsupported, match=f"import {__name__} on every rank"):
            levada.unpack(levada_message)
    finally:
        sys.modules[__name__] = module


def test_a_class_is_imported_if_pickles_are_allowed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text("import typing\nclass Late(typing.NamedTuple):\n    x: int\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("imported_late")
    message = levada.pack([module.Late(1)])
    del sys.modules["imported_late"]
    with pytest.raises(levada.Unsupported, match=r"import imported_late on every rank, or pass allow_pickle=True"):
        levada.unpack(message)
    assert "imported_late" not in sys.modules
    assert levada.unpack(message, allow_pickle=True)[0].x == 1
    del sys.modules["imported_late"]
    monkeypatch.undo()
    with pytest.raises(levada.Unsupported, match="imported_late.*No module named"):
        levada.unpack(message, allow_pickle=True)


levada_message = levada.pack([Pair(1, 2)])


@pytest.mark.parametrize("message", [b"", b"x", b"\0" * 200, levada_message[:-1]])
def test_other_bytes_are_a_corrupt_message(message: bytes) -> None:
    with pytest.raises(levada.CorruptMessage):
        levada.unpack(message)
