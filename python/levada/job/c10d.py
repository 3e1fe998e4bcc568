"""A process group of torch.distributed as the transport of an engine. docs/design/p2p.md explains how and why.

Headers of frames arrive from any sender in a few slots; a body, whose length its header gives, arrives straight in memory
of the engine. Threads: one receives, one releases what has been sent, one watches the other ranks, one flushes what was
deferred for batching.

Each rank watches all ranks of its host and one on each other host. It watches another by a connection on which nothing is
sent once both have proven that they are ranks of the job. The system ends that connection when the process ends. As long as
the host is reachable, the system also answers for the process, whatever that does.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import errno
import importlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Link, Membership
from levada.base.console import write_line
from levada.base.errors import EngineError, InvalidArgument, Timeout, Unsupported
from levada.base.threads import start_thread
from levada.job.aborting import own_sockets
from levada.job.arrivals import REMIND_AFTER, Arrivals
from levada.job.connections import Acceptor, Address, call, describe_failure, keep_one_each, watched_by
from levada.job.gathering import on_all, wait
from levada.job.stalls import Stalls, seconds_since_answer

_HEADERS, _BODIES = 1, 2  # tags
_MAX_HEADER_BYTES = 256 << 10
"""gloo does not say how long a message is: all headers are received in one size."""
_SLOTS = 4
"""For headers: one is looked at, the others may be filled meanwhile."""
_FOREVER = datetime.timedelta(days=3650)
"""A wait that times out closes the connection."""
_RETRIES, _PAUSE = 100, 0.05
"""How often, and seconds apart, a receive from anybody is tried that fails."""
_LAST_FRAME = 1.0
"""Seconds that the last frame of a peer may come after the end of its process, to a rank that has left too."""
_LAST_ANSWER = 1800.0
"""Seconds that a rank which ends waits for the answers to its last messages, which a peer may still be receiving."""
_OTHER_FILES = 64
"""Descriptors beside two for each watched rank, of which one is closed before gloo has one for each other rank."""
_SILENCE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""How a connection ends whose other end does not answer."""
_CONNECT = 30.0
"""Seconds that a connection between ranks that have arrived may take."""


_MAX_SILENCE = 24 * 60 * 60
_MAX_PROBES = 127
"""The largest TCP_KEEPCNT that Linux accepts."""


class _Watched(NamedTuple):
    address: str
    connection: socket.socket


