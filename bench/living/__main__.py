"""`python bench/living`: compares Levada with the loaders that people use today.

Each arm is a package as its documentation uses it, on 4 ranks of this machine. Arms take turns, and figures are medians of
the rounds. An arm without its packages says so. bench/living/requirements.txt has the versions."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import IO, Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from arms import ARMS, BATCH, arm_of, place_of  # noqa: E402
from record import RESULTS, record, text_of  # noqa: E402
from work import WORKLOADS, Workload, smoke  # noqa: E402

HERE = pathlib.Path(__file__).parent
MESHES = ("tp=4", "dp=4", "dp=2,tp=2")
MEASURES = {"seconds": "s", "first": "s", "cpu": "s", "read": "MB", "memory": "MB", "made": "items"}
Result = dict[str, Any]


class Job:
    """The process of one arm."""

    def __init__(self, name: str, logs: pathlib.Path) -> None:
        self.name = name
        self.log = (logs / f"{name}.log").open("w")
        command = [sys.executable, str(HERE / "job.py"), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.broken = self.answer().get("says", "")

    def answer(self) -> Result:
        stdout: IO[str] = self.process.stdout  # type: ignore[assignment]
        line = stdout.readline()
        answer: Result = json.loads(line) if line else {"says": "Its process died."}
        return answer

    def run(self, **cell: Any) -> Result:
        if self.broken:
            return {"says": self.broken}
        stdin: IO[str] = self.process.stdin  # type: ignore[assignment]
        stdin.write(json.dumps(cell) + "\n")
        stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.communicate()
        self.log.close()


class Trial:
    """Runs cells in one temporary folder."""

    def __init__(self, folder: pathlib.Path, names: list[str], small: bool) -> None:
        self.folder, self.small, self.count = folder, small, 0
        self.jobs = {name: Job(name, folder) for name in names}

    def cell(self, name: str, key: str, mesh: str, **more: Any) -> Result:
        work = smoke(WORKLOADS[key]) if self.small else WORKLOADS[key]
        data = "c" if key == "e" else key
        source = self.folder / data
        source.mkdir(exist_ok=True)
        self.count += 1
        out = str(self.folder / f"cells/{self.count}")
        kind = arm_of(name, work)
        assert kind is not None
        return self.jobs[name].run(work=work, source=str(source), folder=str(source / kind.storage), mesh=mesh, out=out, **more) | {"out": out}

    def measure(self, name: str, key: str, mesh: str) -> Result:
        if key != "e":
            return self.cell(name, key, mesh)
        steps = 2 if self.small else 12
        before = self.cell(name, key, "dp=4", steps=steps, save=True)
        if "used" not in before:
            return before
        work = smoke(WORKLOADS[key]) if self.small else WORKLOADS[key]
        rest = (work.records - len(before["used"])) // BATCH // place_of(0, mesh).data_size
        after = self.cell(name, key, mesh, steps=rest, resume=before["out"], used=before["used"])
        if after.get("used") == []:
            after["says"] = f"It yields nothing. {after.get('says', '')}".strip()
        return after


def median(results: list[Result]) -> Result:
    """Returns the medians of what has been measured, or what happened instead."""
    found: Result = {}
    for key in MEASURES:
        values = [each[key] for each in results if key in each]
        if values:
            found[key] = statistics.median(values)
    says = next((each["says"] for each in results if each.get("says")), "")
    return found | ({"says": says} if says else {})


def shown(results: dict[tuple[str, str], dict[str, Result]]) -> str:
    lines = []
    for (key, mesh), of in results.items():
        lines.append(f"\n{WORKLOADS[key].name}, {mesh}")
        for name, result in of.items():
            figures = "".join(f"  {measure} {result[measure]:9.2f}" for measure in MEASURES if measure in result)
            lines.append(f"  {ARMS[name].title:20}{figures}  {result.get('says', '')}")
    return "\n".join(lines)


def record_all(results: dict[tuple[str, str], dict[str, Result]], rounds: int) -> None:
    """Enters the figures. A cell's value is the time of its pass, of e and f that of the first batch."""
    figures: dict[str, Result] = {}
    for (key, mesh), of in results.items():
        timed = "first" if key in "ef" else "seconds"
        entries = {}
        for name, result in of.items():
            entry = {measure: result[measure] for measure in MEASURES if measure in result and measure not in ("seconds", timed)}
            if timed in result:
                entry = {"value": result[timed]} | entry
            entries[ARMS[name].title] = entry | ({"says": result["says"]} if "says" in result else {})
        ours = entries.pop("Levada", {})
        for entry in entries.values():
            if "value" in entry and "value" in ours:
                entry["times"] = entry["value"] / ours["value"]
        figures[f"{key}-{mesh.replace('=', '')}"] = ours | {"peers": entries}
    file = RESULTS / "living.json"
    known = json.loads(file.read_text())
    for name in figures:
        key, _, short = name.partition("-")
        mesh = next(mesh for mesh in MESHES if mesh.replace("=", "") == short)
        fields = {"name": f"{WORKLOADS[key].name}, {mesh}", "unit": "s", "command": f"bench/living --workload {key} --rounds {rounds}"}
        known["results"].setdefault(name, {}).update(fields)
    file.write_text(text_of(known))
    record("living", figures)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python bench/living", description=(__doc__ or "").partition(": ")[2].splitlines()[0])
    names = ", ".join(f"{key} ({work.name})" for key, work in WORKLOADS.items())
    parser.add_argument("--workload", type=lambda text: text.split(","), default=[*WORKLOADS], help=f"some of {names}")
    parser.add_argument("--arm", type=lambda text: text.split(","), default=[*ARMS], help=f"some of {', '.join(ARMS)}")
    parser.add_argument("--mesh", choices=MESHES, action="append", help="all if none is named; e stops on dp=4 and resumes on this one, f runs on dp=4")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (3)")
    parser.add_argument("--smoke", action="store_true", help="128 samples, one round")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="enter the figures into bench/results/living.json")
    options = parser.parse_args(arguments)
    for given, known in ((options.workload, WORKLOADS), (options.arm, ARMS)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    options.rounds = 1 if options.smoke else options.rounds
    measured: dict[tuple[str, str], dict[str, list[Result]]] = {}
    results: dict[tuple[str, str], dict[str, Result]] = {}
    with tempfile.TemporaryDirectory(prefix="levada-living-") as name:
        trial = Trial(pathlib.Path(name), options.arm, options.smoke)
        for done in range(1, options.rounds + 1):
            for key in options.workload:
                arms = [arm for arm in options.arm if arm_of(arm, WORKLOADS[key]) is not None]
                meshes = {"e": ("dp=4", "dp=2,tp=2"), "f": ("dp=4",)}.get(key, MESHES)
                for mesh in (mesh for mesh in meshes if arms and mesh in (options.mesh or MESHES)):
                    for arm in arms:
                        result = trial.measure(arm, key, mesh)
                        measured.setdefault((key, mesh), {}).setdefault(arm, []).append(result)
                        print(key, mesh, arm, {each: result.get(each) for each in (*MEASURES, "says")}, file=sys.stderr, flush=True)
                    results[key, mesh] = {arm: median(each) for arm, each in measured[key, mesh].items()}
                    if options.record:
                        record_all({(key, mesh): results[key, mesh]}, done)
        for job in trial.jobs.values():
            job.close()
    rows = [{"workload": key, "mesh": mesh, "arm": arm, **each} for (key, mesh), of in results.items() for arm, each in of.items()]
    print(json.dumps(rows, indent=1) if options.json else shown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
