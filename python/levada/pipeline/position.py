"""The position in an epoch of a pipeline, as saved in states."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from levada import _levada
from levada.base.errors import CorruptMessage

VERSION = 3
"""The version of the format of states."""
_MAX_ITEMS = 1 << 50


class Position(NamedTuple):
    """A position in an epoch."""

    workers: int
    keeps_order: bool
    items: int
    """How many items were taken."""
    cursor: Any
    """The cursor of the C++ core."""

    def encode(self) -> bytes:
        return _levada.pack_state(tuple(self))

    @staticmethod
    def decode(packed: bytes) -> Position:
        """Decodes untrusted bytes. Raises CorruptMessage."""
        position = _levada.unpack_state(packed)
        types = (int, bool, int)
        if type(position) is tuple and len(position) == 4 and tuple(map(type, position[:3])) == types:
            workers, keeps_order, items, cursor = position
            if workers >= 0 and 0 <= items <= _MAX_ITEMS:
                return Position(workers, keeps_order, items, cursor)
        raise CorruptMessage("this state of a pipeline does not hold a valid position; load what state_dict() returned, unchanged")


def checksum(seed: int, epoch: int, position: bytes | None) -> str:
    digest = hashlib.blake2b(f"{VERSION} {seed} {epoch} {position is None} ".encode(), digest_size=8)
    digest.update(position or b"")
    return digest.hexdigest()
