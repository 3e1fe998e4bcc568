"""Converts and checks meshes of other libraries: torch's DeviceMesh, Megatron's process groups."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from levada._levada import Membership, Mesh
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument, InvalidType


def is_device_mesh(mesh: Any) -> bool:
    """Returns whether `mesh` is a DeviceMesh of torch.distributed."""
    return hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh")


def as_mesh(mesh: Any, data_axes: Sequence[str] | None = None) -> Mesh:
    """Returns a Mesh unchanged, or makes one from a string such as "dp=2,tp=2", a dict, or a DeviceMesh. `data_axes`:
    the axes along which batches differ. Raises InvalidType for any other type, and InvalidArgument for `data_axes` with
    a Mesh, which has its own."""
    if isinstance(data_axes, str):
        raise InvalidType(f"data_axes must be a list of names of axes, such as {data_axes.split(',')}, got {data_axes!r}")
    if isinstance(mesh, Mesh):
        if data_axes is not None:
            raise InvalidArgument("data_axes is for a mesh that is no levada.Mesh; pass it to levada.Mesh(..., data_axes=...)")
        return mesh
    if is_device_mesh(mesh):
        return Mesh.from_device_mesh(mesh, data_axes=data_axes)
    if isinstance(mesh, str):
        return Mesh.parse(mesh, data_axes=data_axes)
    if isinstance(mesh, Mapping) and all(isinstance(axis, str) for axis in mesh):
        return Mesh(data_axes=data_axes, **{axis: whole_number(f"{axis} of the mesh", size) for axis, size in mesh.items()})
    raise InvalidType(
        f'mesh must be a levada.Mesh, its text such as "dp=2,tp=2", a dict such as {{"dp": 2, "tp": 2}}, or a DeviceMesh of '
        f"torch.distributed, got {mesh!r}"
    )


def with_cp_as_data(mesh: Mesh) -> Mesh:
    """Returns the mesh with cp as one of its data axes. Each of the dp x cp ranks then has its own data coordinate, by
    which ranks that share a sequence are aligned."""
    axes = dict(mesh.axes)
    return Mesh(**axes, data_axes=[*mesh.data_axes, *(["cp"] if "cp" in axes else [])])


def by_axis(placements: Any, mesh: Mesh) -> Any:
    """Converts a list of DTensor placements, one for each axis of a DeviceMesh, to a dict by axis. Returns anything
    else unchanged. Raises InvalidArgument for a list of another length."""
    if not isinstance(placements, (list, tuple)) or not all(hasattr(each, "is_replicate") for each in placements):
        return placements
    axes = [axis for axis, _ in mesh.axes]
    if placements and len(placements) != len(axes):
        raise InvalidArgument(
            f"{placements} are {len(placements)} placements, and the mesh has the axes {', '.join(axes)}: one for each"
        )
    return dict(zip(axes, placements, strict=False))


def ranks_of(device_mesh: Any) -> tuple[int, ...]:
    """Returns the job's ranks in a DeviceMesh, row by row."""
    return tuple(device_mesh.mesh.flatten().tolist())


def check_groups(
    mesh: Mesh, whose: str, groups: Mapping[str, Any], example: str = "as Mesh.from_env(order='tp-cp-ep-dp-pp')"
) -> None:
    """Raises InvalidArgument unless each of this process's process groups, by axis, has the ranks that the mesh of the
    whole job has along that axis. "dp" means all data axes together."""
    distributed = sys.modules["torch.distributed"]
    rank = distributed.get_rank()
    for axis, group in groups.items():
        along = mesh.data_axes if axis == "dp" else [axis]
        expected = mesh.group(rank, along)
        ranks = sorted(distributed.get_process_group_ranks(group))
        if ranks != expected:
            raise InvalidArgument(
                f"rank {rank} is {mesh.describe(rank)} in the mesh '{mesh}', where ranks {expected} differ along {axis}, but "
                f"{whose} for {axis} has ranks {ranks}; the mesh needs the axes of the groups in their order, {example}"
            )


def check_feed(mesh: Mesh, group: Any, ranks: int) -> None:
    """Calls check_megatron() for the mesh of a feed if the mesh consists of all ranks of the job in order. A Membership
    as `group` declares the mesh to be right, whatever Megatron's groups are."""
    if mesh.size != ranks or isinstance(group, Membership) or _megatron() is None:
        return
    if group is None:
        members = list(range(ranks))
    elif is_device_mesh(group):
        members = list(ranks_of(group))
    else:
        members = sys.modules["torch.distributed"].get_process_group_ranks(group)
    if members == list(range(ranks)):
        check_megatron(mesh, "; a feed that is not to follow Megatron's groups takes group=levada.join()")


_SHARING = ("tp", "cp", "pp", "sp")
"""Axes of a DeviceMesh along which ranks share batches."""


def check_no_mesh_forgotten() -> None:
    """Raises InvalidArgument if this process has a DeviceMesh in which ranks share batches. Without a mesh, a feed
    would send different batches to each of these ranks."""
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return
    # torch keeps no list of them, but each object refers to its class.
    meshes = [each for each in gc.get_referrers(module.DeviceMesh) if type(each) is module.DeviceMesh]
    for each in sorted(meshes, key=lambda each: -each.mesh.ndim):
        sizes = dict(zip(each.mesh_dim_names or (), each.mesh.shape, strict=False))
        shared = [axis for axis in _SHARING if sizes.get(axis, 1) > 1]
        if shared:
            axes = ",".join(f"{axis}={size}" for axis, size in sizes.items())
            raise InvalidArgument(
                f"the job has a DeviceMesh {axes}, whose ranks share batches along {', '.join(shared)}, but the feed has no "
                "mesh and would deliver different ones to every rank: pass mesh=, or group=levada.join() if that is intended"
            )


def check_megatron(mesh: Mesh, otherwise: str = "") -> None:
    """Calls check_groups() for Megatron-LM's groups if they have been initialized."""
    state = _megatron()
    if state is None:
        return
    groups = {
        "tp": state.get_tensor_model_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "pp": state.get_pipeline_model_parallel_group(),
        "dp": state.get_data_parallel_group(),
    }
    if "ep" in dict(mesh.axes):  # Megatron forms it from the ranks along its other axes
        groups["ep"] = state.get_expert_model_parallel_group()
    sizes = [f"{axis}={group.size()}" for axis, group in groups.items() if axis != "dp" and group.size() > 1]
    check_groups(mesh, "Megatron's process group", groups, f"as Mesh.from_env({', '.join(sizes)}){otherwise}")


def _megatron() -> Any:
    """Returns Megatron-LM's module of process groups if they have been initialized, otherwise None."""
    state = sys.modules.get("megatron.core.parallel_state")
    return state if state is not None and state.model_parallel_is_initialized() else None
