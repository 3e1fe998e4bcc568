"""Megatron-Bridge's broadcast_data_across_tp: one rank of a tensor-parallel group reads for all of the group's ranks.

The steps of each version of Megatron-Bridge unpack as many values as its get_batch returns:

    Megatron-Bridge           gpt_step.get_batch                     vlm_step.get_batch
    ------------------------  -------------------------------------  ---------------------------------------------
    v0.6.0, main              get_batch (6 values)                   get_vlm_batch (7 values)
    v0.3.0 to v0.5.1, PR 2405 get_batch_with_cu_seqlens (10 values)  its own, which pads and packs, with a
                                                                     BroadcastIterator

BroadcastIterator works with the steps of all versions, because they read it with their own get_batch.

In Megatron-Bridge                                Here
------------------------------------------------  ------------------------------------------------------------------
one broadcast per tensor, whose shape is          one message per batch, with the shapes of the data, so a shorter
computed from the configuration                   batch stays short
extra keys cost two broadcasts of pickles, and    extra keys are in the same message; absent ones cost nothing
one more if there are none
a stage that reads but has no iterator fails on   every rank of the group raises an error
one rank while its peers wait
labels are None on some ranks of a stage and      a key is None on every rank of a stage, or on none
tensors on the rank that reads
input_ids is sent a second time                   input_ids and tokens are the same tensor
a stage between the first and the last gets       it gets the extra keys, and None for the standard ones
uninitialized memory for the standard keys
the end of the data ends the rank that reads      every rank raises StopIteration; an exception of the iterator is
while its peers wait until they time out          raised as levada.SourceError on every rank, with its traceback
context parallelism slices the data after it has  the data is sliced first, and only the slice is sent
been sent

Everything that Levada can send is supported (docs/python/batches.md): tensors, plain values, containers, data classes
of the program, and objects of classes passed to levada.register(). Nothing is pickled unless ALLOW_PICKLE is set.
Tensors are moved to the accelerator, if there is one, except the lengths of packed sequences, which Megatron reads on
the host.
"""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from levada._levada import Mesh
from levada.base.errors import InvalidArgument, SourceError, Unsupported
from levada.base.threads import OneCaller
from levada.batch.devices import accelerator, mover
from levada.dropin._megatron import ON_HOST, STANDARD, Batch, Stage, hosts_mtp, packed_keys, place, projected, sliced
from levada.feed.feed import Feed
from levada.job.groups import lock_of
from levada.job.job import join

parallel_state: Any
try:
    from megatron.core import parallel_state  # type: ignore[import-not-found, import-untyped, no-redef, unused-ignore]
except ImportError:
    parallel_state = None

TIMEOUT = 1800.0
"""Seconds that one wait for the reading rank may take, which may be writing a checkpoint between its steps."""

ALLOW_PICKLE = False
"""Whether extra keys of any class are sent, as pickles. Must be set on every rank before a group's first batch."""


def get_batch_on_this_tp_rank(
    data_iterator: Iterator[Mapping[str, Any]] | None,
    cfg: Any,
    use_mtp: bool = False,
    *,
    pg_collection: Any,
    broadcast_all_keys: bool = False,
) -> Batch:
    """Returns the next batch of tensor-parallel rank 0's iterator, on every rank of the group: a dict with the standard
    keys (tokens, labels, loss_mask, attention_mask, position_ids) and all other keys of the batch.

    A pipeline stage gets the standard keys that it needs; the others are None. The first stage needs tokens,
    position_ids and attention_mask. The last stage needs labels, loss_mask and attention_mask, and with `use_mtp` also
    tokens and position_ids. A stage that hosts multi-token prediction (cfg.model.pipeline_model_parallel_layout) needs
    the same keys as the first. If there is only one stage, and with `broadcast_all_keys`, a stage gets all of them. Any
    other stage needs none, and its reader may have no iterator; if it has one, the batch's other keys are delivered. A
    key that the batch lacks is None, too. If the batch has input_ids instead of tokens, both are the same tensor, and a
    stage that does not need tokens gets input_ids.

    Shapes are those of the data. Collective over pg_collection.tp. Raises StopIteration on every rank if the iterator
    ends; SourceError if it raises, or if a stage that needs keys has no iterator; Timeout; and PeerLost.
    """
    stage = _stage(pg_collection, cfg, use_mtp)._replace(everything=broadcast_all_keys)
    if stage.last and use_mtp:
        stage = stage._replace(predicts=True)
    if data_iterator is None and not stage.reads:
        data_iterator = itertools.repeat({})
    keys = stage.standard
    batch: Batch = dict.fromkeys(STANDARD)
    batch |= _next(data_iterator, lambda each: projected(each, keys), pg_collection.tp)
    return _moved(batch, on_host=frozenset())


