"""Documents in Parquet files."""

from __future__ import annotations

import datetime
import decimal
import json
import pathlib
import subprocess
import sys
from typing import Any

import levada
import pyarrow
import pytest
from levada import _levada
from levada.corpus.parquet import ParquetReader
from pyarrow import parquet

TEXTS = ["", "first", "naïve 漢字 🙂\n\tand a\0zero", *(f"document {number} " * (number % 7) for number in range(500))]


def write(path: pathlib.Path, texts: Any, *, column: str = "text", type: Any = None, **options: Any) -> pathlib.Path:
    numbers = pyarrow.array(range(len(texts)))
    parquet.write_table(pyarrow.table({"number": numbers, column: pyarrow.array(texts, type)}), path, **options)
    return path


def write_jsonl(path: pathlib.Path, texts: list[str]) -> pathlib.Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def rows_of(path: pathlib.Path, **options: Any) -> tuple[list[list[int]], int]:
    """Returns the tokens of all samples, and the number of documents."""
    corpus = levada.Corpus(path, seq_length=16, **options, tokenizer="bytes")
    return [batch["tokens"][0].tolist() for batch in levada.Feed(corpus, batch_size=1)], corpus.documents


def read_all(path: pathlib.Path, column: str = "text", skip_bad: bool = False, chats: bool = False) -> list[str]:
    reader = ParquetReader(_levada.open_file(str(path)), column, skip_bad, chats)
    texts = []
    while (read := reader.read()) is not None:
        texts += read
    assert reader.stored_bytes == path.stat().st_size
    return texts


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
def test_rows_are_documents_in_their_order(tmp_path: pathlib.Path, rows: int, codec: str) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS, row_group_size=rows, compression=codec)
    assert read_all(path) == TEXTS
    expected = rows_of(write_jsonl(tmp_path / "texts.jsonl", TEXTS))
    assert rows_of(path) == expected and expected[1] == len(TEXTS)


@pytest.mark.parametrize("type", ["string", "large_string", "string_view", "dictionary"])
def test_strings_of_every_kind_are_text(tmp_path: pathlib.Path, type: str) -> None:
    if type == "dictionary":
        path = tmp_path / "texts.parquet"
        parquet.write_table(pyarrow.table({"text": pyarrow.array(TEXTS).dictionary_encode()}), path)
    else:
        path = write(tmp_path / "texts.parquet", TEXTS, type=getattr(pyarrow, type)())
    assert read_all(path) == TEXTS


def test_views_of_strings_that_are_not_stored_as_a_dictionary_are_text(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS, type=pyarrow.string_view(), use_dictionary=False)
    assert read_all(path) == TEXTS


def test_the_text_field_names_the_column(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS, column="content.raw")
    expected = rows_of(write_jsonl(tmp_path / "texts.jsonl", TEXTS))
    assert rows_of(path, text_field="content.raw") == expected
    with pytest.raises(
        levada.SourceError, match=r"texts.parquet has no column text: name one of \(number, content.raw\)"
    ):
        rows_of(path)
    with pytest.raises(levada.SourceError, match="column number of .* is of type int64, which is not text: name a column"):
        rows_of(path, text_field="number")


@pytest.mark.parametrize("type", ["binary", "large_binary"])
def test_a_column_of_binary_is_refused_with_the_remedy(tmp_path: pathlib.Path, type: str) -> None:
    path = write(tmp_path / "texts.parquet", [text.encode() for text in TEXTS], type=getattr(pyarrow, type)())
    with pytest.raises(levada.SourceError, match=f"type {type}, which is not text: cast it to strings in the file, or name a column"):
        rows_of(path)


def test_a_dotted_name_leads_into_structs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = [{"id": number, "body": {"text": text, "lang": "en"}} for number, text in enumerate(TEXTS)]
    rows[3:3], rows[7:7] = [None], [{"id": 1, "body": None}]
    parquet.write_table(pyarrow.table({"doc": pyarrow.array(rows)}), path, row_group_size=100)
    assert read_all(path, "doc.body.text", skip_bad=True) == TEXTS
    for name, words in (
        ("doc.body.text", r"row 4 of .* cannot be used: its column doc.body.text is null"),
        ("doc.body", "column doc.body of .* is of type struct"),
        ("doc.id.x", r"has no column doc.id.x: name one of \(doc\)"),
    ):
        with pytest.raises(levada.SourceError, match=words):
            read_all(path, name)


