"""The messages of ranks before they pack the samples of a step: the samples that each has read, and the keys it
needs."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from levada.base import errors as error_classes
from levada.base.errors import Error, InvalidArgument, SourceError
from levada.base.exception_texts import failure_text, text_of

_END = "StopIteration"


class Place(NamedTuple):
    """A rank's coordinates in its process groups, or the sizes of these groups."""

    data: int
    context: int
    tensor: int
    pipeline: int

    def __str__(self) -> str:
        return f"dp{self.data} cp{self.context} tp{self.tensor} pp{self.pipeline}"


class PackingSettings(NamedTuple):
    """Settings that must be the same on all ranks."""

    sizes: Place
    max_tokens: int
    """Maximum number of tokens in a micro-batch."""
    multiple: int
    """Divisor of the number of micro-batches."""
    num_microbatches: int
    """Number of items to read from a data iterator."""
    scheduler: str


class RankMessage(NamedTuple):
    """One rank's message to the others: an error, or all the other fields."""

    error: tuple[str, str] | None
    """Class and text of the error."""
    place: Place | None = None
    settings: PackingSettings | None = None
    needs: tuple[str, ...] = ()
    """Keys of samples that this rank needs."""
    lengths: tuple[list[int], list[int]] | None = None
    """Original and padded lengths of the samples that this rank read; None if it has no data iterator."""

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> RankMessage:
        error, place, fields, needs, lengths = json.loads(encoded)
        if error is not None:
            return cls((error[0], error[1]))
        sizes, *rest = fields
        settings = PackingSettings(Place(*sizes), *rest)
        return cls(None, Place(*place), settings, tuple(needs), lengths and (lengths[0], lengths[1]))


def failure(error: Exception) -> RankMessage:
    """Returns the message of a rank that has failed. An exception that is not Levada's becomes a SourceError."""
    if isinstance(error, StopIteration):
        return RankMessage((_END, ""))
    known = isinstance(error, Error)
    text = text_of(error) if known else failure_text(error)
    return RankMessage((type(error).__name__ if known else SourceError.__name__, text))


class Step(NamedTuple):
    """The samples of one step, numbered by data-parallel rank and then in the order in which that rank read them. The
    same on all ranks."""

    settings: PackingSettings
    original: list[int]
    padded: list[int]
    begins: list[int]
    """Index of the first sample of each data-parallel rank."""
    data: list[int]
    """Data-parallel rank of each rank."""
    needs: list[tuple[str, ...]]
    """Needed keys of each rank."""

    def parcels(self) -> list[tuple[tuple[str, ...], frozenset[int]]]:
        """Returns sets of keys that the same ranks need, with those ranks. Leaves out keys that no rank needs."""
        audiences: dict[frozenset[int], list[str]] = collections.defaultdict(list)
        for key in dict.fromkeys(key for needs in self.needs for key in needs):
            audiences[frozenset(rank for rank, needs in enumerate(self.needs) if key in needs)].append(key)
        return [(tuple(keys), ranks) for ranks, keys in audiences.items()]


def agree(encoded: Sequence[bytes]) -> Step:
    """Returns the step that the messages of all ranks describe. `encoded` is ordered by rank.

    Raises the error that a rank reports, with its rank; StopIteration if all data iterators ended; and InvalidArgument,
    naming ranks, samples and the remedy, if ranks disagree, if a data-parallel rank has no data iterator, and for a
    sample that fits into no micro-batch or that context parallelism cannot slice. Every exception is raised on all
    ranks.
    """
    messages = [RankMessage.decode(each) for each in encoded]
    _check_errors(messages)
    settings = _same_settings(messages)
    places = [each.place for each in messages if each.place is not None]
    _check_places(places, settings.sizes)
    original: list[int] = []
    padded: list[int] = []
    begins = []
    members: list[list[int]] = [[] for _ in range(settings.sizes.data)]
    for rank, place in enumerate(places):
        members[place.data].append(rank)
    for data, ranks in enumerate(members):
        lengths = _lengths_of({rank: messages[rank] for rank in ranks}, data)
        _check_samples(lengths, settings, data)
        begins.append(len(padded))
        original += lengths[0]
        padded += lengths[1]
    data_of, needs = [place.data for place in places], [each.needs for each in messages]
    return Step(settings, original, padded, begins, data_of, needs)


