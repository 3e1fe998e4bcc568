"""Files of text or tokens as training samples, read by the C++ core."""

from __future__ import annotations

import os
from collections.abc import Sequence

from levada import _levada
from levada._levada import CorpusSource

PathLike = str | os.PathLike[str]


class Corpus:
    """The documents of .jsonl, .txt and Megatron's .bin/.idx files as samples of `sequence` tokens.

    Only named here: opened, and indexed the first time, by the ranks that read, or when its size is asked for.
    docs/data-loading.md tells of files, folders, patterns, mixes and of what a batch holds.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        sequence: int = 1024,
        shuffle_seed: int | None = None,
        epochs: int = 1,
        packing: str = "cut",
        pad_to: int = 1,
        text_field: str = "text",
        skip_bad: bool = False,
        attention_mask: bool = False,
        cache: bool = True,
        cache_dir: PathLike = "",
        io_threads: int = 1,
    ) -> None:
        several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._paths = [os.fspath(path) for path in several]
        self.sequence = sequence
        self.shuffle_seed = shuffle_seed
        self.epochs = epochs
        self.packing = packing
        self.pad_to = pad_to
        self.text_field = text_field
        self.skip_bad = skip_bad
        self.attention_mask = attention_mask
        self.cache = cache
        self.cache_dir = os.fspath(cache_dir)
        self.io_threads = io_threads
        self._opened: dict[int, CorpusSource] = {}

    def open(self, epochs: int | None = None) -> CorpusSource:
        """The source itself, of so many epochs. Raises SourceError and InvalidArgument."""
        epochs = self.epochs if epochs is None else epochs
        if epochs not in self._opened:
            self._opened[epochs] = _levada.open_corpus(
                self._paths,
                sequence=self.sequence,
                shuffle_seed=self.shuffle_seed,
                epochs=epochs,
                packing=self.packing,
                pad_to=self.pad_to,
                text_field=self.text_field,
                skip_bad=self.skip_bad,
                attention_mask=self.attention_mask,
                cache=self.cache,
                cache_dir=self.cache_dir,
                io_threads=self.io_threads,
            )
        return self._opened[epochs]

    def __len__(self) -> int:
        """Samples of one epoch."""
        return self.open().sequences

    @property
    def tokens(self) -> int:
        """Tokens of all documents, with those that end them."""
        return self.open().tokens

    @property
    def documents(self) -> int:
        """How many there are."""
        return self.open().documents

    @property
    def digest(self) -> str:
        """Of what the files hold."""
        return self.open().digest
