"""Assigns the samples of a step to data-parallel ranks and micro-batches, by pure functions of the samples' lengths."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from levada import _levada
from levada.base.errors import InvalidArgument

Schedule = list[list[list[int]]]
"""Indexes of samples in packing order, by data-parallel rank and micro-batch."""

Scheduler = Callable[[Sequence[int], int, int, int], Schedule]
"""Takes the padded lengths of a step's samples, the number of data-parallel ranks, the maximum number of tokens in a
micro-batch, and a divisor of the number of micro-batches. Returns the same number of micro-batches for each rank."""


def balanced(
    lengths: Sequence[int], ranks: int, max_tokens: int, multiple: int, *, cost: str = "flops"
) -> Schedule:
    """Divides samples into few micro-batches of about equal cost, so that the busiest rank has little more work than
    necessary. cost: as in Balance.cost. Raises InvalidArgument for too few samples, and for a sample of more than
    max_tokens.
    """
    by = _levada.BalancedBy(cost, "free", "as-read", max_tokens)
    micros: Schedule = _levada.plan_step([(length, length * length, 0, 0) for length in lengths], ranks, by)
    target = _round_up(len(micros[0]), multiple)
    _check_count(len(lengths), ranks, target)
    if len(micros[0]) < target:
        _spread(micros, target, lengths)
        for mine in micros:
            _split(mine, target, lengths)
    return micros


def in_order(lengths: Sequence[int], ranks: int, max_tokens: int, multiple: int) -> Schedule:
    """Divides samples as Megatron-LM's "dp_balanced" scheduler does. Packs them in their order, moves samples from the
    end of the last packs to new packs until the number of packs is a multiple of ranks * multiple, and deals the packs
    to the ranks in turn. Raises InvalidArgument for too few samples.
    """
    packs: list[list[int]] = []
    room = 0
    for number, length in enumerate(lengths):
        if not packs or length > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(number)
        room -= length
    target = _round_up(len(packs), ranks * multiple)
    _check_count(len(lengths), ranks, target // ranks)
    donor = len(packs) - 1
    while len(packs) < target:
        if len(packs[donor]) > 1:
            packs.append([packs[donor].pop()])
        else:
            donor -= 1
    return [packs[rank::ranks] for rank in range(ranks)]


def as_schedule(returned: Any) -> Schedule:
    """Returns the result of a scheduler as lists of ints. Raises InvalidArgument for anything else."""
    try:
        return [[[operator.index(number) for number in micro] for micro in mine] for mine in returned]
    except TypeError:
        raise InvalidArgument(
            f"the scheduler returned {returned!r:.80}; it must return the numbers of samples as lists: [rank][micro-batch][sample]"
        ) from None


def check(schedule: Schedule, lengths: Sequence[int], ranks: int, max_tokens: int, multiple: int) -> None:
    """Raises InvalidArgument unless a schedule has every sample once and the same number of micro-batches for each
    rank, which is a multiple of `multiple`, with no micro-batch empty or above max_tokens."""
    counts = [len(mine) for mine in schedule]
    if len(counts) != ranks or len(set(counts)) > 1 or not counts[0] or counts[0] % multiple:
        raise InvalidArgument(
            f"the scheduler returned {counts} micro-batches by data-parallel rank; {ranks} ranks need equal numbers, "
            f"multiples of {multiple}"
        )
    for rank, mine in enumerate(schedule):
        for at, micro in enumerate(mine):
            if not micro or any(not 0 <= number < len(lengths) for number in micro):
                raise InvalidArgument(
                    f"the scheduler gave micro-batch {at} of data-parallel rank {rank} samples {micro}; a micro-batch "
                    f"needs one or more of the samples 0 to {len(lengths) - 1}"
                )
            tokens = sum(lengths[number] for number in micro)
            if tokens > max_tokens:
                raise InvalidArgument(
                    f"the scheduler gave micro-batch {at} of data-parallel rank {rank} {tokens} tokens; it holds at most "
                    f"{max_tokens}"
                )
    numbers = sorted(number for mine in schedule for micro in mine for number in micro)
    if numbers != list(range(len(lengths))):
        raise InvalidArgument(
            f"the scheduler returned {len(numbers)} samples, {len(set(numbers))} of them different, of a step of "
            f"{len(lengths)}; it must return each sample once"
        )


def _check_count(samples: int, ranks: int, micros: int) -> None:
    if samples < ranks * micros:
        raise InvalidArgument(
            f"a step of {samples} sample(s) cannot fill {micros} micro-batch(es) on each of {ranks} data-parallel ranks; "
            "read more samples for a step"
        )


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _spread(micros: Schedule, target: int, lengths: Sequence[int]) -> None:
    """Moves short samples between ranks until each rank has at least `target` samples."""
    totals = [sum(map(len, mine)) for mine in micros]
    for needy, mine in enumerate(micros):
        while totals[needy] < target:
            donor = max(range(len(micros)), key=lambda rank: totals[rank])
            source = min(
                (micro for micro in micros[donor] if len(micro) > 1),
                key=lambda micro: min(lengths[number] for number in micro),
            )
            moved = min(source, key=lambda number: lengths[number])
            source.remove(moved)
            mine.append([moved])
            totals[donor] -= 1
            totals[needy] += 1


def _split(micros: list[list[int]], target: int, lengths: Sequence[int]) -> None:
    """Splits the costliest micro-batches of a rank until there are `target`."""
    while len(micros) < target:
        costliest = max(
            (at for at, micro in enumerate(micros) if len(micro) > 1),
            key=lambda at: sum(lengths[number] for number in micros[at]),
        )
        divided = micros.pop(costliest)
        for half in _levada.partition_by_tokens([lengths[number] for number in divided], 2, True, False):
            micros.append(sorted(divided[at] for at in half))
    micros.sort()
