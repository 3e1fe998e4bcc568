"""The Corpus: files of text or tokens as training samples, which the C++ core tokenizes and reads."""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

from levada import _levada
from levada._levada import CorpusSource
from levada.base.checks import check_choice, whole_number
from levada.base.errors import InvalidArgument, InvalidType
from levada.base.keywords import explain_unknown
from levada.corpus.parquet import FORMATS
from levada.corpus.storage import REMOTE, shown_url
from levada.corpus.tokenizers import open_tokenizer

_MAX_EPOCHS = 2**62
_PLAIN: dict[str, tuple[type, str]] = {"bool": (bool, "True or False"), "str": (str, "a str")}
"""Types of options by their annotation, with the description used in error messages."""
_CHOICES = {
    "packing": ("cut", "best-fit", "documents"),
    "part": ("train", "valid", "test"),
    "dtype": ("int64", "int32"),
    "tensors": ("numpy", "torch"),
}

_PATH_OF_URL = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")
"""Matches a URL of which pathlib has removed a slash."""

PathLike = str | os.PathLike[str]


def _shown(value: Any) -> Any:
    """Returns the value of an option for repr(), without the secrets of a URL."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    return shown_url(path) if isinstance(path, str) and "://" in path else value


@dataclasses.dataclass(eq=False)
class Corpus:
    """Reads documents of text, and of Megatron's .bin/.idx files, as samples of `seq_length` tokens.

    Creating a Corpus only names the files. The reading ranks open them and, the first time, tokenize them; so does a
    query for a size. docs/data-loading.md explains files, folders, patterns, mixes and the content of a batch.

    - `shuffle`, `seed`: draw a different order of the samples for each epoch, determined by the seed. Otherwise the
      samples have the order of the files.
    - `each_once`: reads every sample of every source once, regardless of the weights of a mix. For evaluation, in one
      epoch.
    - `packing`: "cut" concatenates documents and cuts them, "best-fit" packs whole documents together, "documents"
      makes each document a sample.
    - `split`, `part`: the proportions by which the documents of each file are divided, such as (98, 1, 1), and the part
      to read: "train", "valid" or "test". Parts are disjoint.
    - `reset_position_ids`, `reset_attention_mask`, `eod_mask_loss`: as in Megatron-LM, for documents that are cut.
    - `dtype`: "int64" or "int32", for tokens, labels and position_ids.
    - `resume_weights`: accepts the state of a mix with other weights. From that position on, the weights of this corpus
      apply.
    - `tokenizer`: the path of a tokenizer.json, of a folder of `transformers` or of a SentencePiece .model; a tokenizer
      object of `tokenizers` or `transformers`; or "bytes", which makes each byte a token. Required for text.
    - `eod`: the token that ends each document, as text or number. Defaults to the tokenizer's.
    - `special_tokens`: adds to documents the tokens that the tokenizer's own template puts around a text, such as a
      beginning of text.
    - `chat_template`: "own", or the path of a Jinja template. Each line is then a chat, a list of messages in
      `text_field`, and the loss mask is 1 only for the assistant's messages.
    - `skip_bad`, `max_bad`: whether to leave out unusable lines, unusable rows and empty files, with a warning that
      counts them; and the share of a text's lines above which leaving them out raises SourceError instead.
    - `cache_dir`, `cache_size`: the folder that caches the tokens of text, and the maximum number of bytes in it.
    - `tensors`: "numpy" or "torch", the type of the tensors in batches.
    """

    paths: PathLike | Sequence[PathLike]
    _: dataclasses.KW_ONLY
    seq_length: int = 1024
    shuffle: bool = False
    seed: int = 0
    epochs: int = 1
    each_once: bool = False
    packing: str = "cut"
    pad_to: int = 1
    split: Sequence[float] = ()
    part: str = "train"
    tokenizer: Any = None
    eod: str | int = ""
    special_tokens: bool = False
    chat_template: str = ""
    text_field: str = ""
    skip_bad: bool = False
    max_bad: float = 1.0
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
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                setattr(self, field.name, whole_number(field.name, value))
            elif (plain := _PLAIN.get(str(field.type))) and not isinstance(value, plain[0]):
                raise InvalidType(f"{field.name} must be {plain[1]}, got {value!r}")
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        several = [self.paths] if isinstance(self.paths, (str, os.PathLike)) else self.paths
        if not isinstance(several, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in several):
            raise InvalidType(f"paths must be a path or a list of paths, got {self.paths!r}")
        for path in several:
            name = os.fsdecode(path) if isinstance(path, os.PathLike) else ""
            if _PATH_OF_URL.match(name) and not os.path.isdir(name.partition("/")[0]):
                raise InvalidArgument(f"paths has {path!r}, in which a slash of the URL is missing: pass the URL as a str")
        if not 0 <= self.epochs < _MAX_EPOCHS:
            raise InvalidArgument(f"epochs must be 0, for no end, or a number below 2**62, got {self.epochs}")
        if isinstance(self.split, str):
            raise InvalidArgument(f"split is {self.split!r}; it must be numbers, such as (98, 1, 1)")
        try:
            shares = tuple(self.split)
            if any(isinstance(share, (str, bytes)) for share in shares):
                raise TypeError
            self.split = tuple(float(share) for share in shares)
        except (TypeError, ValueError):
            raise InvalidType(f"split must be numbers, such as (98, 1, 1), got {self.split!r}") from None
        if isinstance(self.eod, bool) or not isinstance(self.eod, (str, numbers.Integral)):
            raise InvalidType(f"eod must be the text or the number of a token, got {self.eod!r}")
        if not isinstance(self.cache_dir, (str, os.PathLike)):
            raise InvalidType(f"cache_dir must be a path, got {self.cache_dir!r}")
        self._opened: CorpusSource | None = None
        self._process = 0
        self._of_parents: list[CorpusSource] = []

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not isinstance(self.tokenizer, (str, os.PathLike, type(None))):
            values["tokenizer"] = type(self.tokenizer)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = {name: value for name, value in values.items() if repr(value) != repr(defaults[name])}
        is_one = isinstance(self.paths, (str, os.PathLike))
        values["paths"] = self.paths if is_one else [_shown(path) for path in self.paths]  # type: ignore[union-attr]
        return f"Corpus({', '.join(f'{name}={_shown(value)!r}' for name, value in values.items())})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "_of_parents": []}

    def options(self) -> dict[str, Any]:
        """Returns the options of the C++ core."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del options["tensors"], options["chat_template"], options["special_tokens"]
        several = [self.paths] if isinstance(self.paths, (str, os.PathLike)) else self.paths
        options["paths"] = [os.fsencode(path) for path in several]
        options["cache_dir"] = os.fsencode(self.cache_dir)
        is_named = self.tokenizer is not None or self.chat_template or self.special_tokens
        options["tokenizer"] = open_tokenizer(self.tokenizer, self.chat_template, self.special_tokens) if is_named else None
        options["eod"] = str(self.eod)
        options["split"] = [float(share) for share in self.split]
        options["formats"] = FORMATS
        options["remote"] = REMOTE
        return options

    def open(self) -> CorpusSource:
        """Returns the source, which is opened once per process. Raises SourceError and InvalidArgument."""
        if self._opened is not None and self._process != os.getpid():
            # A forked process lacks the threads of its parents' sources, so it can neither read nor destroy them.
            self._of_parents.append(self._opened)
            self._opened = None
        if self._opened is None:
            self._opened, self._process = _levada.open_corpus(**self.options()), os.getpid()
            if self._opened.bad_lines:
                warnings.warn(
                    f"{self._opened.bad_lines:,} lines of the text cannot be used and are left out (skip_bad=True), the first at "
                    f"{', '.join(self._opened.bad_places[:3])}; max_bad= bounds their share",
                    RuntimeWarning,
                    stacklevel=3,
                )
        return self._opened

    def __len__(self) -> int:
        """Returns the number of samples in one epoch."""
        return self.open().sequences

    @property
    def tokens(self) -> int:
        """Number of tokens in all documents, including the tokens that end documents."""
        return self.open().tokens

    @property
    def documents(self) -> int:
        """Number of documents; with a split, only those of the part."""
        return self.open().documents

    @property
    def stored_documents(self) -> int:
        """Number of documents in all parts of a split."""
        return self.open().stored_documents

    @property
    def files(self) -> int:
        """Number of files that are read."""
        return self.open().files

    @property
    def skipped(self) -> dict[str, int]:
        """Number of files in the folders that are not read, by extension, such as {".md": 3}."""
        return self.open().skipped

    @property
    def bad_lines(self) -> int:
        """Number of lines and rows of text that are left out because they are unusable."""
        return self.open().bad_lines

    @property
    def bad_places(self) -> list[str]:
        """The first ten of these, as file and line or row number, such as ["a.jsonl:17"]."""
        return self.open().bad_places

    @property
    def digest(self) -> str:
        """Digest of the content of the files."""
        return self.open().digest


Corpus.__init__ = explain_unknown("levada.Corpus")(Corpus.__init__)  # type: ignore[method-assign]
