"""Forges messages at random and decodes them in this process, under an audit hook: classes of every imported module,
keys, attributes, plain values, and bytes that are changed afterwards.

    python python/tests/fuzz_classes.py [SECONDS] [SEED]

It fails if decoding runs a program or code, opens a file or a socket, unpickles or imports, returns an object of a
class that messages may not name or one whose attribute replaces a method or tells numpy where its memory is, raises anything but Levada's errors, or takes
longer than 10 s for a message."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import importlib
import inspect
import itertools
import os
import pathlib
import random
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import levada
import numpy as np
from levada import _levada
from levada.batch import classes, instances

import forging
from forging import Forged, leaf

for module in ("torch", "PIL.Image", "transformers.tokenization_utils_base", "urllib.response", "shelve"):
    with contextlib.suppress(ImportError):
        importlib.import_module(module)

SLOWEST = 10.0


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Row:
    ids: Any
    name: Any = None


class Bag(dict):  # type: ignore[type-arg]
    pass


class Wrapped(collections.UserDict):  # type: ignore[type-arg]
    pass


class Attributes(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else super().__getattribute__(name)


OWN = {Pair, Row, Bag, Wrapped, Attributes, forging.Watched}
WELL_KNOWN = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter, collections.UserDict}
PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, range, np.ndarray),
    *(np.str_, np.bytes_, np.datetime64, np.timedelta64, types.SimpleNamespace),
    *(pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
}
LATER = [
    *(("torch", "Size"), ("torch", "dtype"), ("torch", "device"), ("PIL.Image", "Image")),
    ("torch.nn.utils.rnn", "PackedSequence"),
    *(("transformers.tokenization_utils_base", "BatchEncoding"), ("transformers.feature_extraction_utils", "BatchFeature")),
]
PROTOCOLS = ["__array_interface__", "__array_struct__", "__array__", "__cuda_array_interface__", "_as_parameter_"]
ATTRIBUTES = [*PROTOCOLS,
              "__class__", "__dict__", "__del__", "__init__", "__reduce__", "data", "ids", "name", "left", "right", "x", "note",
              "default_factory", "_fields", "closehook", "func", "__wrapped__", "items", "0", 0, -1]  # fmt: skip
NAMES = ["os:system", "os:path.os.system", "builtins:eval", "builtins:exec", "builtins:object", "builtins:type", "posix:system",
         "subprocess:Popen", "functools:partial", "tempfile:_TemporaryFileCloser", "torch:os.system", "torch:load",
         "numpy:load", "levada:bare", "levada.pipeline.options:Options", "__main__:os.system", "__main__:Pair.__new__", "", ":",
         "__main__:", "os", "a" * 300, "\0:\0", "builtins:int", "types:FunctionType", "types:CodeType"]  # fmt: skip


def classes_of_modules() -> list[str]:
    """Returns the names of all callables in all imported modules, as module:name."""
    found = []
    for module_name, module in sorted(sys.modules.items()):
        for name, each in sorted(getattr(module, "__dict__", {}).items(), key=lambda item: str(item[0])):
            if callable(each):
                found.append(f"{module_name}:{name}")
    return found


class Forger:
    def __init__(self, random: random.Random) -> None:
        self.random = random
        own = [f"{cls.__module__}:{cls.__qualname__}" for cls in OWN]
        self.likely = [*own, *sorted(classes._CONTAINERS), *sorted(classes._LEAVES)]
        self.all = classes_of_modules()

    def name(self) -> str:
        name = self.random.choice(self.random.choice([self.likely, self.likely, NAMES, self.all]))
        if self.random.random() < 0.1:
            name += "." + str(self.random.choice(ATTRIBUTES))
        return name

    def plain(self) -> Any:
        return self.random.choice(
            [None, True, 0, -1, 3, 2**62, 0.5, "", "os.system", "x", "<U1", "|O8", "RGB", "cpu", "float32", b"", b"abcd", [1, 2, 3],
             [], {}, {"x": 1}, {1: 2}, (), ("x", 1), [("x", [1])], np.arange(3), "builtins:list", "os:abort"]
        )  # fmt: skip

    def value(self, depth: int) -> Any:
        if depth == 0:
            return self.plain()
        kind = self.random.randrange(6)
        if kind == 0:
            return self.plain()
        if kind == 1:
            return leaf(self.random.choice([*classes._LEAVES, *NAMES]), self.value(depth - 1))
        if kind == 2:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.object(depth)

    def object(self, depth: int) -> Forged:
        name = self.name()
        count = self.random.randrange(4)
        keys = self.random.sample(ATTRIBUTES, count)
        if name.endswith(":Row") and self.random.random() < 0.7:
            keys = ["ids", "name"]
        children = [self.value(depth - 1) for _ in keys]
        return Forged(name, keys, children, self.state(depth), self.random.choice(["record", "dict"]))

    def state(self, depth: int) -> Any:
        kind = self.random.randrange(5)
        if kind == 0:
            attributes = {str(key): self.value(depth - 1) for key in self.random.sample(ATTRIBUTES, 2)}
            factory = self.random.choice([None, *instances.FACTORIES, "os:abort", "os:system", 3])
            return [factory, attributes, [(str(self.random.choice(ATTRIBUTES)), self.value(depth - 1))]]
        if kind == 1:
            return {str(key): self.value(depth - 1) for key in self.random.sample(ATTRIBUTES, 2)}
        return self.value(depth - 1) if kind == 2 else None

    def message(self) -> bytes:
        """Returns a message that the encoder accepts; otherwise the decoder's classes would not be reached."""
        while True:
            with forging.forging(), contextlib.suppress(TypeError, levada.InvalidArgument):
                return levada.pack([self.value(4)])

    def changed(self, message: bytes) -> bytes:
        """Returns the message with some bytes changed. Its hash finds most accidental changes, but an attacker can
        correct the hash."""
        content = bytearray(message)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(content))
            content[at] = self.random.choice([0, 1, 255, self.random.randrange(256)])
        return bytes(content)


