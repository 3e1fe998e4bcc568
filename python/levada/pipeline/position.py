"""The position in an epoch of a pipeline, as states save it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Membership
from levada.base.errors import CorruptMessage, InvalidArgument

VERSION = 5
"""Version of the state format."""
_MAX_ITEMS = 1 << 50
_MAX_SEED, _END_OF_EPOCHS = 2**64 - 1, 2**63


class Position(NamedTuple):
    """A position in an epoch of one rank."""

    stages: list[str]
    """Names of the stages."""
    parameters: list[str]
    """The parameters that decide each stage's items."""
    workers: int
    keeps_order: bool
    rank: int
    ranks: int
    items: int
    """Number of items taken."""
    at: int
    """Number of items taken when `cursor` was saved; less than `items` after a failure."""
    cursor: Any
    """Cursor of the C++ core. None means that the items are made again from the first one."""

    def encode(self) -> bytes:
        return _levada.pack_state(list(self))

    @staticmethod
    def decode(packed: bytes) -> Position:
        """Decodes untrusted bytes. Raises CorruptMessage if they are damaged."""
        fields = _levada.unpack_state(packed)
        types = [list, list, int, bool, int, int, int, int]
        if type(fields) is list and len(fields) == 9 and [type(each) for each in fields[:8]] == types:
            position = Position(*fields)
            is_name = all(type(text) is str for text in [*position.stages, *position.parameters])
            is_name = is_name and len(position.stages) == len(position.parameters)
            is_place = 0 <= position.rank < position.ranks and position.workers >= 0
            if is_name and is_place and 0 <= position.at <= position.items <= _MAX_ITEMS:
                return position
        raise CorruptMessage("this state of a pipeline does not hold a valid position; load what state_dict() returned, unchanged")


class Saved(NamedTuple):
    """The decoded result of state_dict()."""

    seed: int
    epoch: int
    position: Position | None
    """None between two epochs."""

    def encode(self) -> dict[str, Any]:
        packed = None if self.position is None else self.position.encode()
        return {
            "version": VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": packed,
            "checksum": checksum(self.seed, self.epoch, packed),
        }

    @staticmethod
    def decode(state: Any) -> Saved:
        """Decodes an untrusted state. Raises InvalidArgument if it is not a state, CorruptMessage if it is damaged."""
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise InvalidArgument("this is no state of a pipeline, or one of another version of Levada")
        seed, epoch, packed = (state.get(name) for name in ("seed", "epoch", "position"))
        if type(seed) is not int or type(epoch) is not int or not isinstance(packed, (bytes, type(None))):
            raise CorruptMessage("this state of a pipeline lacks its seed, epoch or position")
        if state.get("checksum") != checksum(seed, epoch, packed):
            raise CorruptMessage("this state of a pipeline has been changed since it was saved: its checksum does not match")
        if not 0 <= seed <= _MAX_SEED or not 0 <= epoch < _END_OF_EPOCHS:
            raise CorruptMessage(f"this state of a pipeline has epoch {epoch} and seed {seed}, which are out of range")
        return Saved(seed, epoch, None if packed is None else Position.decode(packed))


def place_in(job: Membership | None) -> tuple[int, int]:
    """Returns the rank and the number of ranks; 0 and 1 if this rank runs the pipeline alone."""
    return (0, 1) if job is None else (job.rank, job.size)


def decode_states(state: Any) -> tuple[Saved, list[Position]]:
    """Decodes the state of one rank, or a list with the states of all ranks. Returns the first state and the positions
    of all. Raises the errors of Saved.decode(), and InvalidArgument if the states are not from one epoch of one run."""
    if not isinstance(state, Sequence):
        saved = Saved.decode(state)
        return saved, [] if saved.position is None else [saved.position]
    all_saved = [Saved.decode(each) for each in state]
    if not all_saved:
        raise InvalidArgument("this is no state of a pipeline, but an empty list; load the states of all ranks")
    first = all_saved[0]
    for each in all_saved:
        if each[:2] != first[:2] or (each.position is None) != (first.position is None):
            raise InvalidArgument(
                f"these states are of different runs or epochs: of epoch {first.epoch} by seed {first.seed}, and of epoch "
                f"{each.epoch} by seed {each.seed}; load the states that all ranks saved at one item"
            )
    return first, [each.position for each in all_saved if each.position is not None]


