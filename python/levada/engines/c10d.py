"""A process group of torch.distributed as the transport of an engine. docs/design/p2p.md explains how and why.

Headers of frames arrive from any sender in a few slots; a body, whose length its header gives, arrives straight in memory
of the engine. Threads: one receives, one releases what has been sent, one watches the next rank, one flushes what was
deferred for batching.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import importlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from levada import _levada
from levada._errors import EngineError, Timeout, Unsupported
from levada._levada import Link, Membership

_HEADERS, _BODIES, _ENDS = 1, 2, 3  # tags
_MAX_HEADER_BYTES = 256 << 10
"""gloo does not say how long a message is: all headers are received in one size."""
_SLOTS = 4
"""For headers: one is looked at, the others may be filled meanwhile."""
_FOREVER = datetime.timedelta(days=3650)
"""A wait that times out closes the connection."""
_RETRIES, _PAUSE = 100, 0.05
"""How often, and seconds apart, a receive from anybody is tried that fails."""
_UNSETTLED, _UNSETTLED_BYTES = 32, 1 << 20
"""Sent frames without a body that may lie about, and their bytes."""


class ProcessGroupTransport:
    """Frames between the ranks of a gloo group of its own."""

    def __init__(self, group: Any, name: str, timeout: float) -> None:
        """Collective over the ranks of `group`, which is asked for its store alone. `name`: the same on all of them."""
        self._torch = importlib.import_module("torch")
        self.rank, self.size = int(group.rank()), int(group.size())
        self._group: Any = _own_group(_store_of(group, name), self.rank, self.size, timeout) if self.size > 1 else None
        self._unsettled: collections.deque[tuple[int, Any]] = collections.deque()
        self._unsettled_bytes = 0
        self._sent: queue.SimpleQueue[list[tuple[int, Any]] | None] = queue.SimpleQueue()
        self._flushes: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._farewells: list[Any] = []
        self._byte = self._torch.zeros(1, dtype=self._torch.uint8)
        self._over = threading.Event()
        self._link: Any = None
        self._process = os.getpid()
        self._has_losses = False
        self._threads: list[threading.Thread] = []

    def start(self, link: Link) -> None:
        """Called by the engine, once: delivers what comes to `link`."""
        self._link = link
        if self._group is None:
            return self._over.set()
        for work in (self._receive, self._settle, self._watch, self._flush):
            thread = threading.Thread(target=work, args=(link,), name=f"levada c10d {work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def send(self, peers: list[int], header: Any, body: Any) -> None:
        """Called by the engine, one call at a time. The arrays own what they show, and live until it has been sent."""
        for peer in peers:
            try:
                self._unsettled.append((peer, self._group.send([self._torch.from_numpy(header)], peer, _HEADERS)))
                if body is not None:
                    self._unsettled.append((peer, self._group.send([self._torch.from_numpy(body)], peer, _BODIES)))
            except RuntimeError as error:  # of this peer alone
                self._lose(self._link, [peer], error)
            self._unsettled_bytes += header.nbytes
        if body is not None or len(self._unsettled) > _UNSETTLED or self._unsettled_bytes > _UNSETTLED_BYTES:
            self._settle_later()

    def close(self, peer: int) -> None:
        """Called by the engine after the last frame to a peer: ends that peer's watch over this rank."""
        self._farewells.append(self._group.send([self._byte], peer, _ENDS))
        self._settle_later()

    def schedule_flush(self, seconds: float) -> None:
        """Called by the engine: flushes once, so many seconds from now."""
        self._flushes.put(time.monotonic() + seconds)

    def is_alive(self) -> bool:
        """Whether it has threads that run."""
        return any(thread.is_alive() for thread in self._threads)

    def finish(self, timeout: float) -> None:
        """Waits until all peers have closed, each of which answers this rank's last frame, and until the threads have ended,
        which must not happen while the interpreter ends."""
        if self._process == os.getpid() and self._over.wait(timeout):
            for thread in self._threads:
                thread.join(0.2 if self._has_losses else 2.0)  # from a lost peer nothing comes, and for ever

    def _receive(self, link: Link) -> None:
        free = [self._torch.empty(_MAX_HEADER_BYTES, dtype=self._torch.uint8) for _ in range(_SLOTS)]
        posted: collections.deque[tuple[Any, Any]] = collections.deque()
        failures = 0
        while not self._ends(link):
            try:
                while free:
                    posted.append((free[-1], self._group.recv_anysource([free[-1]], _HEADERS)))
                    free.pop()
                slot, work = posted.popleft()
                free.append(slot)
                work.wait(_FOREVER)
            except RuntimeError as error:
                # Whoever was about to send has died: who, the watch over it says. Only if none does, all are out of reach.
                failures += 1
                if failures == _RETRIES:
                    self._lose(link, range(self.size), error)
                time.sleep(_PAUSE)
                continue
            failures = 0
            self._deliver(link, work._source_rank(), slot.numpy())

    def _deliver(self, link: Link, sender: int, header: Any) -> None:
        try:
            room = link.room_for_body(sender, header)
            if room is not None:
                self._group.recv([self._torch.from_numpy(room)], sender, _BODIES).wait(_FOREVER)
            link.deliver(sender, header)
        except RuntimeError as error:
            self._lose(link, [sender], error)

    def _settle_later(self) -> None:
        batch, self._unsettled = list(self._unsettled), collections.deque()
        self._unsettled_bytes = 0
        self._sent.put(batch)

    def _settle(self, link: Link) -> None:
        while (batch := self._sent.get()) is not None:
            while batch:
                peer, work = batch.pop(0)
                try:
                    work.wait(_FOREVER)
                except RuntimeError as error:
                    self._lose(link, [peer], error)
                del work  # and with it what was sent

    def _watch(self, link: Link) -> None:
        """Waits for the end of the next rank that has not ended: a byte where it leaves, an error where it dies."""
        for step in range(1, self.size):
            peer = (self.rank + step) % self.size
            if link.is_closed(peer):
                continue
            try:
                self._group.recv([self._torch.empty_like(self._byte)], peer, _ENDS).wait(_FOREVER)
            except RuntimeError as error:
                self._lose(link, [peer], error)

    def _flush(self, link: Link) -> None:
        while (due := self._flushes.get()) is not None:
            if self._over.wait(max(due - time.monotonic(), 0.0)):
                return
            link.flush_deferred()

    def _ends(self, link: Link) -> bool:
        if link.all_closed():
            self._over.set()
            self._sent.put(None)
            self._flushes.put(None)
        return self._over.is_set()

    def _lose(self, link: Link, peers: Any, error: RuntimeError) -> None:
        for peer in peers:
            self._has_losses = self._has_losses or not link.is_closed(peer)
            if peer != self.rank:
                link.lost(peer, str(error).splitlines()[0])
        self._ends(link)


