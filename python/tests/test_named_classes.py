"""The classes that messages may name; and no message runs code."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import urllib.parse
import urllib.response
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import levada
import numpy as np
import pytest
from levada import _levada, exchange
from levada.batch import classes
from levada.pipeline import failures

import forging
import ranks
from forging import Forged, leaf


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Sample:
    ids: Any
    name: str = "none"

    def __post_init__(self) -> None:
        raise AssertionError("no code of the class may run")

    class Inner(NamedTuple):
        x: Any


@dataclasses.dataclass
class WithProperty:
    ids: Any

    @property
    def name(self) -> str:
        raise AssertionError("no code of the class may run")

    @name.setter
    def name(self, value: str) -> None:
        raise AssertionError("no code of the class may run")


class Noisy(dict):  # type: ignore[type-arg]
    def __init__(self, *arguments: Any) -> None:
        raise AssertionError("no code of the class may run")

    __setitem__ = __init__
    __setattr__ = __init__
    shown = functools.partial(print)


class NoisyTuple(NamedTuple("NoisyTuple", [("x", Any)])):
    def __new__(cls, *arguments: Any) -> Any:
        raise AssertionError("no code of the class may run")


@dataclasses.dataclass
class Closing:
    path: str

    def __del__(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Key:
    x: int


class Lazy(collections.abc.Mapping):  # type: ignore[type-arg]
    def __init__(self, items: Any) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@dataclasses.dataclass
class Failed(Exception):
    code: int = 0


@dataclasses.dataclass(frozen=True)
class Cost:
    flops: int = 0


class Kind(Cost, enum.Enum):
    CHEAP = 1


class Attributes(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else super().__getattribute__(name)


HERE = __name__
MEMORY = {"shape": (4,), "typestr": "|u1", "data": (0x41414141, False), "version": 3}
PROTOCOLS = ["__array_interface__", "__array_struct__", "__cuda_array_interface__", "_as_parameter_"]


def hook_of(target: str) -> Any:
    """Returns forged objects that once called os.system(target) when Python released them: a closer with a hook."""
    hook = Forged(
        "levada.pipeline.options:Options",
        ["closehook", "hookargs", "file", "__class__"],
        [leaf("torch:dtype", "os.system"), [target], None, leaf("torch:dtype", "urllib.response.addclosehook")],
    )
    return Forged(
        "levada.pipeline.options:Options",
        ["file", "name", "delete", "close_called", "__class__"],
        [hook, "/nonexistent", False, False, leaf("torch:dtype", "_utils_internal.tempfile._TemporaryFileCloser")],
    )


MODULES_PATHS = ["os:system", "posix:system", "builtins:eval", "subprocess:Popen", "tempfile:_TemporaryFileCloser", "os:path.os.system"]
FORGERIES: list[Any] = [
    hook_of("echo run"),
    Forged(f"{HERE}:Sample", ["ids", "name", "__class__"], [1, "x", 2]),
    Forged(f"{HERE}:Sample", ["ids"], [1]),
    Forged(f"{HERE}:Sample", ["ids", "name"], [1, "x"], {"__post_init__": 1}),
    Forged(f"{HERE}:Sample", ["ids", "name"], [1, "x"], {"note": [1]}),
    Forged(f"{HERE}:Sample", ["ids", "name"], [1, "x"], [("note", 1)]),
    Forged(f"{HERE}:WithProperty", ["ids"], [1], {"name": "x"}),
    Forged(f"{HERE}:Pair", ["left"], [1]),
    Forged(f"{HERE}:Pair.__new__", [], []),
    Forged(f"{HERE}:Pair.__base__", [], []),
    Forged(f"{HERE}:os.system", ["x"], ["x"]),
    Forged(f"{HERE}:tempfile._TemporaryFileCloser", ["x"], [1]),
    Forged(f"{HERE}:levada.Pipeline", ["x"], [1]),
    Forged(f"{HERE}:Closing", ["path"], ["x"]),
    Forged(f"{HERE}:Lazy", ["x"], [1], kind="dict"),
    Forged(f"{HERE}:", ["x"], [1]),
    Forged(":", ["x"], [1]),
    Forged("os", ["x"], [1]),
    *(Forged(name, [str(i) for i in range(length)], ["x"] * length) for name in MODULES_PATHS for length in (0, 1, 3)),
    Forged("levada.pipeline.options:Options", ["workers"], [1]),
    Forged("os:_Environ", ["x"], ["y"], [None, {"encodekey": 1}, []], "dict"),
    Forged("shelve:Shelf", ["x"], [b"y"], [None, {"dict": {b"x": b"cos\nsystem\n(S'x'\ntR."}}, []], "dict"),
    Forged("builtins:dict", ["x"], [1], [None, {"x": 1}, []], "dict"),
    Forged("builtins:dict", ["x"], [1], [None, {}, [("x", [])]], "dict"),
    Forged("builtins:dict", ["x"], [1], [None, {}, [("x", Forged(f"{HERE}:Key", ["x"], [1]))]], "dict"),
    Forged("collections:defaultdict", ["x"], [1], ["os:abort", {}, []], "dict"),
    Forged("collections:defaultdict", ["x"], [1], ["builtins:input", {}, []], "dict"),
    Forged("collections:defaultdict", ["x"], [1], [f"{HERE}:Noisy", {}, []], "dict"),
    Forged("collections:defaultdict", ["x"], [1], [3, {}, []], "dict"),
    Forged("collections:UserDict", ["x"], [1], {"data": 1}, "dict"),
    Forged("collections:OrderedDict", ["x"], [1], [None, {1: 2}, []], "dict"),
    Forged("collections:OrderedDict", ["x"], [1], [None, {"items": [1]}, []], "dict"),
    Forged("collections:UserDict", ["x"], [1], [None, {"get": 1}, []], "dict"),
    Forged("types:SimpleNamespace", ["__reduce_ex__"], [1]),
    *(Forged("types:SimpleNamespace", [name], [MEMORY]) for name in PROTOCOLS),
    *(Forged(f"collections:{name}", [], [], [None, {PROTOCOLS[0]: MEMORY}, []], "dict") for name in ("OrderedDict", "UserDict")),
    Forged(f"{HERE}:Attributes", [PROTOCOLS[0]], [MEMORY], None, "dict"),
    Forged(f"{HERE}:Sample", ["ids", "name"], [1, "x"], {"_as_parameter_": 1}),
    Forged(f"{HERE}:Failed", ["code"], [1]),
    Forged(f"{HERE}:Kind", ["flops"], [1]),
    Forged(f"{HERE}:Noisy", ["x"], [1], [None, {"__setitem__": 1}, []], "dict"),
    Forged(f"{HERE}:Noisy", ["x"], [1], [None, {"shown": 1}, []], "dict"),
    *(leaf("torch:dtype", name) for name in ("os.system", "float33", "load", "nn", 3, None)),
    *(leaf("torch:device", name) for name in ("os.system", "cpu:", "cpu\n", "x" * 99, 3)),
    *(leaf("torch:Size", sizes) for sizes in ("ab", [1.5], [2**70], None)),
    *(leaf("builtins:int", digits) for digits in ("x", [1, 2], 5, Forged(f"{HERE}:Pair", ["left", "right"], [1, 2]))),
    *(leaf("builtins:complex", parts) for parts in ([1.0], ["1", "2"], [1.0, 2.0, 3.0], "1j")),
    *(leaf("builtins:range", ends) for ends in ([1, 2], [1, 2, 0], [1.0, 2, 3], "abc", [True, 2, 3])),
    *(leaf(f"builtins:{name}", of) for name in ("set", "frozenset") for of in ([[1]], {"a": 1}, "abc", [leaf(f"{HERE}:Key", 1)])),
    *(leaf("builtins:bytearray", of) for of in (1 << 40, "x", [1, 2])),
    *(leaf("pathlib:PosixPath", of) for of in ("x", 3, None, [b"x"])),
    leaf("numpy:ndarray", ["O", [1], b"12345678"]),
    leaf("numpy:ndarray", ["|O8", [1], b"12345678"]),
    leaf("numpy:ndarray", ["i4,O", [1], b"1234567812345678"]),
    leaf("numpy:ndarray", ["U1", [1 << 40], b""]),
    leaf("numpy:ndarray", ["<U1", [-1], b""]),
    leaf("numpy:ndarray", ["<U0", [1 << 40], b""]),
    leaf("numpy:ndarray", ["<U1", [2], b"1234"]),
    leaf("numpy:ndarray", ["<M8[parsec]", [1], b"12345678"]),
    leaf("numpy:ndarray", ["<U1", "ab", b""]),
    *(leaf(f"numpy:{name}", [f"{order}U1", [], b"\xff\xff\xff\xff"]) for name in ("ndarray", "str_") for order in "<>"),
    *(leaf(f"builtins:{name}", [i * (2**61 - 1) for i in range(2000)]) for name in ("set", "frozenset")),
    leaf("numpy:str_", ["<U1", [1], b"1234"]),
    leaf("PIL.Image:Image", ["RGB", [1 << 20, 1 << 20], b"123", None, None]),
    leaf("PIL.Image:Image", ["os", [1, 1], b"123", None, None]),
    leaf("PIL.Image:Image", ["RGB", [1, -1], b"123", None, None]),
    Forged("builtins:int", ["x", "y"], [b"1", b"2"]),
    Forged("builtins:int", [], []),
]


class Loader:
    """A loader with this state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def __iter__(self) -> Iterator[Any]:
        return iter([{"x": np.arange(4) + i} for i in range(8)])

    def state_dict(self) -> Any:
        return {"n": 3, "rng": self.state}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("a forged state was loaded")


