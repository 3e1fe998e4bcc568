"""AReaL's tracker of the ranks that hold samples, and its planner. Can be used on a controller as well as on ranks."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from levada import exchange
from levada.base.errors import InvalidArgument


class Refused(InvalidArgument, AssertionError):
    """Raised for errors that AReaL reports with an assertion."""


class Missing(InvalidArgument, KeyError):
    """Raised for errors for which AReaL raises KeyError."""

    __str__ = Exception.__str__  # KeyError's would quote the sentence


class NotKnown(InvalidArgument, NotImplementedError):
    """Raised for errors for which AReaL raises NotImplementedError."""


@functools.cache
def _coordinates_along(axes: tuple[str, ...]) -> Any:
    """Returns the class of coordinates along these axes. The class belongs to no module, so its instances are pickled
    by _at()."""
    name = "".join(axis.title() for axis in axes) + "ProcessCoord"
    fields: Any = collections.namedtuple(name, axes)  # type: ignore[misc]
    return type(name, (fields,), {"__slots__": (), "__reduce__": lambda self: (_at, (axes, tuple(self)))})


def _at(axes: tuple[str, ...], place: tuple[int, ...]) -> Any:
    return _coordinates_along(axes)(*place)


class ProcessTopology:
    """The ranks of a model as named axes, row-major: the last axis varies fastest. AReaL's axes are pipe, data and
    tensor. Topologies are equal if their axes and dims are equal.

    mapping: a dict from coordinates, which are named tuples of the axes, to ranks.
    """

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        if len(axes) != len(dims):
            raise InvalidArgument(f"there are {len(axes)} axes and {len(dims)} dims")
        if any(dim < 1 for dim in dims):
            raise InvalidArgument(f"dims are {list(dims)}; an axis has at least one rank")
        self.axes, self.dims = list(axes), list(dims)
        self.mapping: dict[Any, int] = {
            self.ProcessCoord(*at): rank for rank, at in enumerate(itertools.product(*map(range, self.dims)))
        }

    @property
    def ProcessCoord(self) -> Any:  # noqa: N802  AReaL's name
        """The class of coordinates, a named tuple of the axes."""
        return _coordinates_along(tuple(self.axes))

    def world_size(self) -> int:
        """Returns the number of ranks."""
        return len(self.mapping)

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_dim(self, axis: str) -> int:
        """Returns the number of ranks along an axis, or 0 for an unknown axis."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_coord(self, rank: int) -> Any:
        """Returns a rank's coordinates, a named tuple of the axes."""
        for place, at in self.mapping.items():
            if at == rank:
                return place
        raise InvalidArgument(f"there is no rank {rank} among {self.world_size()}")

    def get_rank(self, **coordinates: int) -> int:
        """Returns the rank at these coordinates, one for each axis."""
        if coordinates.keys() != set(self.axes):
            raise InvalidArgument(f"a rank has coordinates along {self.axes}, not along {sorted(coordinates)}")
        place = tuple(coordinates[axis] for axis in self.axes)
        if place not in self.mapping:
            raise Refused(f"there is no rank at {coordinates}")
        return self.mapping[place]

    def filter_match(self, **coordinates: int) -> list[int]:
        """Returns the ranks with these coordinates, in ascending order."""
        unknown = coordinates.keys() - set(self.axes)
        if unknown:
            raise InvalidArgument(f"there are no axes {sorted(unknown)}; there are {self.axes}")
        wanted = coordinates.items()
        return [rank for place, rank in self.mapping.items() if all(getattr(place, axis) == at for axis, at in wanted)]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """Returns the ranks whose coordinate along `axis` is `idx`."""
        return self.filter_match(**{axis: idx})

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Returns the groups of ranks that differ only along `axis`; empty for an unknown axis."""
        if axis not in self.axes:
            return []
        return [list(ranks) for ranks in zip(*(self.get_axis_list(axis, at) for at in range(self.get_dim(axis))))]

    def get_rank_repr(
        self, rank: int, omit_axes: Sequence[str] = ("data", "pipe"), inner_sep: str = "_", outer_sep: str = "-"
    ) -> str:
        """Returns a rank's coordinates for file names: "tensor_1", or "tensor_01" if there are more than nine ranks."""
        place, digits = self.get_coord(rank), len(str(self.world_size()))
        shown = [axis for axis in self.axes if axis not in omit_axes]
        return outer_sep.join(f"{axis}{inner_sep}{getattr(place, axis):0{digits}d}" for axis in shown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessTopology) and (self.axes, self.dims) == (other.axes, other.dims)

    def __hash__(self) -> int:
        return hash((*self.axes, *self.dims))

    def __repr__(self) -> str:
        return f"ProcessTopology(axes={self.axes}, dims={self.dims})"

    def __str__(self) -> str:
        return str(self.mapping)


