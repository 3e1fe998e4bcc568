"""States of a DataLoader, which are untrusted: they may be damaged or come from another program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from levada.base.errors import InvalidArgument

VERSION = 1
_END_OF_EPOCHS = 1 << 62
_LIST = "list"
"""Key of the digest of a sampler's list, in addition to the keys of the identity."""


class LoaderState(NamedTuple):
    """The position at which a DataLoader resumes."""

    epoch: int
    """Epoch with which the pass began."""
    position: int
    """Index of the next draw, counted from the start of that epoch."""
    identity: dict[str, str]
    """Facts that define the meaning of a position: the data, the seed and the order."""
    listed: str = ""
    """Digest of the sampler's list for that epoch; "" without a sampler or before the first draw."""

    @property
    def draws(self) -> int | None:
        """Number of draws in an epoch; None for a sampler's list."""
        text = self.identity.get("draws", "").replace(",", "")
        return int(text) if text.isdecimal() and int(text) > 0 else None

    def encode(self) -> dict[str, Any]:
        order = dict(self.identity) | ({_LIST: self.listed} if self.listed else {})
        fields = {"version": VERSION, "epoch": self.epoch, "position": self.position, "order": order}
        return {**fields, "checksum": _checksum(fields)}

    @staticmethod
    def decode(state: Any) -> LoaderState:
        """Decodes a state. Raises InvalidArgument, naming the key, unless state_dict() returned the state."""
        if not isinstance(state, Mapping):
            kind = type(state).__name__
            raise InvalidArgument(f"the state of a DataLoader is the dict that state_dict() returned, got an object of type {kind}")
        names = ("version", "epoch", "position", "order", "checksum")
        missing = [name for name in names if name not in state]
        if missing:
            raise InvalidArgument(
                f'this is no state of a levada.DataLoader: it lacks "{missing[0]}"; load what its state_dict() returned, unchanged'
            )
        if type(state["version"]) is not int or state["version"] != VERSION:
            raise InvalidArgument(f"the state of a DataLoader has version {state['version']!r}; this Levada reads version {VERSION}")
        epoch, position, identity = state["epoch"], state["position"], state["order"]
        is_text = isinstance(identity, Mapping) and all(type(each) is str for pair in identity.items() for each in pair)
        if any(type(number) is not int or not 0 <= number < _END_OF_EPOCHS for number in (epoch, position)) or not is_text:
            raise InvalidArgument("the state of a DataLoader has been damaged: epoch, position or order has a wrong type or range")
        checksum = state["checksum"]
        if type(checksum) is not str or checksum != _checksum({name: state[name] for name in names[:-1]}):
            raise InvalidArgument("this state of a DataLoader has been changed since it was saved: its checksum is another")
        facts = dict(identity)
        listed = facts.pop(_LIST, "")
        return LoaderState(epoch, position, facts, listed)

    def expect_same(self, here: Mapping[str, str]) -> None:
        """Raises InvalidArgument, naming each difference, unless this loader has the same identity."""
        names = dict.fromkeys([*self.identity, *here])
        different = [
            f"{name} is {self.identity.get(name, 'absent')} in the state and {here.get(name, 'absent')} here"
            for name in names
            if self.identity.get(name) != here.get(name)
        ]
        if different:
            raise InvalidArgument(
                f"the state is of another data set or order: {'; '.join(different)}; make the loader as in the run that saved it"
            )

    def expect_same_list(self, digest: str, sampler: str) -> None:
        """Raises InvalidArgument unless `digest` is the digest of the list from which the state's draws were taken."""
        if self.listed and digest != self.listed:
            raise InvalidArgument(
                f"the state is of another order: the list of the {sampler} for epoch {self.epoch} has digest {self.listed} in the state "
                f"and {digest} here; let it list the same in every run, by drawing from the global generators or seeding its own by "
                "the epoch, in set_epoch()"
            )


def _checksum(fields: Mapping[str, Any]) -> str:
    identity = sorted(fields["order"].items())
    text = repr((fields["version"], fields["epoch"], fields["position"], identity))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
