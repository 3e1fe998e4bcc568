"""Batches that include the numbers of their samples, because not every rank can compute these."""

from __future__ import annotations

import json
import sys
from typing import Any

from levada._levada import Layout


def counted(batch: Any, counts: list[Any]) -> dict[str, Any]:
    """Returns a batch that includes its counts. A single tensor or value becomes a list, because a layout's path of it is
    that of a list's first element, `[0]`."""
    import numpy as np

    torch = sys.modules.get("torch")
    tensors = (np.ndarray, np.generic) if torch is None else (np.ndarray, np.generic, torch.Tensor)
    is_wrapped = batch is None or isinstance(batch, (*tensors, bool, int, float, complex, str, bytes))
    return {"batch": [batch] if is_wrapped else batch, "counts": [*counts, int(is_wrapped)]}


def taken_apart(made: dict[str, Any]) -> tuple[list[Any], Any]:
    """Returns the counts and the batch of counted()."""
    *counts, is_wrapped = made["counts"]
    return counts, made["batch"][0] if is_wrapped else made["batch"]


def with_counts(layout: Layout) -> Layout:
    """Returns the layout of batches that counted() has made. Only one pattern can require a field, so `*.name`, unless it
    is optional, requires one in a batch that is a mapping, and a batch that is a list is refused."""
    layers = json.loads(layout.to_json())
    optional = set(layers.get("optional", []))
    fields: dict[str, Any] = {"counts*": []}
    layers["optional"] = ["counts*"]
    for path, placements in layers["fields"].items():
        own = _path_with_counts(path)
        fields[own] = placements
        layers["optional"] += [own] if path in optional else []
        if path.startswith("*."):  # in a list
            fields[f"batch[{path}"] = placements
            layers["optional"].append(f"batch[{path}")
    layers["fields"] = fields
    return Layout.from_json(json.dumps(layers))


def _path_with_counts(path: str) -> str:
    """Returns the path or pattern of a field of a batch that includes its counts."""
    if path.startswith("[") or (path.startswith("*") and not path.startswith("*.")):
        return f"batch{path}"
    return f"batch.{path}"
