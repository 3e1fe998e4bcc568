"""levada.Pipeline.from_lines: text files, line by line."""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
import pickle
from typing import Any

import levada
import pytest
from levada import Pipeline
from levada.pipeline import lines as _lines

LINES = [json.dumps({"number": number, "text": "ü" * (number * 37 % 101)}, ensure_ascii=False) for number in range(500)]


@pytest.fixture
def paths(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Files that end within a line, are empty, contain empty lines, and have other systems' line ends."""
    made = [tmp_path / f"{name}.jsonl" for name in "abcd"]
    made[0].write_text("\n".join(LINES[:300]), encoding="utf-8")
    made[1].write_text("")
    made[2].write_text("".join(line + "\n" for line in LINES[300:]), encoding="utf-8")
    made[3].write_bytes(b"one\r\n\r\n\n\ntwo\n")
    return made


EXPECTED = [*LINES, "one", "", "", "", "two"]


@pytest.mark.parametrize("range_bytes", [1, 7, 64, 1000, 4 << 20])
def test_every_line_is_yielded_once_however_files_are_divided(paths: list[pathlib.Path], range_bytes: int) -> None:
    assert list(Pipeline.from_lines(paths, range_bytes=range_bytes)) == EXPECTED
    assert list(Pipeline.from_lines(paths[3], range_bytes=range_bytes)) == EXPECTED[-5:]


@pytest.mark.parametrize("range_bytes", [1, 2, 3, 4, 100])
def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(tmp_path: pathlib.Path, range_bytes: int) -> None:
    (tmp_path / "a.jsonl").write_text("one\n\ufefftwo\n", encoding="utf-8-sig")
    assert list(Pipeline.from_lines(tmp_path / "a.jsonl", range_bytes=range_bytes)) == ["one", "\ufefftwo"]


@pytest.mark.parametrize("range_bytes", [2, 100])
def test_bytes_that_are_no_text_are_an_error_that_names_file_and_byte(tmp_path: pathlib.Path, range_bytes: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    for content, byte in ((b"one\ntw\xffo\n", 7), (gzip.compress(b"one\n"), 2)):
        path.write_bytes(content)
        with pytest.raises(levada.SourceError, match=f"a.jsonl.gz is not UTF-8 at byte {byte}: from_lines\\(\\) reads text that is"):
            list(Pipeline.from_lines(path, range_bytes=range_bytes))


def test_workers_read_no_bytes_that_they_discard(paths: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            nonlocal read
            count = super().readinto(buffer)
            read += count or 0
            return count

    monkeypatch.setattr(_lines, "open_file", lambda path: io.BufferedReader(Counting(path), 128))
    size = sum(path.stat().st_size for path in paths)
    ranges = _lines.ByteRanges(paths, 4000)
    seen: list[str] = []
    for worker in range(3):
        before = read
        for at in range(worker, len(ranges), 3):
            seen += _lines.Lines(ranges[at])
        assert read - before < size / 3 * 1.5  # ranges begin and end within a line
    assert sorted(seen) == sorted(EXPECTED)


def test_a_shard_divides_the_ranges_and_ordered_keeps_the_order(paths: list[pathlib.Path]) -> None:
    sharded = Pipeline.from_lines(paths, range_bytes=3000).shard().map(lambda line: (line, len(line)))
    assert repr(sharded) == "<levada.Pipeline source > shard > flat_map > map>"
    expected = [(line, len(line)) for line in EXPECTED]
    assert list(sharded) == expected
    for ordered in (False, True):
        with sharded.run(2, context="forkserver", ordered=ordered) as run:
            given = list(run)
        assert sorted(given) == sorted(expected) and (given == expected or not ordered)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_resumes_at_the_next_line(paths: list[pathlib.Path], workers: int) -> None:
    with Pipeline.from_lines(paths, range_bytes=900).shard().run(workers, context="forkserver") as run:
        whole = list(run)
        items = iter(run)
        before = [next(items) for _ in range(123)]
        state = pickle.loads(pickle.dumps(run.state_dict()))
        run.load_state_dict(state)
        assert before + list(run) == whole


def test_the_error_names_the_path_of_an_unreadable_file(paths: list[pathlib.Path]) -> None:
    with pytest.raises(levada.SourceError, match="absent.jsonl' cannot be read: No such file"):
        Pipeline.from_lines([paths[0], "absent.jsonl"])
    with pytest.raises(levada.SourceError, match="Is a directory"):
        Pipeline.from_lines(paths[0].parent)
    with pytest.raises(levada.InvalidArgument, match="no files"):
        Pipeline.from_lines([])
    with pytest.raises(levada.InvalidArgument, match="range_bytes is 0"):
        Pipeline.from_lines(paths, range_bytes=0)
    paths[1].write_bytes(b"fine\n\xff\n")
    with pytest.raises(levada.SourceError, match="b.jsonl is not UTF-8 at byte 6") as caught:
        list(Pipeline.from_lines(paths[1]))
    assert isinstance(caught.value.__cause__, levada.StageFailed) and caught.value.__cause__.stage == "flat_map"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("change", ["truncated", "replaced", "overwritten"])
def test_a_file_that_changes_while_it_is_read_ends_the_epoch_with_its_name(
    tmp_path: pathlib.Path, workers: int, change: str
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(200_000)))
    with Pipeline.from_lines(path, range_bytes=50_000).shard().run(workers, context="forkserver") as run:
        items = iter(run)
        next(items)
        if change == "truncated":
            os.truncate(path, 100)
        elif change == "replaced":
            other = tmp_path / "other.txt"
            other.write_bytes(path.read_bytes())
            other.rename(path)
        else:
            with path.open("r+") as file:
                file.write("LINE")
        with pytest.raises(levada.SourceError, match=r"lines.txt has changed since the pipeline was made"):
            list(items)


@pytest.mark.parametrize("workers", [0, 2])
def test_permissions_links_and_names_may_change_while_a_file_is_read(tmp_path: pathlib.Path, workers: int) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(50_000)))
    with Pipeline.from_lines(path, range_bytes=50_000).shard().run(workers, context="forkserver") as run:
        got = []
        for item in run:
            got.append(item)
            if len(got) % 5000 == 0:
                path.chmod(0o640 if len(got) % 10_000 else 0o600)
                os.link(path, tmp_path / f"backup-{len(got)}")
                os.utime(path, ns=(len(got), path.stat().st_mtime_ns))
    assert sorted(got) == sorted(f"line {number}" for number in range(50_000))


def test_a_path_that_is_no_regular_file_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(levada.SourceError, match="pipe is not a regular file"):
        Pipeline.from_lines(tmp_path / "pipe")
