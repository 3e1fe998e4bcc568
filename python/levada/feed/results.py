"""Gathers what ranks have made of the rows of a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from levada import _levada
from levada._levada import Membership, Mesh
from levada.base.errors import InvalidArgument


def gather(job: Membership, mesh: Mesh, results: Any, rows: int, timeout: float) -> Any:
    """Returns the first `rows` rows of the results of every data coordinate, in their order. Collective."""
    try:
        mine = _levada.pack_state({"rows": None if results is None else _first(results, rows)})
        failure = None
    except InvalidArgument as error:  # the other ranks wait
        mine, failure = _levada.pack_state({"error": str(error)}), error
    received = [_levada.unpack_state(each) for each in _levada.agree(job, mine, timeout, "gathering results")]
    if failure is not None:
        raise failure
    parts: dict[int, Any] = {}
    for rank, each in enumerate(received):
        if "error" in each:
            raise InvalidArgument(f"rank {rank}: {each['error']}")
        if each["rows"] is not None:
            parts.setdefault(mesh.data_coordinate(rank), each["rows"])
    return _joined([parts[coordinate] for coordinate in sorted(parts)])


def _first(value: Any, rows: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _first(each, rows) for key, each in value.items()}
    if hasattr(value, "shape") and not value.shape or not hasattr(value, "__len__"):
        raise InvalidArgument(f"results have an element for each row of the batch, got {value!r}")
    if len(value) < rows:
        raise InvalidArgument(f"the batch has {rows} rows, but there are results of {len(value)}; give one for each row")
    part = value[:rows]
    return part.detach().cpu() if hasattr(part, "detach") else part


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return None
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if numpy is not None and isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)
    return [each for part in parts for each in part]
