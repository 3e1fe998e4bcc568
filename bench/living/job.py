"""The process of one arm. It imports the arm's packages once and forks the ranks of each cell, which it measures.

It reads cells as lines of JSON and answers each with one. A cell names the workload, its folders and the mesh."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pickle
import resource
import signal
import socket
import sys
import termios
import time
import traceback
from collections import Counter
from typing import Any, NamedTuple

from arms import ARMS, RANKS, Arm, Place, arm_of, place_of
from PIL import Image
from work import Decoder, Workload, bytes_read

DIED = "A rank died."
LIMIT = 180.0
"""Seconds after which a cell's processes are killed."""
PR_SET_CHILD_SUBREAPER = 36


def touch(value: Any) -> None:
    """Reads a number of each KiB, as a step would."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            touch(each)
    elif hasattr(value, "reshape"):
        value.reshape(-1)[:: max(1, 1024 // value.itemsize)].sum()


class Meeting(NamedTuple):
    """Pipes on which ranks wait for each other: each writes a byte when it is ready, and reads one when all are."""

    ready: tuple[int, int]
    go: tuple[int, int]

    def wait(self) -> None:
        os.write(self.ready[1], b".")
        os.read(self.go[0], 1)

    def poll(self) -> None:
        """Releases the ranks if all are ready, in the process that watches them."""
        waiting = ctypes.c_int()
        fcntl.ioctl(self.ready[0], termios.FIONREAD, waiting)
        if waiting.value >= RANKS:
            os.read(self.ready[0], RANKS)
            os.write(self.go[1], b"." * RANKS)


def consume(
    arm: Arm, work: Workload, cell: dict[str, Any], place: Place, meeting: Meeting, out: pathlib.Path, states: list[Any]
) -> dict[str, Any]:
    """Runs over the batches, and waits for the other ranks before the first and after it."""
    decode = Decoder(work, pathlib.Path(cell["source"]), out / "made")
    before = bytes_read()
    meeting.wait()
    begun = time.monotonic()
    loader = arm.open(work, pathlib.Path(cell["folder"]), decode, place)
    batches: Any = loader
    if states:
        batches = arm.resume(loader, states, place)
    first, ids, step, read = 0.0, [], 0, 0
    batches = iter(batches)
    for step, batch in enumerate(batches, 1):
        if step == 1:
            first = time.monotonic() - begun
            meeting.wait()
        valid = getattr(loader, "valid_rows", None)
        ids += arm.ids(work, batch)[:valid] if work.kind != "text" else arm.ids(work, batch)
        touch(batch)
        read = bytes_read() - before  # not later, since the number then has that of workers that have ended
        if step == cell.get("steps"):
            break
    if step == 0:
        meeting.wait()
    ended = time.monotonic()
    if cell.get("save"):
        state = arm.state(loader, batches, step)
        if place.rank % place.tp == 0:
            (out / f"state-{place.data_rank}").write_bytes(pickle.dumps(state))
    del batches
    arm.close(loader)
    return {"begun": begun, "ended": ended, "first": first, "ids": ids, "read": read}


def run_rank(
    arm: Arm, work: Workload, cell: dict[str, Any], place: Place, meeting: Meeting, out: pathlib.Path, states: list[Any], port: int
) -> None:
    """Runs one rank. Does not return."""
    status = 0
    ranks = {"RANK": place.rank, "LOCAL_RANK": place.rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    log = os.open(out / f"log-{place.rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        result = consume(arm, work, cell, place, meeting, out, states)
    except BaseException as why:
        traceback.print_exc()
        result, status = {"error": f"{type(why).__name__}: {why}"}, 1
    (out / f"rank-{place.rank}").write_text(json.dumps(result))
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        import atexit
        import multiprocessing.util

        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    os._exit(status)


def descendants(pid: int) -> list[int]:
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def pss(pid: int) -> int:
    """Returns the bytes of a process's memory, shared pages divided by the number of their users."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class Watch:
    """Polls the memory of a job's processes."""

    def __init__(self) -> None:
        self.first = self.peak = 0
        self.looked = 0.0

    def poll(self) -> None:
        if time.monotonic() - self.looked > 0.3:
            total = sum(map(pss, descendants(os.getpid())))
            self.first = self.first or total
            self.peak = max(self.peak, total)
            self.looked = time.monotonic()


