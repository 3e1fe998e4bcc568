"""AReaL's SequenceSample: ragged sequences by key, packed into one tensor per key."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from levada import _levada
from levada.base.errors import InvalidArgument
from levada.dropin._areal_groups import MicroBatchSpec, groups_of
from levada.dropin._areal_plans import Missing, NotKnown, Refused
from levada.job.job import join, world_size

_validates = contextvars.ContextVar("validates", default=True)
_shuffles = itertools.count()

_TIMEOUT = 1800.0
"""Seconds to wait for ranks that may still be computing the samples to split."""

_LENGTHS: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(
        "seq_no_eos_mask greedy_seq_no_eos_mask loss_mask rewards greedy_rewards base_scores task_ids".split(),
        lambda _: 1,
    ),
    **dict.fromkeys(
        "input_ids packed_seq seq packed_logits_mask logits_mask prompt_mask greedy_prompt_mask packed_input_ids "
        "greedy_packed_input_ids values packed_prompts".split(),
        lambda tokens: tokens,
    ),
    **dict.fromkeys(
        "packed_logprobs prox_logp logprobs packed_ref_logprobs ref_logprobs old_logp ref_logp advantages ppo_loss_mask "
        "kl_rewards returns".split(),
        lambda tokens: tokens - 1,
    ),
}
"""Length of a sequence as a function of its number of tokens, by key. from_default() assumes these."""


@dataclasses.dataclass
class SequenceSplitSpec:
    """Consecutive parts of a batch, given either as [start, end) or as sizes; each follows from the other."""

    partitions: list[tuple[int, int]] | None = None
    sizes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.partitions is None:
            if self.sizes is None:
                raise InvalidArgument("a split takes sizes or partitions")
            self.partitions = list(pairwise(accumulate(self.sizes, initial=0)))
        sizes = [end - start for start, end in self.partitions]
        starts = [0, *(end for _, end in self.partitions)]
        if [start for start, _ in self.partitions] != starts[:-1] or any(size <= 0 for size in sizes):
            raise InvalidArgument(f"partitions {self.partitions} must be consecutive from 0 on, and none of them empty")
        if self.sizes is not None and list(self.sizes) != sizes:
            raise InvalidArgument(f"sizes {self.sizes} do not match partitions {self.partitions}")
        self.sizes = sizes


@dataclasses.dataclass(eq=False, init=False)
class SequenceSample:
    """A batch of samples by id. The sequences of all ids are concatenated in one tensor per key, [tokens, trailing...];
    seqlens[key][i] are the lengths of the sequences of sample i.

    trailing_shapes, dtypes: of the tensors, by key; None for a key without data. ids: unique; converted to strings.
    seqlens: integers in lists, tuples, tensors or arrays; converted to lists of lists of int. data: tensors by key;
    None for a meta, which has only the structure. metadata: one value per id; tuples, arrays and the like are converted
    to lists. Each sample has its own dictionaries. Other keyword arguments are ignored, as in AReaL.

    AReaL's programs move the tensors to a GPU, write to a gathered batch in place, and store arbitrary objects as
    metadata. A SampleBatch supports none of this, so this class cuts and joins torch tensors itself.

    Raises ValueError if ids, lengths, shapes or dtypes do not match, and KeyError if the fields have different keys.
    """

    keys: set[str]
    trailing_shapes: dict[str, Any]
    dtypes: dict[str, Any]
    ids: list[Hashable]
    seqlens: dict[str, list[list[int]]]
    data: dict[str, Any] | None = None
    metadata: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def __init__(
        self,
        keys: Iterable[str],
        trailing_shapes: Mapping[str, Any],
        dtypes: Mapping[str, Any],
        ids: Iterable[Hashable],
        seqlens: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        given = list(keys)
        self.keys = set(given)
        self.ids = list(ids)
        self.trailing_shapes, self.dtypes, self.seqlens = dict(trailing_shapes), dict(dtypes), dict(seqlens)
        self.data = None if data is None else dict(data)
        self.metadata = {} if metadata is None else dict(metadata)
        if _validates.get():
            self._validate(given)

    def _validate(self, given: list[str]) -> None:
        """Converts ids, shapes, lengths and metadata, and checks that everything matches. given: the keys."""
        if len(self.keys) != len(given):
            raise InvalidArgument(f"keys {given} are not all different")
        self.ids = [str(id) for id in self.ids]
        if len(set(self.ids)) != len(self.ids):
            raise InvalidArgument(f"ids {self.ids} are not all different")
        self.trailing_shapes = _mapped(self.trailing_shapes, tuple)
        self.seqlens = {key: _lengths(key, items) for key, items in self.seqlens.items()}
        self.metadata = {name: _values(name, values) for name, values in self.metadata.items()}
        for name, field in self._fields().items():
            if field.keys() != self.keys:
                raise Missing(f"keys are {sorted(self.keys)}, but {name} has {sorted(field)}")
        for key, lengths in self.seqlens.items():
            if len(lengths) != len(self.ids):
                raise InvalidArgument(f"key {key} has lengths for {len(lengths)} samples; there are {len(self.ids)}")
        for key, tensor in (self.data or {}).items():
            if tensor is None:
                continue
            shape = (_tokens(self.seqlens[key]), *(self.trailing_shapes[key] or ()))
            if tuple(tensor.shape) != shape:
                raise InvalidArgument(f"data of key {key} has the shape {tuple(tensor.shape)}, not {shape}")
            if tensor.dtype != self.dtypes[key]:
                raise InvalidArgument(f"data of key {key} is {tensor.dtype}, not {self.dtypes[key]}")

    def _fields(self) -> dict[str, dict[str, Any]]:
        """Returns the dictionaries by key. Those of a meta do not include the data."""
        fields = {"seqlens": self.seqlens, "trailing_shapes": self.trailing_shapes, "dtypes": self.dtypes}
        return fields if self.data is None else {**fields, "data": self.data}

    @classmethod
    @contextlib.contextmanager
    def disable_validation(cls) -> Iterator[None]:
        """Disables conversion and checks for samples that this thread makes within the context."""
        token = _validates.set(False)
        try:
            yield
        finally:
            _validates.reset(token)

    @property
    def bs(self) -> int:
        """Number of samples."""
        return len(self.ids)

    @classmethod
    def from_default(
        cls,
        seqlens: Sequence[int] | Sequence[list[int]],
        ids: Sequence[Hashable],
        data: Mapping[str, Any],
        metadata: Mapping[str, list[Any]] | None = None,
    ) -> SequenceSample:
        """Returns samples of one sequence each, of `seqlens` tokens. The name of a key determines whether its lengths
        are 1, `seqlens`, or `seqlens` - 1. Raises NotImplementedError for any other name, and ValueError for metadata
        of the wrong length."""
        tokens = [each if isinstance(each, int) else _only_length(each) for each in seqlens]
        for name, values in (metadata or {}).items():
            if not isinstance(values, list) or len(values) != len(tokens):
                raise InvalidArgument(f"metadata {name} is no list of {len(tokens)} values")
        unknown = sorted(data.keys() - _LENGTHS.keys())
        if unknown:
            raise NotKnown(f"no lengths are known for the keys {unknown}; make a SequenceSample of them")
        seqlens_of = {key: [[_LENGTHS[key](each)] for each in tokens] for key in data}
        return of_tensors(ids, seqlens_of, data, metadata, cls)

    @classmethod
    def gather(cls, samples: Sequence[SequenceSample], keys: Iterable[str] | None = None) -> SequenceSample:
        """Returns the samples of several batches, concatenated, with `keys` or, by default, those of the first batch.
        Copies the tensors. Raises ValueError if only some of the batches have the data of a key, and KeyError for an
        unknown key.
        """
        first = samples[0]
        keys = set(first.keys if keys is None else keys)
        names = dict.fromkeys(chain.from_iterable(each.metadata for each in samples))
        with cls.disable_validation():
            return cls(
                keys=keys,
                trailing_shapes={key: first.trailing_shapes[key] for key in keys},
                dtypes={key: first.dtypes[key] for key in keys},
                ids=[id for each in samples for id in each.ids],
                seqlens={key: [item for each in samples for item in each.seqlens[key]] for key in keys},
                data=None if first.data is None else {key: _joined(samples, key) for key in keys},
                metadata={
                    name: [value for each in samples for value in each.metadata.get(name, [None] * each.bs)]
                    for name in names
                },
            )

    def split_with_spec(self, spec: SequenceSplitSpec) -> list[SequenceSample]:
        """Returns consecutive parts, whose tensors are views."""
        for name, values in self.metadata.items():
            if not isinstance(values, list):
                raise InvalidArgument(f"metadata {name} is no list, which could be split")
        ends = {key: list(accumulate(map(sum, self.seqlens[key]), initial=0)) for key in self.keys}
        with self.disable_validation():
            return [
                dataclasses.replace(
                    self,
                    ids=self.ids[start:end],
                    seqlens={key: lengths[start:end] for key, lengths in self.seqlens.items()},
                    data=self.data
                    and {k: None if it is None else it[ends[k][start] : ends[k][end]] for k, it in self.data.items()},
                    metadata={name: values[start:end] for name, values in self.metadata.items()},
                )
                for start, end in spec.partitions or []
            ]

    def split_with_lengths(
        self, mb_spec: MicroBatchSpec, lens: Sequence[int]
    ) -> tuple[list[SequenceSample], list[int], Any]:
        """Returns micro-batches balanced by `lens`, the order of the samples in them, and the inverse of that order.
        Raises RuntimeError if a length exceeds mb_spec.max_tokens_per_mb, or if there are fewer samples than
        mb_spec.n_mbs.
        """
        groups = sorted(groups_of(list(lens), mb_spec))
        forward = list(chain.from_iterable(groups))
        backward = np.argsort(np.array(forward, np.int64))
        spec = SequenceSplitSpec(sizes=[len(group) for group in groups])
        return SequenceSample.reorder(self, forward).split_with_spec(spec), forward, backward

    def split(self, mb_spec: MicroBatchSpec) -> tuple[list[SequenceSample], list[int], Any]:
        """Calls split_with_lengths() with the lengths of the key that has the most tokens."""
        return self.split_with_lengths(mb_spec, [sum(lengths) for lengths in self.seqlens[self._get_split_key()]])

    def _get_split_key(self) -> str:
        """Returns the key with the most tokens, or the first of several by name, so that ranks with different orders of
        keys agree. AReaL's interfaces call this method by its name."""
        return max(sorted(self.keys), key=lambda each: _tokens(self.seqlens[each]))

    def synced_data_parallel_split(self, mb_spec: MicroBatchSpec, group: Any = None) -> list[SequenceSample]:
        """Splits as split() does, into the same number of micro-batches on every rank of `group`. Collective over it.
        The default is the data-parallel group of the model that realhf runs, if realhf is imported.

        Raises RuntimeError on all ranks if one of them cannot be split in this way. Raises InvalidArgument without
        `group` if there are several ranks and realhf is not imported.
        """
        joined = join(_data_parallel_group() if group is None else group)
        while True:
            parts: list[SequenceSample] = []
            problem = ""
            try:
                parts, *_ = self.split(mb_spec)
            except RuntimeError as error:
                problem = str(error)
            mine = json.dumps([len(parts), problem]).encode()
            reported = [json.loads(each) for each in _levada.agree(joined, mine, _TIMEOUT, "splitting micro-batches")]
            for rank, (_, problem) in enumerate(reported):
                if problem:
                    raise RuntimeError(f"rank {rank}: {problem}")
            max_count = max(count for count, _ in reported)
            if all(count == max_count for count, _ in reported):
                return parts
            mb_spec = MicroBatchSpec.new(mb_spec, n_mbs=max_count)

    @staticmethod
    def reorder(sample: SequenceSample, indices: Sequence[int] | Any) -> SequenceSample:
        """Returns the samples at these positions, which must contain each position once."""
        if sorted(indices) != list(range(sample.bs)):
            raise Refused(f"an order of {sample.bs} samples has each position once")
        alone = sample.unpack()
        return SequenceSample.gather([alone[i] for i in indices], sample.keys) if alone else sample

    @staticmethod
    def reorder_output(
        x: Any, expected_seqlens: Sequence[Sequence[int]], forward_indices: Sequence[int], backward_indices: Any
    ) -> Any:
        """Returns a model's output for samples in the order of split(), restored to their original order."""
        sizes = [sum(expected_seqlens[i]) for i in forward_indices]
        if len(forward_indices) != len(expected_seqlens) or x.shape[0] != sum(sizes):
            raise Refused(f"got {x.shape[0]} tokens for {len(expected_seqlens)} samples of {sum(sizes)} tokens")
        parts = x.split(sizes)
        return torch.cat([parts[i] for i in backward_indices])

    @staticmethod
    def shuffled(sample: SequenceSample, seed: int | None = None) -> SequenceSample:
        """Returns the samples in a random order that `seed` determines. The default seed differs at each call: it is
        realhf's next shuffle seed if realhf is imported, otherwise the number of earlier calls in this process. Ranks
        that make the same number of calls get the same orders."""
        if seed is None:
            seeding: Any = sys.modules.get("realhf.base.seeding")
            seed = next(_shuffles) if seeding is None else int(seeding.get_shuffle_seed())
        return SequenceSample.reorder(sample, np.random.RandomState(seed).permutation(sample.bs).tolist())

    def unpack(self) -> list[SequenceSample]:
        """Returns each sample separately; the tensors are views."""
        return self.split_with_spec(SequenceSplitSpec(sizes=[1] * self.bs))

    def meta(self) -> SequenceSample:
        """Returns the structure without the data."""
        with self.disable_validation():
            return dataclasses.replace(self, data=None)

    def select(self, keys: Iterable[str]) -> SequenceSample:
        """Returns the samples with only these keys."""
        keys = set(keys)
        fields: dict[str, Any] = {name: {key: field[key] for key in keys} for name, field in self._fields().items()}
        with self.disable_validation():
            return dataclasses.replace(self, keys=keys, **fields)

    def update_(self, other: SequenceSample) -> None:
        """Adds the keys and metadata of another batch with the same ids, replacing existing ones. A meta does not
        replace data."""
        if self.ids != other.ids:
            raise Refused(f"a sample of ids {self.ids} cannot be updated with one of {other.ids}")
        self.keys = self.keys | other.keys
        self.trailing_shapes.update(other.trailing_shapes)
        self.dtypes.update(other.dtypes)
        self.seqlens.update(other.seqlens)
        self.metadata.update(other.metadata)
        if self.data is not None:
            for key in other.keys:
                self.data.setdefault(key, None)
            self.data.update(other.data or {})

    def remap_keys_(self, remap: Mapping[str, str]) -> None:
        """Renames keys. Keys that are not in `remap` keep their names."""
        names = {key: remap.get(key, key) for key in self.keys}
        if len(set(names.values())) != len(names):
            raise InvalidArgument(f"two of the keys {sorted(self.keys)} would have one name: {dict(remap)}")
        for field in self._fields().values():
            renamed = {names[key]: value for key, value in field.items()}
            field.clear()
            field.update(renamed)
        self.keys = set(names.values())

    def to_device(self, device: Any) -> SequenceSample:
        """Moves the data in place."""
        self.data = _mapped(self.data, lambda it: it.to(device))
        return self

    def cuda(self) -> SequenceSample:
        return self.to_device("cuda")

    def cpu(self) -> SequenceSample:
        return self.to_device("cpu")

    def as_json_compatible(self) -> dict[str, Any]:
        """Returns a structure that json can serialize, including the data."""
        return {
            "ids": self.ids,
            "keys": sorted(self.keys),
            "trailing_shapes": self.trailing_shapes,
            "dtypes": _mapped(self.dtypes, str),
            "seqlens": self.seqlens,
            "data": _mapped(self.data, lambda it: it.tolist()),
            "metadata": self.metadata,
        }

    @classmethod
    def from_json_compatible(cls, data: Mapping[str, Any]) -> SequenceSample:
        """Returns the samples from which as_json_compatible() made `data`."""
        dtypes = _mapped(data["dtypes"], lambda name: getattr(torch, name.removeprefix("torch.")))
        shapes = _mapped(data["trailing_shapes"], tuple)
        tensors = data["data"] and {
            key: None if it is None else torch.tensor(it, dtype=dtypes[key]).reshape(-1 if it else 0, *(shapes[key] or ()))
            for key, it in data["data"].items()
        }
        return cls(set(data["keys"]), shapes, dtypes, data["ids"], data["seqlens"], tensors, data["metadata"])



