"""Verifies during a job that ranks which should receive the same batches do receive them."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from typing import Any

from levada import _levada
from levada._levada import Digests, Layout, Membership, Mesh
from levada.base.errors import SourceError

_BATCHES = 100
"""Number of batches between two comparisons. The first comparison follows the first batch."""
_MAX_SHOWN = 8
_DIVIDING = re.compile(r"(?:shard|zigzag|stages)\(([^,)]+)")


class PeerDigests:
    """Compares digests of the batches that peers receive. The peers of a field are the ranks that differ only along
    axes that share batches and along which no placement divides the field."""

    def __init__(self, job: Membership, mesh: Mesh, layout: Layout, timeout: float, *, allow_pickle: bool) -> None:
        self._job, self._mesh, self._timeout, self._allow_pickle = job, mesh, timeout, allow_pickle
        self._sharing = [axis for axis, _ in mesh.axes if axis not in mesh.data_axes]
        described = json.loads(layout.to_json())
        rules = [*described["fields"].items(), ("*", described["otherwise"])]
        self._rules = [(re.compile(re.escape(path).replace(r"\*", ".*"), re.DOTALL), each) for path, each in rules]
        self._digests = Digests()
        self._received: deque[dict[str, str]] = deque()  # for each batch not yet taken, the digests up to it
        self._fields: dict[str, str] = {}  # the digests up to the last taken batch
        self._batches = self._compared = 0

    def receive(self, batch: Any) -> None:
        """Adds a batch, which may be taken later or not at all."""
        self._digests.add(batch, allow_pickle=self._allow_pickle)
        self._received.append(self._digests.fields())

    def take(self, steps: int) -> None:
        """Takes the oldest received batch, after which `steps` batches have been taken. Collective for the batches that
        are compared. Raises SourceError on every rank if peers have received different ones."""
        self._fields = self._received.popleft()
        self._batches += 1
        if self._batches % _BATCHES == 1:
            self._compare(steps)

    def end(self, steps: int) -> None:
        """Compares the last batches of a pass that ended at the same step on every rank. Collective."""
        if self._compared < self._batches:
            self._compare(steps)

    def _compare(self, steps: int) -> None:
        self._compared = self._batches
        gathered = _levada.agree(self._job, json.dumps(self._fields).encode(), self._timeout, "comparing batches")
        differences = self._differences([json.loads(each) for each in gathered])
        if differences:
            raise SourceError(
                f"ranks that should get the same batches got different ones in the first {steps} steps of this pass: "
                f"{'; '.join(differences[:_MAX_SHOWN])}. Resume from a state that was saved before, and test the memory of their "
                "hosts; a registered class must unflatten alike on every rank"
            )

    def _differences(self, digests: list[dict[str, str]]) -> list[str]:
        """Returns one clause for each set of ranks whose digests differ from those of most of their peers."""
        fields_of: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for path in dict.fromkeys(path for each in digests for path in each):
            for peers in self._groups(path):
                values = [digests[rank].get(path) for rank in peers]
                (usual, count), *_ = Counter(values).most_common(1)
                if count < len(peers):
                    others = tuple(rank for rank, value in zip(peers, values, strict=True) if value != usual)
                    fields_of.setdefault((others, peers[values.index(usual)]), []).append(path)
        return [
            f"{_listed(others)} from rank {usual}, in {', '.join(map(_levada.printable, paths[:_MAX_SHOWN]))}"
            for (others, usual), paths in fields_of.items()
        ]

    def _groups(self, path: str) -> list[list[int]]:
        placements = next(each for pattern, each in self._rules if pattern.fullmatch(path))
        divided = {found[1] for each in placements if (found := _DIVIDING.match(each))}
        axes = [axis for axis in self._sharing if axis not in divided]
        groups = {tuple(sorted(self._mesh.group(rank, axes))) if axes else (rank,) for rank in range(self._mesh.size)}
        return [list(group) for group in sorted(groups)]


def _listed(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
