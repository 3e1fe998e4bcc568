"""Tokenizers of transformers, and the folders in which it saves them."""

from __future__ import annotations

import json
import pathlib

import levada
import numpy as np
import pytest
import tokenizers
import torch
import transformers

TEXTS = ["the quick brown fox", "", "jumps over the lazy dog", "naïve 漢字 🙂"] * 20


@pytest.fixture(scope="module")
def bpe() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.mark.parametrize("eos", ["</s>", "<|stop|>"])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_corpus_has_the_tokens_and_the_eos_of_a_fast_tokenizer(
    tmp_path: pathlib.Path, bpe: tokenizers.Tokenizer, eos: str, is_saved: bool
) -> None:
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(bpe.to_str()), bos_token="<s>", eos_token=eos, pad_token="<s>"
    )
    fast(TEXTS[0], truncation=True, padding="max_length", max_length=4)  # this call changes the underlying tokenizer
    fast.save_pretrained(tmp_path / "saved")
    text = tmp_path / "texts.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    corpus = levada.Corpus(text, seq_length=16, tokenizer=tmp_path / "saved" if is_saved else fast)
    documents = [fast(each, add_special_tokens=False, truncation=False)["input_ids"] for each in TEXTS]
    tokens = np.concatenate([[*ids, fast.eos_token_id] for ids in documents if ids])
    rows = [batch["tokens"][0].tolist() for batch in levada.Feed(corpus, batch_size=1)]
    assert corpus.tokens == len(tokens)
    assert rows == tokens[: len(rows) * 16].reshape(-1, 16).tolist() and len(rows) == (len(tokens) - 1) // 16


def test_a_tokenizer_written_in_python_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    with pytest.raises(levada.InvalidArgument, match="tokenizer is of type .*; it must be a path, a tokenizers.Tokenizer"):
        len(levada.Corpus(tmp_path / "text.txt", tokenizer=transformers.ByT5Tokenizer()))


def test_a_model_keeps_packed_samples_apart_only_as_the_page_on_balance_says() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes))
    texts = [torch.randint(0, 50, (length,)) for length in (5, 7, 3)]
    separate = torch.cat([model(input_ids=text[None]).logits[0] for text in texts])
    row = levada.collate_packed([{"input_ids": text, "labels": text} for text in texts])
    masked = {"attention_mask": torch.ones_like(row["input_ids"])}
    for options, is_apart in (({"use_cache": False}, True), ({}, False), ({"use_cache": False, **masked}, False)):
        assert torch.allclose(model(**row, **options).logits[0], separate, atol=1e-5) == is_apart, options
