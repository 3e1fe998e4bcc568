"""Files of text or tokens as training samples, tokenized and read by the C++ core."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from levada import _levada
from levada._levada import CorpusSource
from levada.base.errors import InvalidArgument
from levada.corpus.parquet import FORMATS
from levada.corpus.storage import REMOTE
from levada.corpus.tokenizers import open_tokenizer

_MOST_EPOCHS = 2**62

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(eq=False)
class Corpus:
    """The documents of text and of Megatron's .bin/.idx files as samples of `sequence` tokens.

    Only named here: opened, and tokenized the first time, by the ranks that read, or when its size is asked for.
    docs/data-loading.md tells of files, folders, patterns, mixes and of what a batch holds.

    packing: "cut" lays documents end to end, "best-fit" packs whole ones side by side, "documents" makes each a sample.

    split, part: proportions in which the documents of each file are divided, such as (98, 1, 1), and which of "train",
    "valid" and "test" this is; parts are disjoint. reset_position_ids, reset_attention_mask, eod_mask_loss: as Megatron-LM
    means them, where documents are cut. dtype: of tokens, labels and position_ids, "int64" or "int32". resume_weights: a
    state of a mix with other weights is taken, and from there on these ones hold.

    tokenizer: what makes text into tokens: "bytes"; the path of a tokenizer.json, of a folder of `transformers` or of a
    SentencePiece .model; or a tokenizer of `tokenizers` or `transformers` itself. eod: the token that ends each document,
    by its text or number; by default the tokenizer's own. special_tokens: documents also get the tokens that the
    tokenizer's own template puts around a text, such as a beginning of text. chat_template: "own" or the path of a Jinja
    template: lines are chats, lists of messages in `text_field`, and the loss mask leaves what the assistant says.
    cache_dir, cache_size: where the tokens of text are kept, and how many bytes they may take.

    tensors: what batches consist of, arrays of "numpy" or tensors of "torch".
    """

    paths: PathLike | Sequence[PathLike]
    _: dataclasses.KW_ONLY
    sequence: int = 1024
    shuffle_seed: int | None = None
    epochs: int = 1
    packing: str = "cut"
    pad_to: int = 1
    split: Sequence[float] = ()
    part: str = "train"
    tokenizer: Any = "bytes"
    eod: str | int = ""
    special_tokens: bool = False
    chat_template: str = ""
    text_field: str = ""
    skip_bad: bool = False
    attention_mask: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    dtype: str = "int64"
    resume_weights: bool = False
    cache_dir: PathLike = ""
    cache_size: int | None = None
    io_threads: int = 1
    tensors: str = "numpy"

    def __post_init__(self) -> None:
        if not 0 <= self.epochs < _MOST_EPOCHS:
            raise InvalidArgument(f"epochs must be 0, for no end, or a number below 2**62, got {self.epochs}")
        if isinstance(self.split, str):
            raise InvalidArgument(f"split is {self.split!r}; it must be numbers, such as (98, 1, 1)")
        self._opened: CorpusSource | None = None
        self._process = 0
        self._of_parent: CorpusSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "_of_parent": None}

    def options(self) -> dict[str, Any]:
        """As the C++ core takes them."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del options["tensors"], options["chat_template"], options["special_tokens"]
        several = [self.paths] if isinstance(self.paths, (str, os.PathLike)) else self.paths
        options["paths"] = [os.fsencode(path) for path in several]
        options["cache_dir"] = os.fsencode(self.cache_dir)
        options["tokenizer"] = open_tokenizer(self.tokenizer, self.chat_template, self.special_tokens)
        options["eod"] = str(self.eod)
        options["split"] = [float(share) for share in self.split]
        options["formats"] = FORMATS
        options["remote"] = REMOTE
        return options

    def open(self) -> CorpusSource:
        """The source itself, opened once in a process. Raises SourceError and InvalidArgument."""
        if self._opened is not None and self._process != os.getpid():
            # It has threads that a forked process has not, so it can neither read here nor end here.
            self._of_parent, self._opened = self._opened, None
        if self._opened is None:
            self._opened, self._process = _levada.open_corpus(**self.options()), os.getpid()
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