class PipeDataTensorParallelTopology(ProcessTopology):
    """AReaL's topology of a model in training, with the axes pipe, data and tensor."""

    def __init__(
        self,
        num_pp: int,
        num_tp: int,
        num_dp: int,
        sequence_parallel: bool,
        gradient_checkpointing: bool,
        gradient_accumulation_fusion: bool,
        max_prompt_len: int | None = None,
    ) -> None:
        super().__init__(axes=["pipe", "data", "tensor"], dims=[num_pp, num_dp, num_tp])
        self.sequence_parallel = sequence_parallel
        self.gradient_checkpointing = gradient_checkpointing
        self.gradient_accumulation_fusion = gradient_accumulation_fusion
        self.max_prompt_len = max_prompt_len


class DataPipeTensorParallelTopology(ProcessTopology):
    """AReaL's topology of a model in generation, with the axes data, pipe and tensor."""

    def __init__(
        self, num_pp: int, num_tp: int, num_dp: int, sequence_parallel: bool, max_prompt_len: int | None = None
    ) -> None:
        super().__init__(axes=["data", "pipe", "tensor"], dims=[num_dp, num_pp, num_tp])
        self.sequence_parallel = sequence_parallel
        self.max_prompt_len = max_prompt_len


def dp_heads(topo: ProcessTopology) -> list[int]:
    """Returns the rank that delivers the results of each data-parallel group: tensor 0 of the last pipeline stage."""
    return topo.filter_match(pipe=topo.get_dim("pipe") - 1, tensor=0)


class GlobalStorageTracker:
    """Records which rank holds which keys of which ids, and which rank owns them: `storages[rank][id]`, `data_owner[id,
    key]`. Kept by one process. add_data() and clear_data() hold `lock`; add_data_synced() does not."""

    def __init__(self, world_size: int) -> None:
        self.lock = asyncio.Lock()
        self.storages: list[dict[Hashable, list[str]]] = [{} for _ in range(world_size)]
        self.data_owner: dict[tuple[Hashable, str], int] = {}

    def add_data_synced(self, rank: int, ids: Iterable[Hashable], key: str, is_owner: bool) -> None:
        """Records that `rank` holds `key` of these ids. is_owner: whether they are to be taken from this rank."""
        for id in ids:
            keys = self.storages[rank].setdefault(id, [])
            if key not in keys:
                keys.append(key)
            if is_owner:
                self.data_owner[id, key] = rank

    async def add_data(self, rank: int, ids: Iterable[Hashable], key: str, is_owner: bool) -> None:
        """Does the same as add_data_synced(), but holds `lock`."""
        async with self.lock:
            self.add_data_synced(rank, ids, key, is_owner)

    async def clear_data(self, ids: Iterable[Hashable]) -> None:
        """Records that no rank holds these ids any longer."""
        async with self.lock:
            for id in set(ids):
                for storage in self.storages:
                    for key in storage.pop(id, ()):
                        self.data_owner.pop((id, key), None)