class ProcessGroupTransport:
    """Frames between the ranks of a gloo group of its own."""

    def __init__(self, group: Any, name: str, secret: bytes, timeout: float, host_of: list[int]) -> None:
        """Collective over the ranks of `group`, which is not used afterwards. `name` and `secret` are the same on all of
        them, and only they know the secret."""
        self._torch = importlib.import_module("torch")
        self.rank, self.size = int(group.rank()), int(group.size())
        self._host_of = host_of
        self._group: Any = None
        if self.size > 1:
            store, devices, until = _store_of(group, name), list[Any](), time.monotonic() + timeout
            self._watched, self._silence = _watch_each_other(group, secret, host_of, devices, until)
            before = _sockets()
            self._group = _own_group(store, self.rank, self.size, devices, max(until - time.monotonic(), 0.001))
            gloos = {name: fd for name, fd in _sockets().items() if name not in before}
            self._stalls = Stalls(gloos, self._silence) if self._silence else None
        self._end_of_watch = socket.socketpair()
        self._finished: set[int] = set()
        self._sent: queue.SimpleQueue[list[tuple[int, Any, Any]] | None] = queue.SimpleQueue()
        self._flushes: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._link: Any = None
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._offer_calls()

    def _offer_calls(self) -> None:
        """Sets what the engine calls, also while the program waits in it. Every callable is implemented in C, so that none
        runs the program's signal handlers."""
        self.from_numpy = self._torch.from_numpy
        """Returns a tensor of an array that owns what it shows."""
        self.send = None if self._group is None else self._group.send
        """Begins to send the tensors to a peer: (tensors, peer, tag). What it returns keeps them until they have been sent."""
        self.settle = self._sent.put
        """Waits later for what has been sent: [(peer, what send() returned, None) or (peer, None, what it raised)]."""
        self.close = self._finished.add
        """After the last frame to a peer."""
        self.schedule_flush = self._flushes.put
        """Flushes once, at that time of time.monotonic()."""

    def start(self, link: Link) -> None:
        """Called by the engine, once: delivers what comes to `link`."""
        self._link = link
        if self._group is None:
            return self._over.set()
        all_started = threading.Event()

        def run(work: Callable[[Link], None]) -> None:
            all_started.wait()
            if not self._over.is_set():
                work(link)

        try:
            for work in (self._receive, self._settle, self._watch, self._flush):
                self._threads.append(start_thread("the engine c10d", f"levada c10d {work.__name__}", run, work))
        except BaseException:
            self._over.set()
            raise
        finally:
            all_started.set()

    def is_alive(self) -> bool:
        """Whether it has threads that run."""
        return any(thread.is_alive() for thread in self._threads)

    def finish(self, timeout: float) -> None:
        """Waits until all peers have closed, each of which answers this rank's last frame, and until the threads have ended,
        which must not happen while the interpreter ends. After a loss, and after a group has ended for a cause, it takes
        `timeout` seconds at most: a peer may be gone or hang, and no rank needs what is on its way then."""
        if self._process != os.getpid():
            return
        began, remind_after = time.monotonic(), REMIND_AFTER
        has_failed = self._link is not None and self._link.has_failed()
        while not self._over.wait(min(timeout, 1.0)):
            waited = time.monotonic() - began
            has_failed = has_failed or self._link.has_failed()
            if waited > (timeout if has_failed else _LAST_ANSWER):
                return
            if waited > remind_after:
                remind_after *= 2
                write_line(f"{self._describe_wait(waited)}; still waiting")
        for thread in self._threads:
            thread.join(0.2 if has_failed else 2.0)  # from a lost peer nothing comes, and for ever

    def _describe_wait(self, waited: float) -> str:
        awaited = ", ".join(str(peer) for peer in range(self.size) if peer != self.rank and not self._link.is_closed(peer))
        return f"rank {self.rank} has ended, and has waited {waited:.0f} s for rank {awaited} to take its last messages"

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
                    self._lose(link, range(self.size), _first_line(error))
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
            self._lose(link, [sender], _first_line(error))

    def _settle(self, link: Link) -> None:
        while (batch := self._sent.get()) is not None:
            while batch:
                peer, work, failure = batch.pop(0)
                try:
                    if failure is None:
                        work.wait(_FOREVER)
                except RuntimeError as error:
                    failure = error
                if failure is not None:
                    self._lose(link, [peer], _first_line(failure))
                del work, failure  # and with it what was sent

    def _watch(self, link: Link) -> None:
        """Waits for the end of any rank that has not left: of its process, of its host's answers, or of the data that its
        host takes."""
        poll = select.poll()
        poll.register(self._end_of_watch[0], 0)
        peers = {each.connection.fileno(): peer for peer, each in self._watched.items()}
        for fd in peers:
            poll.register(fd, select.POLLIN)
        interval = _probe_interval(self._silence) if self._silence else None
        ended: list[int] = []
        overdue: set[int] = set()
        while not self._over.is_set():
            found = {fd for fd, _ in poll.poll(None if interval is None else 1000 * interval)}
            if interval is not None and not found:
                # Twice: a machine that was suspended needs a moment for its probes.
                before, overdue = overdue, {fd for fd in peers if self._is_overdue(peers[fd])}
                found = overdue & before
            for fd in found & peers.keys():  # else it is this rank's own end
                poll.unregister(fd)
                ended.append(peers.pop(fd))
            ended = [peer for peer in ended if not self._lose_watched(link, peer, ended)]
            for address in self._stalls.find(self._seconds_since_probe) if self._stalls else ():
                self._lose_stalled(link, address)
        for each in self._watched.values():
            each.connection.close()

    def _lose_watched(self, link: Link, peer: int, ended: list[int]) -> bool:
        """A connection has ended. Returns False if it is not known yet whether the end of that peer is a cause: it may have
        left because of a host that falls silent, which this rank sees a moment later."""
        # Where both leave, the peer's connection may end before its last frame has been delivered.
        until = time.monotonic() + (_LAST_FRAME if peer in self._finished else 0)
        while not link.is_closed(peer) and time.monotonic() < until:
            time.sleep(0.002)
        connection = self._watched[peer].connection
        if link.is_closed(peer):
            self._lose(link, [], "")
        elif connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _SILENCE or self._is_overdue(peer):
            here, silence = connection.getsockname()[0], seconds_since_answer(connection)
            self._lose_host(link, peer, f"has not answered host {here} for {silence:.1f} s")
        elif any(not link.is_closed(other) and not self._answers(other) for other in self._watched if other not in ended):
            return False
        else:
            self._lose(link, [peer], "its process no longer runs")
        return True

    def _answers(self, peer: int) -> bool:
        """Whether a peer's host has answered the last probes."""
        limit = 2 * _probe_interval(self._silence) + 0.5
        return not self._silence or seconds_since_answer(self._watched[peer].connection) < limit

    def _is_overdue(self, peer: int) -> bool:
        """Whether the system should have ended the connection. It does not while the interface of this host takes no
        packets: such probes do not count."""
        limit = self._silence + 3 * _probe_interval(self._silence)
        return bool(self._silence) and seconds_since_answer(self._watched[peer].connection) > limit

    def _seconds_since_probe(self, address: str) -> float | None:
        """Returns how long ago the host at an address has answered a probe; None while it misses probes."""
        peers = [peer for peer, each in self._watched.items() if each.address == address and self._answers(peer)]
        return min((seconds_since_answer(self._watched[peer].connection) for peer in peers), default=None)

    def _lose_stalled(self, link: Link, address: str) -> None:
        for peer, each in self._watched.items():
            if each.address == address and not link.is_closed(peer):
                here = each.connection.getsockname()[0]
                return self._lose_host(
                    link,
                    peer,
                    f"answers the probes of host {here}, but has taken no data from it for {self._silence} s: is the MTU the "
                    "same on the way?",
                )

    def _lose_host(self, link: Link, peer: int, how: str) -> None:
        """Loses the host of a peer, with all its ranks."""
        ranks = [rank for rank in range(self.size) if self._host_of[rank] == self._host_of[peer]]
        listed = ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(str(rank) for rank in ranks)
        self._lose(link, ranks, f"its host {self._watched[peer].address} ({listed}) {how}")

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
            self._end_of_watch[1].close()
        return self._over.is_set()

    def _lose(self, link: Link, peers: Iterable[int], why: str) -> None:
        if lost := [peer for peer in peers if peer != self.rank]:
            link.lost(lost, why)
        self._ends(link)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]


