"""Types of arguments that are accepted, and the repr of objects."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import levada
from levada import exchange


@pytest.mark.parametrize("mesh", ["dp=1,tp=1", {"dp": 1, "tp": 1}, levada.Mesh(dp=1, tp=1)])
def test_a_mesh_is_a_mesh_its_text_or_a_dict(mesh: Any) -> None:
    assert levada.Feed([1], mesh).mesh == levada.Feed([1], mesh=mesh).mesh == levada.Mesh(dp=1, tp=1)
    assert levada.DataLoader([1], mesh=mesh).mesh == levada.Mesh(dp=1, tp=1)
    assert exchange.data_heads(mesh) == [0]


def test_the_data_axes_of_such_a_mesh_can_be_named() -> None:
    assert levada.Feed([1], "replica=1,tp=1", data_axes=["replica"]).mesh.data_axes == ["replica"]
    assert levada.Feed([1], {"replica": 1}, data_axes=["replica"]).mesh.data_axes == ["replica"]
    with pytest.raises(levada.InvalidArgument, match="data_axes is for a mesh that is no levada.Mesh"):
        levada.Feed([1], levada.Mesh(dp=1), data_axes=["dp"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": 3}, 'mesh must be a levada.Mesh, its text such as "dp=2,tp=2", a dict .*, or a DeviceMesh.*, got 3'),
        ({"mesh": [2, 2]}, "mesh must be"),
        ({"mesh": {2: 2}}, "mesh must be"),
        ({"mesh": {"dp": "2"}}, "dp of the mesh must be a whole number, got '2'"),
        ({"batch_size": 8.0, "divide": "split"}, "batch_size must be a whole number, got 8.0"),
        ({"prefetch": None}, "prefetch must be a whole number, got None"),
        ({"max_steps": True}, "max_steps must be a whole number, got True"),
        ({"timeout": "x"}, "timeout must be a number of seconds.*got 'x'"),
        ({"timeout": None}, "timeout must be a number of seconds.*got None"),
        ({"timeout": True}, "timeout must be a number of seconds.*got True"),
        ({"divide": 3}, "divide must be one of deal, split, got 3"),
        ({"readers": 3}, "readers must be one, all, host"),
        ({"layout": 3}, "layout must be a levada.Layout or a dict"),
        ({"mesh": "dp=1", "data_axes": "dp"}, r"data_axes must be a list of names of axes, such as \['dp'\], got 'dp'"),
        ({"allow_pickle": "False"}, "allow_pickle must be True or False, got 'False'"),
        ({"record": "page.html"}, "record must be True or False, got 'page.html'"),
    ],
)
def test_a_wrong_type_raises_a_type_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        levada.Feed([1], **arguments)
    assert isinstance(caught.value, levada.InvalidArgument)


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "pad_last", "pin_memory", "persistent_workers", "in_order", "record"])
def test_a_text_is_no_flag_of_a_loader(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 'False'"):
        levada.DataLoader([1], **{name: "False"})  # type: ignore[arg-type]
    for flag in (False, 0, None, np.False_):
        if name != "in_order":
            assert list(levada.DataLoader([1], **{name: flag})) == [1]  # type: ignore[arg-type]


def test_a_sampler_is_no_flag() -> None:
    with pytest.raises(TypeError, match="shuffle must be True or False, got \\[1, 0\\]"):
        levada.DataLoader([1, 2], 1, [1, 0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"drop_last of batch\(\) must be True or False"):
        levada.Pipeline([1]).batch(2, drop_last="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("dataset", [2]), ("seed", 5), ("num_workers", 1), ("sampler", [0])])
def test_an_attribute_that_a_made_loader_would_ignore_cannot_be_set(name: str, value: Any) -> None:
    loader = levada.DataLoader([1], 1, True)
    with pytest.raises(AttributeError, match=f"'{name}' of 'DataLoader'"):
        setattr(loader, name, value)
    loader.batch_size, loader.drop_last = 2, True
    with pytest.raises(levada.InvalidArgument, match="one step takes 2 draws"):
        list(loader)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("data/*.jsonl", "source is 'data/.*, a str; pass a loader, or use levada.Corpus"),
        (pathlib.Path("a.txt"), "source is .*a.txt.*; pass a loader, or use levada.Corpus"),
        ({"x": [1, 2]}, "source is a dict, whose items are its keys"),
        (5, "source must be an iterable of batches, got an int$"),
        (lambda: [1], "source must be .*, got a function; call it, or pass levada.Pipeline"),
    ],
)
def test_a_source_without_batches_is_refused_when_the_feed_is_made(source: Any, message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        levada.Feed(source)


class Rows(Mapping[str, int]):
    """A mapping that yields its rows, as a TensorDict does."""

    def __getitem__(self, key: str) -> int:
        return 1

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter([{"x": 1}])


@pytest.mark.parametrize("source", [{"x": 1}.values(), [{"x": 1}], np.ones((1, 2)), iter("a"), Rows(), None])
def test_a_source_is_any_iterable_or_none(source: Any) -> None:
    levada.Feed(source)


@pytest.mark.parametrize(
    "call",
    [
        lambda: levada.Feed([1], mesh="dp"),
        lambda: levada.Feed([1], mesh={"dp": 0}),
        lambda: levada.Feed([1], batch_size=0, divide="split"),
        lambda: levada.Feed([1], timeout=-1),
        lambda: levada.Feed([1], divide="x"),
        lambda: levada.Pipeline([1]).run(timeout=-1),
    ],
)
def test_a_wrong_value_raises_no_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(levada.InvalidArgument) as caught:
        call()
    assert not isinstance(caught.value, TypeError)


def test_a_feed_is_iterable_but_no_iterator() -> None:
    feed = levada.Feed([1, 2])
    assert isinstance(feed, Iterable) and not isinstance(feed, Iterator)
    with pytest.raises(TypeError, match="not an iterator"):
        next(feed)  # type: ignore[call-overload]
    batches = iter(feed)
    assert next(batches) == 1 and list(batches) == [2] and list(feed) == [1, 2]


@pytest.mark.parametrize(
    ("option", "value", "is_type"),
    [
        ("seq_length", "8", True),
        ("seq_length", 0, False),
        ("seed", -1, False),
        ("seed", 1.0, True),
        ("shuffle", 7, True),
        ("split", 98, True),
        ("split", ("98", "2"), True),
        ("eod", None, True),
        ("eod", True, True),
        ("cache_dir", None, True),
    ],
)
def test_the_options_of_a_corpus_follow_the_same_rule(
    tmp_path: pathlib.Path, option: str, value: Any, is_type: bool
) -> None:
    (tmp_path / "a.txt").write_text("text\n" * 100)
    with pytest.raises(levada.InvalidArgument, match=f"^{option} must be") as caught:
        levada.Corpus(tmp_path / "a.txt", **{"tokenizer": "bytes", "cache_dir": tmp_path, option: value}).open()
    assert isinstance(caught.value, TypeError) == is_type


def test_a_split_is_of_numbers_of_any_kind() -> None:
    for split in ((Decimal("0.5"), Fraction(1, 2)), [np.float32(0.5), np.array(0.5)], np.array([0.5, 0.5])):
        assert levada.Corpus("a.txt", split=split).split == (0.5, 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="split must be"):
        levada.Corpus("a.txt", split=np.array(3.0))  # type: ignore[arg-type]


def test_the_options_of_a_run_follow_the_same_rule() -> None:
    for options in ({"timeout": "3"}, {"workers": 1.5}, {"worker_init": 3}):
        with pytest.raises(TypeError, match=next(iter(options))):
            levada.Pipeline([1]).run(**options)  # type: ignore[arg-type]


def test_the_repr_of_an_object_is_one_line() -> None:
    feed = levada.Feed([1, 2, 3], "dp=1,tp=1")
    next(iter(feed))
    assert repr(feed) == "Feed(list, mesh=dp=1,tp=1, readers=one, step 1)"
    assert repr(levada.DataLoader(range(9), 2)) == "DataLoader(range, batch_size=2, mesh=dp=1, readers=spread, step 0)"
    pipeline = levada.Pipeline(range(9)).map(abs)
    assert repr(pipeline) == "<levada.Pipeline source > map>"
    assert repr(pipeline.run()) == "<levada.Run source > map, workers=0, epoch 0>"
    corpus = levada.Corpus("a.jsonl", seq_length=64, shuffle=True, tokenizer="bytes")
    assert repr(corpus) == "Corpus(paths='a.jsonl', seq_length=64, shuffle=True, tokenizer='bytes')"


@pytest.mark.parametrize("layout", [levada.Layout.gpt(), levada.Layout({"a'\\\"b": levada.Shard("dp")}, name="it's")])
def test_the_repr_of_a_layout_recreates_it(layout: levada.Layout) -> None:
    assert "\n" not in repr(layout) and eval(repr(layout), {"Layout": levada.Layout}) == layout


def test_dir_lists_the_public_names() -> None:
    assert dir(levada) == sorted([*levada.__all__, "ddp", "exchange", "fsdp", "testing"])


@pytest.mark.long
def test_a_feed_is_generic(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
from typing import TypedDict
import levada
class Batch(TypedDict):
    x: int
feed = levada.Feed[Batch]([Batch(x=1)])
plain = levada.Feed([1])
loader: levada.DataLoader[Batch] = levada.DataLoader([Batch(x=1)], batch_size=None)
def of(given: levada.Feed[Batch], any: levada.Feed) -> None:
    for batch in given:
        reveal_type(batch["x"])
    for batch in any:
        reveal_type(batch)
for batch in feed:
    reveal_type(batch)
print(next(iter(feed))["x"])
for each in plain:
    reveal_type(each)
levada.Feed([1], batchsize=3)
""".replace("reveal_type", "print"))
    typed = program.read_text().replace("print(batch", "reveal_type(batch").replace("print(each", "reveal_type(each")
    (tmp_path / "typed.py").write_text(typed)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "typed.py"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout.splitlines()
    revealed = [line.split("Revealed type is ")[1] for line in checked if "Revealed" in line]
    assert [text.split(".")[-1].strip('"') for text in revealed[:1]] == ["int"], checked
    assert revealed[1] == '"Any"' and "Batch" in revealed[2] and revealed[3] == '"Any"', checked
    errors = [line for line in checked if ": error:" in line]
    assert len(errors) == 1 and "batchsize" in errors[0], checked
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert "1" in ran.stdout.splitlines() and "has no argument 'batchsize'; did you mean batch_size?" in ran.stderr, ran