@dataclasses.dataclass
class RedistribStep:
    """A transfer of all of `keys`. gather: `root` receives ids[i] from srcs[i]. scatter: dsts[i] receives ids[i] from
    `root`. bcast: all `dsts` receive `ids`, one flat list, from `root`. Ranks are ranks of the job."""

    comm_type: str
    root: int | None
    srcs: Sequence[int] | None
    dsts: Sequence[int] | None
    ids: Sequence[Any]
    keys: Sequence[str]

    def __repr__(self) -> str:
        ends = f"from {self.srcs} to {self.root}" if self.comm_type == "gather" else f"from {self.root} to {self.dsts}"
        return f"{self.comm_type.capitalize()} {list(self.keys)} {ends}."


def hops(step: Any) -> Iterator[tuple[int, int, Sequence[Hashable]]]:
    """Yields the transfers of a RedistribStep, which may be AReaL's own, as (from, to, ids). Raises InvalidArgument for
    a step without root or ranks, and for a step of an unknown kind."""
    ends = step.srcs if step.comm_type == "gather" else step.dsts
    if step.comm_type not in ("gather", "scatter", "bcast") or step.root is None or ends is None:
        raise InvalidArgument(f"no gather, scatter or bcast with root and ranks is {dataclasses.astuple(step)}")
    if step.comm_type != "bcast" and len(ends) != len(step.ids):
        raise InvalidArgument(f"{step!r} has ids for {len(step.ids)} ranks, not {len(ends)}")
    for number, end in enumerate(ends):
        if step.comm_type == "gather":
            yield end, step.root, step.ids[number]
        else:
            yield step.root, end, step.ids if step.comm_type == "bcast" else step.ids[number]


class Cluster(Protocol):
    """The part of AReaL's ClusterSpecConfig that a planner uses."""

    n_gpus_per_node: int


