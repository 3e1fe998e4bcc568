"""`python bench/dlio`: runs DLIO, the engine of MLPerf Storage, with its own torch loader and with Levada.

DLIO's steps are sleeps, on 8 ranks that MPI starts. With tp=8 all ranks need the same samples, with dp=8 each its own. Loaders
take turns, and figures are medians of the rounds. bench/dlio/requirements.txt has the versions."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from record import RESULTS, ROOT, record, text_of  # noqa: E402

HERE = pathlib.Path(__file__).parent
LIMIT = 120.0
"""Seconds after which a run is ended."""
BATCH = 7
TITLES = {"levada": "Levada", "torch": "DLIO's torch loader", "none": "no loader"}
CLASSES = {
    ("levada", "tp"): "LevadaTensorParallel",
    ("levada", "dp"): "LevadaDataParallel",
    ("torch", "tp"): "TorchTensorParallel",
    ("torch", "dp"): "TorchDataParallel",
    ("none", "any"): "NoLoader",
}
MEASURES = {"au": "%", "rate": "samples/s", "cpu": "s", "read": "MB", "seconds": "s"}
PARTS = {"au": "Accelerator utilization", "rate": "Samples of all ranks", "cpu": "Processor time"}
"""The measures that are records of their own."""
Result = dict[str, Any]


class Scale(NamedTuple):
    ranks: int
    steps: int
    step_ms: tuple[int, ...]


FULL, SMALL = Scale(8, 20, (40, 200)), Scale(2, 6, (40,))


class Cell(NamedTuple):
    """A run: the axis of the mesh, the time of a step, and the loader."""

    axis: str
    step_ms: int
    loader: str

    @property
    def key(self) -> str:
        return f"{self.axis}8-{self.step_ms}ms"

    @property
    def without(self) -> Cell:
        return Cell("any", self.step_ms, "none")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends mpirun, which ends its ranks, unless it has ended."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_dlio(folder: pathlib.Path, out: pathlib.Path, scale: Scale, ranks: int, *overrides: str) -> None:
    """Runs DLIO on ranks of MPI. Raises RuntimeError with the end of its log if it fails or runs for longer than LIMIT."""
    out.mkdir(parents=True)
    settings = {
        "hydra.run.dir": out,
        "hydra.output_subdir": "null",
        "++workload.output.folder": out,
        "++workload.dataset.data_folder": folder / "data",
        "++workload.checkpoint.checkpoint_folder": out / "checkpoints",
        "++workload.reader.batch_size": BATCH,
        "++workload.dataset.num_files_train": scale.ranks * scale.steps * BATCH,
    }
    mpirun = shutil.which("mpirun.openmpi") or "mpirun"
    command = [str(ROOT / "script/mpirun"), mpirun, "-n", str(ranks), sys.executable, str(HERE / "rank.py")]
    command += [f"--config-dir={HERE / 'configs'}", "workload=small_unet3d", *(f"{name}={value}" for name, value in settings.items()), *overrides]
    # Ranks that wait in a barrier of Open MPI poll. On few cores they must yield to the workers.
    environment = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "DFTRACER_ENABLE": "0", "HYDRA_FULL_ERROR": "1"}
    with (out / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT)
        finally:
            end(process)
    if process.returncode:
        raise RuntimeError(f"DLIO ended with status {process.returncode}. The end of its log:\n{(out / 'log').read_text()[-2000:]}")


def generate(folder: pathlib.Path, scale: Scale) -> None:
    run_dlio(folder, folder / "generated", scale, 2, "++workload.workflow.generate_data=True", "++workload.workflow.train=False")


def measure(folder: pathlib.Path, out: pathlib.Path, scale: Scale, cell: Cell) -> Result:
    name = CLASSES[cell.loader, cell.axis]
    loader = f"++workload.reader.data_loader_classname=loaders.{name}"
    run_dlio(folder, out, scale, scale.ranks, loader, f"++workload.train.computation_time={cell.step_ms / 1000}")
    metric = json.loads((out / "summary.json").read_text())["metric"]
    used = [json.loads((out / f"used-{rank}.json").read_text()) for rank in range(scale.ranks)]
    return {
        "au": metric["train_au_mean_percentage"],
        "rate": metric["train_throughput_mean_samples_per_second"],
        "cpu": sum(each["cpu"] for each in used),
        "read": sum(each["read"] for each in used) / 1e6,
        "seconds": max(each["seconds"] for each in used),
    }


def median(results: list[Result]) -> Result:
    return {measure: statistics.median(each[measure] for each in results) for measure in MEASURES}


def shown(results: dict[Cell, list[Result]], ranks: int) -> str:
    head = f"{'mesh, step':14}{'loader':22}" + "".join(f"{f'{measure}, {unit}':>17}" for measure, unit in MEASURES.items())
    lines = [head]
    for cell, each in results.items():
        figures = median(each)
        mesh = f"{cell.axis}={ranks}, " if cell != cell.without else ""
        lines.append(f"{f'{mesh}{cell.step_ms} ms':14}{TITLES[cell.loader]:22}" + "".join(f"{figures[measure]:17.2f}" for measure in MEASURES))
    return "\n".join(lines)


def records_of(results: dict[Cell, list[Result]], cell: Cell) -> dict[str, Result]:
    """Returns a record of each part for a mesh and step, from Levada's cell."""
    ours, theirs, without = results[cell], results[cell._replace(loader="torch")], results[cell.without]
    peer, found = TITLES["torch"], {}
    for part in PARTS:
        sides = []
        for each in (ours, theirs):
            values = [result[part] for result in each]
            sides.append({"value": statistics.median(values), "range": [min(values), max(values)]})
            if part == "cpu":
                sides[-1]["read"] = median(each)["read"]
        figures = sides[0] | {"peers": {peer: sides[1]}, "limit": {"value": median(without)[part]}}
        found[cell.key if part == "au" else f"{cell.key}-{part}"] = figures
    return found


