"""Computes the number of items that a pipeline yields, if it is known in advance."""

from __future__ import annotations

from typing import Any, NamedTuple

from levada._levada import Graph
from levada.job.job import world_size
from levada.pipeline.sources import divides_itself
from levada.pipeline.steps import Step

_SAME = ("map", "shuffle", "cache", "prefetch", "dispatch", "fork", "branch")


class _Copy(NamedTuple):
    """One of several workers."""

    number: int
    workers: int

    def share_of(self, items: int) -> int:
        """Returns how many of the items this worker gets if they are dealt in turn."""
        return (items - self.number + self.workers - 1) // self.workers


class _Lengths:
    def __init__(self, steps: list[Step], graph: Graph, workers: int, ordered: bool, on_error: str) -> None:
        self._steps, self._workers, self._on_error = steps, workers, on_error
        _, self._dispatched, self._collected, _ = graph.place(workers, ordered)

    def of(self, at: int, worker: _Copy | None = None) -> int:
        """Returns the number of items of a stage: of its copy in `worker`, or of all copies."""
        name = self._steps[at].name
        if worker is None and name == self._collected:
            return sum(self.of(at, _Copy(number, self._workers)) for number in range(self._workers))
        if worker is not None and name == self._dispatched:
            return worker.share_of(self._of_operation(at, None))
        return self._of_operation(at, worker)

    def _of_operation(self, at: int, worker: _Copy | None) -> int:
        _, _, inputs, given = step = self._steps[at]
        if step.operation == "source":
            return len(given["source"])
        lengths = [self.of(before, worker) for before in inputs]
        skips = step.operation == "map" and (given.get("on_error") or self._on_error) == "skip"
        if step.operation in _SAME and not skips:
            return lengths[0]
        if step.operation == "batch":
            size: int = given["size"]
            return lengths[0] // size if given["drop_last"] else -(-lengths[0] // size)
        if step.operation in ("take", "skip"):
            count: int = given["count"]
            return min(lengths[0], count) if step.operation == "take" else max(lengths[0] - count, 0)
        if step.operation == "zip":
            return min(lengths)
        if step.operation == "concat" or (step.operation == "interleave" and given["stop"] == "last"):
            return sum(lengths)
        if step.operation == "repeat" and given["times"] is not None:
            times: int = given["times"]
            return lengths[0] * times
        if step.operation == "shard" and world_size() == 1:
            return self._of_shard(at, lengths[0], worker)
        raise TypeError(f"the number of items that {step.operation} yields is not known in advance")

    def _of_shard(self, at: int, items: int, worker: _Copy | None) -> int:
        """Returns the items of a shard. Before or after a dispatch, a shard divides among ranks; after another shard,
        it does nothing."""
        steps, before = self._steps, self._before(at)
        is_dealt = any(steps[each].operation in ("shard", "dispatch") for each in before) or any(
            step.operation == "dispatch" and at in self._before(after) for after, step in enumerate(steps)
        )
        if worker is None or is_dealt:
            return items
        source = steps[steps[at].inputs[0]]
        if source.operation == "source" and divides_itself(source.arguments["source"]) == "in parts":
            raise TypeError("the number of items of each part of a source is not known in advance")
        return worker.share_of(items)

    def _before(self, at: int) -> set[int]:
        """Returns the stages that feed a stage, directly or indirectly."""
        inputs = self._steps[at].inputs
        return set(inputs).union(*(self._before(each) for each in inputs))


def length_of(steps: list[Step], graph: Graph, *, workers: int = 0, ordered: bool = False, on_error: str = "raise") -> int:
    """Returns the number of items in an epoch of one rank. With workers, stages such as batch and take only see their
    worker's items. Raises TypeError if the number is unknown."""
    return _Lengths(steps, graph, workers, ordered, on_error).of(len(steps) - 1)
