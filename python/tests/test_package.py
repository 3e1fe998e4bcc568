"""The package itself: its stub, its types."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import levada

INSTALLED = pathlib.Path(levada.__file__).parent


def test_the_stub_is_that_of_the_module(tmp_path: pathlib.Path) -> None:
    made = tmp_path / "_levada.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "levada._levada", "-o", made], check=True)
    assert made.read_text() == (INSTALLED / "_levada.pyi").read_text(), "script/stubs makes it anew"


def test_the_package_is_typed(tmp_path: pathlib.Path) -> None:
    assert (INSTALLED / "py.typed").exists()
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "levada"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_the_wheel_needs_no_library_but_those_of_the_compiler() -> None:
    (module,) = INSTALLED.glob("_levada.*.so")
    listed = subprocess.run(["ldd", module], check=True, capture_output=True, text=True).stdout
    needed = [line.split()[0] for line in listed.splitlines() if str(INSTALLED) not in line]
    runtime = ("linux-vdso", "libstdc++", "libm.", "libgcc_s", "libc.", "/lib")
    assert [name for name in needed if not name.startswith(runtime)] == []


def test_neither_numpy_nor_torch_is_imported_before_it_is_used() -> None:
    code = "import levada, sys; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_everything_public_says_what_it_is() -> None:
    for name in levada.__all__:
        thing = getattr(levada, name)
        assert thing.__doc__, name
        members = vars(thing) if isinstance(thing, type) else {}
        options = getattr(thing, "__annotations__", {})  # which the class's own words are on
        for member in (each for each in members if not each.startswith("_") and each not in options):
            assert getattr(members[member], "__doc__", None), f"{name}.{member}"


def test_the_example_runs() -> None:
    example = pathlib.Path(__file__).parents[2] / "examples" / "feed.py"
    command = [sys.executable, "-m", "levada", "run", "-n", "4", str(example)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "rank 0 (dp0 tp0): 8192 tokens in 8 steps" in ran.stdout


def test_the_example_of_a_pipeline_runs() -> None:
    example = pathlib.Path(__file__).parents[2] / "examples" / "pipeline.py"
    ran = subprocess.run([sys.executable, str(example)], check=True, capture_output=True, text=True, timeout=60)
    assert "20 batches, then 106: 2000 lines" in ran.stdout
    assert "gone on with 106 batches, the same" in ran.stdout