def expect_same_stages(
    loaded: Sequence[Position],
    place: tuple[int, int],
    stages: Sequence[str],
    parameters: Sequence[str],
    *,
    can_rebatch: Sequence[bool],
) -> None:
    """Raises InvalidArgument unless all positions are of a pipeline with these stages and parameters. If a position is of
    this rank, the parameters of others, which may have other sources, do not count. `place`: rank and number of ranks.
    `can_rebatch`: whether each stage is a batch() whose size may differ, because a cursor of the same items resumes
    before it."""
    for position in loaded:
        if position.stages != stages:
            raise InvalidArgument(
                f"this state is of a pipeline of the stages {' > '.join(position.stages)}, and this one is of "
                f"{' > '.join(stages)}; resume with the stages that it was saved with"
            )
    own = [position for position in loaded if (position.rank, position.ranks) == place]
    for position in own or loaded:
        _expect_same_parameters(position, stages, parameters, can_rebatch)


def _expect_same_parameters(
    position: Position, stages: Sequence[str], parameters: Sequence[str], can_rebatch: Sequence[bool]
) -> None:
    is_exact = position.cursor is not None and position.at == position.items and position.workers == 0
    for stage, saved, given, may_differ in zip(stages, position.parameters, parameters, can_rebatch, strict=True):
        if saved != given and not (is_exact and may_differ):
            raise InvalidArgument(
                f"stage {stage} was saved with {saved}, and now has {given}, with which a run may lose or repeat items; "
                "resume with the parameters that it was saved with"
            )


def position_of_rank(loaded: Sequence[Position], rank: int, ranks: int, *, takes_turns: bool) -> Position:
    """Returns the position at which rank `rank` of `ranks` resumes. `takes_turns`: whether item j of rank r of R is
    item j * R + r of a single rank, so that the number of ranks may differ from that of the run that saved the
    positions. Raises InvalidArgument if the ranks cannot resume."""
    own = [position for position in loaded if (position.rank, position.ranks) == (rank, ranks)]
    if own:
        return own[0]
    saved = loaded[0].ranks
    here = f"this is rank {rank} of {ranks}, and the state is of rank {loaded[0].rank} of {saved}"
    if not takes_turns or not all(position.keeps_order for position in loaded):
        raise InvalidArgument(
            f"{here}: the items of this pipeline depend on the number of ranks and on the rank, since not every stage after "
            f"its shard() makes one item from each; resume on {saved} ranks, each with the state that it saved"
        )
    if sorted((position.rank, position.ranks) for position in loaded) != [(each, saved) for each in range(saved)]:
        raise InvalidArgument(f"{here}: load a list of the states of all {saved} ranks, from which other ranks can resume")
    total = sum(position.items for position in loaded)
    if any(position.items != _share(total, position.rank, saved) for position in loaded):
        counts = ", ".join(str(position.items) for position in sorted(loaded, key=lambda each: each.rank))
        raise InvalidArgument(
            f"{here}: the {saved} ranks had taken {counts} items, so that no item is the next one of all; resume on {saved} "
            "ranks, or from states that all ranks saved after the same number of items"
        )
    return loaded[0]._replace(rank=rank, ranks=ranks, items=_share(total, rank, ranks), at=0, cursor=None)


def _share(items: int, rank: int, ranks: int) -> int:
    """Returns how many of the first `items` belong to one rank if ranks take them in turn."""
    return (items - rank + ranks - 1) // ranks


def checksum(seed: int, epoch: int, position: bytes | None) -> str:
    digest = hashlib.blake2b(f"{VERSION} {seed} {epoch} {position is None} ".encode(), digest_size=8)
    digest.update(position or b"")
    return digest.hexdigest()


def cursor_for(position: Position, workers: int, *, keeps_order: bool) -> Any:
    """Returns the cursor at which a run with these workers resumes, or None if it has to make the items again and drop
    them. Raises InvalidArgument if its items have another order."""
    # Cursors of runs with and without workers are incompatible.
    cursor = position.cursor if (position.workers == 0) == (workers == 0) else None
    theirs, ours = (position.workers, position.keeps_order), (workers, keeps_order)
    is_same_order = theirs == ours or (position.keeps_order and keeps_order)
    if not is_same_order and (cursor is None or position.keeps_order != keeps_order):
        names = [f"{count} workers{' in the order of one process' * keeps}" for count, keeps in (theirs, ours)]
        raise InvalidArgument(
            f"this state is of a run with {names[0]}, but a run with {names[1]} has another order, because not every stage "
            "makes one item from each; resume with the same workers and ordered"
        )
    return cursor
