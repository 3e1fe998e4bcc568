"""States of a feed, which are untrusted: they may be damaged or come from another program."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from levada import _levada
from levada.base.errors import InvalidArgument

MAX_SAMPLES = 1 << 50
"""Exceeds the samples of any run, and is small enough that sums of positions fit into 64 bits."""

_END_OF_EPOCHS = 1 << 62
_BEFORE = "levada: items that earlier passes have taken of this iterator"
_MAX_CURSOR = 512
"""Exceeds the size of a cursor with the state that state_of_iterator() returns."""


class FeedState(NamedTuple):
    """The position at which a feed resumes."""

    source: str
    """Unit of `samples`: samples of a "corpus"; items of an "iterable"; with divide="split", "global batches", or their
    "rows" if batch_size= is set."""
    cursor: bytes
    samples: int
    """Number of samples after the cursor."""
    epoch: int
    step: int = 1
    """Number of these that one step took in the run that saved the state. The last step may have taken fewer."""
    item: int = -1
    """Index of the last item that the reader had delivered; -1 if unknown."""
    digest: int = 0
    """Digest that identifies that item."""

    def after(self, steps: int, cursor: bytes, item: int, digest: int, *, step: int, items: int) -> FeedState:
        """Returns the state after some steps of a pass that began at this state. `cursor`, `item` and `digest`: as
        Pass.position() returns them. `step`, `items`: number of samples and of items of an iterable that a step takes."""
        at = self._replace(step=step, item=item, digest=digest)
        before = _items_before(cursor)
        if cursor and before == 0:
            return at._replace(cursor=cursor, samples=0)
        return at._replace(samples=at.samples + before * (step // items) + steps * step, item=item + before)

    def encode(self) -> dict[str, Any]:
        # torch.load() loads only weights by default and rejects a pickle of empty bytes, so an empty cursor is None.
        return {**self._asdict(), "cursor": self.cursor or None, "checksum": self._checksum()}

    def check(self, checksum: Any) -> None:
        """Raises InvalidArgument unless `checksum` is the checksum of this state."""
        if type(checksum) is not str or checksum != self._checksum():
            raise InvalidArgument("this state of a feed has been changed since it was saved: its checksum is another")

    def _checksum(self) -> str:
        digest = hashlib.blake2b(" ".join(map(str, (*self._replace(cursor=b"-"), ""))).encode(), digest_size=8)
        digest.update(self.cursor)
        return digest.hexdigest()


def state_of_iterator(num_before: int) -> bytes:
    """Returns the packed state that a reader sends instead of a loader's, because only readers know that a pass continues
    an iterator of which earlier passes have taken `num_before` items."""
    return _levada.pack_state({_BEFORE: num_before})


def _items_before(cursor: bytes) -> int:
    """Returns the `num_before` of state_of_iterator() if that is the state in a cursor, otherwise 0."""
    if len(cursor) > _MAX_CURSOR or _BEFORE.encode() not in cursor:
        return 0
    state = _levada.read_cursor(cursor, allow_pickle=False)[2]
    return state[_BEFORE] if isinstance(state, dict) and list(state) == [_BEFORE] else 0


def read_state(state: Any, source: str) -> FeedState:
    """Decodes the state of a feed whose FeedState.source is `source`. Raises InvalidArgument, naming the key."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"a feed's state is the dict that state_dict() returned, got an object of type {type(state).__name__}")
    missing = [key for key in ("source", "cursor", "samples", "epoch", "step", "item", "digest", "checksum") if key not in state]
    if missing:
        raise InvalidArgument(f'the state of a feed lacks "{missing[0]}"; load what state_dict() returned, unchanged')
    if type(state["source"]) is not str or state["source"] != source:
        raise InvalidArgument(f'"source" of the state is {str(state["source"])[:80]!r}; this feed resumes at one of {source!r}')
    cursor = state["cursor"]
    if not isinstance(cursor, (bytes, type(None))):
        raise InvalidArgument(
            f'"cursor" of a feed\'s state must be bytes or None, got an object of type {type(cursor).__name__}'
        )
    samples, epoch = _count_of(state, "samples", MAX_SAMPLES), _count_of(state, "epoch", _END_OF_EPOCHS - 1)
    step, item = _count_of(state, "step", MAX_SAMPLES, smallest=1), _count_of(state, "item", MAX_SAMPLES, smallest=-1)
    position = FeedState(source, cursor or b"", samples, epoch, step, item, _count_of(state, "digest", _END_OF_EPOCHS - 1))
    position.check(state["checksum"])
    return position


def _count_of(state: Mapping[str, Any], key: str, largest: int, *, smallest: int = 0) -> int:
    try:
        number = operator.index(state[key])
    except TypeError:
        number = smallest - 1
    if isinstance(state[key], bool) or not smallest <= number <= largest:
        raise InvalidArgument(
            f'"{key}" of a feed\'s state must be a whole number from {smallest} to {largest:,}, got {repr(state[key])[:80]}'
        )
    return number
