"""Where an epoch of a pipeline stands, as its states hold it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from levada import _levada
from levada.base.errors import CorruptMessage

VERSION = 2
"""Of a state's format."""
_MAX_ITEMS = 1 << 50


class Position(NamedTuple):
    """Where an epoch stands."""

    workers: int
    keeps_order: bool
    items: int
    """How many have been given."""
    cursor: Any
    """The C++ core's."""

    def encode(self) -> bytes:
        return _levada.pack(tuple(self))

    @staticmethod
    def decode(packed: bytes) -> Position:
        """Of bytes that may lie. Raises CorruptMessage."""
        position = _levada.unpack(packed)
        types = (int, bool, int)
        if type(position) is tuple and len(position) == 4 and tuple(map(type, position[:3])) == types:
            workers, keeps_order, items, cursor = position
            if workers >= 0 and 0 <= items <= _MAX_ITEMS:
                return Position(workers, keeps_order, items, cursor)
        raise CorruptMessage("the position in this state of a pipeline is none")


def checksum(seed: int, epoch: int, position: bytes | None) -> str:
    digest = hashlib.blake2b(f"{VERSION} {seed} {epoch} {position is None} ".encode(), digest_size=8)
    digest.update(position or b"")
    return digest.hexdigest()
