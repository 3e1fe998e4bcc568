"""The exceptions of Levada, with the names of levada/base/error.h."""

from __future__ import annotations

import re

# Escaped by printable_lines() of levada/base/text.h: control characters, line separators, bidirectional marks.
_UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable_lines(text: str) -> str:
    """Returns `text` with control characters except newlines and tabs escaped, as levada/base/text.h does."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Error(Exception):
    """The base class of Levada's exceptions. Its text is one sentence: what was wrong, where, and what to do. str() is
    safe to show on a terminal, whatever the text quotes: control characters except newlines and tabs are escaped."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class InvalidArgument(Error, ValueError):
    """The caller passed an argument that cannot work."""


class InvalidType(InvalidArgument, TypeError):
    """The caller passed an argument of a type that cannot work."""


class Timeout(Error, TimeoutError):
    """A deadline passed; the text names the waiting and the awaited ranks."""


class PeerLost(Error):
    """Another rank ended without leaving: `rank`, or -1 if it is not known."""

    rank: int = -1


class CorruptMessage(Error):
    """Bytes from outside violate the format."""


class Unsupported(Error):
    """This build, machine or process does not support the operation."""


class SourceError(Error):
    """Reading the data failed on the rank that the text names. The text includes the traceback of a Python reader."""


class EngineError(Error):
    """Transferring the data failed, or a rank aborted."""


class StageFailed(SourceError):
    """A stage of a pipeline raised. It is the cause of the exception that is raised again, which has the class of the
    stage's exception. If that class cannot be created, this exception is raised instead. The text is complete."""

    stage: str = ""
    """The name of the stage; empty if the process failed outside of stages, such as while starting."""
    process: str = ""
    """The process, such as "worker 1 (process 4242)"."""
    item: int = 0
    """Number of items that the stage had received before."""
    traceback: str = ""
    """The traceback of the process in which it happened."""
    original: bytes = b""
    """The exception as it crosses between processes, if its class is not imported here but may be in the next
    process."""


class ItemError(SourceError):
    """An item or a batch of a levada.DataLoader could not be made. Raised on the rank that reads it; the other ranks
    raise a SourceError with the same text. The cause is the original exception, if it was raised in this process."""

    number: int = -1
    """Index of the item in its data set; for a batch that could not be collated, that of its first item."""
    epoch: int = 0
    position: int = 0
    """Position of the draw in its epoch."""
    dataset: str = ""
    """Class of the data set, or its name among several."""
    worker: int = -1
    """Number of the worker process; -1 for the training process."""
    traceback: str = ""
    """The traceback of the process that raised."""
