#!/usr/bin/env python3
"""Measures feeds between hosts that are network namespaces against torch.distributed, in turn; prints medians.

    python bench/hosts.py [--hosts 2x2 2x4 4x2] [--link none 2Gb/s] [--engine shm+c10d c10d] [--rounds 15] [--json]
    python bench/hosts.py --predict [--hosts 2x2 ...] [--link 1Gb/s ...]   # compared with `levada plan --hosts`

Rank 0 reads. Each contestant carries --bytes per batch: one batch to all ranks (broadcast), a different batch to each
rank (scatter), or one for each half of the ranks (mesh, dp=2,tp=N/2). bench/README.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import hosts as several  # noqa: E402
from host_jobs import Job, Launcher  # noqa: E402

OPS = ("broadcast", "scatter", "mesh")
TORCH = {"broadcast": ["broadcast", "isend"], "scatter": ["isend"], "mesh": ["isend and broadcast", "isend"]}
STEPS = (1, 8)
"""Numbers of consecutive steps: one step, and a row of steps in which the reader continues while others still
receive."""


class Coordinator:
    """Meeting point of the ranks."""

    def __init__(self, path: pathlib.Path, size: int) -> None:
        self.path = path
        self._size = size
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(size)
        self._server.settimeout(60)
        self._lines: list[IO[str]] = []

    def accept(self) -> None:
        for _ in range(self._size):
            self._lines.append(self._server.accept()[0].makefile("rw"))

    def await_all(self, job: Job) -> list[Any]:
        """Waits for all ranks. Returns what each has sent, by rank."""
        brought: list[Any] = [None] * self._size
        for lines in self._lines:
            line = lines.readline()
            if not line:
                job.kill()
                errors = next((each.errors for each in job.finish() if each.status not in (0, -9)), "a rank ended")
                raise SystemExit(f"bench/hosts.py: {errors}")
            told = json.loads(line)
            brought[told["rank"]] = told["what"]
        return brought

    def release(self) -> None:
        for lines in self._lines:
            lines.write("\n")
            lines.flush()

    def close(self) -> None:
        for lines in self._lines:
            lines.close()
        self._server.close()


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None or not 2 <= int(match[1]) <= 16 or not 1 <= int(match[2]) <= 16:
        raise argparse.ArgumentTypeError(f"{text} is no HOSTSxRANKS such as 2x4, with 2 to 16 hosts of 1 to 16 ranks")
    return int(match[1]), int(match[2])


def _link(text: str) -> float | None:
    match = re.fullmatch(r"none|([0-9.]+)([MG])b/s", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no speed such as 2Gb/s, nor none")
    return None if text == "none" else float(match[1]) * {"M": 1e6, "G": 1e9}[match[2]]


def _data_of(op: str, size: int) -> list[int]:
    """Returns the number of the batch that each rank receives."""
    if op == "broadcast":
        return [0] * size
    return [rank if op == "scatter" else 2 * rank // size for rank in range(size)]


def _mesh_of(op: str, size: int) -> str:
    return {"broadcast": f"tp={size}", "scatter": f"dp={size}", "mesh": f"dp=2,tp={size // 2}"}[op]


def _lacking(op: str, host_of: list[int]) -> int:
    """Returns the number of batches that have to leave the reader's host."""
    data = _data_of(op, len(host_of))
    return len({(host, of) for host, of in zip(host_of, data, strict=True) if host != 0})