def wait_for(ranks: list[int], watch: Watch, meeting: Meeting) -> bool:
    """Waits for the ranks and for all that they have left behind. Returns whether they ended in time."""
    end = limit = time.monotonic() + LIMIT
    in_time = True
    while True:
        watch.poll()
        meeting.poll()
        try:
            while (waited := os.waitpid(-1, os.WNOHANG))[0] > 0:
                ended, status = waited
                if ended in ranks:
                    ranks.remove(ended)
                    if not ranks or status:
                        end = min(end, time.monotonic() + 5)
        except ChildProcessError:
            return in_time
        if time.monotonic() > end:
            in_time = in_time and time.monotonic() < limit
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 5
        time.sleep(0.02)


def fault_of(work: Workload, ids: dict[int, list[int]], other: list[int], tp: int, stopped: bool) -> str:
    """Returns in a sentence how the samples differ from each one once, or nothing."""
    for rank, of_rank in ids.items():
        if of_rank != ids[rank - rank % tp]:
            return f"Ranks {rank - rank % tp} and {rank} of a tp group got different samples."
    used = Counter(other)
    for rank in range(0, RANKS, tp):
        used.update(ids[rank])
    repeated = sum(count > 1 for count in used.values())
    missing = 0 if stopped else work.records - len(used)
    parts = [f"{count} {text}" for count, text in ((repeated, "came more than once"), (missing, "never came")) if count]
    return f"Of {work.records:,} samples {' and '.join(parts)}." if parts else ""


def run_cell(arm: Arm, work: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    out = pathlib.Path(cell["out"])
    out.mkdir(parents=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    meeting = Meeting(os.pipe(), os.pipe())
    places = [place_of(rank, cell["mesh"]) for rank in range(RANKS)]
    states = [pickle.loads(file.read_bytes()) for file in sorted(pathlib.Path(cell["resume"]).glob("state-*"))] if "resume" in cell else []
    if states and len(states) != places[0].data_size:
        states = arm.adapt(states, places[0].data_size)
    before, watch = resource.getrusage(resource.RUSAGE_CHILDREN), Watch()
    pids = []
    for place in places:
        pid = os.fork()
        if not pid:
            run_rank(arm, work, cell, place, meeting, out, states, port)
        pids.append(pid)
    watch.poll()
    in_time = wait_for(list(pids), watch, meeting)
    for end in (*meeting.ready, *meeting.go):
        os.close(end)
    if not in_time:
        return {"says": f"It did not end within {LIMIT:.0f} s."}
    files = [out / f"rank-{rank}" for rank in range(RANKS)]
    answers: list[dict[str, Any]] = [json.loads(file.read_text()) if file.exists() else {"error": DIED} for file in files]
    errors = sorted((answer["error"] for answer in answers if "error" in answer), key=DIED.__eq__)
    if errors:
        return {"says": errors[0].strip().splitlines()[0].replace(str(out.parents[1]), "FOLDER")}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    read = {pid: answer["read"] for pid, answer in zip(pids, answers)}
    made = (out / "made").read_text().splitlines() if (out / "made").exists() else []
    for line in made:
        pid, count = map(int, line.split())
        if pid not in pids:
            read[pid] = count
    ids = {rank: answer["ids"] for rank, answer in enumerate(answers)}
    tp = places[0].tp
    used = [each for rank in range(0, RANKS, tp) for each in ids[rank]]
    result = {
        "seconds": max(answer["ended"] for answer in answers) - min(answer["begun"] for answer in answers),
        "first": max(answer["first"] for answer in answers),
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "read": sum(read.values()) / 1e6,
        "memory": (watch.peak - watch.first) / 1e6,
        "used": used,
    }
    if made and not cell.get("save"):
        result["made"] = len(made) / len(set(used))
    fault = fault_of(work, ids, cell.get("used", []), tp, "save" in cell)
    return result | ({"says": fault} if fault else {})


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    name = sys.argv[1]
    made: dict[type[Arm], Arm] = {}
    Image.preinit()
    try:
        made[ARMS[name]] = ARMS[name]()
    except Exception as why:
        print(json.dumps({"says": f"It cannot be imported: {type(why).__name__}: {why}"}), file=answers)
        return
    print(json.dumps({}), file=answers)
    for line in sys.stdin:
        cell = json.loads(line)
        work = Workload(*cell["work"])
        kind = arm_of(name, work)
        assert kind is not None
        if kind not in made:
            made[kind] = kind()
        arm = made[kind]
        folder = pathlib.Path(cell["folder"])
        try:
            if not folder.exists():
                folder.mkdir(parents=True)
                arm.prepare(work, pathlib.Path(cell["source"]), folder)
            result = run_cell(arm, work, cell)
        except Exception as why:
            traceback.print_exc()
            result = {"says": f"Its data cannot be written: {type(why).__name__}: {why}"}
        print(json.dumps(result), file=answers)


if __name__ == "__main__":
    main()
