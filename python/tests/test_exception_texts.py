"""Exceptions that raise when they are asked for their text, and those that other processes describe."""

from __future__ import annotations

import traceback
import urllib.error
from collections.abc import Iterator
from typing import Any

import levada
import pytest
from levada import Pipeline, _levada
from levada.base.exception_texts import failure_text, report_of, summary_of, text_of
from levada.pipeline import failures


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitingText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class FromDict(Exception):
    """Looks attributes up in a dict, so it raises KeyError instead of AttributeError."""

    def __init__(self, **fields: Any) -> None:
        super().__init__("from a dict")
        self.__dict__["fields"] = fields

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["fields"][name]


class BadNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise OSError("no notes")


class BadTraceback(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class BadCause(Exception):
    def __init__(self) -> None:
        super().__init__("because")
        self.__cause__ = FromDict(code=1)


class OfAnArray(Exception):
    """Has no text without an attribute that is not a plain value."""

    def __init__(self) -> None:
        self.values = {object()}

    def __str__(self) -> str:
        return f"{len(self.values)} values"


class Own(BaseException):
    pass


class Circle(Exception):
    def __init__(self) -> None:
        other = ValueError("other")
        self.__cause__, other.__cause__ = other, self


def http_error() -> Exception:
    return urllib.error.HTTPError("http://x/y", 503, "busy", None, None)  # type: ignore[arg-type]


MAKERS: list[tuple[Any, str]] = [
    (BadText, "BadText"),
    (ExitingText, "ExitingText"),
    (lambda: FromDict(code=1), "from a dict"),
    (lambda: BadNotes("with notes"), "with notes"),
    (lambda: BadTraceback("hidden"), "BadTraceback"),
    (BadCause, "because"),
    (OfAnArray, "1 values"),
    (lambda: Own("own"), "own"),
    (Circle, "Circle"),
    (http_error, "503"),
    (lambda: ValueError("half \ud800 of a pair"), "of a pair"),
    (lambda: ValueError("z" * 5_000_000), "ValueError: zzz"),
    (lambda: SystemExit(3), "SystemExit"),
    (lambda: KeyboardInterrupt(), "KeyboardInterrupt"),
    (lambda: MemoryError(), "MemoryError"),
    (lambda: type("Local", (Exception,), {})("local class"), "local class"),
]
IDS = [text for _, text in MAKERS]


def raised(make: Any) -> BaseException:
    try:
        raise make()
    except BaseException as error:
        return error


@pytest.mark.parametrize(("make", "text"), MAKERS, ids=IDS)
def test_any_exception_has_a_text(make: Any, text: str) -> None:
    error = raised(make)
    for found in (failure_text(error), summary_of(error), report_of(error)):
        assert text in found and isinstance(found, str)
    assert len(report_of(error)) < 100_000 and isinstance(text_of(error), str)
    assert "in raised" in report_of(error)


@pytest.mark.parametrize(("make", "text"), MAKERS, ids=IDS)
def test_any_exception_crosses_between_processes_as_one_that_has_its_text(
    make: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, message, trace, packed, stage, process, item = failures.pack(raised(make))
    assert text in message and text in trace
    monkeypatch.setattr(failures, "_process", lambda: "another")
    made = failures.unpack(message, stage, process, item, trace, packed, kind)
    assert isinstance(made, Exception) and text in report_of(made)


class Raises:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, item: int) -> int:
        if item == 3:
            raise self.make()
        return item


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_of_a_pipeline_raises_any_exception_of_its_stage(workers: int) -> None:
    for make, text in MAKERS:
        if workers == 0 and not issubclass(type(raised(make)), Exception):
            continue
        run = Pipeline(list(range(8))).dispatch().map(Raises(make)).run(workers, context="forkserver", ordered=True)
        with run, pytest.raises(levada.SourceError) as caught:
            for _ in levada.Feed(run, timeout=20):
                pass
        assert text in str(caught.value)


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_feed_raises_any_exception_of_its_loader(iterate: str) -> None:
    for make, text in MAKERS:
        if not issubclass(type(raised(make)), Exception):
            continue
        with pytest.raises(levada.SourceError) as caught:
            for _ in levada.Feed(Loader(make), timeout=20, iterate=iterate):
                pass
        assert text in str(caught.value)


class Loader:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Any:
        for number in range(8):
            if number == 3:
                raise self.make()
            yield number


@pytest.mark.parametrize("iterate", ["inline", "thread"])
def test_an_exception_of_the_source_is_the_cause_on_the_reader(iterate: str) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise FileNotFoundError(2, "no such file", "part-7.tar")

    feed = levada.Feed(failing(), iterate=iterate)
    with pytest.raises(levada.SourceError, match="no such file") as caught:
        list(feed)
    cause = caught.value.__cause__
    assert isinstance(cause, FileNotFoundError) and cause.filename == "part-7.tar"
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-1] == "failing"


@pytest.mark.parametrize(
    ("name", "arguments", "is_made"),
    [
        ("UnicodeDecodeError", ["utf-8", b"text", 1, 2, "why"], True),
        ("UnicodeDecodeError", ["utf-8", b"text", -(2**40), 1 - 2**40, "why"], False),
        ("UnicodeDecodeError", ["utf-8", b"text", 3, 2, "why"], False),
        ("UnicodeEncodeError", ["utf-8", "text", 1, 5, "why"], False),
        ("UnicodeTranslateError", ["text", 0, 4, "why"], True),
        ("UnicodeTranslateError", ["text", 2**40, 2**40, "why"], False),
        ("UnicodeError", ["why"], True),
        ("SyntaxError", ["why"], True),
        ("SyntaxError", ["why", ("/dev/zero", 1, 1, None, 1, 2**40)], False),
    ],
)
def test_an_exception_with_positions_outside_its_text_is_not_recreated(name: str, arguments: list[Any], is_made: bool) -> None:
    packed = _levada.pack_state(["1 x", 0, f"builtins:{name}", arguments, {}, []])
    made = failures.unpack("text", "s", "p", 1, "t", packed)
    assert type(made).__name__ == (name if is_made else "StageFailed")


class OfShard(levada.SourceError):
    shard: str | None = None


def test_an_exception_derived_from_one_of_levada_keeps_its_own_attributes() -> None:
    raised = OfShard("why")
    raised.shard = "a.tar"
    packed = _levada.pack_state(["1 x", 0, f"{__name__}:OfShard", ["why"], vars(raised), []])
    assert vars(failures.unpack("text", "s", "p", 1, "t", packed))["shard"] == "a.tar"


def test_an_exception_has_no_attribute_that_changes_what_it_does() -> None:
    attributes = {"code": 3, "__notes__": ["why"], "add_note": "x", "__array_interface__": {}}
    made = failures.unpack("text", "s", "p", 1, "t", _levada.pack_state(["1 x", 0, "builtins:ValueError", ["why"], attributes, []]))
    assert vars(made) == {"code": 3, "__notes__": ["why"]}
    parts = ["1 x", 0, "levada.base.errors:StageFailed", ["why"], {"original": 7, "stage": "s", "item": "2", "__notes__": [1]}, []]
    made = failures.unpack("text", "s", "p", 1, "t", _levada.pack_state(parts))
    assert isinstance(made, levada.StageFailed) and vars(made) == {"stage": "s"}
    assert failures.pack(made)[:2] == ("StageFailed", "levada.base.errors.StageFailed: why")
