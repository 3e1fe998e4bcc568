"""Moves samples from the ranks that made them to the ranks that need them.

    from levada import exchange

    store = exchange.Store(tensors="torch")                      # one per rank
    store.store(exchange.SampleBatch(ids, {"tokens": tokens}, {"tokens": lengths}))

    held = exchange.all_gather(store)                                # which rank holds what; sends no payload
    critic = exchange.destinations(levada.Mesh(dp=2, tp=2), held.meta(), balance="flops")   # equal work per dp rank
    exchange.redistribute(store, critic, ["tokens"])
    mine = store.get(critic[dp].ids)                             # bit-identical to what was stored elsewhere

Every byte leaves its rank once for each set of ranks that needs it, and is received in place. A rank receives no data
that it already holds. `docs/design/exchange.md` explains the design.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from levada import _levada
from levada._levada import (
    Destination,
    ExchangePlan,
    ExchangeResult,
    Membership,
    Mesh,
    Multicast,
    SampleBatch,
    SampleDirectory,
    Store,
)
from levada.base.checks import whole_number
from levada.base.errors import Error, InvalidArgument, InvalidType
from levada.batch.balance import Balance
from levada.batch.packing import positive
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
"""A dict from each rank to the ids that it is to receive, or a list of destinations."""

_IN_FLIGHT = 64 << 20


def all_gather(store: Store, group: Any = None, *, timeout: float = 1800.0) -> SampleDirectory:
    """Returns which ranks hold which samples and keys in the stores of a group. The result is the same on all ranks of
    the group. Collective; sends only ids, lengths and values.

    group: as levada.join() accepts it. timeout: seconds that one wait may take. The default of 30 minutes allows for
    another rank that is generating or saving a checkpoint.

    Raises InvalidArgument on all ranks: naming id, key and ranks, if two ranks hold different forms of one sample, or
    one rank holds a key in different forms; naming calls and stores, if ranks make different calls or name different
    stores."""
    job = join(group)
    with _counted(job):
        return _levada.all_gather(job, store, timeout)


def destinations(
    mesh: Mesh | Any,
    ids: Sequence[Sequence[str]] | SampleBatch,
    ranks: Sequence[int] | None = None,
    *,
    cut: str = "whole",
    balance: Balance | str | None = None,
    key: str = "",
    data_axes: Sequence[str] | None = None,
) -> list[Destination]:
    """Returns the destinations of a model's samples: ids[d] for all ranks with coordinate d along the data axes,
    whatever their other coordinates.

    - `mesh`: a Mesh, or a DeviceMesh of torch.distributed.
    - `ids`: a list of ids for each data coordinate; or a batch, or its meta, whose samples `balance` divides among the
      data coordinates.
    - `ranks`: the job's ranks that the model runs on, in the mesh's order. Defaults to the ranks of the DeviceMesh, or
      to 0, 1, and so on.
    - `cut`: whether each rank along the axis cp gets "whole" sequences, or "consecutive" or "zigzag" parts of them.
    - `balance`: a Balance of `cost` and `counts`, or its cost, such as "flops". Defaults to "tokens". Counts are free
      unless they are "equal".
    - `key`: the key whose sequences are balanced. Defaults to all keys.
    - `data_axes`: the axes of a DeviceMesh along which samples differ.

    Raises InvalidArgument unless there are one list of ids for each data coordinate and one rank for each position in
    the mesh; if a batch has fewer samples than there are data coordinates; if the cost is a field or a function; and
    for other options of a Balance, which only apply to feeds."""
    ranks, mesh = _model_ranks(mesh, ranks), as_mesh(mesh, data_axes)
    if isinstance(ids, SampleBatch):
        by = balance if isinstance(balance, Balance) else Balance("tokens" if balance is None else balance)
        if not isinstance(by.cost, str) or by.weight is not None:
            raise InvalidArgument(
                "the cost of samples between models follows from their sequences, as \"flops\" does; for your own weights, "
                "pass the ids as divided by levada.exchange.balance(weights, mesh.data_size)"
            )
        if by != Balance(by.cost, counts=by.counts):
            raise InvalidArgument(
                f"balance is {by}; an exchange supports only cost and counts: omit the other options"
            )
        parts = ids.balanced(mesh.data_size, key, equal=by.counts == "equal", cost=by.cost)
        names = ids.ids
        ids = [[names[at] for at in part] for part in parts]
    elif balance is not None or key:
        raise InvalidArgument("balance= and key= divide the samples of a batch: pass a batch, or its meta, as ids")
    return _levada.destinations_of(mesh, ids, ranks, cut)


def data_heads(
    mesh: Mesh | Any, ranks: Sequence[int] | None = None, *, data_axes: Sequence[str] | None = None
) -> list[int]:
    """Returns the rank that sends its group's results for each coordinate along the data axes: the rank with tensor and
    context coordinate 0 in the last pipeline stage. mesh, ranks, data_axes: as in destinations()."""
    return _levada.data_heads(as_mesh(mesh, data_axes), _model_ranks(mesh, ranks))


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
    """Returns the moves with which redistribute() delivers the wanted ids and keys to each rank. Pure: the result is
    the same on every rank, and on a controller that is not a rank.

    - `cut_keys`: keys of which a destination with a part of the sequence receives only that part.
    - `allow_absent`: allows samples to lack some or all keys. They arrive without these, or not at all if they have none.
    - `host_of`: the host of each rank. By default, all ranks are on one host.

    Raises InvalidArgument, naming id, key and ranks, for an id that no rank holds, or a key that no rank holds for it.
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
    """Delivers the wanted ids and keys to each rank of a group. All ranks pass the same `wants` and `keys`, as in
    plan(). Collective over the group, one call at a time. Safe to repeat, and needs no setup.

    - `group`: as levada.join() accepts it. `wants` refers to ranks by their numbers within it.
    - `chunk_bytes`: maximum message size in bytes, the same on all ranks. Defaults to 1 MiB or 16 MiB, depending on the
      engine.
    - `in_flight_bytes`: maximum bytes of this rank's messages in flight, but at least two messages. Between ranks that
      share memory, it is always three messages.
    - `timeout`: seconds to wait for the other ranks to begin, or for the next message. May differ between ranks.

    Raises InvalidArgument on all ranks, before any data has moved, for input that plan() rejects; if ranks hold
    different contents of a sample's key, such as after update() on one of them, naming both; if ranks make different
    requests or calls, or name different stores; and if the limit of a store is too small for the data it would receive.
    Raises Timeout, and raises PeerLost, naming the exception that ended it, if a rank is lost or has left. An exception
    on only one rank ends the group and raises EngineError on the others. Each key of each sample is then in a store
    completely or not at all.
    """
    job = join(group)
    with _counted(job, of_call=()):
        request = _request(wants, keys, cut_keys, allow_absent)
    with _counted(job):
        return _levada.redistribute(job, store, request, chunk_bytes, in_flight_bytes, timeout)


