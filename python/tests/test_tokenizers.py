"""Text as tokens of the packages tokenizers and sentencepiece."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import levada
import numpy as np
import pytest
import sentencepiece
import tokenizers
from levada.corpus import tokenizers as _tokenizers
from ranks import succeed
from tokenizing import END, TEXTS, chosen_end, ids_of, make_texts, run_command, stored, train, write_jsonl

@pytest.fixture(scope="module")
def bpe() -> Any:
    return train("BPE")


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_token_ids_equal_those_of_the_package(tmp_path: pathlib.Path, kind: str) -> None:
    tokenizer = train(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    expected = ids_of(tokenizer, TEXTS)
    assert [] in expected and max(map(len, expected)) > 50
    assert stored(tmp_path, tmp_path / "tokenizer.json", TEXTS)[0] == expected
    assert stored(tmp_path, tmp_path, TEXTS)[0] == expected


def with_template(tokenizer: Any, template: str = "<bos> $A") -> Any:
    """Returns the tokenizer with a template that begins texts with a token, as in Llama and Gemma."""
    marked = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    marked.add_special_tokens(["<bos>", "<eos>"])
    ids = [(token, marked.token_to_id(token)) for token in ("<bos>", "<eos>")]
    marked.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=ids)
    return marked


@pytest.mark.parametrize("template", ["<bos> $A", "$A <eos>", "<bos> $A <eos>"])
def test_special_tokens_follow_the_packages_template(tmp_path: pathlib.Path, bpe: Any, template: str) -> None:
    tokenizer = with_template(bpe, template)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    assert expected[0] == [tokenizer.token_to_id(token) for token in template.split() if token != "$A"]
    assert stored(tmp_path, tmp_path, TEXTS, "--special-tokens")[0] == expected
    assert stored(tmp_path, tmp_path, TEXTS)[0] == ids_of(tokenizer, TEXTS) == ids_of(bpe, TEXTS)


def test_special_tokens_change_the_tokens_of_a_corpus(tmp_path: pathlib.Path, bpe: Any) -> None:
    tokenizer, path = with_template(bpe), write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    for special_tokens in (True, False, True):
        corpus = levada.Corpus(path, tokenizer=tokenizer, special_tokens=special_tokens, eod=END, seq_length=1)
        rows = [row["tokens"][0, 0] for row in levada.Feed(corpus, batch_size=1)]
        documents = [tokenizer.encode(text, add_special_tokens=special_tokens).ids for text in TEXTS]
        assert rows == [id for ids in with_ends(documents, tokenizer.token_to_id(END)) for id in ids][:-1]


@pytest.mark.parametrize("given", ["bytes", "some.model"])
def test_special_tokens_require_a_template(given: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=rf"special_tokens takes a tokenizer\.json or its folder; {given} has no"):
        _tokenizers.open_tokenizer(given, special_tokens=True)
    with pytest.raises(levada.InvalidArgument, match="the chat_template already adds special tokens"):
        _tokenizers.open_tokenizer(given, "own", special_tokens=True)


def test_a_data_set_of_another_vocabulary_is_refused(tmp_path: pathlib.Path, bpe: Any) -> None:
    larger = tokenizers.Tokenizer.from_str(bpe.to_str())
    larger.add_tokens(["quickbrown"])
    larger.save(str(tmp_path / "tokenizer.json"))
    stored(tmp_path, tmp_path, ["the quickbrown fox"], "--append-eod")
    options: dict[str, Any] = {"seq_length": 2, "eod": END}
    assert list(levada.Feed(levada.Corpus(tmp_path / "made.bin", tokenizer=larger, **options), batch_size=1))
    with pytest.raises(levada.SourceError, match=f"is {bpe.get_vocab_size()}, but the tokenizer has {bpe.get_vocab_size()}"):
        list(levada.Feed(levada.Corpus(tmp_path / "made.bin", tokenizer=bpe, **options), batch_size=1))
    assert "sequences" in run_command("inspect", tmp_path / "made.bin", "--tokenizer", tmp_path)
    bpe.save(str(tmp_path / "tokenizer.json"))
    error = run_command("inspect", tmp_path / "made.bin", "--tokenizer", tmp_path, status=1)
    assert f"the tokenizer has {bpe.get_vocab_size()} tokens: name the one that the file was made with" in error


def test_a_tokenizer_that_truncates_and_pads_encodes_whole_documents(tmp_path: pathlib.Path, bpe: Any) -> None:
    expected = ids_of(bpe, TEXTS)
    short = tokenizers.Tokenizer.from_str(bpe.to_str())
    short.enable_truncation(max_length=8)
    short.enable_padding(length=64)
    short.save(str(tmp_path / "tokenizer.json"))
    assert len(short.encode(TEXTS[-1]).ids) == 64
    assert stored(tmp_path, tmp_path, TEXTS)[0] == expected


def test_tokens_that_were_added_to_the_vocabulary_are_encoded(tmp_path: pathlib.Path, bpe: Any) -> None:
    larger = tokenizers.Tokenizer.from_str(bpe.to_str())
    larger.add_special_tokens(["<|begin|>", "<|stop|>"])
    larger.add_tokens(["quickbrown"])
    larger.save(str(tmp_path / "tokenizer.json"))
    texts = ["<|begin|>the quickbrown fox<|stop|>", *TEXTS]
    expected = ids_of(larger, texts)
    assert {larger.token_to_id(each) for each in ("<|begin|>", "quickbrown", "<|stop|>")} < set(expected[0])
    assert stored(tmp_path, tmp_path, texts)[0] == expected
    opened = _tokenizers.open_tokenizer(tmp_path)
    assert opened.vocabulary_size == larger.get_vocab_size(with_added_tokens=True)
    assert opened.choose_end_of_document("<|stop|>") == larger.token_to_id("<|stop|>")


def test_many_threads_encode_in_the_order_of_the_text(tmp_path: pathlib.Path, bpe: Any) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    texts = make_texts(20_000, seed=1)  # several MiB, which are encoded in pieces
    one = stored(tmp_path, tmp_path, texts, "--threads", "1")
    assert stored(tmp_path, tmp_path, texts, "--threads", "4") == one
    assert one[0] == [encoding.ids for encoding in bpe.encode_batch(texts, add_special_tokens=False)]


def preprocess_data(folder: pathlib.Path, documents: list[list[int]], vocabulary_size: int, eod: int) -> None:
    """Writes the files that Megatron-LM's preprocess_data --append-eod writes."""
    dtype, code = (np.uint16, 8) if vocabulary_size < 65500 else (np.int32, 4)
    sequences = [[*ids, eod] for ids in documents if ids]
    ends = [0, *np.cumsum([len(ids) > 0 for ids in documents]).tolist()]
    lengths = np.array([len(ids) for ids in sequences], np.int32)
    begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1] * np.dtype(dtype).itemsize
    (folder / "theirs.bin").write_bytes(np.array([id for ids in sequences for id in ids], dtype).tobytes())
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(ends))
    index = header + lengths.tobytes() + begins.astype(np.int64).tobytes() + np.array(ends, np.int64).tobytes()
    (folder / "theirs.idx").write_bytes(index)


