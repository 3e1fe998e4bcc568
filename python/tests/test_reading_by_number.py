"""Sources that are read by index have as many items as their length."""

from __future__ import annotations

import collections.abc
import sys
import types
from collections.abc import Iterator
from typing import Any

import levada
import pyarrow
import pytest
from levada import Pipeline
from levada.base.iterators import iterate
from pipelines import got


class Short:
    """Has a length of 8, and raises for the fourth item."""

    def __init__(self, raises: type[Exception]) -> None:
        self.raises = raises

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        if at == 3:
            raise self.raises
        return at


class ShortSequence(Short, collections.abc.Sequence[int]):  # type: ignore[misc]
    pass


KINDS = [Short, ShortSequence]
WHY = r"item 3 of 8 of a Short\w* cannot be read: its __getitem__ raised {}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raises", [StopIteration, IndexError])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_end_before_the_length_is_an_error_of_a_pipeline(kind: Any, raises: type[Exception], workers: int) -> None:
    numbers = Pipeline(kind(raises))
    pipelines = [numbers.shard(), numbers.dispatch()]
    if workers == 0:
        pipelines += [numbers, numbers.map(abs), numbers.shuffle(), numbers.skip(1), numbers.batch(3), Pipeline(lambda: kind(raises))]
    for pipeline in pipelines:
        with pytest.raises(levada.SourceError, match=WHY.format(raises.__name__)):
            got(pipeline, workers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raises", [StopIteration, IndexError])
@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_an_end_before_the_length_is_an_error_of_a_feed(kind: Any, raises: type[Exception], iterate: str) -> None:
    received = []
    with pytest.raises(levada.SourceError, match=WHY.format(raises.__name__)):
        for batch in levada.Feed(kind(raises), iterate=iterate, timeout=60):
            received.append(int(batch))
    assert received == [0, 1, 2]


def test_other_exceptions_are_unchanged() -> None:
    source: Any = Short(KeyError)
    with pytest.raises(KeyError):
        list(Pipeline(source))


class Iterable(Short):
    """Is not read by index, since it has an __iter__."""

    def __iter__(self) -> Iterator[int]:
        return iter((7, 8))


def test_an_object_with_its_own_iterator_is_iterated() -> None:
    assert list(iterate(Iterable(IndexError))) == [7, 8] == list(Pipeline(Iterable(IndexError)))
    assert list(iterate({"a": 1})) == ["a"] and list(iterate("ab")) == ["a", "b"] and list(iterate([1, 2])) == [1, 2]


def test_a_table_is_refused_because_its_items_are_columns() -> None:
    table = pyarrow.table({"a": [1, 2, 3], "b": [4, 5, 6]})
    for each in (table, table.to_batches()[0]):
        match = rf"source is a pyarrow {type(each).__name__}, which is indexed by column; pass its rows, such as \w+\.to_pylist\(\)"
        for refuses in (Pipeline, levada.Feed):
            with pytest.raises(levada.InvalidArgument, match=match):
                refuses(each)
    assert list(Pipeline(table.to_pylist()))[1] == {"a": 2, "b": 5}


def test_a_dict_of_splits_is_refused_because_its_items_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {name: type(name, (dict,), {}) for name in ("DatasetDict", "IterableDatasetDict")}
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(**classes))
    for name, cls in classes.items():
        for refuses in (Pipeline, levada.Feed):
            match = f"source is a {name}, whose items are the names train, test of its splits; pass one split"
            with pytest.raises(levada.InvalidArgument, match=match):
                refuses(cls(train=[1], test=[2]))


class Three:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> int:
        return at


def test_a_class_of_indexable_objects_is_called_in_each_epoch() -> None:
    assert list(Pipeline(Three)) == [0, 1, 2]  # type: ignore[arg-type]