def balance(
    tokens: Sequence[int], parts: int, *, equal: bool = False, in_order: bool = False
) -> list[list[int]]:
    """Divides the positions of `tokens` into parts with about the same number of tokens. The largest part has at most
    4/3 of the minimum possible. equal: the numbers of items differ by at most one. in_order: parts are consecutive
    runs, and the largest has the minimum possible. Raises InvalidArgument for zero parts, a negative count, and too few
    items for `equal` or `in_order`."""
    if equal and in_order:
        raise InvalidArgument("equal counts of consecutive items leave nothing to balance; pass only one of equal, in_order")
    try:
        return _levada.partition_by_tokens(tokens, parts, equal, in_order)
    except TypeError as error:
        positive("parts", parts)
        if isinstance(tokens, str) or not hasattr(tokens, "__len__"):
            raise InvalidType(f"tokens must be a list of whole numbers, got {tokens!r}") from error
        for at, each in enumerate(tokens):
            whole_number(f"tokens[{at}]", each)
        raise


@contextlib.contextmanager
def _counted(job: Membership, of_call: tuple[type[Exception], ...] = (Error,)) -> Iterator[None]:
    """Counts a call that raises before it begins, so that other ranks do not mistake this rank's next call for it.
    of_call: the exceptions that the call itself raises, which is already counted then."""
    try:
        yield
    except of_call:
        raise
    except Exception:
        with contextlib.suppress(Error):  # raised if this rank has left its job
            job.skip_exchange()
        raise


def _request(
    wants: Wants, keys: Sequence[str], cut_keys: Sequence[str], allow_absent: bool
) -> _levada.ExchangeRequest:
    lists: dict[str, object] = {"keys": keys, "cut_keys": cut_keys}
    if isinstance(wants, Mapping):
        lists |= {f"wants[{rank}]": ids for rank, ids in wants.items()}
    for what, names in lists.items():
        if isinstance(names, str):  # a string is a sequence of strings, too
            raise InvalidArgument(f"{what} must be a list of strings, got {names!r}")
    try:
        if isinstance(wants, Mapping):
            wants = [Destination([rank], list(ids)) for rank, ids in wants.items()]
        return _levada.ExchangeRequest(list(wants), keys, cut_keys, allow_absent)
    except TypeError as error:
        raise InvalidArgument(
            "wants must be {rank: [id, ...]} or a list of Destination, keys and cut_keys lists; ids and keys are strings"
        ) from error
