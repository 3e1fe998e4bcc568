"""script/check-includes, on a small tree that has one import too many."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "script" / "check-includes"


def check(root: pathlib.Path, files: dict[str, str]) -> tuple[int, str]:
    """Returns the exit status and the output for a tree of these files below python/."""
    (root / "script").mkdir()
    shutil.copyfile(SCRIPT, root / "script" / "check-includes")
    for name, text in ({"levada/feed/feed.py": "", "levada/job/job.py": "", "levada/base/errors.py": ""} | files).items():
        path = root / "python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ran = subprocess.run([sys.executable, str(root / "script" / "check-includes")], capture_output=True, text=True)
    return ran.returncode, ran.stdout


def test_a_tree_that_follows_the_table_passes(tmp_path: pathlib.Path) -> None:
    status, printed = check(tmp_path, {"levada/feed/feed.py": "from levada.job import job\n"})
    assert status == 0, printed


@pytest.mark.parametrize(
    "text",
    [
        "from levada.feed.feed import Feed\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from levada.feed import feed\n",
        "def f():\n    import levada.feed.feed\n",
        "import importlib\ndef f():\n    return importlib.import_module('levada.feed.feed')\n",
        "from importlib import import_module\nfeed = import_module('levada.feed.feed')\n",
    ],
    ids=["plain", "for types alone", "within a function", "import_module", "import_module by its name"],
)
def test_an_import_of_a_higher_module_is_refused_however_it_is_written(tmp_path: pathlib.Path, text: str) -> None:
    status, printed = check(tmp_path, {"levada/job/job.py": text})
    assert status == 1 and "python/levada/job/job.py:" in printed and "job uses python/levada/feed/feed.py" in printed


@pytest.mark.parametrize("text", ["from levada import Feed\n", "def f():\n    import levada\n"])
def test_an_import_of_the_whole_package_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    status, printed = check(tmp_path, {"levada/job/job.py": text, "levada/__init__.py": ""})
    assert status == 1 and "job imports levada as a whole, which imports job" in printed


@pytest.mark.parametrize("text", ["from ..feed import feed\n", "from ..feed.feed import Feed\n", "from . import job\n"])
def test_a_relative_import_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    status, printed = check(tmp_path, {"levada/job/job.py": text})
    assert status == 1 and "python/levada/job/job.py:1: imports are written from the root" in printed


def test_an_import_of_a_higher_module_from_cpp_is_refused(tmp_path: pathlib.Path) -> None:
    call = 'auto feed = nb::module_::import_("levada.feed.feed");\n'
    status, printed = check(tmp_path, {"src/job/mesh.cc": call})
    assert status == 1 and "python/src/job/mesh.cc:1: job uses python/levada/feed/feed.py" in printed


@pytest.mark.parametrize("back", ["from levada.job import job\n", "def f():\n    from levada.job import job\n"])
def test_an_import_cycle_within_a_module_is_refused(tmp_path: pathlib.Path, back: str) -> None:
    status, printed = check(tmp_path, {"levada/job/job.py": "from levada.job import groups\n", "levada/job/groups.py": back})
    assert status == 1 and "imports go in a circle: levada/job/" in printed