def get_batch(
    data_iterator: Iterator[Mapping[str, Any]] | None,
    cfg: Any,
    use_mtp: bool = False,
    *,
    pg_collection: Any,
    vp_stage: int | None = None,
) -> tuple[Any, Any, Any, Any, Any, Batch | None]:
    """Returns tokens, labels, loss_mask, attention_mask, position_ids and the data of packed sequences, for a GPT step
    of Megatron-Bridge v0.6.0 and later. The last value has the keys for PackedSeqParams and, in addition to
    cu_seqlens_q, padding_mask, which the step removes from them.

    With cfg.dataset.broadcast_data_across_tp, the iterator of tensor-parallel rank 0 is read for its group; otherwise,
    each rank reads its own. The result is the same. A value that the (virtual) stage does not need is None; so is
    attention_mask unless cfg.dataset.skip_getting_attention_mask_from_dataset is False. A context-parallel rank gets
    its slice, of each packed sequence if there are cu_seqlens. A stage between the first and the last needs everything
    if the data set packs sequences or has its own attention masks.

    Collective over pg_collection.tp when broadcasting. Raises the exceptions of get_batch_on_this_tp_rank(), and
    InvalidArgument, in the text of a SourceError, if a sequence cannot be sliced or if a stage that reads has no
    iterator.
    """
    custom_mask = _masks(cfg.dataset)
    stage = _stage(pg_collection, cfg, use_mtp, vp_stage)
    if not stage.first and not stage.last:
        stage = stage._replace(everything=custom_mask or _packs(cfg.dataset))
    if not stage.reads:
        return None, None, None, None, None, None
    keys = stage.standard if custom_mask or stage.everything else stage.standard - {"attention_mask"}

    def prepare(data: Mapping[str, Any]) -> Batch:
        packing = packed_keys(data)
        wanted = {*keys, *packing, *(("padding_mask",) if "cu_seqlens_q" in packing else ())}
        batch = {key: value for key, value in projected(data, keys).items() if key in wanted}
        return get_batch_on_this_cp_rank(batch, cp_group=pg_collection.cp)

    batch = _moved(_next(data_iterator, prepare, _broadcast_group(cfg, pg_collection)), on_host=ON_HOST)
    packing = {key: value for key, value in batch.items() if key not in STANDARD and value is not None}
    tokens, labels, loss_mask, attention_mask, position_ids = map(batch.get, STANDARD)
    return tokens, labels, loss_mask, attention_mask, position_ids, packing or None


def get_batch_with_cu_seqlens(
    data_iterator: Iterator[Mapping[str, Any]] | None,
    cfg: Any,
    use_mtp: bool = False,
    *,
    pg_collection: Any,
    vp_stage: int | None = None,
) -> tuple[Any, ...]:
    """Returns the batch of get_batch() as the 10 values of Megatron-Bridge v0.3.0 to v0.5.1 and of PR 2405: tokens,
    labels, loss_mask, attention_mask, position_ids, cu_seqlens, cu_seqlens_argmin, max_seqlen, cu_seqlens_unpadded,
    cu_seqlens_unpadded_argmin. Raises InvalidArgument for a batch with cu_seqlens_q, which these steps do not support.
    """
    *standard, packing = get_batch(data_iterator, cfg, use_mtp, pg_collection=pg_collection, vp_stage=vp_stage)
    packing = packing or {}
    if "cu_seqlens_q" in packing:
        raise InvalidArgument("the batch has cu_seqlens_q, which a step of 10 values would lose: use get_batch()")
    return *standard, *(packing.get(key) for key in _TEN_VALUES)


_TEN_VALUES = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen", "cu_seqlens_unpadded", "cu_seqlens_unpadded_argmin")


