"""The states of a feed, which may be those of another program, or damaged."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from levada.base.errors import InvalidArgument
from levada.feed.passes import MAX_SAMPLES

_END_OF_EPOCHS = 1 << 62


class FeedState(NamedTuple):
    """Where a feed resumes."""

    source: str
    """ "corpus" or "iterable"."""
    cursor: bytes
    samples: int
    """Samples after the cursor."""
    epoch: int

    def encode(self) -> dict[str, Any]:
        # None: torch.load(), which by default loads weights alone, refuses a pickle of empty bytes.
        return {**self._asdict(), "cursor": self.cursor or None, "checksum": self._checksum()}

    def check(self, checksum: Any) -> None:
        """Raises InvalidArgument unless it is that of this state."""
        if checksum != self._checksum():
            raise InvalidArgument("this state of a feed has been changed since it was saved: its checksum is another")

    def _checksum(self) -> str:
        digest = hashlib.blake2b(f"{self.source} {self.samples} {self.epoch} ".encode(), digest_size=8)
        digest.update(self.cursor)
        return digest.hexdigest()


def read_state(state: Any, source: str) -> FeedState:
    """Reads the state of a feed of a "corpus" or an "iterable". Raises InvalidArgument, naming the key."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"a feed's state is the dict that its state_dict() returned, got a {type(state).__name__}")
    missing = [key for key in ("source", "cursor", "samples", "epoch", "checksum") if key not in state]
    if missing:
        raise InvalidArgument(f'the state of a feed lacks "{missing[0]}"; load what state_dict() returned, unchanged')
    if state["source"] != source:
        raise InvalidArgument(f"the state is of a feed of a {str(state['source'])[:80]}, not of a {source}")
    cursor = state["cursor"]
    if not isinstance(cursor, (bytes, type(None))):
        raise InvalidArgument(f'"cursor" of a feed\'s state must be bytes or None, got a {type(cursor).__name__}')
    samples = _count_of(state, "samples", MAX_SAMPLES)
    position = FeedState(source, cursor or b"", samples, _count_of(state, "epoch", _END_OF_EPOCHS - 1))
    position.check(state["checksum"])
    return position


def _count_of(state: Mapping[str, Any], key: str, largest: int) -> int:
    try:
        number = operator.index(state[key])
    except TypeError:
        number = -1
    if isinstance(state[key], bool) or not 0 <= number <= largest:
        raise InvalidArgument(f'"{key}" of a feed\'s state must be a whole number from 0 to {largest:,}, got {repr(state[key])[:80]}')
    return number