def _silence(rank: int) -> int:
    """Seconds after which a host that does not answer this rank is lost; 0: never."""
    text = os.environ.get("LEVADA_SILENCE", "10")
    if not text.isdecimal() or 0 < int(text) < 3 or int(text) > _MAX_SILENCE:
        raise InvalidArgument(
            f"LEVADA_SILENCE of rank {rank} is '{text}'; it must be a number of seconds from 3 to {_MAX_SILENCE}, or 0 for no limit"
        )
    return int(text)


def _sockets() -> dict[str, int]:
    """The descriptors of this process's sockets, by what names each socket as long as it is open."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                found[name] = int(fd)
    return found


def _address_of_gloo(before: dict[str, int]) -> str:
    """The address of this host at which gloo has begun to listen since `before`."""
    for name, fd in _sockets().items():
        if name not in before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:  # it may be closed by now
                is_inet = each.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return str(each.getsockname()[0])
    raise EngineError("gloo listens at no address, so that the engine c10d does not know by which network to reach others")


def _watch_each_other(
    group: Any, secret: bytes, host_of: list[int], devices: list[Any], until: float
) -> tuple[dict[int, _Watched], int]:
    """Returns this rank's connections to those that it watches, by rank, and rank 0's _silence(), which holds for all. Adds to
    `devices` those that gloo is to send over. Collective: raises on all ranks what keeps one from connecting to another."""
    rank = group.rank()
    peers = watched_by(rank, host_of)
    with contextlib.ExitStack() as undone:
        acceptors: list[Acceptor] = []
        called: dict[int, socket.socket] = {}

        def listen() -> str:
            own_silence = _silence(rank)
            num_files = len(peers) + max(len(peers), group.size()) + _OTHER_FILES
            _levada.reserve_open_files(num_files, f"rank {rank} on host {socket.gethostname()}")
            address = _open_devices(rank, devices)
            acceptors.append(Acceptor(address, secret, group.size()))
            undone.callback(lambda: _close_all(acceptors[0].close()))
            return f"{address} {acceptors[0].port} {own_silence} {socket.gethostname()}"

        def connect() -> str:
            for peer in peers:
                where = addresses[peer]
                limit = min(_CONNECT, max((until - time.monotonic()) / 2, 0.001))
                try:
                    called[peer] = call(where, secret, rank, limit)
                except (OSError, EngineError) as error:
                    raise EngineError(describe_failure(rank, peer, where, error)) from error
            return ""

        undone.callback(lambda: _close_all(called))
        texts = [text.split(maxsplit=3) for text in on_all(group, until, listen)]
        addresses = [Address(_levada.printable(host), address, int(port)) for address, port, _, host in texts]
        silence = int(texts[0][2])
        on_all(group, until, connect)
        undone.pop_all()
    connections = keep_one_each(rank, acceptors[0].close(), called)
    for connection in connections.values():
        _keep_alive(connection, silence)
    return {peer: _Watched(addresses[peer].address, each) for peer, each in connections.items()}, silence


def _close_all(connections: dict[int, socket.socket]) -> None:
    for each in connections.values():
        each.close()


def _open_devices(rank: int, devices: list[Any]) -> str:
    """Adds the devices that torch's own groups over gloo have. Returns the address at which the first one listens."""
    gloo = importlib.import_module("torch.distributed").ProcessGroupGloo
    before, names = _sockets(), os.environ.get("GLOO_SOCKET_IFNAME", "")
    try:
        with _starting_polite_threads():
            devices += [gloo.create_device(interface=name) for name in names.split(",") if name]
            if not devices:
                devices.append(gloo.create_default_device())
    except RuntimeError as error:
        raise EngineError(
            f"rank {rank} on host {socket.gethostname()} finds no network to reach other ranks by "
            f"(GLOO_SOCKET_IFNAME is '{names}'); set GLOO_SOCKET_IFNAME to an interface that `ip address` lists on that host"
        ) from error
    own_sockets.update(_sockets().keys() - before)
    return _address_of_gloo(before)