def get_vlm_batch(
    data_iterator: Iterator[Mapping[str, Any]] | None, cfg: Any, use_mtp: bool = False, *, pg_collection: Any
) -> tuple[Any, Any, Any, Any, Any, Batch | None, Any]:
    """Returns the batch of get_batch() for a step with images, as vlm_step's get_batch of Megatron-Bridge v0.6.0 and
    later does. Every stage reads, and therefore needs an iterator. The seventh value is the batch's visual_inputs,
    whose pixels only the first stage gets. Nothing is sliced, because the model does that itself.
    """
    stage = _stage(pg_collection, cfg, use_mtp)
    keys = {"tokens", "position_ids"}
    if stage.last:
        keys |= {"labels", "loss_mask"}
    if _masks(cfg.dataset):
        keys |= {"attention_mask"}

    def prepare(data: Mapping[str, Any]) -> Batch:
        wanted = {*keys, *packed_keys(data), "visual_inputs"}
        batch = {key: value for key, value in projected(data, frozenset(keys)).items() if key in wanted}
        if not stage.first:
            batch["visual_inputs"] = _without_pixels(batch.get("visual_inputs"))
        return batch

    batch = _moved(_next(data_iterator, prepare, _broadcast_group(cfg, pg_collection)), on_host=ON_HOST)
    images = batch.pop("visual_inputs", None)
    packing = {key: value for key, value in batch.items() if key not in STANDARD and value is not None}
    tokens, labels, loss_mask, attention_mask, position_ids = map(batch.get, STANDARD)
    return tokens, labels, loss_mask, attention_mask, position_ids, packing or None, images


class BroadcastIterator:
    """Yields the complete batches of rank 0's iterator on every rank of a tensor-parallel group, on the CPU, for a step
    that calls its own get_batch(). The other ranks' iterators may be None, and are not read.

    next() is collective over `group`. Raises the exceptions of get_batch_on_this_tp_rank().
    """

    def __init__(self, data_iterator: Iterator[Mapping[str, Any]] | None, group: Any) -> None:
        self._data = data_iterator
        self._group = group

    def __iter__(self) -> BroadcastIterator:
        return self

    def __next__(self) -> Batch:
        return _next(self._data, dict, self._group)


def is_pp_first_stage(pp_group: Any) -> bool:
    """Returns whether this rank is on the first pipeline stage."""
    return place(pp_group)[0] == 0


def is_pp_last_stage(pp_group: Any) -> bool:
    """Returns whether this rank is on the last pipeline stage."""
    rank, size = place(pp_group)
    return rank == size - 1


def get_batch_on_this_cp_rank(batch: Batch, *, cp_group: Any) -> Batch:
    """Returns the part of the batch that a context-parallel rank computes with, of each packed sequence if there are
    any. Raises InvalidArgument if a sequence cannot be cut in this way."""
    return sliced(batch, *place(cp_group))


def _stage(pg_collection: Any, cfg: Any, use_mtp: bool, vp_stage: int | None = None) -> Stage:
    first, last = is_pp_first_stage(pg_collection.pp), is_pp_last_stage(pg_collection.pp)
    return Stage.of_chunk(pg_collection.pp, cfg.model, first=first, last=last, use_mtp=use_mtp, vp_stage=vp_stage)


def is_dataset_built_on_rank(
    pg_collection: Any = None, model_config: Any = None, dataset_config: Any = None
) -> bool:
    """Returns whether this rank reads when batches are broadcast. That is tensor-parallel rank 0 of the first stage, of
    the last stage, and of a stage that hosts multi-token prediction by model_config's pipeline_model_parallel_layout;
    or of every stage if dataset_config packs sequences or has its own attention masks.

    Without pg_collection, uses the groups of megatron.core.parallel_state, and raises Unsupported if that is not
    installed or has no groups yet.
    """
    tp, pp = _groups() if pg_collection is None else (pg_collection.tp, pg_collection.pp)
    rank, size = place(pp)
    layout = getattr(model_config, "pipeline_model_parallel_layout", None)
    reads = rank in (0, size - 1) or (layout is not None and hosts_mtp(layout, rank, size))
    reads = reads or _masks(dataset_config) or _packs(dataset_config)
    return reads and place(tp)[0] == 0


def dataset_builder_predicate(cfg: Any) -> Callable[..., bool]:
    """Returns a predicate with which a dataset builder decides whether to build on this rank. If
    cfg.dataset.broadcast_data_across_tp is set, it is is_dataset_built_on_rank with cfg.model and cfg.dataset;
    otherwise, it always returns True."""
    if not getattr(cfg.dataset, "broadcast_data_across_tp", False):
        return _always
    return functools.partial(is_dataset_built_on_rank, model_config=cfg.model, dataset_config=cfg.dataset)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _groups() -> tuple[Any, Any]:
    if parallel_state is None:
        raise Unsupported("pass a pg_collection: megatron.core, whose groups it would be, is not installed")
    if not parallel_state.model_parallel_is_initialized():
        raise Unsupported("pass a pg_collection, or call megatron.core.parallel_state.initialize_model_parallel() first")
    return (
        parallel_state.get_tensor_model_parallel_group(),
        parallel_state.get_pipeline_model_parallel_group(),
    )


