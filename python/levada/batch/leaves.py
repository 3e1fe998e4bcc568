"""Plain values without a leaf type, and the forms in which they are sent: numbers, paths, images, numpy and torch
values."""

from __future__ import annotations

import functools
import importlib
import math
import os
import pathlib
import re
import struct
import sys
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from levada.base.errors import CorruptMessage, Error, Unsupported

PLAIN = frozenset((bool, int, float, str, bytes, type(None)))


class Leaf(NamedTuple):
    """The form in which a plain value without a leaf type of its own is sent. put_together() gets untrusted parts."""

    take_apart: Callable[[Any], Any]
    put_together: Callable[[Any], Any]


def in_order(elements: Collection[Any]) -> list[Any]:
    """Returns the elements of a set in an order that is the same in every process."""
    kinds = set(map(type, elements))
    if len(kinds) == 1 and kinds < {str, int, bytes}:
        return sorted(elements)
    return list(elements) if len(elements) < 2 else sorted(elements, key=_canonical)


def _canonical(element: Any) -> str:
    """Returns a repr() that does not depend on the order in which this process iterates sets."""
    if isinstance(element, frozenset):
        return f"frozenset({sorted(map(_canonical, element))})"
    if isinstance(element, tuple):
        return f"{type(element).__name__}({list(map(_canonical, element))})"
    return f"{type(element).__name__} {element!r}"


_TEXT_AND_TIME = re.compile(r"[<>|]?[SU]\d{0,9}|[<>|]?[mM]8(\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""Names of numpy dtypes of bytes, strings, dates and durations."""


def expect(is_valid: bool, what: str) -> None:
    if not is_valid:
        raise CorruptMessage(f"the message holds no valid {what}")


def typed(value: Any, *classes: type) -> Any:
    """Returns an untrusted value if it is exactly of one of these classes, so that using it runs no other class's code.
    Raises CorruptMessage otherwise."""
    expect(type(value) in classes, " or ".join(cls.__name__ for cls in classes))
    return value


def list_of(value: Any, *classes: type, length: int | None = None) -> list[Any]:
    """Returns an untrusted list if its elements are exactly of these classes. Raises CorruptMessage otherwise."""
    expect(type(value) is list and set(map(type, value)) <= set(classes) and length in (None, len(value)), "list of numbers")
    return value  # type: ignore[no-any-return]


def _array_parts(value: Any) -> list[Any]:
    array = sys.modules["numpy"].asarray(value)
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _array(parts: Any) -> Any:
    expect(type(parts) is list and len(parts) == 3, "array")
    dtype, shape, elements = typed(parts[0], str), list_of(parts[1], int), typed(parts[2], bytes)
    expect(_TEXT_AND_TIME.fullmatch(dtype) is not None, "dtype of text or time")
    numpy = importlib.import_module("numpy")
    made = numpy.dtype(dtype)
    count = math.prod(shape)
    expect(len(shape) <= 32 and all(0 <= size < 1 << 48 for size in shape), "shape of an array")
    expect(count * made.itemsize == len(elements) and count <= max(1 << 20, len(elements)), "array")
    if made.kind == "U" and elements:
        expect(numpy.frombuffer(elements, f"{made.byteorder}u4").max() <= sys.maxunicode, "text of an array")
    return numpy.ndarray(shape, made, bytearray(elements))


def _text(content: Any) -> Any:
    return importlib.import_module("numpy").str_("".join(map(chr, memoryview(typed(content, bytes)).cast("I"))))


def _bytes(content: Any) -> Any:
    return importlib.import_module("numpy").bytes_(typed(content, bytes))


def _scalar(parts: Any) -> Any:
    array = _array(parts)
    expect(array.shape == (), "numpy scalar")
    return array[()]


_BITS_OF_MODES = {
    **dict.fromkeys(("L", "P"), 8),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 32),
    "1": 1,
}
"""Bits per pixel in tobytes() of PIL's images, by mode."""


def _image_parts(image: Any) -> list[Any]:
    palette = image.palette
    colors = None if palette is None else [palette.mode, palette.tobytes()]
    return [image.mode, list(image.size), image.tobytes(), colors, image.info.get("transparency")]


