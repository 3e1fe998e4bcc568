"""Text that only one user may read stays private in caches and outputs, and no other user can change the training
data."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import levada
import pytest

OTHER = 65534
"""The user id of `nobody`."""


@contextlib.contextmanager
def any_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder that all users can reach, unlike pytest's."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="levada-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def secret(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "secret.jsonl"
    path.write_text("".join(json.dumps({"text": f"secret {number}"}) + "\n" for number in range(500)))
    path.chmod(0o600)
    return path


def as_other(command: str) -> "subprocess.CompletedProcess[str]":
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return subprocess.run(
        ["/bin/sh", "-c", command], user=OTHER, group=OTHER, extra_groups=[], capture_output=True, text=True, timeout=60
    )


def readable_by_other(folder: pathlib.Path) -> str:
    return as_other(f"find '{folder}' -type f -readable 2>/dev/null").stdout


def text_of(path: pathlib.Path, cache: pathlib.Path) -> bytes:
    corpus = levada.Corpus(path, seq_length=64, cache_dir=cache, tokenizer="bytes")
    return b"".join(bytes(batch["tokens"].astype("u1").ravel()) for batch in levada.Feed(corpus, batch_size=1))


def modes(folder: pathlib.Path) -> set[int]:
    return {path.lstat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}


def test_another_user_reads_nothing_of_a_private_text(folder: pathlib.Path, secret: pathlib.Path) -> None:
    with any_umask():
        assert b"secret 7" in text_of(secret, folder / "cache")
        pipeline = levada.Pipeline([{"t": f"secret {number}"} for number in range(50)]).cache(str(folder / "items"))
        assert sum(1 for _ in pipeline.run()) == 50
        command = [sys.executable, "-m", "levada", "convert", secret, folder / "out", "--tokenizer", "bytes"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0
    assert modes(folder) == {0o600}
    for each in ("cache", "cache/tokens", "items"):
        assert (folder / each).stat().st_mode & 0o777 == 0o700
    assert readable_by_other(folder) == ""


def test_the_cache_folder_of_a_user_is_created_for_that_user_only(
    folder: pathlib.Path, secret: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(folder))
    with any_umask():
        assert len(levada.Corpus(secret, seq_length=64, tokenizer="bytes")) > 0
    for each in (".cache", ".cache/levada", ".cache/levada/tokens"):
        assert (folder / each).stat().st_mode & 0o777 == 0o700


def test_a_cache_folder_that_another_user_can_write_is_refused(folder: pathlib.Path, secret: pathlib.Path) -> None:
    tokens = folder / "cache" / "tokens"
    (folder / "cache").mkdir()
    (folder / "cache").chmod(0o777)
    as_other(f"mkdir -m 777 '{tokens}'")
    with pytest.raises(levada.SourceError, match=f"the token cache {tokens} belongs to another user .* name another folder"):
        text_of(secret, folder / "cache")
    os.chown(tokens, 0, 0)
    with pytest.raises(levada.SourceError, match=r"can be written to by other users \(mode 0777\).* chmod go-w"):
        text_of(secret, folder / "cache")
    tokens.chmod(0o700)
    assert b"secret 7" in text_of(secret, folder / "cache")


def test_a_folder_that_another_user_puts_in_place_of_the_cache_is_refused(folder: pathlib.Path, secret: pathlib.Path) -> None:
    cache = folder / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    text_of(secret, cache)
    swapped = as_other(f"mv '{cache}/tokens' '{cache}/old' && mkdir -m 755 '{cache}/tokens'")
    assert swapped.returncode == 0, swapped.stderr
    with pytest.raises(levada.SourceError, match="belongs to another user"):
        text_of(secret, cache)


def test_entries_of_another_user_are_replaced(folder: pathlib.Path, secret: pathlib.Path) -> None:
    expected = text_of(secret, folder / "cache")
    tokens = folder / "cache" / "tokens"
    for extension in ("*.bin", "*.idx", "*.json"):
        (entry,) = tokens.glob(extension)
        evil = folder / "evil"
        evil.write_bytes(entry.read_bytes().replace(b"s\0e\0c\0r\0e\0t\0", b"p\0u\0b\0l\0i\0c\0"))
        as_other("true")
        os.chown(evil, OTHER, OTHER)
        evil.replace(entry)
        assert text_of(secret, folder / "cache") == expected
        assert tokens.joinpath(entry.name).stat().st_uid == 0
