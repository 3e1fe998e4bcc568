"""Megatron-LM's sequence packing: divides the samples of a step among data-parallel ranks and packs them.

    from levada.dropin.megatron import get_batch_on_this_rank_for_sequence_packing, wrap_data_iterator
    # was: from megatron.core.datasets.data_schedule import ...

In Megatron-LM (main, August 2026)                Here
------------------------------------------------  ------------------------------------------------------------------
two gathers of lengths, an all-to-all for each    a small all-gather and a plan from rank 0; then one message from a
of six keys, and ten broadcasts per micro-batch   rank to all ranks, tensor-parallel peers included, that need the
                                                  same keys of its samples
packs samples in their order                      balances samples by their cost; scheduler="dp_balanced" packs them
                                                  in their order
the first and the last pipeline stage get all     a stage gets the keys that it computes with
keys
the iterator is None on tensor-parallel ranks     every rank gets an iterator, and get_batch sends nothing; it still
above 0                                           accepts None on these ranks
sums of lengths lose digits on some ranks, in     sums are exact, and the same on all ranks
float32
each data-parallel rank reads on tensor-parallel  one reader per data-parallel rank is enough
rank 0 of the first and the last stage
a failed assertion ends one rank while the        every rank raises levada.InvalidArgument, which names sample and
others wait                                       remedy
if an iterator ends or raises, one rank ends      every rank raises StopIteration or levada.SourceError
while the others wait

Samples are sent from host memory. Micro-batches are moved to the accelerator, if there is one, as they are read.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from levada import _levada
from levada.base.checks import whole_number
from levada.base.errors import InvalidArgument, Unsupported
from levada.batch.devices import accelerator, mover
from levada.batch.packing import positive
from levada.dropin._megatron import place, sliced
from levada.dropin._packing_exchange import Batch, deliver
from levada.dropin._packing_samples import INPUTS, KEYS, TARGETS, Sample, lengths_of, read
from levada.dropin._packing_schedules import Scheduler, as_schedule, balanced, check, in_order
from levada.dropin._packing_stages import chunks_of, keys_by_chunk
from levada.dropin._packing_step import PackingSettings, Place, RankMessage, agree, failure
from levada.dropin.bridge import BroadcastIterator
from levada.job.job import join

parallel_state: Any
try:
    from megatron.core import parallel_state  # type: ignore[import-not-found, import-untyped, no-redef, unused-ignore]
except ImportError:
    parallel_state = None

__all__ = ["balanced", "get_batch_on_this_rank_for_sequence_packing", "in_order", "wrap_data_iterator"]

TIMEOUT = 1800.0
"""Seconds that one wait for other ranks may take, which may be writing a checkpoint between their steps."""


def wrap_data_iterator(
    data_iterator: Any,
    config: Any,
    num_microbatches: int,
    pg_collection: Any = None,
    *,
    scheduler: str | Scheduler = "balanced",
    group: Any = None,
) -> tuple[Any, int, float, float]:
    """Reads the samples of one step, divides them among data-parallel ranks, and packs them into micro-batches.

    Returns an iterator over this rank's micro-batches, their number, the sum of the padded lengths of all samples, and
    the sum of the squares of these lengths. The number is the same on all ranks and, with virtual pipeline stages, a
    multiple of config.microbatch_group_size_per_vp_stage. A micro-batch is a dict of cu_seqlens, cu_seqlens_padded
    (int32, [samples + 1]) and max_seqlen (int32, []), and of the keys that the stage computes with, each [tokens]:
    tokens and position_ids on the first stage, labels and loss_mask on the last, all four on a stage that hosts
    multi-token prediction. With virtual pipeline stages, the first value is a list with one iterator for each. The
    iterators are RerunDataIterators if Megatron-LM has them.

    data_iterator: read for num_microbatches items, each a dict or a list of dicts: one sample with padded_seq_len, or
    several between the boundaries in cu_seqlens. tokens, labels and position_ids are int64, loss_mask is float32. None
    on a rank that does not read. With virtual stages, a list, of which one that is not None is read. All readers of a
    data-parallel rank must read the same samples, which are not modified. At least one of its ranks must read. With one
    reader on the first stage and one on the last, the data that these stages need of their own samples is not sent
    between them.
    config: max_seqlen_per_dp_cp_rank and sequence_packing_scheduler, which must be "dp_balanced"; and
    virtual_pipeline_model_parallel_size, microbatch_group_size_per_vp_stage, hidden_size, mtp_num_layers and
    pipeline_model_parallel_layout, which may be absent.
    pg_collection: uses tp, pp, dp and dp_cp. Defaults to the groups of megatron.core.parallel_state.
    scheduler: "balanced" equalizes the operations of a transformer of config.hidden_size. "dp_balanced" packs like
    Megatron-LM's own scheduler, sample by sample. A function, the same on all ranks, is described by Scheduler.
    group: has exactly the ranks of pg_collection, as in levada.join(). Defaults to the whole job.

    Collective over the group. Raises on all ranks: InvalidArgument, naming rank, sample and remedy, for samples and
    configurations that are invalid or differ; StopIteration if the data iterators end, and SourceError if one raises;
    PeerLost, Timeout or EngineError if a rank is lost.
    """
    job = join(group)
    cause: Exception | None = None
    samples: list[Sample] | None = None
    try:
        message, samples = _rank_message(data_iterator, config, num_microbatches, pg_collection, scheduler)
    except Exception as error:
        message, cause = failure(error), error
    encoded = _levada.agree(job, message.encode(), TIMEOUT, "packing a step")
    try:
        step = agree(encoded)
    except Exception as error:
        raise error from cause
    settings = step.settings
    task = (step.padded, settings.sizes.data, settings.max_tokens, settings.multiple)
    schedule = as_schedule(_scheduler(scheduler, config)(*task))
    check(schedule, *task)
    items = deliver(job, step, schedule, samples, TIMEOUT)
    groups = _groups(pg_collection)
    iterators = [_iterator(items, keys) for keys in keys_by_chunk(config, groups["pp"])]
    if settings.sizes.tensor > 1:
        _wrapped[groups["tp"]] = iterators
    return (
        iterators if chunks_of(config) > 1 else iterators[0],
        len(schedule[0]),
        float(sum(step.padded)),
        float(sum(length * length for length in step.padded)),
    )


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Any,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,
    vp_stage: int | None = None,
    pg_collection: Any = None,
) -> tuple[Any, Any, Any, None, Any, Any, Any]:
    """Returns tokens, labels, loss_mask, None, position_ids, PackedSeqParams and padding_mask of the next micro-batch
    for this rank. Each tensor is [1, tokens] and, with context parallelism, the zigzag slice of each of its samples.
    Padding is 0, and True in padding_mask. The first stage gets tokens and position_ids, the last one labels and
    loss_mask. With mtp_on_this_rank, a stage also gets tokens and position_ids, and labels and loss_mask if the
    micro-batch has them. All other values are None.

    data_iterator: the result of wrap_data_iterator() on this rank, or None for its last result; nothing is sent then.
    In a tensor-parallel group for which wrap_data_iterator() has not been called: any iterator over such micro-batches
    on rank 0, and None on its peers, which get each micro-batch in one message.
    pg_collection: uses tp, pp and cp. Defaults to the groups of megatron.core.parallel_state.

    Raises StopIteration after the last micro-batch. Raises InvalidArgument, naming the key, if a micro-batch lacks a
    required key, and for another iterator in a group for which wrap_data_iterator() has been called. Raises Unsupported
    without megatron.core, whose PackedSeqParams it returns. For an iterator that the group shares, also raises the
    exceptions of levada.dropin.bridge.BroadcastIterator.
    """
    groups = _groups(pg_collection)
    at, size = place(groups["pp"])
    first = at == 0 and vp_stage in (None, 0)
    last = at == size - 1 and (vp_stage is None or vp_stage == (vpp_size or 1) - 1)
    micro = _next(data_iterator, groups["tp"], vp_stage or 0)
    keys = {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"}
    keys |= {*(INPUTS if first or mtp_on_this_rank else ()), *(TARGETS if last else ())}
    if lacking := sorted(key for key in keys if micro.get(key) is None):
        raise InvalidArgument(
            f"the micro-batch has no {lacking[0]}, which this pipeline stage needs; it has {', '.join(micro)}; with "
            "multi-token prediction set config.mtp_num_layers"
        )
    if mtp_on_this_rank:
        keys |= {key for key in TARGETS if micro.get(key) is not None}
    bounds = micro["cu_seqlens_padded"]
    padding = _padding_mask(micro["cu_seqlens"], bounds)
    batch = {key: micro[key].masked_fill(padding, 0).unsqueeze(0) for key in KEYS if key in keys}
    batch["padding_mask"] = padding.unsqueeze(0)
    batch = sliced({**batch, "cu_seqlens": bounds}, *place(groups["cp"]))
    packing = _packed_seq_params()(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        cu_seqlens_q_padded=bounds,
        cu_seqlens_kv_padded=bounds,
        max_seqlen_q=int(micro["max_seqlen"]),
        max_seqlen_kv=int(micro["max_seqlen"]),
    )
    tokens, labels, loss_mask, position_ids = map(batch.get, KEYS)
    return tokens, labels, loss_mask, None, position_ids, packing, batch["padding_mask"]


class MicroBatches:
    """Yields micro-batches once, on the accelerator if there is one."""

    def __init__(self, items: list[Batch]) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return _moved(next(self._items))


class _OnHost:
    """Yields the batches of an iterator with their tensors on the CPU."""

    def __init__(self, data_iterator: Iterator[Mapping[str, Any]]) -> None:
        self._data = data_iterator

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return {key: value.cpu() if hasattr(value, "cpu") else value for key, value in next(self._data).items()}


def _rank_message(
    data_iterator: Any, config: Any, num_microbatches: int, pg_collection: Any, scheduler: str | Scheduler
) -> tuple[RankMessage, list[Sample] | None]:
    """Returns this rank's message to the others, and the samples that it has read."""
    count = whole_number("num_microbatches", num_microbatches)
    groups = _groups(pg_collection)
    (data, dp), (tensor, tp), (pipeline, pp) = (place(groups[name]) for name in ("dp", "tp", "pp"))
    context, both = place(groups["dp_cp"])
    cp = both // dp
    needs = {key for keys in keys_by_chunk(config, groups["pp"]) for key in keys}
    _scheduler(scheduler, config)
    settings = PackingSettings(
        sizes=Place(dp, cp, tp, pp),
        max_tokens=_positive(config, "max_seqlen_per_dp_cp_rank") * cp,
        multiple=_positive(config, "microbatch_group_size_per_vp_stage") if chunks_of(config) > 1 else 1,
        num_microbatches=count,
        scheduler=scheduler if isinstance(scheduler, str) else getattr(scheduler, "__qualname__", "a function"),
    )
    if chunks_of(config) > 1 and data_iterator is not None:
        data_iterator = next((each for each in data_iterator if each is not None), None)
    samples = None if data_iterator is None else read(data_iterator, count)
    return RankMessage(
        error=None,
        place=Place(data, context % cp, tensor, pipeline),
        settings=settings,
        needs=tuple(key for key in KEYS if key in needs),
        lengths=None if samples is None else lengths_of(samples),
    ), samples


