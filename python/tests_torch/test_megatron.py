"""Levada compared with megatron-core: files, splits, samples and their masks."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import types
from typing import Any

import levada
import numpy as np
import pytest
import tokenizers
import torch
import transformers

pytest.importorskip("megatron.core.datasets", reason="megatron-core is not installed")
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from megatron.core.tokenizers.text.libraries import HuggingFaceTokenizer

SEQUENCE = 48
EOD = 256
NO_TOKEN = 300
CHOICES = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
TEXTS = ["hello", "", "naïve 漢字", "x" * 1000, " the levada brings the water to the fields", "a <eos> in a text"]


def write(prefix: pathlib.Path, documents: list[list[int]]) -> None:
    """Writes documents as Megatron-LM's preprocess_data does."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(EOD + 1))
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)] if document else [])
    builder.finalize(f"{prefix}.idx")


@pytest.fixture
def documents() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [[*random.integers(0, 256, random.integers(0, 60)).tolist(), EOD] for _ in range(700)]


def datasets(folder: pathlib.Path, **options: Any) -> list[GPTDataset]:
    """Returns Megatron's data sets for training, validation and tests, of one epoch each."""
    config = GPTDatasetConfig(
        random_seed=5,
        sequence_length=SEQUENCE,
        blend=([str(folder / "corpus")], None),
        path_to_cache=str(folder / "cache"),
        tokenizer=types.SimpleNamespace(eod=EOD, pad=NO_TOKEN, vocab_size=EOD + 1, unique_identifiers={}),
        **{"split": "90,7,3", "reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False, **options},
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()  # type: ignore[no-any-return]


def test_a_converted_text_has_the_bytes_that_megatron_writes(tmp_path: pathlib.Path) -> None:
    texts = ["hello", "", "naïve 漢字", "x" * 1000]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    convert = [sys.executable, "-m", "levada", "convert", "--tokenizer", "bytes", "--append-eod"]
    subprocess.run([*convert, tmp_path / "text.jsonl", tmp_path / "ours"], check=True)
    write(tmp_path / "theirs", [[*text.encode(), EOD] if text else [] for text in texts])
    for extension in (".bin", ".idx"):
        assert (tmp_path / f"ours{extension}").read_bytes() == (tmp_path / f"theirs{extension}").read_bytes()


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A transformers folder with a tokenizer that begins texts with a token, but does not end them with one."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<bos>", "<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    begin = [("<bos>", tokenizer.token_to_id("<bos>"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", special_tokens=begin)
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("special_tokens", [False, True])
def test_a_text_of_a_tokenizer_of_transformers_is_converted_as_megatron_does(
    tmp_path: pathlib.Path, llama_like: pathlib.Path, special_tokens: bool
) -> None:
    theirs = HuggingFaceTokenizer(str(llama_like), include_special_tokens=special_tokens)
    builder = IndexedDatasetBuilder(f"{tmp_path / 'theirs'}.bin", dtype=DType.optimal_dtype(theirs.vocab_size))
    for text in TEXTS:  # like Encoder.encode() of tools/preprocess_data.py, with --append-eod
        ids = theirs.text_to_ids(text)
        if ids:
            ids.append(theirs.eod)
        builder.add_document(torch.tensor(ids), [len(ids)] if ids else [])
    builder.finalize(f"{tmp_path / 'theirs'}.idx")
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    options = ["--tokenizer", llama_like, "--append-eod", *(["--special-tokens"] if special_tokens else [])]
    convert = [sys.executable, "-m", "levada", "convert", tmp_path / "text.jsonl", tmp_path / "ours", *options]
    subprocess.run(convert, check=True)
    for extension in (".bin", ".idx"):
        assert (tmp_path / f"ours{extension}").read_bytes() == (tmp_path / f"theirs{extension}").read_bytes()


@pytest.mark.parametrize("split", ["90,7,3", "98,1,1", "969,30,1", "1,1,1"])
def test_a_split_has_the_same_documents_as_in_megatron(
    tmp_path: pathlib.Path, documents: list[list[int]], split: str
) -> None:
    documents = documents * 2  # more than 1,000, to compare the rounding
    write(tmp_path / "corpus", documents)
    proportions = [float(each) for each in split.split(",")]
    for part, theirs in zip(("train", "valid", "test"), datasets(tmp_path, split=split), strict=True):
        ours = levada.Corpus(tmp_path / "corpus", seq_length=1, split=proportions, part=part)
        wanted = np.concatenate([documents[index] for index in theirs.indices])
        assert ours.documents == len(theirs.indices)
        assert ours.tokens == len(wanted)
        rows = [batch["tokens"][0, 0] for batch in levada.Feed(ours, batch_size=1)]
        assert rows == wanted[:-1].tolist()


@pytest.mark.parametrize(
    "choices", [(), *((choice,) for choice in CHOICES), CHOICES], ids=lambda choices: "+".join(choices) or "plain"
)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_samples_are_those_of_gpt_dataset(
    tmp_path: pathlib.Path, documents: list[list[int]], choices: tuple[str, ...], dtype: str
) -> None:
    write(tmp_path / "corpus", documents)
    theirs = datasets(tmp_path, **dict.fromkeys(choices, True))[0]
    # Megatron shuffles documents before it cuts them. Stored in that order, they are cut as they are.
    stored = IndexedDataset(str(tmp_path / "corpus"))
    write(tmp_path / "shuffled", [stored[document].tolist() for document in theirs.document_index])
    corpus = levada.Corpus(
        tmp_path / "shuffled", seq_length=SEQUENCE, eod=EOD, attention_mask=True, dtype=dtype, **dict.fromkeys(choices, True)
    )
    place_of = {int(place): index for index, place in enumerate(theirs.shuffle_index)}
    count = 0
    for number, batch in enumerate(levada.Feed(corpus, batch_size=1)):
        sample = theirs[place_of[number]]
        for field in ("tokens", "labels", "position_ids", "loss_mask", "attention_mask"):
            assert np.array_equal(batch[field][0], sample[field].numpy()), (number, field)
        assert batch["tokens"].dtype == batch["labels"].dtype == batch["position_ids"].dtype == dtype
        count += 1
    assert count == len(corpus) == len(place_of)