def through_unpack(forged: Any, folder: pathlib.Path) -> Callable[[], Any]:
    with forging.forging():
        message = levada.pack([forged])
    return lambda: levada.unpack(message)


def through_a_feed_state(forged: Any, folder: pathlib.Path) -> Callable[[], Any]:
    with forging.forging():
        feed = levada.Feed(Loader(forged), iterate="inline")
        batches = iter(feed)
        next(batches)
        state = feed.state_dict()
        del batches

    def load() -> None:
        feed = levada.Feed(Loader())
        feed.load_state_dict(state)
        next(iter(feed))

    return load


def through_a_pipeline_state(forged: Any, folder: pathlib.Path) -> Callable[[], Any]:
    with forging.forging(), levada.Pipeline(Loader(forged)).run() as run:
        next(iter(run))
        state = run.state_dict()

    def load() -> None:
        with levada.Pipeline(Loader()).run() as run:
            run.load_state_dict(state)
            next(iter(run))

    return load


def through_a_cache(forged: Any, folder: pathlib.Path) -> Callable[[], Any]:
    with forging.forging(), levada.Pipeline([[forged]]).cache(folder / "cache").run() as run:
        list(run)

    def load() -> None:
        with levada.Pipeline([[None]]).cache(folder / "cache").run() as run:
            list(run)

    return load


