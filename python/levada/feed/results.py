"""Gathers the ranks' results for the rows of a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from levada import _levada
from levada._levada import Membership, Mesh
from levada.base.errors import InvalidArgument


def gather(job: Membership, mesh: Mesh, results: Any, rows_of: Mapping[int, int], timeout: float) -> Any:
    """Returns the results of every data coordinate, in coordinate order. Collective.

    `rows_of`: the number of results to return, by the number that the caller may pass: with or without those of padding
    rows, which come last. Raises InvalidArgument on all ranks for any other number."""
    try:
        mine = _levada.pack_state({"rows": None if results is None else _first(results, rows_of)})
        failure = None
    except (InvalidArgument, TypeError) as error:  # raised below, because the other ranks wait for this one
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
    return _joined([parts[coordinate] for coordinate in sorted(parts)], results)


def _first(value: Any, rows_of: Mapping[int, int]) -> Any:
    if isinstance(value, Mapping):
        return {key: _first(each, rows_of) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_first(each, rows_of) for each in value)
    if not hasattr(value, "__len__") or isinstance(value, (str, bytes)) or not getattr(value, "shape", (1,)):
        raise InvalidArgument(f"results are tensors, arrays or lists with an element for each row, got {str(value)[:60]!r}")
    if len(value) not in rows_of:
        raise InvalidArgument(
            f"the batch has {' or '.join(map(str, sorted(rows_of, reverse=True)))} rows, but there are results of {len(value)}; give "
            "one for each row"
        )
    part = value[: rows_of[len(value)]]
    return part.detach().cpu() if hasattr(part, "detach") else part


def _joined(parts: list[Any], like: Any) -> Any:
    """Concatenates the parts, on the device of `like` if it is a tensor."""
    if not parts:
        return None
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts], like[key] if like else None) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined([part[at] for part in parts], like[at] if like else None) for at in range(len(first)))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.cat(parts).to(getattr(like, "device", "cpu"))
    if numpy is not None and isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)
    return [each for part in parts for each in part]