@pytest.mark.parametrize("bad", [None, b"\xff\xfe"])
def test_a_row_without_text_is_an_error_or_skipped(tmp_path: pathlib.Path, bad: Any) -> None:
    path = tmp_path / "texts.parquet"
    values = [text.encode() for text in TEXTS]
    binary = pyarrow.array([*values[:300], bad, *values[300:], bad], pyarrow.binary())
    offsets, data = binary.buffers()[1:]
    texts = pyarrow.StringArray.from_buffers(len(binary), offsets, data, binary.buffers()[0])
    parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=100)
    what = "is null" if bad is None else "is not UTF-8"
    with pytest.raises(levada.SourceError, match=f"row 301 of .*texts.parquet cannot be used: its column text {what}"):
        rows_of(path)
    assert read_all(path, skip_bad=True) == TEXTS
    expected = rows_of(write_jsonl(tmp_path / "texts.jsonl", TEXTS))
    assert rows_of(path, skip_bad=True) == expected
    told = json.loads(run_command("convert", path, tmp_path / "made", "--tokenizer", "bytes", "--skip-bad", "--json"))
    assert told["skipped_lines"] == len(told["skipped_places"]) == 2 and told["documents"] == len(TEXTS)


CHATS = [
    [{"role": "user", "content": "naïve 漢字 🙂"}, {"role": "assistant", "content": "yes", "tools": [{"name": "add"}]}],
    [],
    *([{"role": "user", "content": f"question {number} " * (number % 7)}] for number in range(500)),
]


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("large", [False, True])
def test_chats_are_lists_of_messages_without_null_fields(tmp_path: pathlib.Path, rows: int, large: bool) -> None:
    chats = pyarrow.array(CHATS)
    if large:
        chats = chats.cast(pyarrow.large_list(chats.type.value_type))
    path, others = tmp_path / "chats.parquet", pyarrow.array(["other"] * len(CHATS))
    parquet.write_table(
        pyarrow.table({"messages": chats, "messages.raw": others, "text": others}), path, row_group_size=rows
    )
    assert list(map(json.loads, read_all(path, "messages", chats=True))) == CHATS


def test_values_that_json_lacks_are_texts_in_chats(tmp_path: pathlib.Path) -> None:
    time = datetime.datetime(2024, 5, 6, 7, 8)
    message = {"role": "user", "content": "hello", "at": time, "price": decimal.Decimal("1.50"), "image": b"\xff"}
    path = write(tmp_path / "chats.parquet", [[message]], column="messages")
    expected = {"role": "user", "content": "hello", "at": str(time), "price": "1.50", "image": str(b"\xff")}
    assert json.loads(read_all(path, "messages", chats=True)[0]) == [expected]


def test_a_row_without_a_chat_is_an_error_or_skipped(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "chats.parquet", [*CHATS, None], column="messages")
    with pytest.raises(levada.SourceError, match=r"row 503 of .*chats.parquet cannot be used: its column messages is null"):
        read_all(path, "messages", chats=True)
    assert len(read_all(path, "messages", skip_bad=True, chats=True)) == len(CHATS)


@pytest.mark.parametrize("column", ["number", "text", "texts"])
def test_a_column_without_chats_is_an_error(tmp_path: pathlib.Path, column: str) -> None:
    path = write(tmp_path / "chats.parquet", [["a"]] if column == "texts" else ["a"], column=column.replace("number", "text"))
    with pytest.raises(levada.SourceError, match=rf"column {column} of .* is of type .*, which is not a list of messages: name"):
        read_all(path, column, chats=True)