def through_an_exchange(forged: Any, folder: pathlib.Path) -> Callable[[], Any]:
    tokens = {"tokens": np.arange(2)}, {"tokens": [2]}
    with forging.forging():
        batch = exchange.SampleBatch(["a"], *tokens, values=[{"meta": [forged]}])
    return lambda: batch.values(0)


DOORS = [through_unpack, through_a_feed_state, through_a_pipeline_state, through_a_cache, through_an_exchange]
RUN = ("os.system", "os.exec", "os.posix_spawn", "subprocess", "pty", "exec", "pickle.find_class")
REFUSALS = (levada.CorruptMessage, levada.Unsupported, levada.InvalidArgument, levada.SourceError)


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS)
def test_forged_bytes_run_no_code_through_any_door(door: Any, tmp_path: pathlib.Path) -> None:
    through_unpack([], tmp_path)()  # imports everything that it needs
    taken = []
    for number, forged in enumerate(FORGERIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        load = door(forged, folder)
        with forging.watching() as seen:
            try:
                taken.append((forged.parts, repr(load())))
            except REFUSALS:
                pass
            gc.collect()
        assert not [event for event in seen if event.event.startswith(RUN)], forged.parts
    assert not taken


def test_a_hostile_rank_runs_no_code(tmp_path: pathlib.Path) -> None:
    body = f"""
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        import contextlib, gc
        import forging, test_named_classes as forgeries
        def batches():
            for forged in forgeries.FORGERIES: yield {{"x": [forged]}}
        with forging.forging() if rank == 0 else contextlib.nullcontext():
            for forged in forgeries.FORGERIES[:12]:
                feed = levada.Feed([{{"x": [forged]}}] if rank == 0 else None, mesh=levada.Mesh(tp=2))
                with forging.watching() as seen:
                    try:
                        for batch in feed: tell(taken=repr(batch))
                    except levada.Error as error:
                        tell(error=type(error).__name__)
                    gc.collect()
                tell(seen=[event for event in seen if event.event.startswith(("os.system", "subprocess"))])
                with contextlib.suppress(levada.Error): feed.close()
    """
    told = ranks.run(tmp_path, 2, body).told
    assert {"error": "Unsupported"} in told[1]
    assert not [each for each in told[1] if each.get("taken") or each.get("seen")], told[1]


def with_attribute(value: Any, name: str) -> Any:
    vars(value)[name] = 1
    return value


def again(value: Any) -> Any:
    return levada.unpack(levada.pack([value]))[0]


def test_classes_of_the_program_cross_without_running_their_code() -> None:
    sample = object.__new__(Sample)
    sample.ids, sample.name = [1], "x"
    assert again(sample) == sample
    assert again(Sample.Inner(1)) == Sample.Inner(1)
    noisy = dict.__new__(Noisy)
    dict.update(noisy, a=1)
    noisy.__dict__["note"] = 2
    assert type(again(noisy)) is Noisy and again(noisy) == {"a": 1} and again(noisy).note == 2
    lone = tuple.__new__(NoisyTuple, (3,))
    assert type(again(lone)) is NoisyTuple and again(lone) == (3,)
    assert again({Pair(1, 2): 3}) == {Pair(1, 2): 3}


class Counted(dict):  # type: ignore[type-arg]
    @functools.cached_property
    def total(self) -> int:
        return sum(self.values())


def test_names_of_columns_may_be_keys_of_a_dict_with_attributes() -> None:
    batch = Attributes(__key__=["a", "b"], __index_level_0__=np.arange(2))
    assert again(batch)["__key__"] == ["a", "b"] and again(batch).__index_level_0__.tolist() == [0, 1]


def test_a_cached_property_is_computed_again() -> None:
    counted = Counted(a=1, b=2)
    assert counted.total == 3 and vars(counted) == {"total": 3}
    assert vars(again(counted)) == {} and again(counted).total == 3


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Closing("x"), "defines __del__"),
        (Lazy({"x": 1}), "a Mapping that only its own code can make"),
        (types.MappingProxyType({}), "not found by that name|installed package"),
        (collections.ChainMap({}), "belongs to an installed package"),
        (urllib.parse.urlparse("x:y"), "belongs to an installed package"),
        ({Key(1): 2}, "whose own code computes its hash"),
        ({Key(1)}, "whose own code computes its hash"),
        (collections.defaultdict(Noisy), "is not one of list, dict"),
        (with_attribute(collections.OrderedDict(), "items"), "attribute items hides a method of collections:OrderedDict"),
        (types.SimpleNamespace(items=1, __array_interface__=MEMORY), "attribute __array_interface__ has a name in which packages look for memory"),
        (Attributes(__array_interface__=MEMORY), "attribute __array_interface__ has a name in which packages look for memory"),
        (Attributes({"__key__": "x"}), "attribute __key__ has a name in which packages look for memory"),
        (Failed(1), "its class is Failed; register it"),
        (Kind.CHEAP, "its class is Kind; register it"),
    ],
)
def test_the_sender_refuses_the_classes_that_receivers_would_refuse(value: Any, why: str) -> None:
    with pytest.raises(TypeError, match=rf"^batch\['x'\].* cannot cross between ranks: .*({why})"):
        levada.pack({"x": value})


