"""AReaL's data manager: moves samples from the workers of one model to the workers of another.

    from levada.dropin.areal import DataManager, GlobalStorageTracker, RedistribPlanner, RedistribStep, SequenceSample
    # was: from realhf.system.data_manager import DataManager
    #      from realhf.system.redistributor import GlobalStorageTracker, RedistribPlanner, RedistribStep
    #      from realhf.api.core.data_api import SequenceSample

In AReaL                                          Here
------------------------------------------------  ------------------------------------------------------------------
needs a process group for each pair of            setup_process_groups() joins the job once, for any steps between
data-parallel groups and for each gather,         any ranks
created in advance
gather and scatter convert everything to          every dtype and trailing shape is preserved bit for bit
float32, which changes integers above 2^24
gather and scatter pad to the longest and         nothing is padded
support one dimension
runs one collective per step, one after the       a plan runs as one exchange, and each byte is sent once to all of
other, and one per key of a broadcast             its receivers, without a gather's root in between
the order of steps and owners is that of hash     the plan is the same for any order of the arguments
tables
chooses a source by the number of ranks that it   minimizes what the busiest rank sends
sends to
parts of a batch share dictionaries, so           parts are independent
update_() of one changes the others
missing data ends one rank while the others wait  all ranks raise the same error, which names id, key and ranks,
                                                  before any data has moved

Steps name the senders. As in AReaL, delivered data replaces existing data, and metadata is not sent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from levada._levada import Membership
from levada.base.errors import InvalidArgument
from levada.base.threads import OneCaller
from levada.batch.devices import mover
from levada.dropin._areal_groups import MicroBatchSpec
from levada.dropin._areal_plans import (
    DataPipeTensorParallelTopology,
    GlobalStorageTracker,
    PipeDataTensorParallelTopology,
    ProcessTopology,
    RedistribPlanner,
    RedistribStep,
    Refused,
    dp_heads,
    hops,
)
from levada.dropin._areal_samples import SequenceSample, SequenceSplitSpec, of_tensors
from levada.exchange import SampleBatch, Store, all_gather, redistribute
from levada.job.job import join, join_part

__all__ = [
    "DataManager",
    "DataPipeTensorParallelTopology",
    "GlobalStorageTracker",
    "MicroBatchSpec",
    "PipeDataTensorParallelTopology",
    "ProcessTopology",
    "RedistribPlanner",
    "RedistribStep",
    "SequenceSample",
    "SequenceSplitSpec",
    "dp_heads",
]

Sources = tuple[tuple[str, int], ...]
"""Keys, each with the rank that sends it."""
Moves = dict[tuple[int, str], Sources]
"""Sources by receiver and id."""


class DataManager:
    """The samples that this worker has: one SequenceSample per id, in `storage`.

    model_topos, msid2mwid, data_transfer_pairs: as AReaL passes them; unused, because steps name their ranks. device:
    the device to which received samples are moved; by default, they stay in this machine's memory. group: the group
    whose ranks the steps name, as in levada.join(); by default, the whole job. timeout: seconds that one wait may take.
    The default of 30 minutes allows for another worker that is generating or training before it takes part.
    """

    def __init__(
        self,
        model_topos: Mapping[Any, ProcessTopology],
        msid2mwid: Mapping[Any, int] | None = None,
        data_transfer_pairs: Sequence[tuple[Any, Any]] | None = None,
        *,
        device: Any = None,
        group: Any = None,
        timeout: float = 1800.0,
    ) -> None:
        self.model_topos = model_topos
        self.msid2mwid = msid2mwid
        self.data_transfer_pairs = data_transfer_pairs
        self.storage: dict[Hashable, SequenceSample] = {}
        self.timeout = timeout
        self._group = group
        self._move = mover(device)
        self._caller = OneCaller("redistribute() of this DataManager")
        self._wire = Store(tensors="torch", name="areal")  # data to send, without a copy, and received data

    def setup_process_groups(self) -> None:
        """Joins the job, or `group`. Collective over all its ranks, so that redistribute() need not be."""
        join(self._group, timeout=self.timeout)

    def storage_size(self) -> int:
        """Returns the number of samples."""
        return len(self.storage)

    def store(self, x: SequenceSample) -> None:
        """Adds one new sample, without a copy. Raises InvalidArgument for several samples, and for an existing id."""
        if len(x.ids) != 1:
            raise Refused(f"a batch of {len(x.ids)} samples cannot be stored; unpack() it")
        if x.ids[0] in self.storage:
            raise Refused(f"sample {x.ids[0]} is stored already; update() it, or remove() it")
        self.storage[x.ids[0]] = x

    def update(self, x: SequenceSample) -> None:
        """Adds the keys of one sample to the existing sample. Raises KeyError for an unknown id."""
        self.storage[x.ids[0]].update_(x)

    def get(self, data_id: Hashable) -> SequenceSample:
        """Returns the sample. Raises KeyError for an unknown id."""
        return self.storage[data_id]

    def has_data(self, data_id: Hashable) -> bool:
        """Returns whether the sample exists."""
        return data_id in self.storage

    def remove(self, ids: Iterable[Hashable]) -> None:
        """Removes samples. Ignores unknown ids."""
        for id in ids:
            self.storage.pop(id, None)

    def clear_data(self) -> None:
        """Removes all samples, and releases the memory kept for later samples to the system."""
        self.storage.clear()
        self._wire.clear()

    def redistribute(self, data_info: SequenceSample, plan: Iterable[RedistribStep]) -> None:
        """Executes steps in order. Steps may be derived, made by hand, or AReaL's own. setup_process_groups() must have
        been called on all ranks. All ranks that the steps name must call this; other ranks may call it too, and receive
        nothing. data_info: the meta of all samples to move, the same on all ranks.

        Raises InvalidArgument, naming id, key and ranks, on all ranks that the steps name, before any data has moved:
        if data_info lacks a sample or key, or if a rank lacks the data that it is to send, cannot send it (the error on
        that rank has the cause), or has it with other lengths or another dtype. Raises PeerLost, EngineError or Timeout
        if a rank is lost; the storage is then unchanged. Raises InvalidArgument while another thread is inside this
        call.
        """
        with self._caller:
            self._carry_out(data_info, _moves(plan))

    def _carry_out(self, data_info: SequenceSample, moves: Moves) -> None:
        ranks = tuple(sorted({rank for (to, _), keys in moves.items() for rank in (to, *(at for _, at in keys))}))
        job = join(self._group)
        if job.rank not in ranks:
            return
        lengths = _Lengths(data_info)
        arrived = [it for part in _parts(moves, lengths) for it in self._exchange(part, lengths, job, ranks)]
        for sample in arrived + lengths.without_data(moves, job.rank):
            held = self.storage.setdefault(sample.ids[0], sample)
            if held is not sample:
                held.update_(sample)

    def _exchange(
        self, moves: Moves, lengths: _Lengths, job: Membership, ranks: tuple[int, ...]
    ) -> list[SequenceSample]:
        """Executes moves in which each key of a sample has one source and all receivers get the same keys."""
        part = join_part(job, ranks)
        mine = [id for to, id in moves if to == job.rank]
        keys = [key for key, _ in next(iter(moves.values()))]
        try:
            unsent = self._lend(moves, job.rank, lengths)
            wants: dict[int, list[str]] = {}
            for to, id in moves:
                wants.setdefault(ranks.index(to), []).append(id)
            try:
                redistribute(self._wire, wants, keys, group=part, timeout=self.timeout)
            except InvalidArgument as error:
                raise self._explain(error, moves, part, ranks) from unsent
            arrived = self._wire.get(mine, keys if mine else ())
        finally:
            self._wire.remove(self._wire.ids)
        return [self._sample(id, {key: arrived.item(key, i) for key in keys}, lengths) for i, id in enumerate(mine)]

    def _explain(
        self, error: InvalidArgument, moves: Moves, part: Membership, ranks: tuple[int, ...]
    ) -> InvalidArgument:
        """Returns an error that names the rank whose data is missing, or `error` if no data is. Collective."""
        held = all_gather(self._wire, part, timeout=self.timeout)
        for (to, id), keys in moves.items():
            for key, source in keys:
                if ranks.index(source) not in held.holders(id, key):
                    return InvalidArgument(
                        f"rank {source} must send sample {id}, key {key} to rank {to}, but does not have it as "
                        "data_info describes, or cannot send it"
                    )
        return error

    def _lend(self, moves: Moves, rank: int, lengths: _Lengths) -> Exception | None:
        """Stores the data that this rank is to send in `_wire`, if the rank has it in the form of data_info and can
        send it. The exchange tells all ranks which data is missing; the returned exception tells this rank why."""
        unsent = None
        sent: dict[str, set[str]] = {}
        for (_, id), keys in moves.items():
            sent.setdefault(id, set()).update(key for key, source in keys if source == rank)
        for id, names in sent.items():
            sample = self.storage.get(id)
            data = {} if sample is None else sample.data or {}
            try:
                fields = {key: data[key].detach().cpu() for key in names if data.get(key) is not None}
                if sample is not None and fields:
                    seqlens = {key: sample.seqlens[key] for key in fields}
                    lent = SampleBatch([id], fields, seqlens)
                    for key in fields:
                        lengths.check(id, key, seqlens[key], fields[key])
                    self._wire.store(lent, copy=False)
            except Exception as problem:  # wrong lengths, sparse, or not a tensor; the others already wait
                unsent = unsent or problem
        return unsent

    def _sample(self, id: str, fields: dict[str, Any], lengths: _Lengths) -> SequenceSample:
        if self._move is not None:
            fields = self._move(fields)
        with SequenceSample.disable_validation():
            return of_tensors([id], {key: [list(lengths.of(id, key))] for key in fields}, fields)


class _Lengths:
    """A meta, indexed by id."""

    def __init__(self, meta: SequenceSample) -> None:
        self._meta = meta
        self._positions = {id: position for position, id in enumerate(meta.ids)}

    def of(self, id: str, key: str) -> list[int]:
        """Returns the lengths of a key of a sample. Raises InvalidArgument if the meta lacks them."""
        if id not in self._positions:
            raise InvalidArgument(f"a step moves sample {id}, of which data_info has nothing")
        if key not in self._meta.keys:
            raise InvalidArgument(f"a step moves key {key} of sample {id}, of which data_info has nothing")
        return self._meta.seqlens[key][self._positions[id]]

    def check(self, id: str, key: str, seqlens: Any, tensor: Any) -> None:
        """Raises InvalidArgument if a tensor differs from the meta."""
        said = self.of(id, key), self.dtype(key), self.trailing(key)
        has = list(seqlens[0]), tensor.dtype, tuple(tensor.shape[1:])
        if has != said:
            form = "lengths {}, {} and trailing shape {}"
            raise InvalidArgument(
                f"sample {id}, key {key} has {form.format(*has)}, but data_info has {form.format(*said)}"
            )

    def dtype(self, key: str) -> Any:
        """Returns the dtype of a key, or None for a key without data."""
        return self._meta.dtypes.get(key)

    def trailing(self, key: str) -> tuple[int, ...]:
        return tuple(self._meta.trailing_shapes[key] or ())

    def without_data(self, moves: Moves, rank: int) -> list[SequenceSample]:
        """Returns the samples that `rank` receives for keys without data."""
        samples = []
        for (to, id), sources in moves.items():
            keys = [key for key, _ in sources if self.dtype(key) is None]
            if to == rank and keys:
                seqlens = {key: [list(self.of(id, key))] for key in keys}
                samples.append(of_tensors([id], seqlens, dict.fromkeys(keys)))
        return samples


def _moves(steps: Iterable[RedistribStep]) -> Moves:
    """Returns the original source of each rank's keys after all steps. Data that is passed on comes from the rank that
    had it first."""
    origins: dict[tuple[int, str], dict[str, int]] = {}
    for step in steps:
        for source, to, ids in hops(step):
            own = dict.fromkeys(sorted(step.keys), source)
            for id in map(str, ids):
                passed = origins.get((source, id))
                arriving = own if passed is None else {key: passed.get(key, source) for key in own}
                origins[to, id] = origins.get((to, id), {}) | arriving
    moves = {place: tuple(it for it in keys.items() if it[1] != place[0]) for place, keys in origins.items()}
    return {place: sources for place, sources in moves.items() if sources}


def _parts(moves: Moves, lengths: _Lengths) -> list[Moves]:
    """Divides moves into parts that one exchange can execute, in which each key of a sample has one source and all
    receivers get the same keys. Derived plans are one part. With steps made by hand, two ranks may be sent different
    versions of a key."""
    versions: dict[str, dict[str, list[int]]] = {}
    for (_, id), sources in moves.items():
        known = versions.setdefault(id, {})
        for key, source in sources:
            if source not in known.setdefault(key, []):
                lengths.of(id, key)
                known[key].append(source)
    parts: dict[tuple[int, tuple[str, ...]], Moves] = {}
    for (to, id), sources in moves.items():
        turns: dict[int, list[tuple[str, int]]] = {}
        for key, source in sorted(sources):
            if lengths.dtype(key) is not None:
                turns.setdefault(versions[id][key].index(source), []).append((key, source))
        for turn, some in turns.items():
            parts.setdefault((turn, tuple(key for key, _ in some)), {})[to, id] = tuple(some)
    return list(parts.values())