def _check_errors(messages: Sequence[RankMessage]) -> None:
    errors = {rank: each.error for rank, each in enumerate(messages) if each.error is not None}
    for rank, (kind, text) in errors.items():
        if kind != _END:
            raise getattr(error_classes, kind)(f"rank {rank}: {text}")
    if not errors:
        return
    reading = [rank for rank, each in enumerate(messages) if each.lengths is not None]
    if reading:
        raise InvalidArgument(
            f"the data iterator of rank {min(errors)} ended within a step, that of rank {reading[0]} did not; all ranks "
            "must have the same number of items and the same num_microbatches"
        )
    raise StopIteration


def _same_settings(messages: Sequence[RankMessage]) -> PackingSettings:
    names = {
        "sizes": "the sizes of the process groups",
        "max_tokens": "the maximum tokens of a micro-batch (max_seqlen_per_dp_cp_rank times the context-parallel size)",
        "multiple": "microbatch_group_size_per_vp_stage",
        "num_microbatches": "num_microbatches",
        "scheduler": "the scheduler",
    }
    first = messages[0].settings
    assert first is not None
    for rank, each in enumerate(messages):
        assert each.settings is not None
        for name, here, there in zip(PackingSettings._fields, first, each.settings, strict=True):
            if here != there:
                raise InvalidArgument(
                    f"ranks disagree: {names[name]}: {here} on rank 0, {there} on rank {rank}; pass the same on all ranks"
                )
    return first


def _check_places(places: Sequence[Place], sizes: Place) -> None:
    """Checks that exactly one rank has each place in the process groups."""
    ranks: dict[Place, int] = {}
    for rank, place in enumerate(places):
        other = ranks.setdefault(place, rank)
        if other != rank:
            raise InvalidArgument(
                f"ranks {other} and {rank} are both {place} in their process groups; each rank must have a separate place"
            )
    count = sizes.data * sizes.context * sizes.tensor * sizes.pipeline
    if count != len(places):
        raise InvalidArgument(
            f"the process groups have {count} places (dp={sizes.data}, cp={sizes.context}, tp={sizes.tensor}, "
            f"pp={sizes.pipeline}), but {len(places)} ranks call this; pass the group that has all of their ranks, and no "
            "others, as group"
        )


def _lengths_of(members: Mapping[int, RankMessage], data: int) -> tuple[list[int], list[int]]:
    """Returns the lengths that the readers of a data-parallel rank have read, which must be the same. members: messages
    of the ranks of that data-parallel rank."""
    read = {rank: lengths for rank, each in members.items() if (lengths := each.lengths) is not None}
    if not read:
        raise InvalidArgument(
            f"no rank of data-parallel rank {data} (ranks {', '.join(map(str, members))}) has a data iterator; pass one on "
            "tensor-parallel rank 0 of the first and the last pipeline stage"
        )
    (first, lengths), *others = read.items()
    for rank, theirs in others:
        if theirs != lengths:
            raise InvalidArgument(
                f"ranks {first} and {rank} read different samples for data-parallel rank {data}: "
                f"{_difference(lengths, theirs, first, rank)}; both must have the same data set, seed and position"
            )
    return lengths


def _difference(
    mine: tuple[list[int], list[int]], theirs: tuple[list[int], list[int]], first: int, second: int
) -> str:
    if len(mine[1]) != len(theirs[1]):
        return f"{len(mine[1])} samples on rank {first}, {len(theirs[1])} on rank {second}"
    pairs = enumerate(zip(zip(*mine, strict=True), zip(*theirs, strict=True), strict=True))
    at, (here, there) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return (
        f"sample {at} has {here[0]} tokens ({here[1]} with padding) on rank {first}, {there[0]} ({there[1]}) on rank "
        f"{second}"
    )


def _check_samples(lengths: tuple[list[int], list[int]], settings: PackingSettings, data: int) -> None:
    chunks = 2 * settings.sizes.context if settings.sizes.context > 1 else 1
    for at, padded in enumerate(lengths[1]):
        if padded > settings.max_tokens:
            raise InvalidArgument(
                f"sample {at} of data-parallel rank {data} has {padded} tokens, but a micro-batch holds "
                f"{settings.max_tokens}; raise max_seqlen_per_dp_cp_rank, or cut the sample"
            )
        if padded % chunks:
            raise InvalidArgument(
                f"sample {at} of data-parallel rank {data} has {padded} tokens, which cp={settings.sizes.context} cannot "
                f"cut into {chunks} chunks; pad samples to multiples of {chunks}"
            )
