"""Proves in a running job that ranks which should get the same batches do."""

from __future__ import annotations

import json
from typing import Any

from levada import _levada
from levada._levada import Digests, Layout, Membership, Mesh
from levada.base.errors import SourceError

_STEPS = 100
"""Steps between two comparisons; the first follows the first step."""
_DIVIDING = ("shard", "zigzag", "stages")


class PeerDigests:
    """The digests of the batches that a rank has taken, which it compares with those of its peers: the ranks that differ
    from it only along axes with which no placement divides a batch."""

    def __init__(self, job: Membership, mesh: Mesh, layout: Layout, timeout: float) -> None:
        self._job, self._timeout = job, timeout
        text = str(layout)
        shared = [
            axis
            for axis, _ in mesh.axes
            if axis not in mesh.data_axes and not any(f"{kind}({axis}" in text for kind in _DIVIDING)
        ]
        self._peers = mesh.group(job.rank, shared) if shared else [job.rank]
        self._digests = Digests()
        self._steps = 0

    def add(self, batch: Any) -> None:
        """Adds the batch of a step. In some steps it is collective and raises SourceError on every rank, naming step, ranks
        and fields, if peers have got different batches."""
        self._digests.add(batch)
        if self._steps % _STEPS == 0:
            self._compare()
        self._steps += 1

    def _compare(self) -> None:
        mine = json.dumps([self._peers, self._digests.fields()]).encode()
        received = [json.loads(each) for each in _levada.agree(self._job, mine, self._timeout, "comparing batches")]
        for rank, (peers, fields) in enumerate(received):
            first = peers[0]
            known = received[first][1]
            differing = sorted(path for path in {*fields, *known} if fields.get(path) != known.get(path))
            if differing:
                raise SourceError(
                    f"ranks {first} and {rank} have the same place along the data axes, but got different batches up to step "
                    f"{self._steps}, in {', '.join(differing[:8])}"
                )
