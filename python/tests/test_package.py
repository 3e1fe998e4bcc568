"""The package: its stub and its types."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import levada
from levada import _levada

INSTALLED = pathlib.Path(levada.__file__).parent
COMPILED = pathlib.Path(_levada.__file__)


def test_the_stub_matches_the_module(tmp_path: pathlib.Path) -> None:
    made = tmp_path / "_levada.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "levada._levada", "-o", made], check=True)
    assert made.read_text() == (INSTALLED / "_levada.pyi").read_text(), "script/stubs makes it anew"


@pytest.mark.long
def test_the_package_is_typed(tmp_path: pathlib.Path) -> None:
    assert (INSTALLED / "py.typed").exists()
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "levada"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_importing_the_package_imports_no_servers_and_clients() -> None:
    script = "import sys, levada; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    unneeded = ["http", "http.server", "asyncio", "email", "torch", "fsspec", "pyarrow", "socketserver"]
    imported = subprocess.run([sys.executable, "-c", script, *unneeded], check=True, capture_output=True, text=True)
    assert imported.stdout.split() == []


@pytest.mark.long
def test_submodules_are_imported_on_first_access(tmp_path: pathlib.Path) -> None:
    script = """
import sys, levada
modules = ("exchange", "testing", "ddp", "fsdp")
print([f"levada.{name}" in sys.modules for name in modules], {*modules} <= {*dir(levada)})
print(levada.exchange.balance.__name__, levada.testing.conformance.__name__)
try: levada.nothing
except AttributeError as error: print(error)
sys.modules["torch"] = None
try: levada.ddp
except AttributeError as error: print(error)
try: from levada import ddp
except ImportError as error: print(type(error).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines()[:3] == [
        "[False, False, False, False] True",
        "balance conformance",
        "module 'levada' has no attribute 'nothing'",
    ]
    without_torch = ran.stdout.splitlines()[3:]
    assert without_torch[0].startswith("levada.ddp cannot be imported: ") and without_torch[1] == "ModuleNotFoundError"
    user = tmp_path / "user.py"
    user.write_text("import levada\nreveal_type(levada.exchange.balance)\nlevada.testing.conformance(levada.join)\nlevada.no\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(user)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "Revealed type is \"def (" in checked.stdout and 'has no attribute "no"' in checked.stdout
    assert "Found 1 error in 1 file" in checked.stdout, checked.stdout


def test_the_wheel_needs_only_the_compilers_libraries() -> None:
    needed: list[str] = []
    for binary in (COMPILED, *INSTALLED.glob("lib/liblevada.so.*")):
        listed = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
        needed += [line.split()[0] for line in listed.splitlines() if str(INSTALLED) not in line]
    runtime = ("linux-vdso", "libstdc++", "libm.", "libgcc_s", "libc.", "/lib")
    assert [name for name in needed if not name.startswith(runtime)] == []


def runs(command: list[str | pathlib.Path]) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.long
def test_a_cpp_program_is_built_with_the_library_in_the_package(tmp_path: pathlib.Path) -> None:
    consumer = pathlib.Path(__file__).parents[2] / "tests" / "consumer"
    # A cmake on PATH may be a wrapper around a missing program.
    cmake = next(name for name in ("cmake", "/usr/bin/cmake") if shutil.which(name) and runs([name, "--version"]))
    for step in (
        [cmake, "-S", consumer, "-B", tmp_path, f"-Dlevada_DIR={levada.get_cmake_dir()}"],
        [cmake, "--build", tmp_path],
    ):
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    ran = subprocess.run([tmp_path / "app"], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "levada works from its install\n"
    used = subprocess.run(["ldd", tmp_path / "app"], check=True, capture_output=True, text=True).stdout
    assert f"liblevada.so.0.1 => {INSTALLED}/lib/" in used


def copy_of_package(folder: pathlib.Path) -> pathlib.Path:
    """Copies the package without its compiled files into `folder`, and returns `folder`."""
    compiled = shutil.ignore_patterns("_levada.*.so", "lib", "include", "__pycache__")
    shutil.copytree(INSTALLED, folder / "levada", ignore=compiled)
    return folder


def error_of(code: str, cwd: pathlib.Path) -> str:
    ran = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert ran.returncode == 1
    return ran.stderr.splitlines()[-1]


def test_the_import_on_another_system_raises_that_levada_needs_linux(tmp_path: pathlib.Path) -> None:
    for platform in ("darwin", "win32"):
        error = error_of(f"import sys; sys.platform = '{platform}'; import levada", tmp_path)
        assert error.startswith(f"ImportError: levada needs Linux, and this Python runs on {platform}: use a Linux ")


def test_the_import_without_the_compiled_module_explains_how_to_install_it(tmp_path: pathlib.Path) -> None:
    error = error_of("import levada", copy_of_package(tmp_path))
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert error.startswith(f"ImportError: {tmp_path}/levada has no compiled module levada._levada for {version}: install ")
    assert f"`{sys.executable} -m pip`" in error


def test_the_import_of_a_compiled_module_for_another_system_asks_for_a_matching_wheel(tmp_path: pathlib.Path) -> None:
    (copy_of_package(tmp_path) / "levada" / COMPILED.name).write_text("for another machine")
    error = error_of("import levada", tmp_path)
    assert error.startswith(f"ImportError: levada's compiled module cannot be loaded ({tmp_path}/levada/{COMPILED.name}: ")
    assert "install a wheel of Levada that is made for this system" in error


def test_a_package_without_the_cmake_files_of_the_cpp_library_is_an_error(tmp_path: pathlib.Path) -> None:
    shutil.copy(COMPILED, copy_of_package(tmp_path) / "levada")
    (tmp_path / "levada/lib").mkdir(exist_ok=True)
    for library in (*INSTALLED.glob("lib*.so*"), *INSTALLED.glob("lib/*.so*")):
        shutil.copy(library, tmp_path / "levada" / library.relative_to(INSTALLED))
    error = error_of("import levada; levada.get_cmake_dir()", tmp_path)
    assert error.startswith("levada.base.errors.Unsupported: this levada was installed without the CMake files of its C++ library")


def test_neither_numpy_nor_torch_is_imported_before_it_is_used() -> None:
    code = "import levada, sys; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_everything_public_has_a_docstring() -> None:
    for name in levada.__all__:
        thing = getattr(levada, name)
        assert thing.__doc__, name
        members = vars(thing) if isinstance(thing, type) else {}
        options = getattr(thing, "__annotations__", {})  # documented by the class
        for member in (each for each in members if not each.startswith("_") and each not in options):
            assert getattr(members[member], "__doc__", None), f"{name}.{member}"


def test_calls_in_which_a_group_agrees_are_known_to_the_check_of_their_order() -> None:
    root = pathlib.Path(__file__).parents[2]
    listed = re.search(r"agreements = \{(.*?)\};", (root / "levada/engine/collective_order.cc").read_text(), re.DOTALL)
    assert listed is not None
    sources = [each.read_text() for each in (root / "python/levada").rglob("*.py")]
    calls = {name for text in sources for name in re.findall(r'\bagree\([^\n]*, "([^"\n]+)"\)', text)}
    # A reduction continues while its caller makes other calls. The command feed makes no other calls.
    others = {"reduce-scatter", "gathering the report", "opening the data"}
    assert calls == {*re.findall(r'"([^"]+)"', listed[1]), *others}


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
