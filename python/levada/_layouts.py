"""Layouts from Python's dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from levada._levada import Layout

Placements = str | Sequence[str]
Fields = Mapping[str, Placements]


def make_layout(
    fields: Fields,
    *,
    otherwise: Placements = (),
    optional: Sequence[str] = (),
    stages: Mapping[str, Sequence[int]] | None = None,
    name: str = "custom",
) -> Layout:
    """A layout of field paths or patterns with '*', each with its placements: "shard(dp,0)", or several in a list.

    Raises InvalidArgument for what is no placement.
    """

    def listed(placements: Placements) -> list[str]:
        return [placements] if isinstance(placements, str) else list(placements)

    return Layout.from_json(
        json.dumps(
            {
                "name": name,
                "fields": {field: listed(placements) for field, placements in fields.items()},
                "optional": list(optional),
                "otherwise": listed(otherwise),
                "stages": {stage: list(ranks) for stage, ranks in (stages or {}).items()},
            }
        )
    )