def _image(parts: Any) -> Any:
    expect(type(parts) is list and len(parts) == 5, "image")
    mode, size, pixels = typed(parts[0], str), list_of(parts[1], int, length=2), typed(parts[2], bytes)
    palette, transparency = parts[3:]
    expect(mode in _BITS_OF_MODES and all(0 <= side < 1 << 31 for side in size), "image")
    expect((size[0] * _BITS_OF_MODES[mode] + 7) // 8 * size[1] == len(pixels), "image, its pixels have another size")
    made = importlib.import_module("PIL.Image").frombytes(mode, tuple(size), pixels)
    if palette is not None:
        list_of(palette, str, bytes, length=2)
        expect(palette[0] in ("RGB", "RGBA", "L") and len(typed(palette[1], bytes)) <= 1024, "palette of an image")
        made.putpalette(palette[1], palette[0])
    if transparency is not None:
        if type(transparency) is tuple:
            list_of(list(transparency), int)
        made.info["transparency"] = typed(transparency, int, bytes, tuple)
    return made


def _path(cls: type) -> Leaf:
    return Leaf(os.fsencode, lambda path: cls(os.fsdecode(typed(path, bytes))))


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unsupported("a batch holds a value of torch; import torch on every rank")
    return torch


@functools.lru_cache(1)
def _dtypes() -> dict[str, Any]:
    torch = _torch()
    return {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}


def _dtype(name: Any) -> Any:
    found = _dtypes().get(typed(name, str))
    expect(found is not None, "dtype of torch")
    return found


def _sizes(sizes: Any) -> Any:
    expect(all(-(1 << 63) <= size < 1 << 63 for size in list_of(sizes, int)), "size of torch")
    return _torch().Size(sizes)


def _device(name: Any) -> Any:
    expect(re.fullmatch(r"[a-z0-9_]{1,32}(:\d{1,4})?", typed(name, str)) is not None, "device of torch")
    return _torch().device(name)


LEAVES = {
    "builtins:int": Leaf(
        lambda number: number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),
        lambda digits: int.from_bytes(typed(digits, bytes), "little", signed=True),
    ),
    "builtins:complex": Leaf(
        lambda number: [number.real, number.imag], lambda parts: complex(*list_of(parts, float, length=2))
    ),
    "builtins:range": Leaf(
        lambda numbers: [numbers.start, numbers.stop, numbers.step], lambda ends: range(*list_of(ends, int, length=3))
    ),
    "builtins:bytearray": Leaf(bytes, lambda content: bytearray(typed(content, bytes))),
    **{f"{cls.__module__}:{cls.__qualname__}": _path(cls) for cls in (pathlib.PosixPath, pathlib.PurePosixPath)},
    f"{pathlib.PureWindowsPath.__module__}:PureWindowsPath": Leaf(
        str, lambda path: pathlib.PureWindowsPath(typed(path, str))
    ),
    "numpy:ndarray": Leaf(_array_parts, _array),
    # An array would lose the zeros at the end of a text, and UTF-8 has no unpaired surrogates.
    "numpy:str_": Leaf(lambda text: struct.pack(f"{len(text)}I", *map(ord, text)), _text),
    "numpy:bytes_": Leaf(bytes, _bytes),
    **{f"numpy:{name}": Leaf(_array_parts, _scalar) for name in ("datetime64", "timedelta64")},
    "PIL.Image:Image": Leaf(_image_parts, _image),
    "torch:Size": Leaf(list, _sizes),
    "torch:dtype": Leaf(lambda dtype: str(dtype).partition(".")[2], _dtype),
    "torch:device": Leaf(str, _device),
}
"""Leaves by class name."""


def is_image(value: Any) -> bool:
    """Returns whether `value` is an image of PIL, including PIL's classes for opened files."""
    images = sys.modules.get("PIL.Image")
    return images is not None and isinstance(value, images.Image)


def put_leaf_together(name: str, leaf: Leaf, children: list[Any]) -> Any:
    expect(len(children) == 1, name)
    try:
        return leaf.put_together(children[0])
    except Error:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptMessage(f"the message holds no valid {name}: {error}") from error