def _predicted_ms(op: str, count: int, per_host: int, link: float, size: int) -> float:
    """Returns the duration of a step in a row that `levada plan` predicts."""
    token_bytes = 28  # a token, a label, a position and a loss mask
    cluster = ["--hosts", f"{count}x{per_host}", "--link", f"{link:.0f}b/s"]
    job = ["--mesh", _mesh_of(op, count * per_host), "--batch", "1", "--seq", str(size // token_bytes)]
    plan = [sys.executable, "-m", "levada", "plan", *cluster, *job, "--layout", "data_parallel", "--json"]
    told = json.loads(subprocess.run(plan, check=True, capture_output=True).stdout)
    return 1e3 * next(each["seconds"] for each in told["choices"] if each["readers"] == "one")


class Samples:
    """The measurements of each round, for one contestant and number of steps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.near: list[float] = []
        self.cpu: list[float] = []
        self.sent: list[int] = []


def _measure(
    options: argparse.Namespace, hosts: several.Hosts, launcher: Launcher, per_host: int, folder: pathlib.Path
) -> list[dict[str, Any]]:
    size = len(hosts) * per_host
    host_of = [rank // per_host for rank in range(size)]
    path = folder / "meet"
    path.unlink(missing_ok=True)
    coordinator = Coordinator(path, size)
    ask = {
        "socket": str(path),
        "bytes": options.bytes // 8 * 8,
        "engines": options.engine,
        "ops": options.op,
        "meshes": {op: _mesh_of(op, size) for op in OPS},
        "data": {op: _data_of(op, size) for op in OPS},
        "host_of": host_of,
        "torch": dict.fromkeys(OPS, []) if options.predict else TORCH,
        "steps": STEPS,
        "rounds": options.rounds,
        "warm_up": max(2, options.rounds // 5),
    }
    script = (ROOT / "bench/hosts_rank.py").read_text()
    job = launcher.start(per_host, script, environment={"LEVADA_BENCH_ASK": json.dumps(ask)})
    try:
        coordinator.accept()
        rows = []
        for op in options.op:
            rows += _measure_op(op, ask, hosts, coordinator, job)
        ended = job.finish()
        if any(each.status for each in ended):
            raise SystemExit("bench/hosts.py: " + "\n".join(each.errors for each in ended if each.status))
        return rows
    finally:
        coordinator.close()
        job.kill()


def _measure_op(
    op: str, ask: dict[str, Any], hosts: several.Hosts, coordinator: Coordinator, job: Job
) -> list[dict[str, Any]]:
    names = [f"levada {engine}" for engine in ask["engines"]]
    names += ["levada shm, host 0 alone"] if op == "broadcast" else []
    names += [f"torch {call}" for call in ask["torch"][op]]
    samples = {(name, steps): Samples() for name in names for steps in STEPS}
    for number in range(ask["warm_up"] + ask["rounds"]):
        for turn in range(len(names)):
            for steps in STEPS:
                coordinator.await_all(job)
                before = hosts[0].traffic().sent
                coordinator.release()
                stamps = coordinator.await_all(job)
                sent = hosts[0].traffic().sent - before
                coordinator.release()
                if number < ask["warm_up"]:
                    continue
                own = samples[names[(number + turn) % len(names)], steps]
                begin = stamps[0][0]
                own.seconds.append(max(end for _, end, _ in stamps) - begin)
                own.near.append(max(end for (_, end, _), host in zip(stamps, ask["host_of"]) if host == 0) - begin)
                own.cpu.append(stamps[0][2])
                own.sent.append(sent)
    needed = _lacking(op, ask["host_of"]) * ask["bytes"]
    rows = []
    for name in names:
        alone, in_row = samples[name, STEPS[0]], samples[name, STEPS[1]]
        row = {
            "op": op,
            "contestant": name,
            "step_ms": 1e3 * statistics.median(alone.seconds),
            "near_ms": 1e3 * statistics.median(alone.near),
            "row_ms": 1e3 * statistics.median(in_row.seconds) / STEPS[1],
            "cpu_ms": 1e3 * statistics.median(in_row.cpu) / STEPS[1],
        }
        if "alone" not in name:
            row["crossings"] = statistics.median(in_row.sent) / STEPS[1] / needed
            row["needed_bytes"] = needed
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = ["hosts", "link", "op", "contestant", "step_ms", "near_ms", "row_ms", "cpu_ms", "crossings", "of_link"]
    columns += ["predicted_ms", "over_predicted"] if any("predicted_ms" in row for row in rows) else []
    lines = [columns, *([_shown(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip()


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _time_joins(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures how long the ranks take to join, job after job."""
    script = """
import json, os, time
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
dist.barrier()
begin = time.monotonic()
job = levada.join(engine=os.environ["LEVADA_BENCH_ENGINE"])
tell(begin=begin, end=time.monotonic(), engine=job.engine)
"""
    rows = []
    count, per_host = options.join
    with several.Hosts(count) as hosts, Launcher(hosts) as launcher:
        for engine in options.engine:
            seconds = []
            for _ in range(options.joins):
                told = [
                    each.told[0]
                    for each in launcher.start(per_host, script, environment={"LEVADA_BENCH_ENGINE": engine}).finish()
                ]
                seconds.append(max(each["end"] for each in told) - min(each["begin"] for each in told))
            rows.append({"op": "join", "hosts": f"{count}x{per_host}", "contestant": f"levada {engine}",
                         "join_s": statistics.median(seconds), "longest_s": max(seconds)})
    return rows


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=_shape, nargs="+", default=[(2, 2), (2, 4), (4, 2)], metavar="HxR")
    parser.add_argument("--link", type=_link, nargs="+", default=[None, 2e9], metavar="SPEED", help="none, or 2Gb/s")
    parser.add_argument("--engine", nargs="+", default=["shm+c10d", "c10d"], help="of levada.join() (shm+c10d c10d)")
    parser.add_argument("--op", nargs="*", choices=OPS, default=OPS)
    parser.add_argument("--bytes", type=int, default=13_107_200, help="of a batch (13107200)")
    parser.add_argument("--rounds", type=int, default=15, help="that count (15)")
    parser.add_argument("--join", type=_shape, default=(4, 4), metavar="HxR", help="whose joining is timed (4x4)")
    parser.add_argument("--joins", type=int, default=5, help="how often (5); 0: not at all")
    parser.add_argument("--predict", action="store_true", help="measure shm+c10d beside `levada plan`")
    parser.add_argument("--json", action="store_true", help="print a JSON list of rows")
    options = parser.parse_args(arguments)
    if options.predict:
        options.engine = ["shm+c10d"]
        if None in options.link:
            parser.error("--predict needs links with a speed, as in --link 1Gb/s")
    return options


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    rows: list[dict[str, Any]] = []
    try:
        for count, per_host in options.hosts if options.op else ():
            with several.Hosts(count) as hosts, Launcher(hosts) as launcher:
                with tempfile.TemporaryDirectory(prefix="levada-bench-") as folder:
                    for link in options.link:
                        for host in hosts:
                            host.limit(link)
                        speed = "none" if link is None else f"{link / 1e9:g} Gb/s"
                        about = {"hosts": f"{count}x{per_host}", "link": speed}
                        measured = _measure(options, hosts, launcher, per_host, pathlib.Path(folder))
                        for row in measured:
                            if link is not None and "needed_bytes" in row:
                                row["of_link"] = row["needed_bytes"] * 8 / link / (row["row_ms"] / 1e3)
                                if options.predict:
                                    row["predicted_ms"] = _predicted_ms(row["op"], count, per_host, link, options.bytes)
                                    row["over_predicted"] = row["row_ms"] / row["predicted_ms"]
                        rows += [{**about, **row} for row in measured]
                        for line in () if options.json else _table(rows[-len(measured) :]):
                            print(line, flush=True)
        if options.joins:
            rows += _time_joins(options)
    except several.Unavailable as why:
        sys.exit(f"bench/hosts.py: no hosts can be made of namespaces: {why}")
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        if row["op"] == "join":
            seconds = f"{row['join_s']:.2f} s, {row['longest_s']:.2f} s at most"
            print(f"{row['contestant']}: {row['hosts']} ranks join in {seconds}")


if __name__ == "__main__":
    main(sys.argv[1:])
