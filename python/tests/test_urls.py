"""Corpora with URL paths, in this process's memory."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import fsspec
import levada
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options
from levada.corpus.storage import RemoteFile, list_files

TEXTS = [f"document {number} " * (number % 17) for number in range(2000)]


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/d/a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode())
    yield filesystem
    filesystem.rm("/", recursive=True)


def batches(corpus: levada.Corpus) -> list[list[list[int]]]:
    return [batch["tokens"].tolist() for batch in levada.Feed(corpus, batch_size=8)]


def test_a_url_yields_the_samples_of_the_file(memory: Any, tmp_path: pathlib.Path) -> None:
    memory.get("/d/a.jsonl", str(tmp_path / "a.jsonl"))
    expected = batches(levada.Corpus(tmp_path / "a.jsonl", seq_length=64, tokenizer="bytes"))
    assert len(expected) > 100
    for url in ("memory://d/a.jsonl", "memory://d", "memory://*/a.json?", f"file://{tmp_path}/a.jsonl"):
        assert batches(levada.Corpus(url, seq_length=64, tokenizer="bytes")) == expected


def test_a_url_that_pathlib_has_shortened_is_refused() -> None:
    for paths in (pathlib.Path("s3://b/a.jsonl"), ["b.jsonl", pathlib.Path("hf://datasets/a.jsonl")]):
        with pytest.raises(levada.InvalidArgument, match=r"paths has PosixPath\('.*'\), in which a slash of the URL is missing: pass"):
            levada.Corpus(paths, tokenizer="bytes")


def test_a_url_with_brackets_names_the_file_of_that_name(memory: Any) -> None:
    for name, text in (("part[1].txt", b"one"), ("part1.txt", b"three"), ("part2.txt", b"seventy")):
        memory.pipe_file(f"/b/{name}", text)
    for url, tokens in (("memory://b/part[1].txt", 4), ("memory://b/part[12].txt", 14), ("memory://b/part[2].txt", 8)):
        assert levada.Corpus(url, seq_length=1, tokenizer="bytes").tokens == tokens
    with pytest.raises(levada.SourceError, match=r"no file matches memory://b/part\[3\].txt"):
        levada.Corpus("memory://b/part[3].txt", tokenizer="bytes").open()


class Hosts(MemoryFileSystem):  # type: ignore[misc]
    """Like ftp, sftp, hdfs, webhdfs and smb: the host is in the URL, but not in the names of files."""

    protocol = "hosted"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]
    asked: list[str] = []

    def __init__(self, host: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.asked.append(host)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"]).rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        return {"host": infer_storage_options(url).get("host", "")}


class Accounts(Hosts):
    """Names files without any part of their URL."""

    protocol = "account"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("/data", "/renamed"))


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    for each in (Hosts, Accounts):
        fsspec.register_implementation(each.protocol, each, clobber=True)
    Hosts().pipe_file("/data/a.txt", b"some text " * 9)
    Hosts().pipe_file("/renamed/a.txt", b"some text " * 9)
    Hosts.asked.clear()
    yield Hosts.asked
    Hosts.store.clear()
    Hosts.pseudo_dirs[:] = [""]


def test_files_listed_by_a_host_are_read_from_that_host(hosts: list[str]) -> None:
    for url in ("hosted://server/data", "hosted://server/data/", "hosted://server/data/*.txt", "hosted://server/d*/a.txt"):
        hosts.clear()
        assert levada.Corpus(url, seq_length=16, tokenizer="bytes").tokens == 91
        assert set(hosts) <= {"server"}
    assert list_files("hosted://server") == ["hosted://server/data/a.txt", "hosted://server/renamed/a.txt"]
    with pytest.raises(levada.Unsupported, match="account://server/data/.* does not name by URLs: name each file itself"):
        levada.Corpus("account://server/data/*.txt", tokenizer="bytes").open()


def test_two_stars_do_not_enter_folders_of_unfinished_output(memory: Any) -> None:
    for name in ("/o/a.txt", "/o/s/b.txt", "/o/_temporary/0/b.txt", "/o/s/_temporary/c.txt", "/o/_d.txt"):
        memory.pipe_file(name, b"some text")
    assert list_files("memory://o/**/*.txt") == ["memory://o/_d.txt", "memory://o/a.txt", "memory://o/s/b.txt"]
    assert list_files("memory://o/_temporary/**/*.txt") == ["memory://o/_temporary/0/b.txt"]


class Tagged(MemoryFileSystem):  # type: ignore[misc]
    """Like a web server, whose tags need not differ between files."""

    protocol = "tagged"
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]
    tag = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.partition("://")[2].strip("/") if "://" in path else path

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), "ETag": self.tag}


@pytest.mark.parametrize(("tag", "is_digest"), [('"6553f100-7"', False), ('W/"7-18bcfe56800"', False), (f'"{"0f" * 16}-3"', True)])
def test_only_a_tag_that_is_a_digest_identifies_a_text_under_another_url(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tag: str, is_digest: bool
) -> None:
    fsspec.register_implementation("tagged", Tagged, clobber=True)
    monkeypatch.setattr(Tagged, "tag", tag)
    texts = {"tagged://s/a.txt": "a first", "tagged://s/b.txt": "another"}
    for url, text in texts.items():
        Tagged().pipe_file(url, text.encode())
    for paths in (list(texts), ["tagged://s/b.txt"]):  # together, and from the cache
        corpus = levada.Corpus(paths, seq_length=7, packing="documents", tokenizer="bytes", cache_dir=tmp_path)
        read = [bytes(batch["tokens"][0].tolist()).decode() for batch in levada.Feed(corpus, batch_size=1)]
        assert read == ([texts["tagged://s/a.txt"]] * len(paths) if is_digest else [texts[path] for path in paths])
    Tagged.store.clear()


class Shrunk(Tagged):
    """Like a web server whose file has become shorter since it was opened."""

    protocol = "shrunk"

    def cat_file(self, path: str, **_: Any) -> bytes:
        raise type("Unsatisfiable", (Exception,), {"status": 416})(path)


def test_a_file_that_has_become_shorter_is_an_error_that_says_so() -> None:
    fsspec.register_implementation("shrunk", Shrunk, clobber=True)
    Shrunk().pipe_file("/d/a.txt", b"some text")
    with pytest.raises(levada.SourceError, match="^shrunk://d/a.txt was written to while it was being read: start again with"):
        RemoteFile("shrunk://d/a.txt").read(4, 8)


def test_a_pair_of_files_is_read_once_however_its_files_are_named(memory: Any, tmp_path: pathlib.Path) -> None:
    url = tokens_in_memory(memory, tmp_path)
    index = url.replace(".bin", ".idx")
    expected = levada.Corpus(url, cache_dir=tmp_path, tokenizer="bytes").tokens
    for urls in ([url, index], [index, url], "memory://t/tokens*", "memory://t"):
        assert levada.Corpus(urls, cache_dir=tmp_path, tokenizer="bytes").tokens == expected


def test_a_pipeline_reads_by_url(memory: Any, tmp_path: pathlib.Path) -> None:
    memory.get("/d/a.jsonl", str(tmp_path / "a.jsonl"))
    options = {"seq_length": 64, "shuffle": True, "seed": 1}
    samples = [
        [sample["tokens"].tolist() for sample in levada.Pipeline(levada.Corpus(path, tokenizer="bytes", **options))]
        for path in ("memory://d/a.jsonl", tmp_path / "a.jsonl")
    ]
    assert samples[0] == samples[1] and samples[0]


def tokens_in_memory(memory: Any, tmp_path: pathlib.Path) -> str:
    """Writes a token file. Returns the URL of its .bin."""
    cache = tmp_path / "made"
    levada.Corpus("memory://d/a.jsonl", seq_length=64, cache_dir=cache, tokenizer="bytes").open()
    for path in (cache / "tokens").iterdir():
        if path.suffix in (".bin", ".idx"):
            memory.put(str(path), f"/t/tokens{path.suffix}")
    return "memory://t/tokens.bin"


def test_a_forked_process_reopens_its_corpus(memory: Any, tmp_path: pathlib.Path) -> None:
    corpus = levada.Corpus(tokens_in_memory(memory, tmp_path), seq_length=64, cache_dir=tmp_path)
    samples, digest = len(corpus), corpus.digest
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if len(corpus) == samples and corpus.digest == digest else 2
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_blocks_of_remote_tokens_leave_no_file_in_the_cache_folder(memory: Any, tmp_path: pathlib.Path) -> None:
    url = tokens_in_memory(memory, tmp_path)
    assert batches(levada.Corpus(url, seq_length=64, cache_dir=tmp_path / "cache", cache_size=1 << 20, tokenizer="bytes"))
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("memory://d/none.jsonl", levada.SourceError, r"cannot open memory://d/none.jsonl: there is no such file$"),
        ("memory://d/none", levada.SourceError, r"cannot open memory://d/none: there is no such file$"),
        ("memory://d/*.txt", levada.SourceError, r"no file matches memory://d/\*.txt$"),
        ("nosuch://d/a.jsonl", levada.InvalidArgument, "nosuch://d/a.jsonl cannot be opened: Protocol not known: nosuch"),
        ("gs://b/a.jsonl", levada.Unsupported, "gs://b/a.jsonl needs a package that is not installed: .*gcsfs"),
    ],
)
def test_a_failure_to_open_is_one_sentence(
    memory: Any, monkeypatch: pytest.MonkeyPatch, url: str, error: type[Exception], expected: str
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(error, match=expected):
        levada.Corpus(url, tokenizer="bytes").open()


def test_a_missing_fsspec_is_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(levada.Unsupported, match=r"memory://a.jsonl needs the package fsspec: pip install fsspec$"):
        levada.Corpus("memory://a.jsonl", tokenizer="bytes").open()


def test_a_file_that_is_written_to_while_it_is_read_is_an_error(memory: Any, tmp_path: pathlib.Path) -> None:
    url = tokens_in_memory(memory, tmp_path)
    memory.pipe_file("/t/tokens.bin", memory.cat_file("/t/tokens.bin") * 400)
    index = memory.cat_file("/t/tokens.idx")
    # A single sequence of all tokens.
    count = memory.size("/t/tokens.bin") // 2
    memory.pipe_file(
        "/t/tokens.idx",
        index[:18]
        + b"".join(number.to_bytes(size, "little") for number, size in ((1, 8), (2, 8), (count, 4), (0, 8), (0, 8), (1, 8))),
    )
    corpus = levada.Corpus(url, seq_length=64, shuffle=True, seed=1, cache_dir=tmp_path, tokenizer="bytes")
    corpus.open()
    memory.pipe_file("/t/tokens.bin", bytes(2 * count))
    with pytest.raises(levada.SourceError, match="memory://t/tokens.bin was written to while it was being read: start"):
        batches(corpus)


READER = """
import pathlib, struct, sys, time, fsspec, levada, numpy

