"""Process groups of torch.distributed for context parallelism whose degree differs from batch to batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from levada._levada import Mesh
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument, Unsupported
from levada.job.meshes import as_mesh, with_cp_as_data


class ContextGroups:
    """The process groups of the ranks that share a sequence, for a Feed with `max_cp` of a Balance.

    ```python
    groups = levada.ContextGroups(mesh, max_cp=8)
    for batch in feed:
        loss = model(batch, cp_group=groups[feed.cp_size])
    ```

    Makes one group for each aligned block of 2, 4, ..., max_cp of the mesh's dp x cp ranks that have the same
    coordinates along the other axes. Each rank is in log2(max_cp) groups. All ranks of the job must construct it
    together, after init_process_group(). Raises InvalidArgument if the mesh does not consist of the job's ranks, or if
    max_cp is not a power of two that divides dp x cp.
    """

    def __init__(self, mesh: Mesh | str | Mapping[str, int] | Any, max_cp: int) -> None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_initialized():
            raise Unsupported("ContextGroups makes groups of torch.distributed: call init_process_group() before")
        self.mesh = as_mesh(mesh)
        self.max_cp = max_cp = whole_number("max_cp", max_cp)
        ranks = self.mesh.size
        if ranks != distributed.get_world_size():
            raise InvalidArgument(f"mesh '{self.mesh}' has {ranks} ranks, the job has {distributed.get_world_size()}")
        with_data = with_cp_as_data(self.mesh)
        if max_cp < 1 or max_cp & (max_cp - 1) or with_data.data_size % max_cp:
            raise InvalidArgument(
                f"max_cp must be a power of two that divides the {with_data.data_size} dp x cp ranks of '{self.mesh}', got {max_cp}"
            )
        mine = distributed.get_rank()
        self._groups: dict[int, Any] = {1: None}
        for members in _rows(with_data):
            size = 2
            while size <= max_cp:
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


def _rows(mesh: Mesh) -> list[list[int]]:
    """Returns the ranks along the data axes together, in order, for each position along the other axes."""
    others = [axis for axis, _ in mesh.axes if axis not in mesh.data_axes]
    rows: dict[tuple[int, ...], dict[int, int]] = {}
    for rank in range(mesh.size):
        place = tuple(mesh.coordinate(rank, axis) for axis in others)
        rows.setdefault(place, {})[mesh.data_coordinate(rank)] = rank
    return [[row[coordinate] for coordinate in sorted(row)] for row in rows.values()]
