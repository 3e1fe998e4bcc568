"""Files of text or tokens as training samples, tokenized and read by the C++ core."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from levada import _levada
from levada._errors import InvalidArgument
from levada._levada import CorpusSource
from levada._parquet import FORMATS
from levada._tokenizers import open_tokenizer

_MOST_EPOCHS = 2**62

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(eq=False)
class Corpus:
    """The documents of text and of Megatron's .bin/.idx files as samples of `sequence` tokens.

    Only named here: opened, and tokenized the first time, by the ranks that read, or when its size is asked for.
    docs/data-loading.md tells of files, folders, patterns, mixes and of what a batch holds.

    tokenizer: what makes text into tokens: "bytes"; the path of a tokenizer.json, of a folder of `transformers` or of a
    SentencePiece .model; or a tokenizer of `tokenizers` or `transformers` itself. eod: the token that ends each document,
    by its text or number; by default the tokenizer's own. cache_dir, cache_size: where the tokens of text are kept, and
    how many bytes they may take. tensors: what batches consist of, arrays of "numpy" or tensors of "torch".
    """

    paths: PathLike | Sequence[PathLike]
    _: dataclasses.KW_ONLY
    sequence: int = 1024
    shuffle_seed: int | None = None
    epochs: int = 1
    packing: str = "cut"
    pad_to: int = 1
    tokenizer: Any = "bytes"
    eod: str | int = ""
    text_field: str = "text"
    skip_bad: bool = False
    attention_mask: bool = False
    cache_dir: PathLike = ""
    cache_size: int | None = None
    io_threads: int = 1
    tensors: str = "numpy"

    def __post_init__(self) -> None:
        if not 0 <= self.epochs < _MOST_EPOCHS:
            raise InvalidArgument(f"epochs must be 0, for no end, or a number below 2**62, got {self.epochs}")
        self._opened: CorpusSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def options(self) -> dict[str, Any]:
        """As the C++ core takes them."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del options["tensors"]
        several = [self.paths] if isinstance(self.paths, (str, os.PathLike)) else self.paths
        options["paths"] = [os.fsencode(path) for path in several]
        options["cache_dir"] = os.fsencode(self.cache_dir)
        options["tokenizer"] = open_tokenizer(self.tokenizer)
        options["eod"] = str(self.eod)
        options["formats"] = FORMATS
        return options

    def open(self) -> CorpusSource:
        """The source itself, opened once. Raises SourceError and InvalidArgument."""
        if self._opened is None:
            self._opened = _levada.open_corpus(**self.options())
        return self._opened

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