@pytest.mark.parametrize("extra_tokens", [0, 70_000])
def test_convert_writes_the_bytes_that_megatron_writes(tmp_path: pathlib.Path, bpe: Any, extra_tokens: int) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(bpe.to_str())
    tokenizer.add_tokens([f"<extra {number}>" for number in range(extra_tokens)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [*TEXTS, "", "<extra 69999> the last", ""]
    preprocess_data(tmp_path, ids_of(tokenizer, texts), tokenizer.get_vocab_size(), tokenizer.token_to_id(END))
    _, bin_bytes, idx_bytes = stored(tmp_path, tmp_path / "tokenizer.json", texts, "--append-eod")
    assert bin_bytes == (tmp_path / "theirs.bin").read_bytes()
    assert idx_bytes == (tmp_path / "theirs.idx").read_bytes()


@pytest.mark.parametrize("form", ["path", "object", "folder", "str"])
def test_a_tokenizer_may_be_a_path_or_an_object(tmp_path: pathlib.Path, bpe: Any, form: str) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    given = {"path": tmp_path / "tokenizer.json", "folder": tmp_path, "str": str(tmp_path), "object": bpe}[form]
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    corpus = levada.Corpus(text, seq_length=32, tokenizer=given)
    assert batches_of(corpus) == batches_of_ids(with_ends(ids_of(bpe, TEXTS), bpe.token_to_id(END)), 32)


def test_a_tokenizer_may_have_a_name_that_is_not_utf8(tmp_path: pathlib.Path, bpe: Any) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(levada.SourceError, match=r"\\udcff is not a tokenizer: there is no such file"):
        _tokenizers.open_tokenizer(folder)
    os.mkdir(folder)
    pathlib.Path(folder, "tokenizer.json").write_text(bpe.to_str(), "utf-8")
    assert _tokenizers.open_tokenizer(folder).name.endswith(r"/\xff")


def test_encoding_does_not_change_the_given_tokenizer(bpe: Any) -> None:
    given = tokenizers.Tokenizer.from_str(bpe.to_str())
    given.enable_truncation(max_length=8)
    given.enable_padding(length=16)
    before = given.to_str()
    _tokenizers.open_tokenizer(given)
    assert given.to_str() == before


def test_the_end_token_is_set_by_text_or_number(bpe: Any) -> None:
    assert chosen_end(bpe) == bpe.token_to_id(END)
    assert chosen_end(bpe, END) == bpe.token_to_id(END)
    assert bpe.token_to_id("7") != 7 and chosen_end(bpe, "7") == 7
    for wrong in ("no such token", "400000", "-1"):
        with pytest.raises(levada.InvalidArgument, match=f"has no token {wrong} .*by its number or its text"):
            chosen_end(bpe, wrong)


def test_a_corpus_accepts_the_number_of_the_end_token(tmp_path: pathlib.Path, bpe: Any) -> None:
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    corpus = levada.Corpus(text, seq_length=32, tokenizer=bpe, eod=300)
    assert batches_of(corpus) == batches_of_ids(with_ends(ids_of(bpe, TEXTS), 300), 32)


def test_a_tokenizer_without_an_end_token_is_an_error_that_asks_for_one(tmp_path: pathlib.Path) -> None:
    nameless = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    text = write_jsonl(tmp_path / "texts.jsonl", ["a"])
    with pytest.raises(levada.InvalidArgument, match='which token ends a document: name it .*eod="TOKEN"'):
        len(levada.Corpus(text, tokenizer=nameless))


def test_the_error_for_a_value_that_is_no_tokenizer_lists_the_valid_ones(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text('{"model": {"type": "Elephant"}}')
    (tmp_path / "text.txt").write_text("no JSON")
    for given, error, words in (
        (tmp_path / "empty", levada.SourceError, "holds no tokenizer.json"),
        (tmp_path / "absent.json", levada.SourceError, "there is no such file; it must be bytes, a tokenizer.json"),
        ("gpt2", levada.SourceError, "gpt2 is not a tokenizer: there is no such file"),
        (tmp_path / "other.json", levada.SourceError, "other.json is not a tokenizer of the package tokenizers"),
        (tmp_path / "text.txt", levada.SourceError, "text.txt is not a tokenizer of the package tokenizers"),
        (3, levada.InvalidArgument, "tokenizer is of type int; it must be a path"),
        (None, levada.InvalidArgument, "require a tokenizer: pass tokenizer="),
    ):
        with pytest.raises(error, match=words):
            _tokenizers.open_tokenizer(given)
    said = run_command("convert", "a.jsonl", tmp_path / "made", "--tokenizer", tmp_path / "empty", status=1)
    assert "holds no tokenizer.json" in said and len(said.splitlines()) == 1


def test_a_panic_of_the_package_is_an_error_that_names_the_file(tmp_path: pathlib.Path, bpe: Any) -> None:
    settings = json.loads(bpe.to_str())
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**settings, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA=="}}))
    with pytest.raises(levada.SourceError, match="tokenizer.json is not a tokenizer of the package tokenizers: .* failed"):
        _tokenizers.open_tokenizer(file)
    pattern = {"type": "Split", "pattern": {"Regex": "(?:(a+)+)+b"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**settings, "pre_tokenizer": pattern}))
    text = write_jsonl(tmp_path / "texts.jsonl", ["a" * 40_000 + "! b"])
    with pytest.raises(levada.SourceError, match="tokenizer.json cannot encode a text: RuntimeError: the package failed"):
        len(levada.Corpus(text, seq_length=1, tokenizer=file, eod="0"))


def test_a_tokenizer_that_cannot_be_saved_is_refused(bpe: Any) -> None:
    class Split:
        def pre_tokenize(self, text: Any) -> None: ...

    own = tokenizers.Tokenizer.from_str(bpe.to_str())
    own.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Split())
    with pytest.raises(levada.InvalidArgument, match="parts that cannot be saved"):
        _tokenizers.open_tokenizer(own)


@pytest.mark.parametrize(("package", "file"), [("tokenizers", "tokenizer.json"), ("sentencepiece", "some.model")])
def test_a_missing_package_is_an_error_with_the_install_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, package: str, file: str
) -> None:
    (tmp_path / file).write_text("{}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(levada.Unsupported, match=rf"{file} needs the package {package}: pip install {package}$"):
        len(levada.Corpus(tmp_path, tokenizer=tmp_path / file))


def test_a_sentencepiece_model_encodes_as_its_package_does(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(text.replace("\n", " ") for text in TEXTS if text.strip()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "train.txt"), model_prefix=str(tmp_path / "small"), vocab_size=60, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "small.model"))
    documents = stored(tmp_path, tmp_path / "small.model", TEXTS, "--append-eod")[0]
    assert documents == [[*ids, processor.eos_id()] if ids else [] for ids in map(processor.encode, TEXTS)]
    opened = _tokenizers.open_tokenizer(str(tmp_path / "small.model"))
    assert opened.choose_end_of_document("<unk>") == processor.unk_id()
    with pytest.raises(levada.InvalidArgument, match="no token no such piece"):
        opened.choose_end_of_document("no such piece")
    (tmp_path / "bad.model").write_bytes(b"no model")
    with pytest.raises(levada.SourceError, match="bad.model is not a SentencePiece model"):
        _tokenizers.open_tokenizer(tmp_path / "bad.model")