WRONG = {
    "a field by a number": lambda: levada.Layout({1: "shard(dp,0)"}),  # type: ignore[dict-item]
    "a placement by a number": lambda: levada.Layout({"a": 3}),  # type: ignore[dict-item]
    "stages in a list": lambda: levada.Stages("pp", ["first"]),  # type: ignore[arg-type]
    "a stage by a number": lambda: levada.Stages("pp", 0),  # type: ignore[arg-type]
    "a dimension that is text": lambda: levada.Shard("dp", "0"),  # type: ignore[arg-type]
    "a size that is text": lambda: levada.Mesh(dp="2"),  # type: ignore[arg-type]
    "a cost by a number": lambda: levada.Balance(3),  # type: ignore[arg-type]
    "counts by a number": lambda: levada.Balance(counts=3),  # type: ignore[arg-type]
    "no order": lambda: levada.Balance(order=None),  # type: ignore[arg-type]
    "no wait": lambda: levada.Balance(wait=None),  # type: ignore[arg-type]
    "a class by a number": lambda: levada.register(3),  # type: ignore[type-var]
    "paths by a number": lambda: levada.Corpus(3),  # type: ignore[arg-type]
    "a path by a number": lambda: levada.Corpus(["a", 3]),  # type: ignore[list-item]
    "a length that is text": lambda: levada.Corpus("a", seq_length="8"),  # type: ignore[arg-type]
    "a length with a fraction": lambda: levada.Corpus("a", seq_length=8.5),  # type: ignore[arg-type]
    "a flag by a number": lambda: levada.Corpus("a", shuffle=1),  # type: ignore[arg-type]
    "a packing that is none": lambda: levada.Corpus("a", packing=None),  # type: ignore[arg-type]
    "a message that is text": lambda: levada.unpack("a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_type_raises_a_type_error_or_names_the_expected_type(wrong: Any) -> None:
    with pytest.raises((TypeError, levada.InvalidArgument)) as raised:
        wrong()
    assert "bad_cast" not in str(raised.value)
