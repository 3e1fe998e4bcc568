"""The script of each rank of bench/hosts.py. It finds `rank`, `size` and `host` as globals, see tests/host_jobs.py, and its
task in LEVADA_BENCH_ASK."""

from __future__ import annotations

import collections
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import levada
import torch
import torch.distributed as dist

ASK = json.loads(os.environ["LEVADA_BENCH_ASK"])
Carry = Callable[[], Any]


class Coordinator:
    """The program that started the ranks. The ranks meet through it without a byte on the measured network."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rw")

    def meet(self, what: Any = None) -> None:
        """Blocks until all ranks have called it; the coordinator then has every rank's `what`."""
        self._lines.write(json.dumps({"rank": globals()["rank"], "what": what}) + "\n")
        self._lines.flush()
        self._lines.readline()


class Prepared:
    """The source of a feed, with as many items as were requested."""

    def __init__(self, round_of_items: list[dict[str, Any]]) -> None:
        self._round = round_of_items
        self._items: collections.deque[dict[str, Any]] = collections.deque()

    def prepare(self, steps: int) -> None:
        for _ in range(steps):
            self._items.extend(self._round)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return self._items.popleft()


def batch(of: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.arange(ASK["bytes"] // 8) + of}


class FeedContestant:
    def __init__(self, group: Any, engine: str, mesh: str) -> None:
        job = levada.join(group, engine=engine)
        self._prepared = Prepared([batch(of) for of in range(levada.Mesh.parse(mesh).data_size)])
        self._batches = iter(levada.Feed(self._prepared, levada.Mesh.parse(mesh), group=job, iterate="inline"))
        self._is_reader = job.rank == 0

    def prepare(self, steps: int) -> None:
        if self._is_reader:
            self._prepared.prepare(steps)

    def carry(self) -> torch.Tensor:
        received: torch.Tensor = next(self._batches)["tokens"]
        return received


class TorchContestant:
    """Calls of torch, one after another, that move a tensor of known size into existing memory."""

    def __init__(self, op: str, call: str) -> None:
        data = ASK["data"][op]  # the batch that each rank receives
        self._mine = batch(0)["tokens"] if globals()["rank"] == 0 else torch.zeros(ASK["bytes"] // 8, dtype=torch.int64)
        self._heads = {of: data.index(of) for of in set(data)}
        self._of = data[globals()["rank"]]
        self._batches = [batch(of)["tokens"] for of in range(max(data) + 1)] if globals()["rank"] == 0 else []
        self._group = self._own_group(data) if "broadcast" in call else None
        self._to = [to for to in range(1, len(data)) if call == "isend" or to in self._heads.values()]

    def _own_group(self, data: list[int]) -> Any:
        groups = {of: dist.new_group([to for to, each in enumerate(data) if each == of]) for of in set(data)}
        return groups[self._of]

    def prepare(self, steps: int) -> None:
        pass

    def carry(self) -> torch.Tensor:
        data = ASK["data"][ASK["op"]]
        if globals()["rank"] == 0:
            for send in [dist.isend(self._batches[data[to]], to) for to in self._to]:
                send.wait()
        elif globals()["rank"] in self._to:
            dist.irecv(self._mine, 0).wait()
        if self._group is not None:
            dist.broadcast(self._mine, self._heads[self._of], group=self._group)
        return self._mine


class NearContestant(FeedContestant):
    """A feed on the reader's host only, over shared memory."""

    def __init__(self, mesh: str, ranks: list[int]) -> None:
        group = dist.new_group(ranks)
        self._takes_part = globals()["rank"] in ranks
        if self._takes_part:
            super().__init__(group, "shm", mesh)

    def prepare(self, steps: int) -> None:
        if self._takes_part:
            super().prepare(steps)

    def carry(self) -> Any:
        return super().carry() if self._takes_part else None


def check(op: str, received: Any) -> None:
    if received is not None and not torch.equal(received, batch(ASK["data"][op][globals()["rank"]])["tokens"]):
        raise AssertionError(f"rank {globals()['rank']} got the wrong batch in {op}")


def measure(coordinator: Coordinator, contestant: Any, steps: int, op: str, *, verify: bool) -> None:
    contestant.prepare(steps)
    coordinator.meet()
    if globals()["rank"] == 0:
        time.sleep(0.001)  # until the other ranks wait
    begin, cpu = time.monotonic(), time.process_time()
    for _ in range(steps):
        received = contestant.carry()
    end = time.monotonic()
    coordinator.meet([begin, end, time.process_time() - cpu])
    if verify:
        check(op, received)


def contest(coordinator: Coordinator, op: str) -> None:
    ASK["op"] = op
    mesh = ASK["meshes"][op]
    contestants: list[Any] = [FeedContestant(dist.new_group(), engine, mesh) for engine in ASK["engines"]]
    if op == "broadcast":
        near = [each for each in range(globals()["size"]) if ASK["host_of"][each] == 0]
        contestants.append(NearContestant(f"tp={len(near)}", near))
    contestants += [TorchContestant(op, call) for call in ASK["torch"][op]]
    for number in range(ASK["warm_up"] + ASK["rounds"]):
        for turn in range(len(contestants)):
            for steps in ASK["steps"]:
                at = (number + turn) % len(contestants)
                measure(coordinator, contestants[at], steps, op, verify=number == 0)


def main() -> None:
    torch.set_num_threads(1)
    coordinator = Coordinator(ASK["socket"])
    dist.init_process_group("gloo")
    for op in ASK["ops"]:
        contest(coordinator, op)


main()
