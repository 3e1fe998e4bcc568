"""The exceptions of levada, by the names of levada/base/error.h."""

from __future__ import annotations

import re

# What printable_lines() of levada/base/text.h escapes: control characters, line separators, marks that turn the writing.
_UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Error(Exception):
    """The base of all of them. Its text is one sentence: what was wrong, where, what to do. Whatever the text quotes, str()
    can be shown on a terminal: control characters but newlines and tabs are escaped."""

    def __str__(self) -> str:
        return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), super().__str__())


class InvalidArgument(Error, ValueError):
    """The caller passed something that cannot work."""


class Timeout(Error, TimeoutError):
    """A deadline passed; the text says who waited for whom."""


class PeerLost(Error):
    """Another rank ended without leaving: `rank`, or -1 where that is not known."""

    rank: int = -1


class CorruptMessage(Error):
    """Bytes from outside broke the format."""


class Unsupported(Error):
    """This build, machine or process cannot do it."""


class SourceError(Error):
    """Reading the data failed, on the rank that the text names; it holds a Python reader's traceback."""


class EngineError(Error):
    """Carrying the data failed, or a rank aborted."""


class StageFailed(SourceError):
    """A stage of a pipeline raised. The cause of what is raised again, which is of the class that the stage raised; by
    itself where that class cannot be made again. The text says all of it."""

    stage: str = ""
    """Its name; empty where it was none, as in starting."""
    process: str = ""
    """Such as "worker 1 (process 4242)"."""
    item: int = 0
    """How many items the stage had been given before."""
    traceback: str = ""
    """Of the process that it happened in."""
    original: bytes = b""
    """The exception as it crosses between processes, if its class is not imported here: it may be in the next one."""