def with_ends(documents: list[list[int]], end: int) -> list[list[int]]:
    return [[*ids, end] for ids in documents if ids]


def batches_of(corpus: levada.Corpus, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Returns the tokens and labels of each sample."""
    return [
        (tokens.tolist(), labels.tolist())
        for batch in levada.Feed(corpus, batch_size=1, **options)
        for tokens, labels in zip(batch["tokens"], batch["labels"])
    ]


def batches_of_ids(documents: list[list[int]], sequence: int) -> list[tuple[list[int], list[int]]]:
    tokens = np.concatenate(documents)
    count = (len(tokens) - 1) // sequence
    rows = [tokens[i * sequence : (i + 1) * sequence + 1].tolist() for i in range(count)]
    return [(row[:-1], row[1:]) for row in rows]


def test_packed_documents_have_the_tokens_of_the_tokenizer(tmp_path: pathlib.Path, bpe: Any) -> None:
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    documents = with_ends(ids_of(bpe, TEXTS), bpe.token_to_id(END))
    pieces = []
    for tokens in documents:
        for begin in range(0, len(tokens) - 1, 64):
            piece = tokens[begin : begin + 65]
            pieces.append((tuple(piece[:-1]), tuple(piece[1:])))
    found, padding = [], 0
    corpus = levada.Corpus(text, seq_length=64, packing="best-fit", tokenizer=bpe)
    for batch in levada.Feed(corpus, batch_size=1):
        row = {key: value[0] for key, value in batch.items()}
        bounds = row["cu_seqlens"].tolist()
        assert bounds[0] == 0 and bounds[-1] == 64
        for begin, end in zip(bounds, bounds[1:]):
            labelled = int(row["loss_mask"][begin:end].sum())
            padding += end - begin - labelled
            assert row["position_ids"][begin:end].tolist() == list(range(end - begin))
            if labelled:
                assert row["loss_mask"][begin : begin + labelled].all()
                found.append((tuple(row["tokens"][begin : begin + labelled]), tuple(row["labels"][begin : begin + labelled])))
    assert sorted(found) == sorted(pieces)
    assert padding < sum(len(tokens) for tokens, _ in pieces) / 10


def count_encoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the number of texts of each later encoding call."""
    counts: list[int] = []
    make = levada._levada.Tokenizer

    def counting(name: Any, digest: Any, size: Any, eos: Any, id_of: Any, encode: Callable[[Any], Any], **more: Any) -> Any:
        def counted(texts: list[str]) -> Any:
            counts.append(len(texts))
            return encode(texts)

        return make(name, digest, size, eos, id_of, counted, **more)

    monkeypatch.setattr(levada._levada, "Tokenizer", counting)
    return counts


def test_a_text_is_encoded_once_for_equal_tokenizers(
    tmp_path: pathlib.Path, bpe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_encoding(monkeypatch)
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    (tmp_path / "copy").mkdir()
    bpe.save(str(tmp_path / "copy" / "tokenizer.json"))

    def encoded(tokenizer: Any, **options: Any) -> tuple[str, int]:
        del counts[:]
        corpus = levada.Corpus(text, seq_length=32, tokenizer=tokenizer, cache_dir=tmp_path / "cache", **options)
        return corpus.digest, sum(counts)

    digest, texts = encoded(bpe)
    assert texts == len(TEXTS)
    assert encoded(bpe) == (digest, 0)
    assert encoded(tmp_path / "copy") == (digest, 0)
    assert encoded(bpe, packing="best-fit") == (digest, 0)
    assert encoded(bpe, eod=300)[1] == len(TEXTS)
    larger = tokenizers.Tokenizer.from_str(bpe.to_str())
    larger.add_tokens(["quick brown"])
    other, texts = encoded(larger)
    assert other != digest and texts == len(TEXTS)
    assert encoded(bpe) == (digest, 0)


def test_an_error_of_a_tokenizer_names_the_tokenizer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_jsonl(tmp_path / "texts.jsonl", ["some text"])

    def open_with(encode: Callable[[list[str]], Any]) -> None:
        made = levada._levada.Tokenizer("mine", f"digest {encode}", 10, 0, lambda token: None, encode)
        monkeypatch.setattr("levada.corpus.corpus.open_tokenizer", lambda *given: made)
        len(levada.Corpus(text, seq_length=1, tokenizer="bytes"))

    def raising(texts: list[str]) -> Any:
        raise KeyError("of mine")

    for encode, words in (
        (raising, r"texts.jsonl, from line 1 on: mine cannot encode a text: KeyError: 'of mine'; fix the text"),
        (lambda texts: [[10] for _ in texts], "mine encoded a text as token 10, but has only 10 tokens"),
        (lambda texts: [["a"] for _ in texts], "mine cannot encode a text: TypeError"),
        (lambda texts: [], "mine has encoded 1 texts as 0"),
        (lambda texts: ["ab" for _ in texts], "did not encode a text as a list of numbers"),
    ):
        with pytest.raises(levada.SourceError, match=words):
            open_with(encode)


def test_ctrl_c_ends_tokenizing(tmp_path: pathlib.Path) -> None:
    write_jsonl(tmp_path / "texts.jsonl", ["some text " * 30_000] * 50)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time, levada\n"
        "def encode(texts):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.2)\n"
        "    return [[1] for _ in texts]\n"
        "made = levada._levada.Tokenizer('mine', 'digest', 10, 0, lambda token: None, encode)\n"
        "levada.corpus.corpus.open_tokenizer = lambda *given: made\n"
        "try:\n"
        "    len(levada.Corpus(sys.argv[1], seq_length=16, tokenizer='bytes'))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, script, tmp_path / "texts.jsonl"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "interrupted\n", ran.stderr


def test_ranks_receive_the_tokens_of_a_tokenizer(tmp_path: pathlib.Path, bpe: Any) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    text = write_jsonl(tmp_path / "texts.txt.jsonl", TEXTS)
    expected = batches_of_ids(with_ends(ids_of(bpe, TEXTS), bpe.token_to_id(END)), 32)
    for readers in ("one", "all"):
        folder = tmp_path / readers
        folder.mkdir()
        told = succeed(
            folder,
            2,
            f"""
            corpus = levada.Corpus({str(text)!r}, seq_length=32, tokenizer={str(tmp_path)!r},
                                   cache_dir={str(tmp_path / readers)!r})
            for batch in levada.Feed(corpus, mesh=levada.Mesh(dp=2), readers={readers!r}):
                tell(tokens=batch["tokens"][0].tolist(), labels=batch["labels"][0].tolist())
            """,
        )
        steps = len(expected) // 2
        assert [len(mine) for mine in told] == [steps, steps]
        for rank, mine in enumerate(told):
            assert [(row["tokens"], row["labels"]) for row in mine] == expected[rank : 2 * steps : 2]


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_pipeline_with_workers_has_the_tokens_of_a_tokenizer(tmp_path: pathlib.Path, bpe: Any, context: str) -> None:
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    expected = [tokens for tokens, _ in batches_of_ids(with_ends(ids_of(bpe, TEXTS), bpe.token_to_id(END)), 32)]
    corpus = levada.Corpus(text, seq_length=32, tokenizer=bpe, cache_dir=tmp_path / "cache")
    pipeline = levada.Pipeline[Any](corpus).shard().map(lambda item: item["tokens"].tolist())
    with pipeline.run(2, context=context) as run:
        assert list(run) == expected


def test_the_command_feeds_the_tokens_of_a_tokenizer(tmp_path: pathlib.Path, bpe: Any) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    text = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    corpus = levada.Corpus(text, seq_length=32, tokenizer=bpe)
    digests = levada.Digests()
    for batch in levada.Feed(corpus, batch_size=2):
        digests.add(batch)
    options = ("--seq", "32", "--batch", "2", "--tokenizer", tmp_path, "--mesh", "tp=2", "--json")
    report = json.loads(run_command("feed", text, *options))
    for rank in report["ranks"]:
        assert {name: field["digest"] for name, field in rank["fields"].items()} == digests.fields()