@pytest.mark.parametrize("texts", [[], [None, None]])
def test_a_file_without_documents_is_an_error(tmp_path: pathlib.Path, texts: list[Any]) -> None:
    path = write(tmp_path / "texts.parquet", texts, type=pyarrow.string())
    with pytest.raises(levada.SourceError, match="texts.parquet holds no documents: (it has no rows|all of its 2 rows)"):
        rows_of(path, skip_bad=True)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS, row_group_size=100, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    place = whole.index(b"document 250")
    for damaged in (whole[: len(whole) // 2], b"no such file", whole[: place - 60] + b"\xff" * 50 + whole[place:]):
        path.write_bytes(damaged)
        with pytest.raises(levada.SourceError, match=r"texts.parquet .*: write it again"):
            rows_of(path)


def test_a_missing_pyarrow_is_an_error_with_the_install_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(levada.Unsupported, match=r"texts.parquet needs the package pyarrow: pip install pyarrow$"):
        rows_of(path, cache_dir=tmp_path / "cache")


def test_large_row_groups_are_read_in_pieces(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "texts.parquet"
    text = "some text that is long enough to fill a file of 256 MiB " * 20
    texts = [f"{number} {text}" for number in range(1 << 15)]
    batch = pyarrow.table({"text": texts})
    with parquet.ParquetWriter(path, batch.schema, compression="none", use_dictionary=False) as writer:
        writer.write_table(pyarrow.concat_tables([batch] * 7), row_group_size=1 << 20)
    assert path.stat().st_size > 200 << 20
    script = (
        "import resource, sys\n"
        "from levada import _levada\n"
        "from levada.corpus.parquet import ParquetReader\n"
        "import pyarrow.parquet\n"
        "reader, texts = ParquetReader(_levada.open_file(sys.argv[1]), 'text', False, False), 0\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "while (read := reader.read()) is not None: texts += len(read)\n"
        "print(texts, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True, timeout=60)
    count, growth_kib = map(int, ran.stdout.split())
    assert count == 7 * len(texts) and growth_kib < 64 << 10


def run_command(*arguments: Any) -> str:
    command = [sys.executable, "-m", "levada", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_command_reads_parquet_wherever_it_reads_text(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "texts.parquet", TEXTS)
    jsonl = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    for source, name in ((path, "of_parquet"), (jsonl, "of_jsonl")):
        run_command("convert", source, tmp_path / name, "--tokenizer", "bytes", "--append-eod")
    for extension in (".bin", ".idx"):
        made = [(tmp_path / name).with_suffix(extension).read_bytes() for name in ("of_parquet", "of_jsonl")]
        assert made[0] == made[1]
    fed = [
        json.loads(run_command("feed", source, "--tokenizer", "bytes", "--mesh", "dp=2", "--seq", "16", "--json"))["ranks"][1]["fields"]
        for source in (path, jsonl)
    ]
    assert fed[0] == fed[1]
    assert json.loads(run_command("inspect", path, "--tokenizer", "bytes", "--json"))["documents"] == len(TEXTS)


def test_convert_does_not_write_parquet(tmp_path: pathlib.Path) -> None:
    paths = [write(tmp_path / name, TEXTS) for name in ("a.parquet", "b.parquet")]
    with pytest.raises(AssertionError, match="b.parquet is a text file, but the last argument is the output name"):
        run_command("convert", *paths, "--tokenizer", "bytes")
    assert not (tmp_path / "b.parquet.bin").exists()


def test_folders_and_mixes_may_contain_parquet(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "b.parquet", ["b" * 100])
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps({"text": "a" * 100}))
    (tmp_path / "data" / "notes.md").write_text("c")
    corpus = levada.Corpus(tmp_path / "data", seq_length=10, tokenizer="bytes")
    assert corpus.documents == 2 and corpus.tokens == 202
    assert corpus.files == 2 and corpus.skipped == {".md": 1}
    assert corpus.stored_documents == 2
    (tmp_path / "mix.json").write_text(json.dumps({"sources": [{"path": "data/b.parquet", "weight": 1}]}))
    assert levada.Corpus(tmp_path / "mix.json", seq_length=10, tokenizer="bytes").tokens == 101


LIMITED = """
import resource, sys
import pyarrow.compute
from levada import _levada
from levada.corpus.parquet import ParquetReader
path, chats = sys.argv[1], sys.argv[2] == "chats"
reader = ParquetReader(_levada.open_file(path), "text", len(sys.argv) > 3, chats)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
try:
    for _ in range(20):
        texts = reader.read()
        print(*(len(text) for text in texts or []))
except Exception as error:
    print(type(error).__name__, error)
"""


def read_within_512_mib(path: pathlib.Path, *arguments: str) -> list[str]:
    """Reads in a process limited to 512 MiB. Returns the results of the first reads: lengths of texts, or an error."""
    ran = subprocess.run([sys.executable, "-c", LIMITED, str(path), *arguments], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def repeated(text: str, rows: int) -> Any:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array([text]))


def test_a_small_file_of_equal_large_texts_is_read_in_little_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "texts.parquet"
    parquet.write_table(pyarrow.table({"text": repeated("a" * (16 << 20), 200_000)}), path, compression="zstd")
    assert path.stat().st_size < 2000
    assert read_within_512_mib(path, "texts") == [str(16 << 20)] * 20


def test_a_small_file_of_equal_large_chats_is_read_in_little_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chats.parquet"
    message = pyarrow.StructArray.from_arrays([repeated("user", 50_000), repeated("a" * (4 << 20), 50_000)], ["role", "content"])
    chats = pyarrow.ListArray.from_arrays(pyarrow.array(range(50_001), pyarrow.int32()), message)
    parquet.write_table(pyarrow.table({"text": chats}), path, compression="zstd")
    assert path.stat().st_size < 50_000
    lengths = read_within_512_mib(path, "chats")
    assert len(lengths) == 20 and all(4 << 20 < int(length) < 5 << 20 for length in lengths)


def test_a_row_that_is_too_large_is_an_error_or_skipped(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "texts.parquet", ["first", "a" * (65 << 20), "last"], compression="zstd")
    sentence = f"SourceError row 2 of {path} cannot be used: its column text has 65 MiB, and a row may have 64 MiB; fix the file"
    assert read_within_512_mib(path, "texts")[1].startswith(sentence)
    assert read_within_512_mib(path, "texts", "skip")[:3] == ["5", "4", ""]


def test_a_chat_of_too_many_messages_is_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "chats.parquet"
    message = pyarrow.StructArray.from_arrays([repeated("a", 2 << 20)], ["content"])
    chats = pyarrow.ListArray.from_arrays(pyarrow.array([0, 2 << 20], pyarrow.int32()), message)
    parquet.write_table(pyarrow.table({"text": chats}), path, compression="zstd")
    (error,) = read_within_512_mib(path, "chats")
    assert error.startswith(f"SourceError row 1 of {path} cannot be used: its column text has 130 MiB"), error


PREFIXES: dict[str, Any] = {"use_dictionary": False, "write_statistics": False, "data_page_size": 1 << 30, "compression": "zstd"}


def test_a_small_file_of_prefixes_of_large_texts_is_read_in_little_memory(tmp_path: pathlib.Path) -> None:
    encoding = {"text": "DELTA_BYTE_ARRAY"}
    path = write(tmp_path / "texts.parquet", ["a" * (1 << 20)] * 2000, column_encoding=encoding, write_batch_size=2000, **PREFIXES)
    assert path.stat().st_size < 5000
    assert read_within_512_mib(path, "texts")[0] == str(1 << 20)


def test_texts_are_the_same_with_and_without_dictionary_encoding(tmp_path: pathlib.Path) -> None:
    chats = [None if number == 3 else [{"role": "user", "content": text}] * (number % 4) for number, text in enumerate(TEXTS)]
    for dictionary in (True, False):
        for rows in (7, 1000):
            options = {"use_dictionary": dictionary, "row_group_size": rows}
            assert read_all(write(tmp_path / "texts.parquet", TEXTS, **options)) == TEXTS
            with_none = [*TEXTS, None, *TEXTS]
            assert read_all(write(tmp_path / "texts.parquet", with_none, **options), skip_bad=True) == [*TEXTS, *TEXTS]
            path = write(tmp_path / "chats.parquet", chats, **options)
            read = [json.loads(chat) for chat in read_all(path, skip_bad=True, chats=True)]
            assert read == [chat for chat in chats if chat is not None]