def of_tensors(
    ids: Iterable[Hashable],
    seqlens: Mapping[str, Any],
    data: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    kind: type[SequenceSample] = SequenceSample,
) -> SequenceSample:
    """Returns samples whose keys, shapes and dtypes are those of `data`."""
    shapes = _mapped(data, lambda it: tuple(it.shape[1:]))
    return kind(set(data), shapes, _mapped(data, lambda it: it.dtype), ids, seqlens, data, metadata)


def _mapped(field: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a dictionary with changed values. None remains None, both as a value and in place of the dictionary."""
    return None if field is None else {key: None if it is None else change(it) for key, it in field.items()}


def _whole(number: Any) -> int:
    """Returns the value as an int. Raises TypeError or ValueError if it is not an integer."""
    whole = int(number)
    if whole != number:
        raise ValueError(f"{number!r} is no whole number")
    return whole


def _lengths(key: str, items: Any) -> list[list[int]]:
    try:
        return [[_whole(length) for length in item] for item in items]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"lengths of {key} must be lists of whole numbers, one list a sample: {error}") from error


def _only_length(item: Any) -> int:
    """Returns the length of a sample of one sequence, which is a number or a list with one number."""
    lengths = item if isinstance(item, (list, tuple)) or getattr(item, "ndim", False) else [item]
    if len(lengths) != 1:
        raise Refused(f"from_default() requires samples of one sequence each, got {len(lengths)} lengths {item}")
    return _lengths("the samples", [lengths])[0][0]


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"metadata {name} must be a list of one value a sample, not a {type(values).__name__}")
    return list(values)


def _data_parallel_group() -> Any:
    constants: Any = sys.modules.get("realhf.base.constants")
    if constants is not None:
        return constants.data_parallel_group()
    if world_size() > 1:
        raise InvalidArgument(
            "synced_data_parallel_split() does not know the data-parallel group of this rank's model: pass group=, "
            "or group=levada.join() if it is the whole job"
        )
    return None


def _tokens(seqlens: Iterable[Iterable[int]]) -> int:
    return sum(map(sum, seqlens))


def _joined(samples: Sequence[SequenceSample], key: str) -> Any:
    tensors = [None if each.data is None else each.data[key] for each in samples]
    if all(tensor is None for tensor in tensors):
        return None
    for each, tensor in zip(samples, tensors, strict=True):
        if tensor is None:
            raise InvalidArgument(f"samples {each.ids} have no data for key {key}, which others have")
    joined: Any = torch.cat([tensor for tensor in tensors if tensor is not None])
    return joined
