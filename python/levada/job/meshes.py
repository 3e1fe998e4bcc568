"""Meshes of other libraries: torch's DeviceMesh, Megatron's process groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from levada._levada import Mesh
from levada.base.errors import InvalidArgument


def is_device_mesh(mesh: Any) -> bool:
    """Returns whether it is a DeviceMesh of torch.distributed."""
    return hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh")


def as_mesh(mesh: Any, data_axes: Sequence[str] | None = None) -> Mesh:
    """Returns a Mesh unchanged, or the axes of a DeviceMesh; `data_axes` are those along which batches differ. Raises
    InvalidArgument for anything else, and for `data_axes` of a Mesh, which has its own."""
    if isinstance(mesh, Mesh):
        if data_axes is not None:
            raise InvalidArgument("data_axes is for a DeviceMesh; give it to levada.Mesh(..., data_axes=...) itself")
        return mesh
    if is_device_mesh(mesh):
        made = Mesh.from_device_mesh(mesh)
        return made if data_axes is None else Mesh(data_axes=data_axes, **dict(made.axes))
    raise InvalidArgument(f"mesh is {mesh!r}; give a levada.Mesh or a DeviceMesh of torch.distributed")


def ranks_of(device_mesh: Any) -> tuple[int, ...]:
    """Returns the job's ranks in a DeviceMesh, row by row."""
    return tuple(device_mesh.mesh.flatten().tolist())


def check_groups(mesh: Mesh, whose: str, groups: Mapping[str, Any]) -> None:
    """Raises InvalidArgument unless each of this process's process groups, by axis, has the ranks that the mesh of the
    whole job puts along that axis. "dp" is all data axes together."""
    distributed = sys.modules["torch.distributed"]
    rank = distributed.get_rank()
    for axis, group in groups.items():
        along = mesh.data_axes if axis == "dp" else [axis]
        expected = mesh.group(rank, along)
        ranks = sorted(distributed.get_process_group_ranks(group))
        if ranks != expected:
            raise InvalidArgument(
                f"rank {rank} is {mesh.describe(rank)} in the mesh '{mesh}', where ranks {expected} differ along {axis}, but "
                f"{whose} for {axis} has ranks {ranks}; give the axes in the order of the groups, as "
                f"Mesh.from_env(order='tp-cp-ep-dp-pp') does from the fastest on"
            )


def check_whole_job(mesh: Mesh, ranks: int) -> None:
    """check_megatron() of a mesh of all the job's ranks on which some get the same batches. Where each rank gets its own,
    the groups along which a model is divided do not matter."""
    if mesh.size == ranks and len(mesh.data_axes) < len(mesh.axes):
        check_megatron(mesh)


def check_megatron(mesh: Mesh) -> None:
    """check_groups() of Megatron-LM's groups, where they have been initialized."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return
    groups = {
        "tp": state.get_tensor_model_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "pp": state.get_pipeline_model_parallel_group(),
        "dp": state.get_data_parallel_group(),
    }
    check_groups(mesh, "Megatron's process group", groups)
