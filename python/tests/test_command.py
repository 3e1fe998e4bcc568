"""`levada feed module:callable`, and `levada run`."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import levada
import numpy as np
import pytest

LOADERS = """
import shutil, time
import levada
import numpy as np
class Dataset:
    @staticmethod
    def split():
        return ({"x": np.random.default_rng(i).random((4, 3)), "note": "text"} for i in range(6))
def samples(): return ({"tokens": np.arange(1 + 7 * i % 23), "name": f"s{i}"} for i in range(40))
def raising(): raise ValueError("no\\nsuch bucket")
def number(): return 5
def broken():
    yield {"x": np.ones(2)}
    raise KeyError("no such record")
def differing(): return ({"y": np.ones(2), "x": np.full(2, 10 * i + levada.rank())} for i in range(3))
def differing_keys(): return [{"x": np.ones(2)} | ({"a\\x1b[2J": np.ones(2)} if levada.rank() else {})]
def control_characters(): return [{"a\\x1b[2J\\nb": np.ones(2)}]
def uncrossable(): return [{"a\\x1b[2J\\nb": object()}]
def removing():
    yield {"x": np.ones(2)}
    shutil.rmtree("gone")
"""


def test_the_console_script_is_the_command() -> None:
    script = pathlib.Path(sys.executable).parent / "levada"
    ran = subprocess.run([script, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == subprocess.run([os.environ["LEVADA_COMMAND"], "--version"], capture_output=True, text=True).stdout


def run(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "loaders.py").write_text(LOADERS)
    (folder / "needing.py").write_text("import nowhere_to_be_found\n")
    command = [sys.executable, "-m", "levada", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.parametrize("options", [[], ["--readers", "dp", "--iterate", "thread"], ["--iterate", "inline", "--skip", "1"]])
def test_the_batches_of_a_callable_are_fed_and_reported(tmp_path: pathlib.Path, options: list[str]) -> None:
    ran = run(tmp_path, "feed", "loaders:Dataset.split", "--mesh", "dp=2,tp=2", "--json", *options)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    report = json.loads(ran.stdout)
    skipped = 1 if "--skip" in options else 0
    assert report["steps"] == 3 - skipped and report["samples"] == 6 - 2 * skipped and report["end"] == "exhausted"
    assert report["mesh"] == "dp=2,tp=2" and report["peers_identical"] is True
    for rank, told in enumerate(report["ranks"]):
        plain = levada.Digests()
        for i in range(2 * skipped + rank // 2, 6, 2):
            plain.add({"x": np.random.default_rng(i).random((4, 3))})
        assert told["rank"] == rank and told["coords"] == {"dp": rank // 2, "tp": rank % 2}
        assert told["fields"] == {"x": {"digest": plain.fields()["x"], "dtype": "float64", "shape": [4, 3]}}
        assert told["reader"] == (rank == 0 or ("dp" in options and rank == 2))


def test_a_field_whose_name_looks_like_a_callable_is_a_field(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"doc:text": "some words"}\n')
    options = ("--text-field", "doc:text", "--tokenizer", "bytes", "--seq", "5", "--batch", "1", "--json")
    ran = run(tmp_path, "feed", "a.jsonl", *options)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["samples"] == 2


def test_samples_are_balanced_on_request(tmp_path: pathlib.Path) -> None:
    options = ["--batch", "4", "--balance", "flops", "--max-tokens", "64", "--json"]
    ran = run(tmp_path, "feed", "loaders:samples", "--mesh", "dp=2,tp=2", *options)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    report = json.loads(ran.stdout)
    assert report["steps"] == 5 and report["samples"] == 40 and report["peers_identical"] is True
    assert report["balance"]["steps"] == 5 and report["balance"]["by"].startswith("flops(")
    assert {rank["batches"] for rank in report["ranks"]} == {report["balance"]["micro_batches"]}


def test_data_axes_without_a_mesh_are_refused(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:samples", "--data-axes", "nonsense")
    assert (ran.returncode, ran.stderr) == (2, "levada: --data-axes names axes of --mesh, which is missing\n")


def test_a_warning_is_one_line_of_one_rank(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:samples", "--mesh", "dp=2", "--skip", "100")
    assert ran.returncode == 0 and ran.stderr.startswith("levada: this pass of a feed has no steps: ")
    assert ran.stderr.count("\n") == 1


def test_all_options_are_in_the_help(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:samples", "--help-all")
    assert ran.returncode == 0 and "--max-tokens" in ran.stdout


def test_the_default_output_is_a_table(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:Dataset.split", "--mesh", "dp=2", "--steps", "2", "--timeout", "2m")
    assert ran.returncode == 0
    assert "dp=2: batches of loaders:Dataset.split, over shm: all 2 ranks are on one host" in ran.stdout
    assert "stopped after 2 steps" in ran.stdout and "ranks of one data coordinate hold the same data" in ran.stdout


@pytest.mark.parametrize(
    ("source", "status", "sentence"),
    [
        ("nosuch:batches", 2, "there is no module nosuch"),
        ("loaders.py:batches", 2, "loaders.py is a file; name its module, as in levada feed loaders:batches"),
        ("./loaders.py:batches", 2, "./loaders.py is a file; name its module, as in levada feed loaders:batches, from the folder ."),
        ("loaders:nothing", 2, "loaders has no callable nothing"),
        ("loaders:np.pi", 2, "loaders has no callable np.pi"),
        ("needing:batches", 1, "importing needing failed: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("loaders:raising", 1, "loaders:raising failed: ValueError: no such bucket"),
        ("loaders:number", 1, "loaders:number returned a int, which is not iterable"),
    ],
)
def test_an_object_that_cannot_be_fed_is_an_error_of_one_sentence(
    tmp_path: pathlib.Path, source: str, status: int, sentence: str
) -> None:
    ran = run(tmp_path, "feed", source, "--mesh", "dp=2", "--json")
    assert ran.returncode == status and ran.stdout == ""
    assert ran.stderr.startswith(f"levada: {sentence}") and ran.stderr.count("\n") == 1


def test_an_iterable_that_raises_fails_the_command_once(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:broken", "--mesh", "tp=2")
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.count("rank 0 could not read step 1") == 1 and "KeyError: 'no such record'" in ran.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(("source", "field"), [("loaders:differing", "x"), ("loaders:differing_keys", '"a\\x1b[2J"')])
def test_ranks_that_are_fed_different_data_fail_the_command(
    tmp_path: pathlib.Path, source: str, field: str, options: list[str]
) -> None:
    ran = run(tmp_path, "feed", source, "--mesh", "dp=1,tp=2", "--readers", "all", *options)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.startswith(
        f"levada: rank 1 could not read step 0: the batch differs between rank 0 and rank 1, in {field}; every rank that reads "
    )
    assert ran.stderr.count("\n") == 1
    # With --readers all, readers of different data-parallel ranks read the same items, too.
    is_different = source == "loaders:differing"  # the shorter one has no step for two ranks
    assert run(tmp_path, "feed", source, "--mesh", "dp=2", "--readers", "all", *options).returncode == int(is_different)


def test_the_table_escapes_keys(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:control_characters")
    assert ran.returncode == 0 and "a\\x1b[2J\\nb" in ran.stdout and "\x1b" not in ran.stdout


def test_an_error_escapes_keys(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, "feed", "loaders:uncrossable")
    assert ran.returncode == 1 and ran.stdout == ""
    assert "batch['a\\x1b[2J\\nb'] cannot cross between ranks" in ran.stderr and "\x1b" not in ran.stderr


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_report_that_cannot_be_written_leaves_standard_output_empty(tmp_path: pathlib.Path, option: str) -> None:
    (tmp_path / "gone").mkdir()
    ran = run(tmp_path, "feed", "loaders:removing", "--mesh", "tp=2", "--json", option, "gone/written")
    assert ran.returncode == 1 and ran.stdout == ""
    # The error is rank 0's, or another rank's, to which rank 0 has sent it.
    assert ran.stderr.startswith("levada: ") and ran.stderr.count("\n") == 1
    assert ran.stderr.endswith("cannot create gone/written: No such file or directory\n")


def test_bad_usage_is_reported(tmp_path: pathlib.Path) -> None:
    for options in (["--mesh", "dp=x"], ["--mesh", "dp=400"], ["--nonsense"], ["--readers", "some"]):
        ran = run(tmp_path, "feed", "loaders:Dataset.split", *options)
        assert ran.returncode == 2 and ran.stdout == "" and "levada" in ran.stderr, options
    assert run(tmp_path, "feed", "loaders:Dataset.split", "--help").stdout.count("levada feed examples.feed:batches") == 1


def test_run_reports_bad_usage_and_prints_help(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, "run").returncode == 2
    assert run(tmp_path, "run", "-n", "0", "x.py").returncode == 2
    assert "Example" in run(tmp_path, "run", "--help").stdout
    assert run(tmp_path, "nonsense").returncode == 2
    assert "levada" in run(tmp_path, "--version").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ste", "2"], "unrecognized arguments: --ste 2"),
        (["--iterate", "never"], "argument --iterate: invalid choice: 'never'"),
        (["--mesh", ""], "--mesh has no value"),
        (["--trace="], "--trace= has no value"),
        (["--report", "."], "--report . is a directory"),
        (["--report", "same", "--trace", "./same"], "--report and --trace both name ./same"),
        (["--metrics", "."], "--metrics . cannot be written"),
        (["--workers", "2"], "--workers needs a levada.Pipeline, but loaders:Dataset.split returned a generator"),
        (["--timeout", "soon"], "argument --timeout: 'soon' is not a duration"),
        (["--timeout", "0"], "--timeout must be a number of seconds, positive"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path: pathlib.Path, arguments: list[str], sentence: str) -> None:
    ran = run(tmp_path, "feed", "loaders:Dataset.split", *arguments)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith(f"levada: {sentence}") and ran.stderr.count("\n") == 1
    ran = run(tmp_path, "run", "-n", "0", "script.py")
    assert (ran.returncode, ran.stderr) == (2, "levada: -n is 0; it must be from 1 to 256; see levada run --help\n")


def test_ctrl_c_ends_all_ranks_without_a_traceback(tmp_path: pathlib.Path) -> None:
    (tmp_path / "loaders.py").write_text("import time\ndef endless():\n    while True: yield print('one', flush=True) or time.sleep(0.01)\n")
    command = [sys.executable, "-m", "levada", "feed", "loaders:endless", "--mesh", "dp=2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=tmp_path, start_new_session=True) as ran:  # type: ignore[call-overload]
        assert ran.stdout.readline() == "one\n"
        os.killpg(ran.pid, signal.SIGINT)  # as a terminal does
        errors = ran.communicate(timeout=60)[1]
    assert ran.returncode == 130 and "Traceback" not in errors and errors.count("\n") <= 1, errors


def test_a_report_to_a_closed_pipe_or_full_disk_prints_no_traceback(tmp_path: pathlib.Path) -> None:
    (tmp_path / "loaders.py").write_text(LOADERS)
    command = f"{sys.executable} -m levada feed loaders:Dataset.split --mesh dp=2"
    for redirected, status, errors in (
        (f"{command} | true; exit ${{PIPESTATUS[0]}}", 141, ""),
        (f"{command} > /dev/full", 1, "levada: cannot write to standard output: No space left on device\n"),
    ):
        ran = subprocess.run(["bash", "-c", redirected], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert (ran.returncode, ran.stderr) == (status, errors)
