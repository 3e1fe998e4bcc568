"""Settings of tokens in the files next to a tokenizer.json, and in the tokenizer's switches."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import levada
import pytest
import tokenizers
from levada.corpus import tokenizers as _tokenizers
from tokenizing import END, chosen_end, stored, train

TEXT = f"before {END} behind"


@pytest.fixture(scope="module")
def bpe() -> Any:
    return train("BPE")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("eos", ["fox", {"content": "fox", "lstrip": False, "special": True}])
def test_the_eos_is_read_from_either_file_next_to_the_tokenizer(
    tmp_path: pathlib.Path, bpe: Any, name: str, eos: Any
) -> None:
    larger = tokenizers.Tokenizer.from_str(bpe.to_str())
    larger.add_special_tokens(["fox"])
    larger.save(str(tmp_path / "tokenizer.json"))
    assert chosen_end(tmp_path) == bpe.token_to_id(END)
    (tmp_path / name).write_text(json.dumps({"eos_token": eos}))
    assert chosen_end(tmp_path) == larger.token_to_id("fox")
    (tmp_path / name).write_text('{"eos_token": null}')
    assert chosen_end(tmp_path) == bpe.token_to_id(END)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_an_unusable_end_token_is_an_error_without_a_guess(tmp_path: pathlib.Path, bpe: Any, name: str) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    for broken in ("no JSON", "[1]"):
        (tmp_path / name).write_text(broken)
        with pytest.raises(levada.SourceError, match=f"{name} cannot be read: .*: fix it, or pass a copy"):
            chosen_end(tmp_path)
    (tmp_path / name).write_text('{"eos_token": "</s>"}')
    with pytest.raises(levada.InvalidArgument, match="ends documents with the token </s>, which is not in its vocabulary"):
        chosen_end(tmp_path)
    assert chosen_end(tmp_path, END) == bpe.token_to_id(END)


def test_names_of_special_tokens_are_text_if_the_tokenizer_splits_them(tmp_path: pathlib.Path, bpe: Any) -> None:
    splitting = tokenizers.Tokenizer.from_str(bpe.to_str())
    splitting.encode_special_tokens = True
    expected = splitting.encode(TEXT, add_special_tokens=False).ids
    assert bpe.token_to_id(END) not in expected
    bpe.save(str(tmp_path / "tokenizer.json"))
    assert bpe.token_to_id(END) in stored(tmp_path, tmp_path, [TEXT])[0][0]
    (tmp_path / "tokenizer_config.json").write_text('{"split_special_tokens": true}')
    assert stored(tmp_path, tmp_path, [TEXT])[0] == [expected]
    text = tmp_path / "texts.jsonl"
    for tokenizer, has_end in ((splitting, False), (bpe, True)):
        corpus = levada.Corpus(text, tokenizer=tokenizer, eod=END, seq_length=1, cache_dir=tmp_path / "cache")
        tokens = [row["tokens"][0, 0] for row in levada.Feed(corpus, batch_size=1)]
        assert (bpe.token_to_id(END) in tokens) == has_end
