"""Texts, trained tokenizers, and the tokens that `levada convert` stores."""

from __future__ import annotations

import json
import pathlib
import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import tokenizers
from levada.corpus import tokenizers as _tokenizers

END = "<|endoftext|>"
WORDS = "the quick brown fox jumps over a lazy dog while naïve Ünïcödé 漢字 emoji 🙂🙃 tokens\tand\nlines".split(" ")


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Returns documents of up to 40 words; some are empty, some blank, some contain a special token."""
    choose = random.Random(seed)
    texts = [" ".join(choose.choices(WORDS, k=choose.randrange(40))) for _ in range(count)]
    return ["", " ", "\u00a0", f"before {END} behind", "é" * 300, *texts]


TEXTS = make_texts(200)


def train(kind: str) -> Any:
    models, trainers, pre_tokenizers = tokenizers.models, tokenizers.trainers, tokenizers.pre_tokenizers
    if kind == "BPE":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet)
    elif kind == "WordPiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]", END])
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>", END], unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS, trainer)
    if kind == "WordPiece":  # its template marks beginning and end, which a corpus does not use
        ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ids)
    return tokenizer


def ids_of(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Returns the ids from a loop over the package's encode()."""
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def write_jsonl(path: pathlib.Path, texts: list[str]) -> pathlib.Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def stored(folder: pathlib.Path, tokenizer: Any, texts: list[str], *options: str) -> tuple[list[list[int]], bytes, bytes]:
    """Converts the texts. Returns the documents that `levada convert` stored, and the content of its two files."""
    source = write_jsonl(folder / "texts.jsonl", texts)
    run_command("convert", source, folder / "made", "--tokenizer", tokenizer, "--overwrite", *options)
    bin_bytes, idx_bytes = (folder / "made.bin").read_bytes(), (folder / "made.idx").read_bytes()
    magic, _, code, sequences, ends = struct.unpack_from("<9sQBQQ", idx_bytes)
    assert magic == b"MMIDIDX\x00\x00"
    lengths = np.frombuffer(idx_bytes, np.int32, sequences, 34)
    documents = np.frombuffer(idx_bytes, np.int64, ends, 34 + 12 * sequences)
    tokens = np.frombuffer(bin_bytes, {8: np.uint16, 4: np.int32}[code])
    begins = np.concatenate([[0], np.cumsum(lengths)])
    found = [tokens[begins[a] : begins[b]].tolist() for a, b in zip(documents, documents[1:])]
    return found, bin_bytes, idx_bytes


def run_command(*arguments: Any, status: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "levada", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == status, ran.stderr
    return ran.stderr if status else ran.stdout


def chosen_end(tokenizer: Any, eod: str = "") -> int:
    return _tokenizers.open_tokenizer(tokenizer).choose_end_of_document(eod)