class RedistribPlanner:
    """Derives steps from a tracker. Construct it as RedistribPlanner(cluster_config, tracker), or as
    RedistribPlanner(tracker) as up to AReaL v0.3.0; the number of GPUs per node is then that of realhf's cluster, or
    8."""

    def __init__(
        self, cluster_config: Cluster | GlobalStorageTracker | None = None, storage_tracker: Any = None
    ) -> None:
        if storage_tracker is None:
            storage_tracker, cluster_config = cluster_config, None
        if not hasattr(storage_tracker, "storages"):
            raise InvalidArgument(f"storage_tracker is {storage_tracker!r}; pass a GlobalStorageTracker")
        self.cluster_config: Any = cluster_config
        self.storage_tracker = storage_tracker

    def derive_plan(
        self, dests: Mapping[int, Sequence[Hashable]], keys: Sequence[str], pattern: str = "gather-scatter"
    ) -> list[RedistribStep]:
        """Returns the steps after which each rank of `dests` has `keys` of its ids, without what the rank already has.
        The steps do not depend on the order of dests, ids and keys. pattern: "bcast" or "gather-scatter".

        Raises InvalidArgument, which is also a NotImplementedError, for another pattern. Raises InvalidArgument, naming
        id, key and ranks, for data that no rank has.
        """
        if pattern == "bcast":
            return self.derive_plan_bcast(dests, keys)
        if pattern == "gather-scatter":
            return self.derive_plan_gather_scatter(dests, keys)
        raise NotKnown(f'pattern is "{pattern}"; it must be one of bcast, gather-scatter')

    def derive_plan_bcast(
        self, dests: Mapping[int, Sequence[Hashable]], keys: Sequence[str]
    ) -> list[RedistribStep]:
        """Returns a bcast step for each key, sender and set of receivers. The sender of a sample is a rank that has it,
        preferably on the same node, then the least busy one. It sends the sample to all ranks that lack it at once.
        Raises InvalidArgument, which is also an AssertionError, for data that no rank has."""
        keys = sorted(set(keys))
        ids = {str(id): id for wanted in dests.values() for id in wanted}
        held = exchange.SampleDirectory()
        for rank, storage in enumerate(self.storage_tracker.storages):
            here = {text: storage[id] for text, id in ids.items() if id in storage}
            samples = exchange.SampleBatch(list(here))
            for key in keys:  # only the ranks know the lengths, so each key counts as one
                samples.set_meta(key, "uint8", [1 if key in has else None for has in here.values()])
            held.add(rank, samples)
        for text, id in ids.items():
            for key in keys:
                if not held.holders(text, key):
                    raise Refused(_nobody(id, key, dests))
        per_node = max(1, self._gpus_per_node())
        hosts = [rank // per_node for rank in range(len(self.storage_tracker.storages))]
        wants = {rank: [str(id) for id in wanted] for rank, wanted in dests.items()}
        plan = exchange.plan(held, wants, keys, host_of=hosts)
        steps = []
        for multicast in (plan[number] for number in range(len(plan))):
            source = multicast.source
            moved: dict[str, list[Hashable]] = {}
            for text, key in multicast.items:
                moved.setdefault(key, []).append(ids[text])
            for key, members in moved.items():  # AReaL's DataManager takes one key per step
                steps.append(RedistribStep("bcast", source, [source], multicast.to, members, [key]))
        return steps

    def _gpus_per_node(self) -> int:
        if self.cluster_config is not None:
            return int(self.cluster_config.n_gpus_per_node)
        cluster: Any = sys.modules.get("realhf.base.cluster")
        return 8 if cluster is None else int(cluster.spec.n_gpus_per_node)

    def derive_plan_gather_scatter(
        self, dests: Mapping[int, Sequence[Hashable]], keys: Sequence[str]
    ) -> list[RedistribStep]:
        """Returns the steps that send the owners' samples to the first owner, and from there to the others. Raises
        InvalidArgument, which is also a KeyError, for data that no rank holds."""
        keys = sorted(set(keys))
        merged: dict[tuple[Any, ...], RedistribStep] = {}
        steps = [step for key in keys for step in self._through_root(dests, key)]
        for step in sorted(steps, key=lambda each: each.comm_type):  # gathers first
            ends = tuple(step.srcs or step.dsts or ())
            same = (step.comm_type, step.root, ends, tuple(map(tuple, step.ids)))
            if same in merged:
                merged[same].keys = [*merged[same].keys, *step.keys]
            else:
                merged[same] = step
        return list(merged.values())

    def _through_root(self, dests: Mapping[int, Sequence[Hashable]], key: str) -> Iterator[RedistribStep]:
        owners = {id: self._owner(id, key, dests) for wanted in dests.values() for id in wanted}
        lacking = {rank: self._lacking(rank, wanted, key) for rank, wanted in sorted(dests.items())}
        missed = [id for ids in lacking.values() for id in ids]
        if not missed:
            return
        root = min(owners[id] for id in missed)
        by_owner: dict[int, list[Hashable]] = {}
        for id in self._lacking(root, missed, key):
            by_owner.setdefault(owners[id], []).append(id)
        if by_owner:
            sources = sorted(by_owner)
            yield RedistribStep("gather", root, sources, None, [by_owner[each] for each in sources], [key])
        others = [rank for rank, ids in lacking.items() if ids and rank != root]
        if others:
            yield RedistribStep("scatter", root, None, others, [lacking[rank] for rank in others], [key])

    def _lacking(self, rank: int, ids: Iterable[Hashable], key: str) -> list[Hashable]:
        storage = self.storage_tracker.storages[rank]
        return sorted({id for id in ids if key not in storage.get(id, ())}, key=str)

    def _owner(self, id: Hashable, key: str, dests: Mapping[int, Sequence[Hashable]]) -> int:
        owner: int | None = self.storage_tracker.data_owner.get((id, key))
        if owner is None:
            raise Missing(_nobody(id, key, dests))
        return owner


def _nobody(id: Hashable, key: str, dests: Mapping[int, Sequence[Hashable]]) -> str:
    ranks = sorted(rank for rank, wanted in dests.items() if id in wanted)
    return f"key {key} of sample {id} is wanted on ranks {ranks}, but no rank has it"
