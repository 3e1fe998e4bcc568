"""Chats as tokens: messages that a chat template of `transformers` renders. Only the assistant's messages have a
loss."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import threading
from typing import Any

from levada import _levada
from levada.base.errors import InvalidArgument, SourceError
from levada.base.packages import import_for, panics_as_errors, release_of

__all__ = ["open_chat_tokenizer"]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def open_chat_tokenizer(given: Any, chat_template: str) -> _levada.Tokenizer:
    """Returns a tokenizer for JSON lists of messages of the form {"role": ..., "content": ...}.

    given: a folder in which `transformers` saved a tokenizer, or such a tokenizer. chat_template: "own", or the path of
    a Jinja file. The ids are those of `apply_chat_template`. An id outside of the template's {% generation %} blocks is
    returned as ~id, because no loss is computed for it. Raises InvalidArgument for a template without such blocks and
    for other tokenizers, and SourceError for files that cannot be read.
    """
    tokenizer = _tokenizer_of(given)
    name = str(tokenizer.name_or_path or type(tokenizer).__name__)
    template = _template_of(tokenizer, name, chat_template)
    lock = threading.Lock()  # apply_chat_template() changes state that encoding reads

    def encode(texts: list[str]) -> list[list[int]]:
        with lock:
            return [ids_of(text) for text in texts]

    def ids_of(text: str) -> list[int]:
        try:
            with panics_as_errors():
                chat = tokenizer.apply_chat_template(
                    json.loads(text),
                    chat_template=template,
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                    truncation=False,
                    padding=False,
                )
        except Exception as error:  # a template may raise anything
            raise SourceError(f"{name} cannot render the chat that begins {text[:80]}: {error}") from error
        ids, is_learned = chat["input_ids"], chat["assistant_masks"]
        return [id if learned else ~id for id, learned in zip(ids, is_learned, strict=True)]

    vocabulary = tokenizer.get_vocab()
    size = max(len(vocabulary), 1 + max(vocabulary.values(), default=-1))
    digest = f"chats {_digest_of(tokenizer, template)}"
    return _levada.Tokenizer(name, digest, size, None, vocabulary.get, encode, is_chat=True)


def _digest_of(tokenizer: Any, template: str) -> str:
    """Returns a digest of everything that determines the ids. Templates access the special tokens by name."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    splits = bool(getattr(tokenizer, "split_special_tokens", False))
    releases = [release_of(package) for package in ("tokenizers", "transformers", "jinja2")]
    content = json.dumps([tokenizer.backend_tokenizer.to_str(), template, special, splits, releases], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _tokenizer_of(given: Any) -> Any:
    if isinstance(given, (str, os.PathLike)) and pathlib.Path(given).is_dir():
        transformers = import_for(f"chat_template with {given}", "transformers")
        try:
            with panics_as_errors():
                given = transformers.AutoTokenizer.from_pretrained(given, local_files_only=True, trust_remote_code=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise SourceError(f"transformers cannot open a tokenizer in {given}: {error}") from error
    if hasattr(given, "apply_chat_template") and hasattr(given, "backend_tokenizer"):
        return given
    what = given if isinstance(given, (str, os.PathLike)) else f"of type {type(given).__name__}"
    raise InvalidArgument(
        f"chat_template takes the folder of a tokenizer of transformers, or one of its fast tokenizers; this one is {what}"
    )


def _template_of(tokenizer: Any, name: str, chat_template: str) -> str:
    if chat_template == "own":
        template = tokenizer.chat_template
        if not isinstance(template, str):
            raise InvalidArgument(f"{name} has no chat template, or several: pass the path of one as chat_template=")
    else:
        try:
            template = pathlib.Path(chat_template).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the chat template {chat_template} cannot be read: {error}") from error
    if not _GENERATION.search(template):
        raise InvalidArgument(
            f"the chat template of {name} does not mark the assistant's text, so Levada cannot tell which tokens to learn: put "
            "{% generation %} and {% endgeneration %} around it, in a file that chat_template names"
        )
    return template
