"""Identifies the content of a pipeline's sources without reading them, as far as possible, for the keys of caches."""

from __future__ import annotations

import os
import sys
from typing import Any

from levada import _levada
from levada.corpus.corpus import Corpus
from levada.pipeline.lines import ByteRanges
from levada.pipeline.steps import Step, steps_of


def with_contents(steps: list[Step]) -> list[Step]:
    """Returns the steps, in which each cache() key includes the content of the sources before it. Opens each Corpus
    before a cache, which tokenizes its text the first time. Raises SourceError if the files of from_lines() cannot be
    read or have changed since the pipeline was made."""
    known: dict[int, str] = {}
    keyed = []
    for at, step in enumerate(steps):
        if step.operation == "cache":
            sources = [each for each in sorted(_before(steps, at)) if steps[each].operation == "source"]
            for each in sources:
                if each not in known:
                    known[each] = _content_of(steps[each].arguments["source"])
            step = _with_content(step, [known[each] for each in sources])
        keyed.append(step)
    return keyed


def keys_of(steps: list[Step]) -> list[str]:
    """Returns the keys of the caches."""
    return [step.arguments["key"] for step in steps if step.operation == "cache"]


def _before(steps: list[Step], at: int) -> set[int]:
    """Returns the indices of the steps that feed a step, directly or indirectly."""
    found: set[int] = set()
    waiting = list(steps[at].inputs)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(steps[each].inputs)
    return found


def _with_content(step: Step, contents: list[str]) -> Step:
    if not any(contents):
        return step
    digest = _levada.digest(repr(contents).encode())
    key = f"{step.arguments['key']}; content of the sources {digest[:16]}"
    return step._replace(arguments={**step.arguments, "key": key})


def _content_of(source: Any) -> str:
    """Returns a text that differs if the content does, or "" if nothing is known about the content. Calls no function
    of a class that does not belong to Levada, Python or numpy."""
    if isinstance(source, Corpus):
        return f"corpus {_levada.open_corpus(**source.options()).digest}"
    if isinstance(source, ByteRanges):
        return f"lines {source.content()}"
    if isinstance(source, sys.modules["levada.pipeline.pipeline"].Pipeline):
        return repr([_content_of(step.arguments["source"]) for step in steps_of(source._stage) if step.operation == "source"])
    if type(source) is range:
        return repr(source)
    if type(source) in (list, tuple):
        return f"{len(source)} items"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, numpy.ndarray):
        return f"{source.dtype} {source.shape} {_time_of(getattr(source, 'filename', None))}"
    return ""


def _time_of(path: Any) -> str:
    """Returns the size and the modification time of the file that a numpy.memmap maps."""
    if path is None:
        return ""
    try:
        status = os.stat(path)
    except OSError:
        return "without its file"
    return f"{status.st_size} {status.st_mtime_ns}"
