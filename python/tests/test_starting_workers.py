"""Worker processes of programs that they cannot import, and in environments in which they cannot start."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from ranks import run


def test_workers_do_not_import_a_program_from_standard_input() -> None:
    program = """
import levada
class Squares:
    def __len__(self): return 4
    def __getitem__(self, number): return number * power(number)
def power(number): return number
for context in ("forkserver", "spawn"):
    loader = levada.DataLoader(Squares(), 4, num_workers=1, multiprocessing_context=context, collate_fn=list)
    print(list(loader), list(levada.Pipeline(range(3)).dispatch().map(power).run(1, context=context)))
"""
    ran = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=100)
    assert (ran.stdout, ran.stderr) == ("[[0, 1, 4, 9]] [0, 1, 2]\n" * 2, "")


def test_a_loader_may_be_made_outside_of_the_main_guard_if_it_is_read_within(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("""
import levada, sys
loader = levada.DataLoader(range(4), 4, num_workers=1, multiprocessing_context=sys.argv[1], collate_fn=list)
if __name__ == "__main__": print(list(loader))
""")
    for context in ("forkserver", "spawn"):
        ran = subprocess.run([sys.executable, "program.py", context], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert (ran.stdout, ran.stderr) == ("[[0, 1, 2, 3]]\n", "")


def test_a_path_that_is_too_long_for_the_server_of_workers_is_named(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    loop = "for batch in levada.DataLoader(range(8), 2, num_workers=1): pass\n"
    errors = run(tmp_path, 1, f"import tempfile\ntempfile.tempdir = {str(folder)!r}\n{loop}").errors
    assert f"worker 0 cannot be started: AF_UNIX path too long; set TMPDIR to a shorter path than {folder}" in errors


def test_a_working_folder_that_is_removed_is_named(tmp_path: pathlib.Path) -> None:
    loop = "for batch in levada.DataLoader(range(8), 2, num_workers=1): pass\n"
    errors = run(tmp_path, 1, f"import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n{loop}").errors
    assert "worker 0 cannot be started: [Errno 2] No such file or directory; the working folder has been removed" in errors
