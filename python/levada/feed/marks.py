"""Marks: 62-bit numbers that identify the item after which a state is saved.

An odd mark identifies the samples that a loader made the item from. An even mark identifies the item's content: it is
the item's digest_of() or, if states count rows, a combination of three hashes: of the item, of the shape of its last
row, and of that row. With these, a resumed run whose items have another number of rows still compares the row at which
it resumes.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any

from levada import _levada
from levada.feed.rows import last_row

_ITEM_BITS, _SHAPE_BITS, _ROW_BITS = 22, 16, 23
_LIST_BITS, _LAST_BITS = 30, 31


def mark_of_samples(samples: Any) -> int:
    """Returns the mark of an item that a loader makes from these samples: a list of indexes, or one index for a whole
    item."""
    plain = _plain(samples)
    is_batch = isinstance(plain, (list, tuple)) and len(plain) > 0
    last = max(_hash(plain[-1], _LAST_BITS), 1) if is_batch else 0
    return (_hash(plain, _LIST_BITS) << _LAST_BITS | last) << 1 | 1


def _plain(samples: Any) -> Any:
    """Returns the samples with Python's integers, because the repr() of numpy's differs between versions."""
    samples = samples.tolist() if hasattr(samples, "tolist") else samples
    if type(samples) in (list, tuple):
        return type(samples)(map(_plain, samples))
    try:
        return operator.index(samples)
    except TypeError:
        return samples


def mark_of_rows(item: Any, cut: Any, *, allow_pickle: bool) -> int:
    """Returns the mark of an item whose rows a state counts. `cut`: the item as it is sent."""
    row = last_row(item)
    shape = _hash(row.shape, _SHAPE_BITS)
    content = _bits(_levada.digest_of(row.content), _ROW_BITS)
    whole = _bits(_levada.digest_of(cut, allow_pickle=allow_pickle), _ITEM_BITS)
    return ((whole << _SHAPE_BITS | shape) << _ROW_BITS | content) << 1


def is_same_item(mark: int, other: int) -> bool:
    """Returns whether two marks may be of the same item. They may be if their kinds differ and cannot be compared."""
    return mark == other or mark % 2 != other % 2


def is_same_row(mark: int, other: int) -> bool:
    """Returns whether two marks, of items with different numbers of rows, may end with the same row. Rows of different
    shapes cannot be compared, because a batch may pad its rows to the longest, and return True."""
    if mark % 2 != other % 2:
        return True
    if mark % 2 == 1:
        last, others = (each >> 1 & (1 << _LAST_BITS) - 1 for each in (mark, other))
        return last == others or 0 in (last, others)
    shape, others = (each >> 1 + _ROW_BITS & (1 << _SHAPE_BITS) - 1 for each in (mark, other))
    return shape != others or (mark ^ other) >> 1 & (1 << _ROW_BITS) - 1 == 0


def _hash(value: Any, bits: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little") >> 64 - bits


def _bits(digest: int, bits: int) -> int:
    return digest >> 1 & (1 << bits) - 1
