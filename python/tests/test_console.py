"""Lines for people, with and without a log."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys
from typing import Any

import levada
import pytest
from levada.base.console import write_line

LINE = "write_line('host \\x1b[31mred\\x07 has not come')"


def run(body: str) -> str:
    """Returns the standard error of a program."""
    program = f"import logging, sys\nfrom levada.base.console import write_line\n{body}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stderr


def test_without_a_log_a_line_is_on_standard_error_and_shows_control_characters() -> None:
    assert run(LINE) == "levada: host \\x1b[31mred\\x07 has not come\n"
    assert run(f"sys.stderr = None\n{LINE}") == ""
    assert run(f"sys.stderr.close()\n{LINE}") == ""


def test_a_line_appears_only_in_the_log_if_logging_is_configured(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    assert run(f"logging.basicConfig(filename={str(log)!r})\n{LINE}") == ""
    assert log.read_text() == "WARNING:levada:host \\x1b[31mred\\x07 has not come\n"
    assert run(f"logging.getLogger('levada').addHandler(logging.NullHandler())\n{LINE}") == ""


URL = "http://user:word@host/x?sig=word"


class Path(os.PathLike[str]):
    def __fspath__(self) -> str:
        return URL


def test_lines_errors_and_reprs_have_no_secrets_of_urls(caplog: pytest.LogCaptureFixture) -> None:
    write_line(f"cannot fetch {URL}")
    assert caplog.messages == ["cannot fetch http://host/x"]
    error = levada.SourceError(f"cannot fetch {URL}\nor \udcff\x1b")
    assert str(error) == "cannot fetch http://host/x\nor \\udcff\\x1b"
    assert "word" not in repr(error) and repr(error).startswith("SourceError(")
    for paths in (URL, [URL], Path(), [Path()]):
        corpus = levada.Corpus(paths, tokenizer=URL, chat_template=URL, cache_dir=Path(), text_field=URL)
        assert "word" not in repr(corpus) and repr(corpus).count("http://host/x") == 5, repr(corpus)
    arguments: list[Any] = [lambda: levada.Corpus([URL, 3]), lambda: levada.DataLoader(URL), lambda: levada.Pipeline.from_lines(URL)]
    arguments += [lambda: levada.Corpus("a", tokenizer=f"http://user:word@host/{name}").open() for name in ("a", "a.model")]
    for wrong in arguments:
        with pytest.raises(levada.Error) as raised:
            wrong()
        assert "word" not in str(raised.value) + repr(raised.value)


def test_a_line_has_its_level_and_keeps_percent_signs(caplog: pytest.LogCaptureFixture) -> None:
    write_line("50% of rank 3", logging.ERROR)
    assert caplog.record_tuples == [("levada", logging.ERROR, "50% of rank 3")]