def parts_of(value: Any) -> Iterator[Any]:
    """Yields the value and everything that it contains."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        elif isinstance(each, dict):
            waiting += [*dict.keys(each), *dict.values(each)]
        if hasattr(each, "__dict__") and not isinstance(each, type):
            waiting += each.__dict__.values()


def changed_behavior(value: Any) -> list[str]:
    """Returns the object's attributes that replace methods, or in which packages look for memory or functions."""
    if isinstance(value, type):
        return []
    protocols = [name for name in PROTOCOLS if not hasattr(type(value), name) and hasattr(value, name)]
    attributes = getattr(value, "__dict__", {})
    return protocols + [name for name in attributes if isinstance(name, str) and callable(inspect.getattr_static(type(value), name, None))]


class Failed(AssertionError):
    pass


def check(decode: Callable[[bytes], Any], message: bytes, allowed: set[type]) -> bool:
    """Decodes a message. Returns whether it was accepted; raises Failed if decoding did something forbidden."""
    began = time.monotonic()
    result = None
    with forging.watching() as seen:
        try:
            result = decode(message)
            accepted = True
        except (levada.CorruptMessage, levada.Unsupported, levada.InvalidArgument):
            accepted = False
        except MemoryError:
            accepted = False
        parts = list(parts_of(result))
        kinds, replaced = {type(part) for part in parts}, [name for part in parts for name in changed_behavior(part)]
        parts.clear()
        result = None
    if seen:
        raise Failed(f"decoding did {seen[:3]}")
    if kinds - allowed:
        raise Failed(f"decoding made objects of {kinds - allowed}")
    if replaced:
        raise Failed(f"decoding set the attributes {replaced}")
    if time.monotonic() - began > SLOWEST:
        raise Failed(f"decoding took {time.monotonic() - began:.1f} s")
    return accepted


def fuzz(seconds: float, seed: int) -> collections.Counter[str]:
    """Returns the numbers of messages that were decoded and accepted."""
    forger = Forger(random.Random(seed))
    plain = PLAIN | WELL_KNOWN | {getattr(sys.modules[of], name) for of, name in LATER if of in sys.modules}
    decoders: list[tuple[Callable[[bytes], Any], set[type]]]
    decoders = [(levada.unpack, plain | OWN), (_levada.unpack_state, plain)]
    counts: collections.Counter[str] = collections.Counter()
    ends = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() >= ends:
            return counts
        message = forger.message()
        for each in (message, forger.changed(message)):
            for decode, allowed in decoders:
                try:
                    counts["accepted" if check(decode, each, allowed) else "refused"] += 1
                except BaseException as error:
                    error.add_note(f"message {number} of seed {seed}: {each!r}") if hasattr(error, "add_note") else None
                    raise
        if number % 200 == 0:
            gc.collect()
    raise AssertionError


if __name__ == "__main__":
    given = [float(each) for each in sys.argv[1:]]
    seed = int(given[1]) if len(given) > 1 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    print(dict(fuzz(given[0] if given else 5.0, seed)))
