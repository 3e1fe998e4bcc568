"""Runs the checks of a GPU, each in separate processes, and writes their results; see script/gpu.

    run.py [--out FILE] [CHECK...]

Prints one line of JSON for each check. A check that fails, hangs or crashes does not stop the remaining ones.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).parent
IS_STUB = os.environ.get("LEVADA_GPU") == "stub"
Told = dict[str, Any]


def run(command: list[str], seconds: float) -> tuple[list[Told], str]:
    """Returns the results that the ranks of a command printed, and the error, if any."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        error = "" if process.returncode == 0 else f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        error = f"not done after {seconds:.0f} s"
    lines = output.splitlines()
    told = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
    rest = [line for line in lines if not line.startswith("RESULT ")]
    return told, f"{error}: {' | '.join(rest[-6:])}" if error else ""


def program(name: str, *arguments: str, ranks: int = 1, seconds: float = 60, before: tuple[str, ...] = ()) -> tuple[list[Told], str]:
    script = [str(HERE / name), *arguments]
    start = [sys.executable, *script] if ranks == 1 else [sys.executable, "-m", "levada", "run", "-n", str(ranks), *script]
    return run([*before, *start], seconds)


def single(name: str, *arguments: str, seconds: float = 60) -> Told:
    return first(program(name, *arguments, seconds=seconds))


def first(ran: tuple[list[Told], str]) -> Told:
    """Returns the first rank's result."""
    told, error = ran
    return {"pass": False, "error": error or "it told nothing"} if error or not told else told[0]


def stamped(runs: dict[str, list[str]], *, ranks: int = 4, seconds: float, before: tuple[str, ...] = ()) -> Told:
    """Runs stamps.py with each list of arguments. Passes if every rank found every byte correct."""
    figures: Told = {}
    for name, arguments in runs.items():
        began = time.monotonic()
        told, error = program("stamps.py", *arguments, ranks=ranks, seconds=seconds, before=before)
        figures[name] = {
            "pass": not error and len(told) == ranks and all(each["pass"] for each in told),
            "wrong_bytes": sum(each["wrong_bytes"] for each in told),
            "megabytes_checked": sum(each["megabytes_checked"] for each in told),
            "seconds": round(time.monotonic() - began, 1),
            **({"error": error} if error else {}),
        }
    return {"pass": all(each["pass"] for each in figures.values()), **figures}


def floor() -> Told:
    told = single("copies.py", "floor")
    # Eight concurrent processes share the link.
    script = [str(HERE / "copies.py"), "floor"]
    if "error" in told or IS_STUB:
        return told
    many, error = run([sys.executable, "-m", "levada", "run", "-n", "8", *script], 90)
    largest = "64 MiB"
    told["eight_at_once_64_MiB"] = error or {
        way: max(each[largest][way]["done_ms"] for each in many) for way in ("pinned", "pageable")
    }
    return told


def every_byte() -> Told:
    steps, largest = ("40", str(64 << 10)) if IS_STUB else ("1000", str(64 << 20))
    size = ["--steps", steps, "--largest", largest]
    return stamped({"device": size, "prefetch": [*size, "--prefetch"]}, seconds=100)


def rough_use() -> Told:
    steps, largest = ("40", str(64 << 10)) if IS_STUB else ("300", str(16 << 20))
    size = ["--steps", steps, "--largest", largest]
    return stamped(
        {
            "overwritten, left": [*size, "--overwrite", "--leave"],
            "overwritten, left, prefetch": [*size, "--overwrite", "--leave", "--prefetch"],
            "buffers": [*size, "--prefetch", "--buffers", "3"],
        },
        seconds=60,
    )


def memcheck() -> Told:
    sanitizer = shutil.which("compute-sanitizer")
    size = ["--steps", "50", "--largest", str(64 << 10)]
    if IS_STUB or sanitizer is None:
        return {"pass": None, "skipped": "needs compute-sanitizer and a GPU"}
    before = (sanitizer, "--tool", "memcheck", "--error-exitcode", "9")
    # The sanitizer takes minutes for torch's kernels; Levada only makes the driver copy.
    size.append("--without-kernels")
    return stamped({"device": size, "prefetch": [*size, "--prefetch"]}, ranks=1, seconds=40, before=before)


def training() -> Told:
    with tempfile.TemporaryDirectory() as folder:
        corpus = str(pathlib.Path(folder) / "corpus.jsonl")
        subprocess.run([sys.executable, str(HERE.parents[1] / "script" / "make-corpus"), corpus], check=True)
        figures: Told = {}
        losses = []
        for readers in ("all", "one"):
            told, error = program("train.py", corpus, "--readers", readers, ranks=4, seconds=100)
            if error or len(told) != 4:
                return {"pass": False, "error": error or "ranks told nothing", **figures}
            losses += [each.pop("losses") for each in told]
            figures[readers] = {
                "step_ms": max(each["step_ms"] for each in told),
                "computing_share": [each["computing_share"] for each in told],
                "waited_share": max(each["waited_share"] for each in told),
                "cpu_seconds": round(sum(each["cpu_seconds"] for each in told), 1),
                "megabytes_read": round(sum(each["megabytes_read"] for each in told), 1),
            }
    return {"pass": all(each == losses[0] for each in losses), "steps": len(losses[0]), "last_loss": losses[0][-1], **figures}


CHECKS: dict[str, Callable[[], Told]] = {
    "floor": floor,
    "stamps": every_byte,
    "rough": rough_use,
    "overlap": lambda: single("overlap.py", seconds=80),
    "next": lambda: first(program("copies.py", "next", ranks=4, seconds=80)),
    "graphs": lambda: single("graphs.py"),
    "reductions": lambda: single("reductions.py", seconds=100),
    "death": lambda: single("death.py", seconds=200),
    "memcheck": memcheck,
    "training": training,
}


def machine() -> Told:
    import levada
    import torch

    return {
        "device": "stand-in" if IS_STUB else torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "nccl": None if IS_STUB else ".".join(map(str, torch.cuda.nccl.version())),
        "python": platform.python_version(),
        "levada": levada.__version__,
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}; all if none is named")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file for all results")
    options = parser.parse_args()
    unknown = [name for name in options.checks if name not in CHECKS]
    if unknown:
        parser.error(f"there is no check {unknown[0]}; there are: {', '.join(CHECKS)}")
    results: Told = {}
    if options.out is not None and options.checks and options.out.exists():
        results = json.loads(options.out.read_text())  # keeps the results of other checks
    results["machine"] = machine()
    print(json.dumps(results["machine"]), flush=True)
    for name in options.checks or CHECKS:
        began = time.monotonic()
        try:
            told = CHECKS[name]()
        except Exception as error:  # a broken check must not stop the others
            told = {"pass": False, "error": f"{type(error).__name__}: {error}"}
        results[name] = {**told, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps({"check": name, **results[name]}), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    failed = [name for name, told in results.items() if told.get("pass") is False]
    print(f"{len(results) - 1 - len(failed)} passed, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
