"""A password or signature in a URL never appears in what a run prints, writes or raises."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

SECRET = "SEKRET"

# A web file system: `broken` does not answer, `denied` refuses, and each error quotes the URL, as aiohttp's do.
WEB = """
import errno, os, fsspec
class Web(fsspec.AbstractFileSystem):
    protocol = "http"
    cachable = False
    @classmethod
    def _strip_protocol(cls, path):
        return path
    def local(self, url):
        if "SEKRET" not in url or "denied" in url:
            raise PermissionError(errno.EACCES, f"403 Forbidden, url='{url}'")
        if "broken" in url:
            raise ConnectionResetError(errno.ECONNRESET, f"cannot connect to {url}")
        if "strange" in url:
            raise ValueError(f"{url} is no URL")
        path = os.path.join(os.environ["WEB"], url.partition("?")[0].rsplit("/", 1)[1])
        if not os.path.exists(path):
            raise FileNotFoundError(url)
        return path
    def info(self, url, **_):
        return {"name": url, "size": os.stat(self.local(url)).st_size, "type": "file", "ETag": "1"}
    def cat_file(self, url, start=None, end=None, **_):
        with open(self.local(url), "rb") as file:
            file.seek(start)
            return file.read(end - start)
    def find(self, url, **_):
        raise FileNotFoundError(url)
    def glob(self, url, **_):
        raise OSError(errno.EIO, f"cannot list {url}")
fsspec.register_implementation("http", Web, clobber=True)
"""

PROGRAM = """
import sys, traceback, levada
for url in sys.argv[1:]:
    try:
        corpus = levada.Corpus(url, seq_length=64, cache_dir="c", tokenizer="bytes")
        print(repr(corpus), str(corpus), levada.Corpus([url], cache_dir="c", tokenizer="bytes"))
        pipeline = levada.Pipeline(corpus).map(dict).cache(f"items{sys.argv.index(url)}")
        print(repr(pipeline), pipeline)
        run = pipeline.run()
        print(sum(1 for _ in run), run, run.stats(), [repr(metric) for metric in run.metrics()])
        feed = levada.Feed(corpus, batch_size=1)
        print(repr(feed), sum(1 for _ in feed), [repr(metric) for metric in feed.metrics()])
    except Exception:
        traceback.print_exc()
"""


@pytest.fixture
def web(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "web").mkdir()
    lines = '{"text": "some words of a text"}\n' * 500
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "web" / name).write_text(lines)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(WEB)
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("WEB", str(tmp_path / "web"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/path:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path / "out"


def run(*arguments: str) -> str:
    """Runs a program. Checks that its output does not contain the secret, and returns the status and the output."""
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    shown = ran.stdout + ran.stderr
    assert SECRET not in shown, shown
    return f"{ran.returncode} {shown}"


def expect_no_secret_below(folder: pathlib.Path) -> None:
    files = list(folder.rglob("*"))
    assert len(files) > 5
    for path in files:
        assert SECRET not in path.name
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


URLS = (f"http://user:{SECRET}@host/a.jsonl", f"http://host/b.jsonl?X-Amz-Signature={SECRET}")


def test_a_run_shows_no_secret(web: pathlib.Path) -> None:
    outputs = ("--cache-dir", "c", "--report", "r.html", "--trace", "t.json", "--save-state", "s", "--metrics", "m.prom")
    common = ("-m", "levada", "feed", *URLS, "--tokenizer", "bytes", "--mesh", "dp=2", "--seq", "64", "--batch", "1", *outputs)
    assert run(*common).startswith("0 ")
    assert run(*common, "--json", "--load-state", "s").startswith("0 ")
    for json in ((), ("--json",)):
        assert "http://host/a.jsonl" in run("-m", "levada", "cache", "--cache-dir", "c", *json)
        for url in URLS:
            assert "http://host/" in run("-m", "levada", "inspect", url, "--tokenizer", "bytes", *json)
        assert run("-m", "levada", "convert", *URLS, "out", "--tokenizer", "bytes", "--overwrite", *json).startswith("0 ")
    assert "http://host/a.jsonl" in run("-m", "levada", "cache", "--cache-dir", "c", "--check")
    expect_no_secret_below(web)


@pytest.mark.long
def test_no_error_shows_a_secret(web: pathlib.Path) -> None:
    bad = [url.replace(f"/{url[url.index('.jsonl') - 1]}.", f"/{name}.") for url in URLS for name in ("none", "denied", "strange")]
    bad += [f"http://user:{SECRET}@host/folder", f"http://user:{SECRET}@host/*.jsonl", f"nosuch://user:{SECRET}@host/a.jsonl"]
    for url in bad:
        shown = run("-m", "levada", "feed", url, "--tokenizer", "bytes", "--cache-dir", "c")
        assert shown[0] in "12" and "://host/" in shown, shown
    assert "trying again" in run("-m", "levada", "feed", URLS[0].replace("/a.", "/broken."), "--tokenizer", "bytes", "--cache-dir", "c")
    (web / "program.py").write_text(textwrap.dedent(PROGRAM))
    shown = run("program.py", *bad)
    assert shown.count("Traceback") == len(bad), shown


def test_no_object_shows_a_secret(web: pathlib.Path) -> None:
    (web / "program.py").write_text(textwrap.dedent(PROGRAM))
    shown = run("program.py", *URLS)
    assert "Corpus(paths='http://host/a.jsonl', seq_length=64" in shown and "Corpus(paths=['http://host/b.jsonl']" in shown
    assert "Traceback" not in shown, shown
    expect_no_secret_below(web)
