"""Process groups of torch.distributed for context parallelism whose degree differs from batch to batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from levada import _levada
from levada._levada import Mesh
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument, Unsupported
from levada.job.job import join
from levada.job.meshes import as_mesh, with_cp_as_data

_TIMEOUT = 1800.0


class ContextGroups:
    """The process groups of the ranks that share a sequence, for a Feed with `max_cp` of a Balance.

    ```python
    groups = levada.ContextGroups(mesh, max_cp=8)
    for batch in feed:
        loss = model(batch, cp_group=groups[feed.cp_size])
    ```

    Makes one group for each aligned block of 2, 4, ..., max_cp of the mesh's dp x cp ranks that have the same
    coordinates along the other axes. Each rank is in log2(max_cp) groups. All ranks of the job must construct it
    together, after init_process_group(). Raises InvalidArgument on all ranks if the mesh does not consist of the job's
    ranks, if max_cp is not a power of two that divides dp x cp, or if ranks pass different ones.
    """

    def __init__(self, mesh: Mesh | str | Mapping[str, int] | Any, max_cp: int) -> None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_initialized():
            raise Unsupported("ContextGroups makes groups of torch.distributed: call init_process_group() before")
        try:
            self.mesh, self.max_cp = _checked(mesh, max_cp, distributed.get_world_size())
        except InvalidArgument as error:
            _expect_same("", str(error))
            raise
        with_data = with_cp_as_data(self.mesh)
        _expect_same(f"the mesh '{self.mesh}' with the data axes {', '.join(self.mesh.data_axes)}, and max_cp={self.max_cp}", "")
        mine = distributed.get_rank()
        self._groups: dict[int, Any] = {1: None}
        for members in _rows(with_data):
            size = 2
            while size <= self.max_cp:
                for first in range(0, len(members), size):
                    block = members[first : first + size]
                    group = distributed.new_group(block)
                    if mine in block:
                        self._groups[size] = group
                size *= 2

    def __getitem__(self, size: int) -> Any:
        """Returns this rank's group of `size` ranks, or None for 1. Its ranks are in the order of Feed.cp_rank."""
        if size not in self._groups:
            raise InvalidArgument(f"there is no group of {size} ranks: max_cp is {self.max_cp}, and sizes are powers of two")
        return self._groups[size]

    def __repr__(self) -> str:
        return f"ContextGroups('{self.mesh}', max_cp={self.max_cp})"


def _checked(mesh: Any, max_cp: Any, ranks: int) -> tuple[Mesh, int]:
    """Returns the mesh and max_cp of ContextGroups in a job of `ranks` ranks. Raises InvalidArgument if they are invalid."""
    made, count = as_mesh(mesh), whole_number("max_cp", max_cp)
    if made.size != ranks:
        raise InvalidArgument(f"mesh '{made}' has {made.size} ranks, the job has {ranks}")
    slots = with_cp_as_data(made).data_size
    if count < 1 or count & (count - 1) or slots % count:
        raise InvalidArgument(f"max_cp must be a power of two that divides the {slots} dp x cp ranks of '{made}', got {count}")
    return made, count


def _expect_same(arguments: str, error: str) -> None:
    """Raises InvalidArgument if ranks pass different arguments, or if another rank has an error. Otherwise ranks would
    wait for groups that other ranks do not make, or reduce over different ranks. Collective."""
    sent = _levada.agree(join(), json.dumps([arguments, error]).encode(), _TIMEOUT, "making ContextGroups")
    if error:
        return
    everything = [json.loads(each) for each in sent]
    for rank, (_, theirs) in enumerate(everything):
        if theirs:
            raise InvalidArgument(f"rank {rank}: {theirs}")
    (first, _), *_ = everything
    for rank, (theirs, _) in enumerate(everything):
        if theirs != first:
            raise InvalidArgument(
                f"ranks disagree on ContextGroups: {first} on rank 0; {theirs} on rank {rank}; pass the same on all ranks"
            )


def _rows(mesh: Mesh) -> list[list[int]]:
    """Returns the ranks along the data axes together, in order, for each position along the other axes."""
    others = [axis for axis, _ in mesh.axes if axis not in mesh.data_axes]
    rows: dict[tuple[int, ...], dict[int, int]] = {}
    for rank in range(mesh.size):
        place = tuple(mesh.coordinate(rank, axis) for axis in others)
        rows.setdefault(place, {})[mesh.data_coordinate(rank)] = rank
    return [[row[coordinate] for coordinate in sorted(row)] for row in rows.values()]
