"""The text files in cases/: a line is a case. Each layout is compared on the ranks of a host, on threads, and in the
model."""

from __future__ import annotations

import json
import os
import pathlib
import string
import subprocess
import sys
from math import prod
from typing import Any, NamedTuple

import levada
import numpy as np
import pytest
import ranks

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "model"))
import feed_model as model  # noqa: E402

ELEMENTS = string.digits + string.ascii_lowercase
ERROR = "error: "


def cases_in(name: str) -> list[list[str]]:
    """Returns the columns of each case."""
    lines = (HERE / "cases" / name).read_text().splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines if line and not line.startswith("#")]


class Case(NamedTuple):
    """A line of layouts.txt."""

    mesh: str
    placements: list[str]
    shape: list[int]
    expected: str

    @property
    def ranks(self) -> int:
        return model.mesh_of(self.mesh).size

    def shown(self, parts: list[Any]) -> str:
        """Returns arrays of element numbers as the file has them."""
        return " ".join("-" if part is None else "".join(ELEMENTS[each] for each in np.ravel(part)) for part in parts)

    def agrees(self, parts: list[Any], errors: list[str]) -> bool:
        """Returns whether ranks got the results of the case. `errors`: the text of each rank that raised."""
        if self.expected.startswith(ERROR):
            return len(errors) == self.ranks and all(self.expected.removeprefix(ERROR) in text for text in errors)
        return not errors and self.shown(parts) == self.expected


LAYOUTS = [Case(mesh, placements.split(), [int(each) for each in shape.split("x")], expected)
           for mesh, placements, shape, expected in cases_in("layouts.txt")]  # fmt: skip


def job_of(case: Case) -> dict[str, Any]:
    """Returns a feed of one global batch, as tests/model describes it."""
    rows, *dims = case.shape
    ranks_of_data = model.mesh_of(case.mesh).extent("dp")
    field = {"name": "x", "kind": "samples", "dtype": "int64", "dims": dims}
    return {
        "name": "feed", "fields": [field], "layout": {"fields": {"x": case.placements}, "otherwise": [], "stages": {}},
        "batch": rows // ranks_of_data, "divide": "split", "tail": "drop", "first": 0, "size": rows, "known_size": True,
        "steps": None, "readers": "one", "depth": 0, "ahead": False, "lends": False, "fails_at": None, "leaves_at": None,
        "stop": None,
    }  # fmt: skip


def numbers_of(case: Case, values: Any) -> Any:
    """Returns the numbers of elements that a job of the model has filled with other values."""
    numbered = model.elements(job_of(case)["fields"][0], 0, 0, case.shape[0]).ravel()
    return np.array([int(np.flatnonzero(numbered == value)[0]) for value in np.ravel(values)], dtype=int)


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_a_layout_in_the_model(case: Case) -> None:
    mesh, job = model.mesh_of(case.mesh), job_of(case)
    batch = {"x": np.arange(prod(case.shape)).reshape(case.shape)}
    try:
        shown = case.shown([model.parts_of(batch, job, mesh, rank, 0).get("x") for rank in range(mesh.size)])
    except model.Refusals:
        shown = case.expected if case.expected.startswith(ERROR) else "refused"  # the model has no texts
    assert shown == case.expected


def test_layouts_on_threads() -> None:
    # A job of the model has as many rows for each rank.
    told = [case for case in LAYOUTS if case.shape[0] % model.mesh_of(case.mesh).extent("dp") == 0]
    jobs = "".join(json.dumps({"mesh": case.mesh, "fresh": True, "feeds": [job_of(case)]}) + "\n" for case in told)
    driver = ROOT / "build" / "release" / "model_driver"
    answers = subprocess.run([driver], input=jobs, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()
    for case, answer in zip(told, answers, strict=True):
        got = [of_rank[0] for of_rank in json.loads(answer)]
        errors = [each["error"][1] for each in got if each["error"]]
        leaves = [each["batches"][0]["leaves"].get("x") for each in got if each["batches"]]
        values = [None if leaf is None else np.frombuffer(bytes.fromhex(leaf[2]), np.int64) for leaf in leaves]
        parts = [None if each is None else numbers_of(case, each) for each in values]
        assert case.agrees(parts, errors), (case, case.shown(parts), errors)


def test_layouts_on_the_ranks_of_a_host(tmp_path: pathlib.Path) -> None:
    size = max(case.ranks for case in LAYOUTS)
    body = f"""
        from math import prod
        job = levada.join()
        for number, (mesh, placements, shape) in enumerate({[tuple(case)[:3] for case in LAYOUTS]!r}):
            batch = {{"x": np.arange(prod(shape)).reshape(shape)}}
            ranks = levada.Mesh.parse(mesh).size
            if rank >= ranks:
                continue
            group = job.subgroup(list(range(ranks)), f"case {{number}}")
            feed = levada.Feed([batch], mesh, layout={{"x": placements}}, divide="split", group=group)
            try:
                tell(case=number, parts=[got["x"].ravel().tolist() if "x" in got else None for got in feed])
            except levada.InvalidArgument as error:
                tell(case=number, error=str(error))
        """
    told = ranks.succeed(tmp_path, size, body)
    for number, case in enumerate(LAYOUTS):
        of_case = [each for mine in told for each in mine if each["case"] == number]
        parts = [part for each in of_case for part in each.get("parts", [])]
        errors = [each["error"] for each in of_case if "error" in each]
        assert case.agrees(parts, errors), (case, case.shown(parts), errors)


@pytest.mark.parametrize("case", cases_in("messages.txt"), ids=" | ".join)
def test_messages(case: list[str], tmp_path: pathlib.Path) -> None:
    mesh, readers, divide, placements, expected = case
    layout = tmp_path / "layout.json"
    layout.write_text(levada.Layout({"tokens": placements.split()}, otherwise=["stages(pp)"]).to_json())
    command = [os.environ["LEVADA_COMMAND"], "plan", "--mesh", mesh, "--readers", readers, "--divide", divide, "--layout", layout, "--batch", "2", "--seq", "8", "--json"]
    plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout)
    tokens = next(at for at, field in enumerate(plan["fields"]) if field["path"] == "tokens")
    audiences = [plan["audiences"][move["audience"]] for move in plan["moves"] if move["field"] == tokens]
    shown = [f"{each['from']}>{','.join(map(str, each['to']))}" for each in audiences]
    assert " ".join(shown) == expected


@pytest.mark.parametrize("case", cases_in("packing.txt"), ids=" | ".join)
def test_packing(case: list[str], tmp_path: pathlib.Path) -> None:
    packing, length, documents, expected = case
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in documents.split()))
    corpus = levada.Corpus(path, tokenizer="bytes", seq_length=int(length), packing=packing, shuffle=False, cache_dir=tmp_path / "cache")
    rows = [row for batch in levada.Feed(corpus, batch_size=1) for row in batch["tokens"].tolist()]
    end = max(max(row) for row in rows)
    shown = ["".join("$" if token == end and token > 255 else "." if token == 0 else chr(token) for token in row) for row in rows]
    assert " ".join(shown) == expected
