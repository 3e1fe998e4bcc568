"""Lines of text files as items, read by byte ranges, so that whoever reads a part reads nothing else."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from levada._errors import InvalidArgument, SourceError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class ByteRange(NamedTuple):
    """The lines that begin in [begin, end) of a file."""

    path: str
    begin: int
    end: int


class ByteRanges:
    """Files cut to ranges of `size` bytes, by number. As long as the files were when this was made."""

    def __init__(self, paths: Paths, size: int) -> None:
        if size < 1:
            raise InvalidArgument(f"range_bytes is {size}; it is at least 1")
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise InvalidArgument("there are no files to read lines of")
        self.paths = [os.fspath(path) for path in given]
        self.sizes = [_size_of(path) for path in self.paths]
        self.size = size
        self._ends = list(itertools.accumulate(-(-bytes_ // size) for bytes_ in self.sizes))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, at: int) -> ByteRange:
        if not 0 <= at < len(self):
            raise IndexError(at)
        file = bisect.bisect_right(self._ends, at)
        begin = (at - (self._ends[file - 1] if file else 0)) * self.size
        return ByteRange(self.paths[file], begin, min(begin + self.size, self.sizes[file]))


def _size_of(path: str) -> int:
    try:
        with open_file(path) as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from None


def open_file(path: str) -> BinaryIO:
    return open(path, "rb")


class Lines:
    """The lines of a range, as text without what ends them. Says at which byte it stands."""

    def __init__(self, range_: ByteRange) -> None:
        self._range = range_
        self._at: int | None = None

    def __iter__(self) -> Iterator[str]:
        path, begin, end = self._range
        with open_file(path) as file:
            if self._at is None:
                self._at = _first_line(file, begin)
            file.seek(self._at)
            while self._at < end:
                line = file.readline()
                if not line:
                    return
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
                self._at += len(line)
                yield text

    def state_dict(self) -> int | None:
        return self._at

    def load_state_dict(self, state: int | None) -> None:
        self._at = state


def _first_line(file: BinaryIO, begin: int) -> int:
    """Where the first line begins that does not begin before `begin`."""
    if begin == 0:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())