def _store_of(group: Any, name: str) -> Any:
    distributed = importlib.import_module("torch.distributed")
    if not hasattr(distributed, "ProcessGroupGloo"):
        raise Unsupported("this torch has no gloo, over which the engine c10d sends; use one that has")
    if not hasattr(group, "get_group_store"):
        raise Unsupported("this process group does not tell its store; make it with torch.distributed, of version 2.6 on")
    return distributed.PrefixStore(name, group.get_group_store())


@contextlib.contextmanager
def _starting_polite_threads() -> Iterator[None]:
    """Threads that begin meanwhile do not push aside whoever wakes them. gloo's would: a rank that sends is then held up
    with a lock that its own gloo spins for, until the system takes the core away from that, milliseconds later."""
    before = os.sched_getscheduler(0)
    try:
        if before == os.SCHED_OTHER:  # else somebody knows better
            with contextlib.suppress(OSError):  # where it is forbidden it is slower, that is all
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # of the calling thread; others inherit it
        yield
    finally:
        if os.sched_getscheduler(0) != before:
            os.sched_setscheduler(0, before, os.sched_param(0))


def _own_group(store: Any, rank: int, size: int, timeout: float) -> Any:
    distributed = importlib.import_module("torch.distributed")
    began = time.monotonic()
    try:
        with _starting_polite_threads():
            group = distributed.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=timeout))
        options = distributed.BarrierOptions()
        options.timeout = datetime.timedelta(seconds=max(timeout - (time.monotonic() - began), 0.001))
        group.barrier(options).wait()  # where one has gone before another is connected to all, that one fails
        return group
    except RuntimeError as error:
        kind = Timeout if time.monotonic() - began >= timeout else EngineError
        raise kind(f"rank {rank} could not reach all ranks of its group: {error}") from error


def join_over(group: Any, name: str, host_of: list[int], timeout: float) -> tuple[Membership, ProcessGroupTransport]:
    """The Membership of a process group's ranks over it. Collective over them."""
    transport = ProcessGroupTransport(group, name, timeout)
    return _levada.join_over(transport, "c10d", transport.rank, host_of, _MAX_HEADER_BYTES), transport
