"""Samples move from the ranks that made them to the ranks that need them.

    from levada import exchange

    store = exchange.Store(tensors="torch")                      # one a rank
    store.store(exchange.SampleBatch(ids, {"tokens": tokens}, {"tokens": lengths}))

    held = exchange.all_gather(store)                                # who has what: no payload
    critic = exchange.destinations(levada.Mesh(dp=2, tp=2), held.meta(), balance="flops")   # equal work for each dp rank
    exchange.redistribute(store, critic, ["tokens"])
    mine = store.get(critic[dp].ids)                             # bit for bit what was stored elsewhere

Every byte leaves its rank once for each set of ranks that lacks it, and lands where it stays; what a rank has already
does not move. `docs/design/exchange.md` tells how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from levada import _levada
from levada._levada import (
    Destination,
    ExchangePlan,
    ExchangeResult,
    Mesh,
    Multicast,
    SampleBatch,
    SampleDirectory,
    Store,
)
from levada.base.errors import InvalidArgument
from levada.batch.balance import Balance
from levada.job.job import join
from levada.job.meshes import as_mesh, is_device_mesh, ranks_of

__all__ = [
    "Destination",
    "ExchangePlan",
    "ExchangeResult",
    "Multicast",
    "SampleBatch",
    "SampleDirectory",
    "Store",
    "all_gather",
    "balance",
    "data_heads",
    "destinations",
    "plan",
    "redistribute",
]

Wants = Mapping[int, Iterable[str]] | Iterable[Destination]
"""By rank the ids that it is to have; or destinations."""

_IN_FLIGHT = 64 << 20


def all_gather(store: Store, group: Any = None, *, timeout: float = 1800.0) -> SampleDirectory:
    """Who has what of all the group's stores, the same on all its ranks. Collective over them; only ids, lengths and
    values travel. group: as levada.join() takes it. timeout: seconds of one wait: by default 30 minutes, for another rank
    may be generating or saving a checkpoint.

    Raises InvalidArgument on all ranks, naming id, key and ranks, where two of them hold different forms of one sample,
    or one of them a key in different forms; and naming calls and stores, where ranks are in another call, or in one for a
    store of another name.
    """
    return _levada.all_gather(join(group), store, timeout)


def destinations(
    mesh: Mesh | Any,
    ids: Sequence[Sequence[str]] | SampleBatch,
    ranks: Sequence[int] | None = None,
    *,
    cut: str = "whole",
    balance: Balance | str | None = None,
    key: str = "",
) -> list[Destination]:
    """ids[d] for all ranks of a model with coordinate d along the data axes, whatever their other coordinates.

    mesh: a Mesh, or a DeviceMesh of torch.distributed. ids: a list of ids for each data coordinate, or a batch, or its
    meta, whose samples are divided over them as `balance` says, by the sequences of `key` or of all keys: a Balance, or its
    cost, such as "flops"; by default "tokens", and free counts. ranks: those of the job on which the model is, in the
    mesh's order; by default those of the DeviceMesh, or from 0 on. cut: along the axis cp sequences are given "whole", or
    cut in "consecutive" parts or "zigzag". Raises InvalidArgument unless there is one list of ids for each data coordinate,
    and one rank a place of the mesh; and for a cost that is a field or a function.
    """
    ranks, mesh = _model_ranks(mesh, ranks), as_mesh(mesh)
    if isinstance(ids, SampleBatch):
        by = balance if isinstance(balance, Balance) else Balance(balance or "tokens")
        if not isinstance(by.cost, str) or by.weight is not None:
            raise InvalidArgument(
                "the cost of samples between models follows from their sequences, as \"flops\" does; for weights of your own "
                "give the ids that levada.exchange.balance(weights, mesh.data_size) divides"
            )
        parts = ids.balanced(mesh.data_size, key, equal=by.counts == "equal", cost=by.cost)
        names = ids.ids
        ids = [[names[at] for at in part] for part in parts]
    elif balance is not None or key:
        raise InvalidArgument("balance= and key= divide the samples of a batch: give one, or its meta, in place of ids")
    return _levada.destinations_of(mesh, ids, ranks, cut)


def data_heads(mesh: Mesh | Any, ranks: Sequence[int] | None = None) -> list[int]:
    """For each coordinate along the data axes the rank that gives out what its group has made: tensor and context
    coordinate 0 in the last pipeline stage. mesh, ranks: as for destinations()."""
    return _levada.data_heads(as_mesh(mesh), _model_ranks(mesh, ranks))


def _model_ranks(mesh: Any, ranks: Sequence[int] | None) -> Sequence[int] | None:
    return ranks_of(mesh) if ranks is None and is_device_mesh(mesh) else ranks


def plan(
    directory: SampleDirectory,
    wants: Wants,
    keys: Sequence[str],
    *,
    cut_keys: Sequence[str] = (),
    allow_absent: bool = False,
    host_of: Sequence[int] = (),
) -> ExchangePlan:
    """What has to move so that everybody has the ids and keys that they want, as redistribute() moves it. Pure: the same
    on every rank, and on a controller that is none.

    cut_keys: those of `keys` of which a destination with a part gets just that. allow_absent: samples may lack keys,
    some or all; they come without them, and not at all where they have none. host_of: each rank's host; by default one
    host.

    Raises InvalidArgument, naming id, key and ranks, for an id that nobody holds and a key that nobody has of it.
    """
    return _levada.plan_exchange(directory, _request(wants, keys, cut_keys, allow_absent), list(host_of))


def redistribute(
    store: Store,
    wants: Wants,
    keys: Sequence[str],
    *,
    group: Any = None,
    cut_keys: Sequence[str] = (),
    allow_absent: bool = False,
    chunk_bytes: int | None = None,
    in_flight_bytes: int = _IN_FLIGHT,
    timeout: float = 1800.0,
) -> ExchangeResult:
    """Delivers to each rank of a group the ids and keys that it is to have: all ranks ask for the same, as plan() takes
    it. Collective over the group, one call at a time; safe to repeat. There is nothing to set up.

    group: as levada.join() takes it; ranks are those within it. chunk_bytes: of a message at most, the same on all ranks;
    by default what suits the engine, 1 MiB or 16. in_flight_bytes: of this rank's messages that are on the way at a time,
    or two messages; where ranks share memory, always three messages. timeout: seconds of one wait, for the others to begin
    or for the next message.

    Raises InvalidArgument alike on all ranks, before anything has moved: what plan() refuses; ranks that ask for
    different things, make different calls or name different stores; a store whose bound does not allow what is to come.
    Raises PeerLost where a rank is lost or has left, naming the exception that ended it, and Timeout; what one rank alone
    raises ends the group, and is EngineError on the others. Each key of each sample is then in a store as a whole or not
    at all.
    """
    request = _request(wants, keys, cut_keys, allow_absent)
    return _levada.redistribute(join(group), store, request, chunk_bytes, in_flight_bytes, timeout)


def balance(
    tokens: Sequence[int], parts: int, *, equal: bool = False, in_order: bool = False
) -> list[list[int]]:
    """Positions of `tokens` by part, such that the parts have about as many tokens: the fullest at most 4/3 of the least
    possible. equal: no part has two items more than another. in_order: consecutive runs, the fullest of which has the
    least possible. Raises InvalidArgument for no parts, a negative count, and too few items for `equal` or `in_order`.
    """
    if equal and in_order:
        raise InvalidArgument("equal counts of consecutive items leave nothing to balance; give one of equal, in_order")
    return _levada.partition_by_tokens(tokens, parts, equal, in_order)


def _request(
    wants: Wants, keys: Sequence[str], cut_keys: Sequence[str], allow_absent: bool
) -> _levada.ExchangeRequest:
    if isinstance(wants, Mapping):
        wants = [Destination([rank], list(ids)) for rank, ids in wants.items()]
    return _levada.ExchangeRequest(list(wants), keys, cut_keys, allow_absent)