def record_all(results: dict[Cell, list[Result]], rounds: int) -> None:
    file = RESULTS / "dlio.json"
    known = json.loads(file.read_text())
    figures: dict[str, Result] = {}
    for cell in (cell for cell in results if cell.loader == "levada"):
        of = records_of(results, cell)
        for key, part in zip(of, PARTS, strict=True):
            name = f"{PARTS[part]}, {cell.axis}=8, steps of {cell.step_ms} ms"
            fields = {"name": name, "unit": MEASURES[part], "command": f"bench/dlio --rounds {rounds}", "limit": {"name": TITLES["none"]}}
            known["results"].setdefault(key, {}).update(fields)
        figures |= of
    file.write_text(text_of(known))
    record("dlio", figures)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python bench/dlio", description=(__doc__ or "").partition(": ")[2].splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (3)")
    parser.add_argument("--smoke", action="store_true", help="2 ranks, 6 steps, one round")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/dlio.json")
    options = parser.parse_args(arguments)
    if options.smoke and options.record:
        parser.error("--smoke measures too little to --record")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends mpirun and removes the data
    scale, rounds = (SMALL, 1) if options.smoke else (FULL, options.rounds)
    cells = [Cell(axis, step_ms, loader) for step_ms in scale.step_ms for loader, axis in CLASSES]
    results: dict[Cell, list[Result]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory(prefix="levada-dlio-") as name:
        folder = pathlib.Path(name)
        try:
            generate(folder, scale)
            for done in range(1, rounds + 1):
                for number, cell in enumerate(cells):
                    result = measure(folder, folder / f"{done}-{number}", scale, cell)
                    results[cell].append(result)
                    print(*cell, {measure: round(result[measure], 2) for measure in MEASURES}, file=sys.stderr, flush=True)
                if options.record:
                    record_all(results, done)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    rows = [{"mesh": cell.axis, "step_ms": cell.step_ms, "loader": cell.loader, **median(each)} for cell, each in results.items()]
    print(json.dumps(rows, indent=1) if options.json else shown(results, scale.ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
