"""Recognizes tables and groups of data sets whose items are not samples."""

from __future__ import annotations

from typing import Any

from levada.base.errors import InvalidArgument
from levada.base.packages import is_of

_TABLES = (
    ("pyarrow", "Table", "table.to_pylist()"),
    ("pyarrow", "RecordBatch", "batch.to_pylist()"),
    ("pandas", "DataFrame", 'frame.to_dict("records")'),
    ("polars", "DataFrame", "frame.to_dicts()"),
)
"""Classes whose len() is a number of rows, but whose items are columns, with an expression for their rows."""
_SPLITS = ("DatasetDict", "IterableDatasetDict")
"""Classes of Hugging Face's datasets whose items are names of splits."""


def expect_no_table(name: str, value: Any) -> None:
    """Raises InvalidArgument, which names `name`, if a value is a table whose items are columns."""
    for module, table, rows in _TABLES:
        if is_of(value, module, table):
            raise InvalidArgument(f"{name} is a {module} {table}, which is indexed by column; pass its rows, such as {rows}")


def expect_samples(source: Any) -> None:
    """Raises InvalidArgument if iterating a source yields the columns of a table or the names of splits."""
    expect_no_table("source", source)
    for splits in _SPLITS:
        if is_of(source, "datasets", splits):
            names = ", ".join(source)
            raise InvalidArgument(f"source is a {splits}, whose items are the names {names} of its splits; pass one split")
