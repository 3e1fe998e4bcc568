"""`python bench/peers exchange`: ragged samples move from a model on dp=W to one on dp=W/2,tp=2, by levada and by the
sequences of calls that it replaces. bench/README.md names the files and revisions that make these calls."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

import levada
from levada import _levada, exchange
from rounds import Contestant, measure, row

Tensor = Any
Sample = dict[str, Tensor]
Samples = dict[str, Sample]

KEYS = {"tokens": torch.int64, "logprobs": torch.float32, "values": torch.float32}
TOKEN_BYTES = 16


class World:
    """Which ranks have which samples, and which ranks want them: the same on every rank."""

    def __init__(self, ranks: int, samples: int, size: int) -> None:
        chance = random.Random(7)
        mean = max(2, size // samples // TOKEN_BYTES)
        self.ranks = ranks
        self.ids = [f"sample-{number:07}" for number in range(samples)]
        self.lengths = {id: chance.randint(mean // 2, mean // 2 + mean) for id in self.ids}
        self.holder = {id: number % ranks for number, id in enumerate(self.ids)}
        groups = ranks // 2
        self.group = {id: at if at < groups else chance.randrange(groups) for at, id in enumerate(self.ids)}
        self.wanted = [[id for id in self.ids if self.group[id] == rank // 2] for rank in range(ranks)]  # by rank

    def held_by(self, rank: int) -> list[str]:
        return [id for id in self.ids if self.holder[id] == rank]

    def receivers(self, id: str) -> tuple[int, ...]:
        """Returns the ranks that want a sample and do not have it."""
        first = 2 * self.group[id]
        return tuple(rank for rank in (first, first + 1) if rank != self.holder[id])

    def made(self, id: str) -> Sample:
        """Makes a sample of small whole numbers, which float32 represents exactly."""
        start = int(id.rpartition("-")[2])
        return {
            key: torch.arange(start + at, start + at + self.lengths[id]).to(dtype)
            for at, (key, dtype) in enumerate(KEYS.items())
        }

    def nbytes(self, ids: Iterable[str]) -> int:
        return sum(self.lengths[id] for id in ids) * TOKEN_BYTES


class Levada:
    """`levada.exchange` over one engine, from each rank's samples to the tensors that it wants."""

    def __init__(self, world: World, job: levada.Membership) -> None:
        self._job = job
        self._mine = world.wanted[job.rank]
        self._keys = list(KEYS)
        held = world.held_by(job.rank)
        made = [world.made(id) for id in held]
        self._store = exchange.Store(tensors="torch")
        self._store.store(exchange.SampleBatch(held, {key: [each[key] for each in made] for key in KEYS}))
        self._received = sorted(set(self._mine) - set(held))
        self._wants = exchange.destinations(levada.Mesh(dp=world.ranks // 2, tp=2), world.wanted[::2])

    def prepare(self) -> None:
        self._store.remove(self._received)

    def carry(self) -> exchange.SampleBatch:
        exchange.redistribute(self._store, self._wants, self._keys, group=self._job)
        return self._store.get(self._mine, self._keys)


def samples_of(batch: exchange.SampleBatch) -> Samples:
    return {id: {key: batch.item(key, at) for key in batch.keys} for at, id in enumerate(batch.ids)}


class Peer:
    """A system that keeps samples in a dictionary."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank = dist.get_rank()
        self.held = {id: world.made(id) for id in world.held_by(self.rank)}
        self.storage: Samples = {}

    def prepare(self) -> None:
        self.storage = {id: dict(sample) for id, sample in self.held.items()}

    def arrived(self) -> Samples:
        return {id: self.storage[id] for id in self.world.wanted[self.rank]}

    def put(self, id: str, key: str, tensor: Tensor) -> None:
        self.storage.setdefault(id, {})[key] = tensor


class AllGatherObject(Peer):
    """Gathers all samples on all ranks, pickled."""

    def carry(self) -> Samples:
        everything: list[Any] = [None] * self.world.ranks
        dist.all_gather_object(everything, self.storage)
        for samples in everything:
            self.storage.update(samples)
        return self.arrived()


class PackedIsend(Peer):
    """One message for each pair of ranks, with sizes that both know. The bytes are concatenated, the widest dtype
    first."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._items = [
            [self._sent(source, to) if source != to else [] for to in range(world.ranks)] for source in range(world.ranks)
        ]

    def _sent(self, source: int, to: int) -> list[tuple[str, str]]:
        ids = [id for id in self.world.held_by(source) if to in self.world.receivers(id)]
        return [(id, key) for key in KEYS for id in ids]

    def carry(self) -> Samples:
        everybody = range(self.world.ranks)
        sizes = {peer: self.world.nbytes({id for id, _ in self._items[peer][self.rank]}) for peer in everybody}
        buffers = {peer: torch.empty(size, dtype=torch.uint8) for peer, size in sizes.items() if size}
        waits: list[Any] = [dist.irecv(buffer, src=peer) for peer, buffer in buffers.items()]
        kept = []
        for step in range(1, self.world.ranks):
            to = (self.rank + step) % self.world.ranks
            items = self._items[self.rank][to]
            if items:
                kept.append(torch.cat([self.storage[id][key].view(torch.uint8) for id, key in items]))
                waits.append(dist.isend(kept[-1], dst=to))
        for wait in waits:
            wait.wait()
        for peer, buffer in buffers.items():
            at = 0
            for id, key in self._items[peer][self.rank]:
                end = at + self.world.lengths[id] * KEYS[key].itemsize
                self.put(id, key, buffer[at:end].view(KEYS[key]))
                at = end
        return self.arrived()


class Step(NamedTuple):
    """A bcast of AReaL: one key of some samples, from one rank."""

    root: int
    to: tuple[int, ...]
    ids: tuple[str, ...]
    key: str


def bcast_steps(world: World) -> list[Step]:
    """Returns the steps in AReaL's order: for each (root, key) in turn, the first set of receivers that no step of this
    stage has."""
    waiting: dict[tuple[int, str], dict[tuple[int, ...], list[str]]] = {}
    for id in world.ids:
        for key in KEYS:
            if to := world.receivers(id):
                waiting.setdefault((world.holder[id], key), {}).setdefault(to, []).append(id)
    steps: list[Step] = []
    while any(waiting.values()):
        roots: set[int] = set()
        receivers: set[int] = set()
        for (root, key), sets in waiting.items():
            free = [to for to in sets if not receivers & set(to)]
            if root not in roots and free:
                steps.append(Step(root, free[0], tuple(sets.pop(free[0])), key))
                roots.add(root)
                receivers.update(free[0])
    return steps


class ArealBcast(Peer):
    """Broadcasts each key from each root to each set of receivers, one after another; sends if there is only one
    receiver."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._steps = bcast_steps(world)
        members = sorted({tuple(sorted((step.root, *step.to))) for step in self._steps if len(step.to) > 1})
        self._groups = {ranks: dist.new_group(list(ranks)) for ranks in members}

    def carry(self) -> Samples:
        for step in self._steps:
            if self.rank in step.to:
                self._receive(step)
            elif self.rank == step.root:
                self._send(step)
        return self.arrived()

    def _send(self, step: Step) -> None:
        tensor = torch.cat([self.storage[id][step.key] for id in step.ids])
        if len(step.to) == 1:
            dist.send(tensor, dst=step.to[0])
        else:
            dist.broadcast(tensor, src=step.root, group=self._group(step))

    def _receive(self, step: Step) -> None:
        tensor = torch.zeros(sum(self.world.lengths[id] for id in step.ids), dtype=KEYS[step.key])
        if len(step.to) == 1:
            dist.recv(tensor, src=step.root)
        else:
            dist.broadcast(tensor, src=step.root, group=self._group(step))
        at = 0
        for id in step.ids:
            self.put(id, step.key, tensor[at : at + self.world.lengths[id]])
            at += self.world.lengths[id]

    def _group(self, step: Step) -> Any:
        return self._groups[tuple(sorted((step.root, *step.to)))]


class ArealGatherScatter(Peer):
    """Gathers all samples on the first rank as float32, padded to the longest rank's, and scatters them from it."""

    def carry(self) -> Samples:
        world = self.world
        everybody = range(world.ranks)
        longest = max(self._numbers(world.held_by(rank)) for rank in everybody)
        buffers = [torch.empty(longest) for _ in everybody] if self.rank == 0 else None
        dist.gather(self._padded(world.held_by(self.rank), longest), buffers, dst=0)
        for rank, buffer in enumerate(buffers or ()):
            self._unpack(world.held_by(rank), buffer)
        longest = max(self._numbers(world.wanted[rank]) for rank in everybody)
        groups = [self._padded(world.wanted[rank], longest) for rank in everybody[::2]] if self.rank == 0 else None
        buffer = torch.empty(longest)
        dist.scatter(buffer, [groups[rank // 2] for rank in everybody] if groups else None, src=0)
        self._unpack(world.wanted[self.rank], buffer)
        return self.arrived()

    def _numbers(self, ids: Sequence[str]) -> int:
        return len(KEYS) * sum(self.world.lengths[id] for id in ids)

    def _padded(self, ids: Sequence[str], length: int) -> Tensor:
        data = torch.cat([self.storage[id][key].float() for id in ids for key in KEYS])
        return torch.nn.functional.pad(data, (0, length - data.numel()))

    def _unpack(self, ids: Sequence[str], buffer: Tensor) -> None:
        at = 0
        for id in ids:
            for key, dtype in KEYS.items():
                self.put(id, key, buffer[at : at + self.world.lengths[id]].to(dtype))
                at += self.world.lengths[id]


PEERS: dict[str, Callable[[World], Any]] = {
    "all_gather_object": AllGatherObject,
    "areal_gather_scatter": ArealGatherScatter,
    "areal_bcast": ArealBcast,
    "packed_isend": PackedIsend,
}


def copy_contestant(world: World) -> Contestant:
    """One copy of the bytes that have to move, on one rank, into warm memory."""
    moved = world.nbytes(id for id in world.ids if world.receivers(id))
    source, target = torch.zeros(moved, dtype=torch.uint8), torch.ones(moved, dtype=torch.uint8)
    return Contestant(lambda: target.copy_(source) if dist.get_rank() == 0 else target)


def read_all(result: Any) -> None:
    """Reads every byte."""
    if isinstance(result, exchange.SampleBatch):
        result = samples_of(result)
    for sample in result.values() if isinstance(result, dict) else ():
        for tensor in sample.values():
            tensor.sum()


def check(name: str, world: World, contestant: Contestant) -> None:
    """Raises unless every sample that this rank wants has the values it was made with."""
    contestant.prepare()
    result = contestant.carry()
    got = samples_of(result) if isinstance(result, exchange.SampleBatch) else result
    for id in world.wanted[dist.get_rank()]:
        for key, tensor in world.made(id).items():
            if not torch.equal(got[id][key], tensor):
                raise levada.Error(f"{name} delivered another {key} of {id} than was made")


def exchanges(ask: SimpleNamespace) -> list[dict[str, Any]]:
    """Returns one row for each engine."""
    world = World(ask.ranks, ask.samples, ask.bytes)
    made: dict[str, Any] = {
        engine: Levada(world, levada.join(dist.new_group(), engine=engine)) for engine in ask.engines
    }
    made |= {name: peer(world) for name, peer in PEERS.items()}
    entered = {name: Contestant(each.carry, each.prepare) for name, each in made.items()}
    for name, contestant in entered.items():
        check(name, world, contestant)
    meet = functools.partial(_levada.agree, levada.join(dist.new_group(), engine="shm"), b"", 60.0, "benchmark")
    contestants = [*entered.values(), copy_contestant(world)]
    times = measure(contestants, ask.rounds, ask.warm_up, read_all, meet, together=True)
    took = dict(zip(entered, times, strict=False))
    about = {"op": "exchange", "ranks": ask.ranks, "samples": ask.samples, "bytes": world.nbytes(world.ids)}
    peers = {name: took[name] for name in PEERS}
    return [{**about, "engine": engine, "source": "host", **row(took[engine], times[-1], peers)} for engine in ask.engines]
