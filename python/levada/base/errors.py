"""The exceptions of Levada, named as in levada/base/error.h."""

from __future__ import annotations


def printable_lines(text: str) -> str:
    """Returns `text` with control characters except newlines and tabs escaped, and without the passwords and queries of
    its URLs."""
    from levada import _levada  # which needs the exceptions of this module

    return _levada.printable_lines(text.encode(errors="backslashreplace").decode())


class Error(Exception):
    """Base class of Levada's exceptions. The text is one sentence with the problem, its place and the remedy.
    str() and repr() are safe to show and to log, whatever the text quotes: control characters except newlines and tabs
    are escaped, and URLs have no user, password and query."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())

    def __repr__(self) -> str:
        return printable_lines(super().__repr__())


class InvalidArgument(Error, ValueError):
    """The caller passed an argument that cannot work."""


class InvalidType(InvalidArgument, TypeError):
    """The caller passed an argument of a type that cannot work."""


class Timeout(Error, TimeoutError):
    """A deadline passed. The text names the waiting and the awaited ranks."""


class PeerLost(Error):
    """Another rank ended without leaving. `rank` is its number, or -1 if unknown."""

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
    """A stage of a pipeline raised an exception. An exception of the same class is raised, and this one is its cause;
    if the class cannot be instantiated, this one is raised instead. The text is complete."""

    stage: str = ""
    """Name of the stage; empty if the process failed outside of stages, such as while starting."""
    process: str = ""
    """Name of the process, such as "worker 1 (process 4242)"."""
    item: int = 0
    """Number of items that the stage had received before."""
    traceback: str = ""
    """Traceback from the process that raised."""
    original: bytes = b""
    """The exception as it is sent between processes, if its class is not imported here but may be in the next
    process."""


class ItemError(SourceError):
    """An item or a batch of a levada.DataLoader could not be made. Raised on the rank that reads it; the other ranks
    raise SourceError with the same text. If the original exception was raised in this process, it is the cause."""

    number: int = -1
    """Index of the item in its data set; for a batch that could not be collated, the index of its first item."""
    epoch: int = 0
    position: int = 0
    """Position of the draw in its epoch."""
    dataset: str = ""
    """Class of the data set, or its name among several."""
    worker: int = -1
    """Index of the worker process, or -1 for the training process."""
    traceback: str = ""
    """Traceback from the process that raised."""
