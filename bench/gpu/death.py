"""One of four ranks raises or is killed while the others are in a collective or in copies. Measures how soon the cause
is printed, and how soon the other ranks end.

    death.py            starts the ranks, for each way to end
    death.py rank WAY   is one of them
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import device
import levada
import torch

RANKS, LAST_STEP, SIZE = 4, 5, (1 if device.IS_STUB else 64) << 20
ENDS = 60.0  # seconds after which the remaining ranks are killed


def batches() -> Iterator[dict[str, torch.Tensor]]:
    for step in range(1000):
        yield {"x": torch.full((SIZE,), step % 251, dtype=torch.uint8)}


def rank(way: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    number = dist.get_rank()
    feed = levada.Feed(
        batches(), mesh=levada.Mesh(tp=RANKS), device="cuda", prefetch_to_device=True, on_peer_lost="abort", timeout=40
    )
    for step, batch in enumerate(feed):
        device.launch(lambda tensor: tensor[:1] + 1, batch["x"])
        if number == 2 and step == LAST_STEP:
            if way == "collective":
                time.sleep(1)  # by now the others wait in the collective
            print(f"ENDS {time.time()}", file=sys.stderr, flush=True)
            if way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a sample is bad")
        if way == "synchronize":
            time.sleep(0.3)
            device.synchronize()
        else:
            dist.all_reduce(torch.ones(1))


def start(number: int, way: str, port: int) -> subprocess.Popen[str]:
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, __file__, "rank", way]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def watch(process: subprocess.Popen[str], lines: list[tuple[float, str]]) -> threading.Thread:
    assert process.stderr is not None
    stream = process.stderr

    def read() -> None:
        for line in stream:
            lines.append((time.time(), line))

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def memory_used() -> int:
    """Returns the used memory of the device, in MiB."""
    if device.IS_STUB:
        return 0
    told = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    return int(told.stdout.split()[0])


def end_one(way: str, port: int) -> dict[str, object]:
    processes = [start(number, way, port) for number in range(RANKS)]
    lines: list[list[tuple[float, str]]] = [[] for _ in processes]
    threads = [watch(process, of_one) for process, of_one in zip(processes, lines, strict=True)]
    stop = time.monotonic() + ENDS + 30
    ended = []
    for process in processes:
        try:
            process.wait(max(stop - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        ended.append(time.time())
    for thread in threads:
        thread.join()
    began = next((float(line.split()[1]) for _, line in lines[2] if line.startswith("ENDS ")), None)
    if began is None:
        return {"pass": False, "stderr": [line for of_one in lines for _, line in of_one][-12:]}
    causes = []
    for number, of_one in enumerate(lines):
        if number != 2:
            named = [at - began for at, line in of_one if "rank 2" in line and at >= began]
            causes.append(round(min(named), 3) if named else None)
    others = round(max(at for number, at in enumerate(ended) if number != 2) - began, 3)
    return {"pass": all(cause is not None and cause <= 1.0 for cause in causes) and others < 30, "cause_s": causes, "ended_s": others}


def main() -> None:
    before = memory_used()
    port = 20000 + os.getpid() % 10000
    told = {way: end_one(way, port + at) for at, way in enumerate(("collective", "synchronize", "killed"))}
    left = memory_used() - before
    device.tell(all(each["pass"] for each in told.values()) and left <= 0, **told, left_mib=left)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    else:
        main()