def test_a_data_class_with_a_property_for_a_field_is_refused() -> None:
    @dataclasses.dataclass
    class Loud:
        name: str

    Loud.name = property(lambda self: "x", lambda self, value: None)  # type: ignore[assignment]
    assert "sets its field name by its own code" in str(classes._own_code(Loud))


def test_one_line_registers_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    message_of = functools.partial(_levada.pack_state)
    for cls, value in ((Lazy, Lazy({"x": 1})), (Closing, Closing("x")), (Pair, Pair(1, 2))):
        with pytest.raises(TypeError, match=rf"is not registered.*call levada.register\({cls.__name__}\) on every rank"):
            message_of(value)
    try:
        for cls, value in ((Lazy, Lazy({"x": 1})), (Closing, Closing("x")), (Pair, Pair(1, 2))):
            assert levada.register(cls) is cls
            result = _levada.unpack_state(message_of(value))
            assert type(result) is cls and result == value
            assert again(value) == value
    finally:
        classes._registered_containers.clear()
        classes._refusal.cache_clear()


def test_other_classes_are_registered_with_functions() -> None:
    with pytest.raises(levada.InvalidArgument, match="pass flatten and unflatten to levada.register.."):
        levada.register(Loader)


def test_states_hold_registered_classes_only() -> None:
    for value in (Pair(1, 2), dict.__new__(Noisy)):
        with pytest.raises(TypeError, match="is not registered, as the classes of saved objects have to be"):
            _levada.pack_state({"x": value})
        with pytest.raises(levada.Unsupported, match=f"{HERE}:{type(value).__name__}, which is not registered"):
            _levada.unpack_state(levada.pack({"x": value}))
    kept = {"a": collections.OrderedDict(x={1, 2}), "b": [np.arange(3), pathlib.Path("x"), 2**80]}
    assert repr(_levada.unpack_state(_levada.pack_state(kept))) == repr(kept)