class Slow(fsspec.AbstractFileSystem):
    protocol = "slow"
    def info(self, path, **_):
        return {"name": path, "size": pathlib.Path(path).stat().st_size, "type": "file", "ETag": "1"}
    def cat_file(self, path, start=None, end=None, **_):
        time.sleep(0.004)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(end - start)
    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("slow://").strip("/")

fsspec.register_implementation("slow", Slow)
folder = pathlib.Path(sys.argv[1])
documents, tokens = 300, 250_000
with open(folder / "a.bin", "wb") as file:
    file.truncate(4 * documents * tokens)
head = b"MMIDIDX\\0\\0" + struct.pack("<QBQQ", 1, 4, documents, documents + 1)
numbers = numpy.arange(documents + 1)
(folder / "a.idx").write_bytes(
    head + numpy.full(documents, tokens, numpy.int32).tobytes() + (numbers[:-1] * tokens * 4).tobytes() + numbers.tobytes()
)
corpus = levada.Corpus(f"slow://{folder}/a.bin", seq_length=4096, shuffle=True, seed=1)
feed = iter(levada.Feed(corpus, batch_size=8))
next(feed), next(feed)
del feed, corpus
"""


def test_a_process_exits_cleanly_while_it_reads_ahead(tmp_path: pathlib.Path) -> None:
    for _ in range(4):  # The read-ahead threads are at a different point each time.
        ran = subprocess.run([sys.executable, "-c", READER, tmp_path], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, "")
