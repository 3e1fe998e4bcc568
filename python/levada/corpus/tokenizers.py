"""Opens tokenizers: files, folders, and objects of `tokenizers` and `transformers`."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from typing import Any

from levada import _levada
from levada.base.errors import InvalidArgument, SourceError
from levada.base.packages import import_for, panics_as_errors, release_of
from levada.corpus.chats import open_chat_tokenizer

__all__ = ["open_tokenizer"]


def open_tokenizer(given: Any, chat_template: str = "", special_tokens: bool = False) -> _levada.Tokenizer:
    """Returns the tokenizer that `given` names.

    given: "bytes"; the path of a tokenizer.json, of a folder in which `transformers` saved one, or of a SentencePiece
    .model; or a `tokenizers.Tokenizer` or a fast tokenizer of `transformers`. chat_template: "own" or the path of a
    Jinja file, for chats; requires a folder or a tokenizer of `transformers`. special_tokens: adds the tokens that the
    post-processor of a tokenizer of `tokenizers` puts around each text. Raises InvalidArgument for anything else,
    SourceError for a file that is missing or not a tokenizer, and Unsupported if the package that reads it is not
    installed.
    """
    if given is None:
        raise InvalidArgument("chat_template and special_tokens require a tokenizer: pass tokenizer=")
    if chat_template:
        if special_tokens:
            raise InvalidArgument("special_tokens is True, but the chat_template already adds special tokens: pass only one of the two")
        return open_chat_tokenizer(given, chat_template)
    if isinstance(given, (str, os.PathLike)):
        return _open_path(os.fspath(given), special_tokens)
    if hasattr(given, "backend_tokenizer"):  # transformers
        name = str(given.name_or_path or type(given).__name__)
        splits = bool(getattr(given, "split_special_tokens", False))
        return _of_tokenizers(given.backend_tokenizer, name, special_tokens, splits, given.eos_token)
    if hasattr(given, "encode_batch_fast"):
        return _of_tokenizers(given, type(given).__name__, special_tokens, given.encode_special_tokens)
    raise InvalidArgument(
        f"tokenizer is of type {type(given).__name__}; it must be a path, a tokenizers.Tokenizer or a fast tokenizer "
        "of transformers"
    )


def _open_path(name: str, special_tokens: bool) -> _levada.Tokenizer:
    path = pathlib.Path(name)
    if special_tokens and (name == "bytes" or path.suffix == ".model"):
        raise InvalidArgument(f"special_tokens takes a tokenizer.json or its folder; {name} has no template that names any")
    if name == "bytes":
        return _levada.byte_tokenizer()
    if path.suffix == ".model":
        return _open_sentencepiece(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        what = "the folder holds no tokenizer.json" if path.is_dir() else "there is no such file"
        raise SourceError(f"{name} is not a tokenizer: {what}; it must be bytes, a tokenizer.json or its folder, or a .model")
    tokenizers = import_for(name, "tokenizers")
    try:
        with panics_as_errors():
            tokenizer = tokenizers.Tokenizer.from_buffer(file.read_bytes())
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from error
    except Exception as error:  # the package raises nothing more specific
        raise SourceError(f"{file} is not a tokenizer of the package tokenizers: {error}") from error
    settings = _settings_beside(file)
    eos = settings.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    splits = settings.get("split_special_tokens") is True
    return _of_tokenizers(tokenizer, name, special_tokens, splits, eos if isinstance(eos, str) else None)


def _settings_beside(file: pathlib.Path) -> dict[str, Any]:
    """Returns the content of the files that `transformers` saves next to a tokenizer.json; empty if there are none."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = file.parent / name
        try:
            stored = json.loads(path.read_text("utf-8"))
            settings |= {key: value for key, value in stored.items() if value is not None}
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError) as error:
            raise SourceError(
                f"{path} cannot be read: {error}; it may name the token that ends documents: fix it, or pass a copy of "
                f"{file.name} in a folder without it"
            ) from error
    return settings


def _of_tokenizers(given: Any, name: str, special_tokens: bool, splits: bool, eos: str | None = None) -> _levada.Tokenizer:
    """splits: treats names of special tokens in a text as text. eos: the token that ends documents."""
    try:
        with panics_as_errors():
            tokenizer = given.__class__.from_str(given.to_str())
    except Exception as error:  # the package raises nothing more specific
        raise InvalidArgument(f"{name} has parts that cannot be saved, so its tokens cannot be cached: {error}") from error
    tokenizer.no_truncation()  # a document is never truncated,
    tokenizer.no_padding()  # and never padded
    tokenizer.encode_special_tokens = splits
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)

    def encode(texts: list[str]) -> list[list[int]]:
        with panics_as_errors():
            return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)]

    size = max(len(vocabulary), 1 + max(vocabulary.values(), default=-1))
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    kind = f"{release_of('tokenizers')} with special tokens" if special_tokens else release_of("tokenizers")
    kind += " as text" if splits else ""
    end = None if eos is None else tokenizer.token_to_id(eos)
    unknown_end = eos if eos is not None and end is None else ""
    return _levada.Tokenizer(
        _shown(name), f"{kind} {digest}", size, end, tokenizer.token_to_id, encode, unknown_end=unknown_end
    )


def _open_sentencepiece(name: str) -> _levada.Tokenizer:
    sentencepiece = import_for(name, "sentencepiece")
    try:
        model = pathlib.Path(name).read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except OSError as error:
        raise SourceError(f"{name} is not a SentencePiece model: {error.strerror}") from error
    except RuntimeError as error:
        raise SourceError(f"{name} is not a SentencePiece model: {error}") from error

    def id_of(token: str) -> int | None:
        number = processor.piece_to_id(token)
        return number if processor.id_to_piece(number) == token else None

    eos = processor.eos_id()
    digest = _levada.digest(f"{release_of('sentencepiece')} ".encode() + model)
    return _levada.Tokenizer(
        _shown(name), digest, processor.get_piece_size(), eos if eos >= 0 else None, id_of, processor.encode
    )


def _shown(name: str) -> str:
    """Returns the name of a file as UTF-8, even if the name itself is not."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
