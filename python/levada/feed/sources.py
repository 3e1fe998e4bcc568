"""Accesses the objects that a feed reads: torch's loaders, and similar ones."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Sized
from typing import Any

from levada.base.errors import InvalidArgument, InvalidType
from levada.base.tables import expect_samples
from levada.corpus.corpus import Corpus
from levada.feed.loaders import with_article


def check_source(source: Any) -> None:
    """Raises InvalidArgument for a source whose items are no batches, such as the characters of a text, and InvalidType
    for one that cannot be iterated. Accepts None, which ranks that do not read may pass."""
    expect_samples(source)
    name = with_article(type(source).__name__)
    if isinstance(source, (str, bytes, os.PathLike)):
        raise InvalidArgument(f"source is {source!r:.60}, {name}; pass a loader, or use levada.Corpus for files of text")
    if isinstance(source, (dict, UserDict)):  # other mappings, such as a TensorDict, may yield their rows
        raise InvalidArgument(f"source is {name}, whose items are its keys; pass a list of batches, or another iterable of them")
    if source is None or isinstance(source, Corpus) or hasattr(type(source), "__iter__") or hasattr(type(source), "__getitem__"):
        return
    remedy = "; call it, or pass levada.Pipeline(function), which calls it in each pass" if callable(source) else ""
    raise InvalidType(f"source must be an iterable of batches, got {name}{remedy}")


def ends_short(source: Any) -> bool:
    """Returns whether the last batch of a DataLoader is known to have fewer rows than the others."""
    rows, batch = getattr(source, "sampler", None), getattr(source, "batch_size", None)
    if not isinstance(batch, int) or not isinstance(rows, Sized) or getattr(source, "drop_last", False):
        return False
    return len(rows) % batch != 0
