"""Chats as samples, compared with transformers."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import levada
import pytest
import tokenizers
import transformers

CHATS = [
    [{"role": "user", "content": "what is a stall?"}, {"role": "assistant", "content": "a rank that waits"}],
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "naïve 漢字 🙂"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "why?"},
        {"role": "assistant", "content": "so it is"},
    ],
    [{"role": "user", "content": "nobody answers"}],
] * 7

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|end|>' }}{% endif %}{% endfor %}"
)


@pytest.fixture
def tokenizer(tmp_path: pathlib.Path) -> transformers.PreTrainedTokenizerFast:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator([message["content"] for chat in CHATS for message in chat], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(tmp_path / "tokenizer")
    return fast


@pytest.fixture
def chats(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    return path


@pytest.mark.parametrize("given", ["folder", "object", "file"])
def test_packed_chats_have_the_tokens_and_the_mask_of_transformers(
    tmp_path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerFast, chats: pathlib.Path, given: str
) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE, "utf-8-sig")
    corpus = levada.Corpus(
        chats,
        tokenizer=tokenizer if given == "object" else tmp_path / "tokenizer",
        chat_template=str(tmp_path / "template.jinja") if given == "file" else "own",
        seq_length=128,
        packing="best-fit",
    )
    segments = []
    for batch in levada.Feed(corpus, batch_size=1):
        row = {name: array[0] for name, array in batch.items()}
        for begin, end in zip(row["cu_seqlens"][:-1], row["cu_seqlens"][1:], strict=True):
            if row["loss_mask"][begin:end].any() or row["tokens"][begin:end].any():
                segments.append([row[name][begin:end].tolist() for name in ("tokens", "labels", "loss_mask")])
    wanted = []
    for chat in CHATS:
        rendered = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = rendered["input_ids"], rendered["assistant_masks"]
        wanted.append([ids[:-1], ids[1:], [float(learned) for learned in mask[1:]]])
    assert sorted(segments) == sorted(wanted)
    assert {tuple(mask) for _, _, mask in segments} > {(0.0,) * len(wanted[2][2])}


def test_a_template_without_generation_blocks_is_refused(
    tmp_path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerFast, chats: pathlib.Path
) -> None:
    tokenizer.chat_template = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    with pytest.raises(levada.InvalidArgument, match="does not mark the assistant's text.*{% generation %}"):
        len(levada.Corpus(chats, tokenizer=tokenizer, chat_template="own"))
    tokenizer.chat_template = None
    with pytest.raises(levada.InvalidArgument, match="has no chat template"):
        len(levada.Corpus(chats, tokenizer=tokenizer, chat_template="own"))
    with pytest.raises(levada.SourceError, match=r"the chat template .*none.jinja cannot be read"):
        len(levada.Corpus(chats, tokenizer=tokenizer, chat_template=str(tmp_path / "none.jinja")))
    with pytest.raises(levada.InvalidArgument, match="takes the folder of a tokenizer of transformers.* is bytes"):
        len(levada.Corpus(chats, chat_template="own", tokenizer="bytes"))
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(levada.InvalidArgument, match="a chat template itself ends a chat"):
        len(levada.Corpus(chats, tokenizer=tokenizer, chat_template="own", eod=3))


def test_a_chat_that_cannot_be_rendered_is_named(
    tmp_path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerFast
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"content": "whose?"}]}\n')
    with pytest.raises(levada.SourceError, match=r'bad.jsonl, from line 1 on: .* cannot render the chat that begins \[\{"content": "whose\?".*; fix the text'):
        len(levada.Corpus(tmp_path / "bad.jsonl", tokenizer=tokenizer, chat_template="own", seq_length=8))


def test_a_templates_special_tokens_determine_the_tokens(
    tmp_path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerFast, chats: pathlib.Path
) -> None:
    tokenizer.chat_template = TEMPLATE.replace("'<|end|>' }}{% endgeneration", "eos_token }}{% endgeneration")
    corpora = []
    for name, eos in (("first", "<|end|>"), ("second", "<|user|>")):
        tokenizer.eos_token = eos
        tokenizer.save_pretrained(tmp_path / name)
        corpora.append(
            levada.Corpus(chats, tokenizer=tmp_path / name, chat_template="own", seq_length=16, cache_dir=tmp_path / "cache")
        )
    tokens = [[batch["tokens"].tolist() for batch in levada.Feed(corpus, batch_size=1)] for corpus in corpora]
    assert tokens[0] != tokens[1]
    assert len(list((tmp_path / "cache" / "tokens").glob("*.json"))) == 2


def test_the_command_feeds_chats(tmp_path: pathlib.Path, tokenizer: transformers.PreTrainedTokenizerFast, chats: pathlib.Path) -> None:
    command = [sys.executable, "-m", "levada", "feed", chats, "--tokenizer", tmp_path / "tokenizer", "--chat-template", "own"]
    done = subprocess.run([*command, "--seq", "16", "--json"], capture_output=True, text=True, check=True)
    corpus = levada.Corpus(chats, tokenizer=tokenizer, chat_template="own", seq_length=16)
    digests = levada.Digests()
    for batch in levada.Feed(corpus, batch_size=8):
        digests.add(batch)
    report = json.loads(done.stdout)
    assert report["samples"] == len(corpus) // 8 * 8 > 0
    assert {name: field["digest"] for name, field in report["ranks"][0]["fields"].items()} == digests.fields()
