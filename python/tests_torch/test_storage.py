"""Corpora in object storage: a real S3 server on loopback, with injected faults."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import boto3
import fsspec
import levada
import pyarrow
import pytest
import s3fs
import werkzeug.serving
from levada.corpus.storage import RemoteFile
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyarrow import parquet

BUCKET = "bucket"
LINES = [f"document {number} of some words " * (number % 23) for number in range(4000)]

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Storage:
    """An S3 server. `fault` gets each request and may answer it instead of the server; it returns None to pass the
    request on."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.fault: Callable[[dict[str, Any], Any], Iterable[bytes] | None] | None = None
        self.requests: list[str] = []
        self._server = werkzeug.serving.make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._client = boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        self._client.create_bucket(Bucket=BUCKET)

    def _answer(self, request: dict[str, Any], start: Any) -> Iterable[bytes]:
        self.requests.append(f"{request['REQUEST_METHOD']} {request['PATH_INFO']}")
        answer = self.fault(request, start) if self.fault else None
        return self._app(request, start) if answer is None else answer  # type: ignore[no-any-return]

    def put(self, name: str, content: bytes | pathlib.Path) -> str:
        body = content.read_bytes() if isinstance(content, pathlib.Path) else content
        self._client.put_object(Bucket=BUCKET, Key=name, Body=body, ACL="public-read")
        return f"s3://{BUCKET}/{name}"

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=name)

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    storage = Storage()
    settings = {
        "endpoint_url": storage.url,
        "key": "a",
        "secret": "b",
        "config_kwargs": {"read_timeout": 2, "retries": {"total_max_attempts": 1}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "s3", settings)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        patch.setenv("FSSPEC_S3", json.dumps(settings))  # for the command's processes
        yield storage
    storage.close()


@pytest.fixture
def storage(server: Storage) -> Iterator[Storage]:
    server.requests.clear()
    yield server
    server.fault = None


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A .jsonl, and its copies as .jsonl.gz, .parquet and .bin with .idx."""
    folder = tmp_path_factory.mktemp("local")
    content = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
    (folder / "a.jsonl").write_text(content)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    parquet.write_table(pyarrow.table({"text": LINES}), folder / "a.parquet", row_group_size=500)
    command("convert", folder / "a.jsonl", folder / "a", "--tokenizer", "bytes", "--append-eod")
    return folder


def command(*arguments: Any, status: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "levada", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == status, ran.stderr
    return ran.stdout if status == 0 else ran.stderr


def batches(paths: Any, **options: Any) -> list[list[list[int]]]:
    corpus = levada.Corpus(paths, seq_length=128, **options, tokenizer="bytes")
    return [batch["tokens"].tolist() for batch in levada.Feed(corpus, batch_size=8)]


def is_read(request: dict[str, Any], name: str) -> bool:
    return request["REQUEST_METHOD"] == "GET" and request["PATH_INFO"].endswith(name) and "HTTP_RANGE" in request


def refuse(request: dict[str, Any], start: Any, status: str, code: str) -> list[bytes]:
    start(status, [("Content-Type", "application/xml")])
    if request["REQUEST_METHOD"] == "HEAD":
        return []
    return [f"<Error><Code>{code}</Code><Message>{code} says the server</Message></Error>".encode()]


def test_text_and_tokens_in_a_bucket_yield_the_samples_of_local_files(storage: Storage, local: pathlib.Path) -> None:
    urls = {path.name: storage.put(f"kinds/{path.name}", path) for path in local.iterdir()}
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        assert batches(urls[name]) == batches(local / name)
    for options in ({}, {"shuffle": True, "seed": 1}, {"shuffle": True, "seed": 1, "packing": "best-fit"}, {"io_threads": 4}):
        for url in (urls["a.bin"], urls["a.idx"], urls["a.bin"].removesuffix(".bin")):
            assert batches(url, **options) == batches(local / "a.bin", **options)


def test_a_corpus_reads_from_a_web_server(storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("a.jsonl", "a.bin", "a.idx"):
        storage.put(f"web/{name}", local / name)
    url = f"{storage.url}/{BUCKET}/web"
    for name in ("a.jsonl", "a.bin"):
        assert batches(f"{url}/{name}") == batches(local / name)
    with pytest.raises(levada.SourceError, match=f"cannot open {url}/none.txt: there is no such file"):
        levada.Corpus(f"{url}/none.txt", tokenizer="bytes").open()
    large = tmp_path / "large.jsonl"
    large.write_bytes((local / "a.jsonl").read_bytes() * 8)  # More than is ever fetched in one request.
    storage.fault = lambda request, start: whole(request, start, large)
    with pytest.raises(levada.SourceError, match="large.jsonl cannot be read in parts, for its server sends all of it: copy"):
        levada.Corpus(f"{url}/large.jsonl", cache_dir=tmp_path / "cache", tokenizer="bytes").open()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("name", ["a.jsonl", "folder", "*.jsonl"])
@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1:{port}", "Connection refused"), ("no-such-host.invalid:{port}", "")], ids=["port", "host"]
)
def test_an_unreachable_web_server_is_named_and_retried(host: str, reason: str, name: str) -> None:
    address = host.format(port=closed_port())
    expected = rf"cannot \w+ http://{address}/.*: cannot connect to {address}: {reason}.* \(tried 5 times in"
    with pytest.raises(levada.SourceError, match=expected):
        levada.Corpus(f"http://{address}/{name}", tokenizer="bytes").open()


def test_a_web_server_that_ends_is_not_a_file_that_was_removed(storage: Storage, local: pathlib.Path) -> None:
    storage.put("web/a.jsonl", local / "a.jsonl")
    address = f"127.0.0.1:{closed_port()}"
    file = RemoteFile(f"{storage.url}/{BUCKET}/web/a.jsonl")
    file._url = f"http://{address}/a.jsonl"
    with pytest.raises(OSError, match=f"cannot connect to {address}: Connection refused") as raised:
        file.read(0, 10)
    assert raised.value.errno == errno.EAGAIN


def whole(request: dict[str, Any], start: Any, path: pathlib.Path) -> list[bytes]:
    """Answers like a server that does not support ranges."""
    content = path.read_bytes()
    start("200 OK", [("Content-Length", str(len(content)))])
    return [content] if request["REQUEST_METHOD"] == "GET" else []


def test_folders_patterns_and_mixes_in_a_bucket_are_read_in_the_order_of_their_names(
    storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    parts = {f"x/{name}.txt": name.encode() * 2000 for name in ("b", "a", "sub/c")} | {"x/.d/e.txt": b"e", "x/f.csv": b""}
    for name, content in parts.items():
        storage.put(f"folder/{name}", content)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    url = f"s3://{BUCKET}/folder"
    for name in ("x", "x/", "x/*.txt", "x/[ab].txt", "*/sub", "x/*/*.txt"):
        expected = batches(tmp_path / name)
        assert batches(f"{url}/{name}") == expected and expected
    mix = {"sources": [{"path": "x/a.txt", "weight": 1}, {"path": "x/sub/c.txt", "weight": 2}]}
    (tmp_path / "mix.json").write_text(json.dumps(mix))
    storage.put("folder/mix.json", tmp_path / "mix.json")
    expected = batches(tmp_path / "mix.json")
    assert expected
    assert batches(f"{url}/mix.json") == expected
    for source in mix["sources"]:
        source["path"] = f"{url}/{source['path']}"
    (tmp_path / "mix.json").write_text(json.dumps(mix))
    assert batches(tmp_path / "mix.json") == expected
    with pytest.raises(levada.SourceError, match=f"no file matches {url}/y"):
        batches(f"{url}/y*.txt")
    with pytest.raises(levada.SourceError, match="holds no data files"):
        storage.put("bare/a.csv", b"")
        batches(f"s3://{BUCKET}/bare")


def test_the_command_takes_urls_wherever_it_takes_paths(
    storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name in ("a.jsonl", "a.bin", "a.idx"):
        storage.put(f"command/{name}", local / name)
    url = f"s3://{BUCKET}/command"
    command("convert", f"{url}/*.jsonl", tmp_path / "made", "--tokenizer", "bytes", "--append-eod")
    for extension in ("bin", "idx"):
        assert (tmp_path / f"made.{extension}").read_bytes() == (local / f"a.{extension}").read_bytes()
    for name in ("a.jsonl", "a.bin"):
        told = [json.loads(command("inspect", f"{place}/{name}", "--tokenizer", "bytes", "--json")) for place in (url, local)]
        for each in told:
            del each["paths"]
        assert told[0] == told[1]
        fields = [
            json.loads(command("feed", f"{place}/{name}", "--tokenizer", "bytes", "--mesh", "dp=2", "--seq", "64", "--shuffle", "--json"))["ranks"]
            for place in (url, local)
        ]
        assert [rank["fields"] for rank in fields[0]] == [rank["fields"] for rank in fields[1]]


def test_text_is_fetched_once(storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path) -> None:
    url = storage.put("once/a.jsonl", local / "a.jsonl")
    batches(url, cache_dir=tmp_path)
    storage.requests.clear()
    batches(url, cache_dir=tmp_path)
    assert not any(request.startswith("GET") for request in storage.requests)


@pytest.mark.parametrize("kind", ["slow down", "server error", "cut off", "stall"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.bin"])
def test_temporary_faults_are_retried(
    storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path, name: str, kind: str
) -> None:
    url = storage.put(f"passing/{name}", local / name)
    storage.put("passing/a.idx", local / "a.idx")
    failed = set()
    over = threading.Event()

    def fault(request: dict[str, Any], start: Any) -> Iterable[bytes] | None:
        ranges = request.get("HTTP_RANGE")
        if not is_read(request, name) or ranges in failed:
            return None
        failed.add(ranges)
        if kind == "slow down":
            return refuse(request, start, "503 Slow Down", "SlowDown")
        if kind == "server error":
            return refuse(request, start, "500 Internal Server Error", "InternalError")
        if kind == "stall":
            over.wait(20)
            return refuse(request, start, "503 Slow Down", "SlowDown")
        begin, end = map(int, ranges.removeprefix("bytes=").split("-"))
        start("206 Partial Content", [("Content-Length", str(end + 1 - begin))])
        return [(local / name).read_bytes()[begin : (begin + end) // 2]]

    storage.fault = fault
    try:
        assert batches(url, cache_dir=tmp_path) == batches(local / name, cache_dir=tmp_path)
    finally:
        over.set()
    assert failed


@pytest.mark.parametrize("name", ["a.jsonl", "a.bin"])
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("403 Forbidden", "AccessDenied", r"a\.\w+: access is denied \(AccessDenied says the server\): use credentials"),
        ("503 Slow Down", "SlowDown", r"cannot read byte \d+ of .*a\.\w+: SlowDown says the server \(tried \d times in"),
        ("404 Not Found", "NoSuchKey", r"a\.\w+ was removed while it was being read: start again with a file"),
    ],
)
def test_permanent_faults_are_one_sentence(
    storage: Storage, local: pathlib.Path, tmp_path: pathlib.Path, name: str, status: str, code: str, expected: str
) -> None:
    url = storage.put(f"staying/{name}", local / name)
    storage.put("staying/a.idx", local / "a.idx")
    storage.fault = lambda request, start: refuse(request, start, status, code) if is_read(request, name) else None
    with pytest.raises(levada.SourceError, match=expected):
        levada.Corpus(url, cache_dir=tmp_path, tokenizer="bytes").open()


def test_a_bucket_that_is_closed_is_named(storage: Storage) -> None:
    storage.fault = lambda request, start: refuse(request, start, "403 Forbidden", "AccessDenied")
    for url in (f"s3://{BUCKET}/a.bin", f"s3://{BUCKET}/folder", f"s3://{BUCKET}/*.bin"):
        with pytest.raises(levada.SourceError, match="access is denied"):
            levada.Corpus(url, tokenizer="bytes").open()


@pytest.mark.parametrize("how", ["was written to", "was removed"])
def test_an_object_that_changes_under_its_reader_is_an_error(
    storage: Storage, tmp_path: pathlib.Path, how: str
) -> None:
    (tmp_path / "a.txt").write_bytes(os.urandom(8 << 20).hex().encode())  # more than opening it reads
    command("convert", tmp_path / "a.txt", tmp_path / "a", "--tokenizer", "bytes")
    url = storage.put("changing/a.bin", tmp_path / "a.bin")
    storage.put("changing/a.idx", tmp_path / "a.idx")
    corpus = levada.Corpus(url, seq_length=64, shuffle=True, seed=1, cache_dir=tmp_path / "cache", tokenizer="bytes")
    corpus.open()
    if how == "was removed":
        storage.remove("changing/a.bin")
    else:
        storage.put("changing/a.bin", bytes((tmp_path / "a.bin").stat().st_size))
    with pytest.raises(levada.SourceError, match=f"changing/a.bin {how} while it was being read: start again"):
        for _ in levada.Feed(corpus, batch_size=1):
            pass


def test_a_process_that_ends_during_read_ahead_exits_cleanly(storage: Storage, local: pathlib.Path) -> None:
    url = storage.put("ending/a.bin", local / "a.bin")
    storage.put("ending/a.idx", local / "a.idx")
    script = (
        "import sys, levada\n"
        "corpus = levada.Corpus(sys.argv[1], seq_length=64, shuffle=True, seed=1, tokenizer='bytes')\n"
        "feed = iter(levada.Feed(corpus, batch_size=1))\n"
        "next(feed)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