def _broadcast_group(cfg: Any, pg_collection: Any) -> Any:
    return pg_collection.tp if getattr(cfg.dataset, "broadcast_data_across_tp", False) else None


def _masks(dataset: Any) -> bool:
    """Returns whether the data set has its own attention masks, which every stage needs."""
    return not getattr(dataset, "skip_getting_attention_mask_from_dataset", True)


def _packs(dataset: Any) -> bool:
    """Returns whether the data set packs sequences, whose boundaries every stage needs, by the options of any
    version."""
    specs = getattr(dataset, "packed_sequence_specs", None)
    if specs is None and getattr(dataset, "enable_offline_packing", False):
        specs = getattr(dataset, "offline_packing_specs", None) or object()
    if specs is not None:
        size = getattr(specs, "packed_sequence_size", None)
        return size is None or size > 0
    return any(getattr(dataset, name, False) for name in ("enable_in_batch_packing", "pack_sequences_in_batch"))


def _without_pixels(images: Any) -> Any:
    if images is None:
        return None
    rest = copy.copy(images)
    for name in ("pixel_values", "pixel_values_videos"):
        if hasattr(rest, name):
            object.__setattr__(rest, name, None)  # works for a frozen data class, too
    return rest


def _moved(batch: Batch, on_host: frozenset[str]) -> Batch:
    move = _mover(accelerator())
    if move is not None:
        batch |= move({key: value for key, value in batch.items() if key not in on_host})
    return batch


_mover = functools.cache(mover)  # one per device, with its pinned memory


def _next(
    data_iterator: Iterator[Mapping[str, Any]] | None, prepare: Callable[[Mapping[str, Any]], Batch], group: Any
) -> Batch:
    """Returns the result of `prepare` for the next batch: of rank 0's iterator on every rank of `group`, or of this
    rank's iterator without a group."""

    def read() -> Batch | None:
        if data_iterator is None:
            raise InvalidArgument(
                "this pipeline stage reads, but tensor-parallel rank 0 has no data iterator: build the data set there too"
            )
        try:
            data = next(data_iterator)
        except StopIteration:
            return None
        if not isinstance(data, Mapping):
            raise TypeError(f"the data iterator returned a {type(data).__name__}, not a mapping of names to tensors")
        return prepare(data)

    batch = read() if place(group)[1] == 1 else _stream_of(group).next(read)
    if batch is None:
        raise StopIteration
    return batch


class DataIterator:
    """Reads for a group by calling the function that the group's rank 0 sets."""

    read: Callable[[], Batch | None]

    def __iter__(self) -> Iterator[Batch | None]:
        return self

    def __next__(self) -> Batch | None:
        return self.read()


class _Stream:
    """The batches of one group. They come from the iterator that the reader passed in its current call, so that virtual
    stages, training and evaluation share one feed. Starting it is collective, and happens once."""

    def __init__(self, group: Any) -> None:
        self._caller = OneCaller("a call for a batch of this group")
        self._reader = DataIterator()
        # Refers to the membership and not to the group, so that the group can be dropped.
        self._feed = Feed(
            self._reader,
            Mesh(tp=group.size()),
            group=join(group),
            iterate="inline",
            timeout=TIMEOUT,
            access="private",
            allow_pickle=ALLOW_PICKLE,
        )
        self._batches: Iterator[Batch | None] | None = None

    def next(self, read: Callable[[], Batch | None]) -> Batch | None:
        with self._caller:
            self._reader.read = read
            try:
                if self._batches is None:
                    self._batches = iter(self._feed)
                return next(self._batches)
            except (SourceError, Unsupported) as error:
                if isinstance(error, SourceError):
                    self._batches = None  # the next call restarts, in the same way on all ranks
                advice = f"set {__name__}.ALLOW_PICKLE = True"
                error.args = (str(error).replace("pass allow_pickle=True", advice),)
                raise
            finally:
                del self._reader.read


_streams: weakref.WeakKeyDictionary[Any, _Stream] = weakref.WeakKeyDictionary()


def _stream_of(group: Any) -> _Stream:
    with lock_of(group):
        if group not in _streams:
            _streams[group] = _Stream(group)
        return _streams[group]