def test_a_class_of_an_installed_package_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("site-packages", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"of_{folder[:3]}.py").write_text("import typing\nclass Row(typing.NamedTuple):\n    x: int\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert again(__import__("of_src").Row(1)) == (1,)
    with pytest.raises(TypeError, match="of_sit:Row belongs to an installed package"):
        levada.pack(__import__("of_sit").Row(1))
    for name in ("of_src", "of_sit"):
        del sys.modules[name]


def test_an_exception_of_another_process_is_found_by_its_own_name_only() -> None:
    class Elsewhere:
        path = os
        temp = tempfile

    for name in ("os:error", f"{HERE}:levada.Error", f"{HERE}:urllib.error.HTTPError", "tempfile:_TemporaryFileCloser"):
        packed = _levada.pack_state(["1 x", 0, name, ["x"], {}, []])
        assert type(failures.unpack("text", "s", "p", 1, "t", packed)) is levada.StageFailed
    packed = _levada.pack_state(["1 x", 0, "builtins:KeyError", ["x"], {"note": 1}, []])
    assert repr(failures.unpack("text", "s", "p", 1, "t", packed)) == "KeyError('x')"


def test_the_name_of_a_class_imports_no_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waiting.py").write_text("class Row(dict): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("waiting")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "waiting", module)
    spec.loader.exec_module(module)
    assert classes.find("waiting:Row") is None
    assert type(module) is not types.ModuleType, "the module was imported"


@pytest.mark.long
def test_messages_forged_at_random_run_no_code() -> None:
    fuzzer = pathlib.Path(__file__).with_name("fuzz_classes.py")
    ended = subprocess.run([sys.executable, str(fuzzer), "4"], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "'accepted'" in ended.stdout and "'refused'" in ended.stdout


def test_many_marks_are_read_in_a_time_that_grows_with_their_number() -> None:
    values = [value for i in range(60_000) for value in (np.float32(i), float(i))]
    assert again(values) == values  # 1.8 billion comparisons if each value searched all marks