def _keep_alive(connection: socket.socket, silence: int) -> None:
    """Lets the system probe the other end at even intervals. The connection ends if none of the probes of at least `silence`
    seconds is answered, and of two intervals more at most: an end that answers again by then is not lost, whenever in an
    interval it fell silent."""
    connection.setblocking(True)
    if not silence:
        return
    interval = _probe_interval(silence)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, -(-silence // interval) + 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _probe_interval(silence: int) -> int:
    return -(-silence // (_MAX_PROBES - 1))


def _store_of(group: Any, name: str) -> Any:
    distributed = importlib.import_module("torch.distributed")
    if not hasattr(distributed, "ProcessGroupGloo"):
        raise Unsupported("this torch has no gloo, over which the engine c10d sends; use one that has")
    if not hasattr(group, "get_group_store"):
        raise Unsupported("this process group does not show its store; make it with torch.distributed, of version 2.6 on")
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


def _own_group(store: Any, rank: int, size: int, devices: list[Any], timeout: float) -> Any:
    distributed = importlib.import_module("torch.distributed")
    began = time.monotonic()
    options = distributed.ProcessGroupGloo._Options()
    options._devices, options._threads = devices, 2 * len(devices)
    options._timeout = datetime.timedelta(seconds=timeout)
    with Arrivals(store, rank, size, "to connect its group over gloo") as arrivals:
        try:
            with _starting_polite_threads():
                group = distributed.ProcessGroupGloo(store, rank, size, options)
            barrier = distributed.BarrierOptions()
            barrier.timeout = datetime.timedelta(seconds=max(timeout - (time.monotonic() - began), 0.001))
            # Where one has gone before another is connected to all, that one fails.
            wait(group.barrier(barrier), began + timeout)
            return group
        except RuntimeError as error:
            kind = Timeout if time.monotonic() - began >= timeout else EngineError
            raise kind(
                f"{arrivals.describe()} ({_first_line(error)}); see whether a firewall lies between the hosts"
            ) from error


def join_over(
    group: Any, name: str, secret: bytes, host_of: list[int], timeout: float, degree: int
) -> tuple[Membership, ProcessGroupTransport]:
    """The Membership of a process group's ranks over it. Collective over them."""
    transport = ProcessGroupTransport(group, name, secret, timeout, host_of)
    return _levada.join_over(transport, "c10d", transport.rank, host_of, _MAX_HEADER_BYTES, degree), transport
