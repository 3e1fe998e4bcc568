"""The C++ library of the package, which the module and C++ programs share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import levada


def loaded_libraries(**environment: str) -> dict[str, pathlib.Path]:
    """Returns the files of Levada from which a process that imports it runs code, by name."""
    program = "import levada._levada; print(open('/proc/self/maps').read())"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, env=os.environ | environment
    )
    files = [pathlib.Path(line.split()[-1]) for line in ran.stdout.splitlines() if " r-xp " in line]
    return {file.name: file for file in files if file.name.startswith(("_levada.", "liblevada."))}


def test_the_module_and_cpp_programs_share_one_copy_of_the_core() -> None:
    library, module = sorted(loaded_libraries().values(), key=lambda file: file.name.startswith("_"))
    assert library == pathlib.Path(levada.get_cmake_dir()).parents[1] / "liblevada.so.0.1"
    assert module.stat().st_size < library.stat().st_size / 2


def test_a_library_with_the_same_name_on_the_path_is_not_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "liblevada.so.0.1").write_bytes(b"no library")
    assert loaded_libraries(LD_LIBRARY_PATH=str(tmp_path)) == loaded_libraries()