def _groups(pg_collection: Any) -> Any:
    """Returns the process groups, by their names in a ProcessGroupCollection."""
    if pg_collection is not None:
        return _Named(pg_collection)
    if parallel_state is None:
        raise Unsupported("pass a pg_collection: megatron.core, whose groups it would be, is not installed")
    if not parallel_state.model_parallel_is_initialized():
        raise Unsupported("pass a pg_collection, or call megatron.core.parallel_state.initialize_model_parallel() first")
    return {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "pp": parallel_state.get_pipeline_model_parallel_group(),
        "cp": parallel_state.get_context_parallel_group(),
        "dp": parallel_state.get_data_parallel_group(),
        "dp_cp": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


class _Named:
    def __init__(self, groups: Any) -> None:
        self._groups = groups

    def __getitem__(self, name: str) -> Any:
        if (group := getattr(self._groups, name, None)) is None:
            raise InvalidArgument(f"pg_collection has no group {name}, which sequence packing needs")
        return group


def _positive(config: Any, name: str) -> int:
    return positive(f"config.{name}", getattr(config, name, None))


def _scheduler(scheduler: str | Scheduler, config: Any) -> Scheduler:
    theirs = getattr(config, "sequence_packing_scheduler", None)
    if theirs != "dp_balanced":
        raise Unsupported(
            f"config.sequence_packing_scheduler is {theirs!r}; levada replaces only 'dp_balanced'"
        )
    if callable(scheduler):
        return scheduler
    if scheduler == "dp_balanced":
        return in_order
    if scheduler != "balanced":
        raise InvalidArgument(f"scheduler is {scheduler!r}; it must be \"balanced\", \"dp_balanced\" or a function")
    hidden = getattr(config, "hidden_size", None)
    return functools.partial(balanced, cost=f"flops(hidden={hidden})" if hidden else "flops")


def _iterator(items: list[Batch], keys: tuple[str, ...]) -> Any:
    micros = MicroBatches([{key: value for key, value in item.items() if key in keys or key not in KEYS} for item in items])
    rerun = _rerun_data_iterator()
    return micros if rerun is None else rerun(micros)


@functools.cache
def _rerun_data_iterator() -> Any:
    try:
        return importlib.import_module("megatron.core.rerun_state_machine").RerunDataIterator
    except ImportError:
        return None


@functools.cache
def _packed_seq_params() -> Any:
    try:
        return importlib.import_module("megatron.core.packed_seq_params").PackedSeqParams
    except ImportError:
        raise Unsupported("megatron.core, whose PackedSeqParams a batch has, is not installed") from None


_wrapped: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""The last result of wrap_data_iterator() on this rank, by tensor-parallel group and virtual stage. Callers written for
Megatron-LM pass None on tensor-parallel ranks above 0."""


def _next(data_iterator: Any, tp: Any, chunk: int) -> Batch:
    wrapped = _wrapped.get(tp) if place(tp)[1] > 1 else None
    if data_iterator is None and wrapped is not None:
        data_iterator = wrapped[chunk]
    if isinstance(getattr(data_iterator, "iterable", data_iterator), MicroBatches):
        batch: Batch = next(data_iterator)
        return batch
    if wrapped is not None:
        raise InvalidArgument(
            f"the data iterator has type {type(data_iterator).__name__}, but tensor-parallel peers may read the "
            "iterator that wrap_data_iterator() returned; pass the one that it returned on this rank"
        )
    shared = BroadcastIterator(None if data_iterator is None else _OnHost(data_iterator), tp)
    return _moved(next(shared))


_mover = functools.cache(mover)  # one per device, with its pinned memory


def _moved(batch: Batch) -> Batch:
    move = _mover(accelerator())
    return batch if move is None else move(batch)


def _padding_mask(cu_seqlens: Any, cu_seqlens_padded: Any) -> Any:
    """Returns a tensor that is True at the padding of a packed row."""
    torch = importlib.import_module("torch")
    padded = cu_seqlens_padded.diff()
    within = torch.arange(int(cu_seqlens_padded[-1]), device=padded.device)
    within -= cu_seqlens_padded[:-1].repeat_interleave(padded)
    return within >= cu_seqlens.diff().repeat_interleave(padded)
