"""Uses a process group of torch.distributed as the transport of an engine. docs/design/p2p.md explains the design.

Headers of frames arrive from any sender in a few slots. A header contains the length of the body, which then arrives
directly in memory of the engine. Of the threads, one receives, one releases memory that has been sent, one watches the
other ranks, and one flushes frames that were deferred for batching. While a body is slow to arrive, for example because
its sender hangs, another thread receives the frames of the other ranks.

Each rank watches all ranks of its own host and one rank on each other host. It does so through a connection on which
nothing is sent once both ends have proven that they belong to the job. The system closes that connection when the
process ends. As long as the host is reachable, the system also answers probes for the process, even if the process
hangs.
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
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Link, Membership
from levada.base.console import write_line
from levada.base.errors import EngineError, InvalidArgument
from levada.base.threads import start_thread
from levada.job.aborting import shut_down_gloo
from levada.job.arrivals import REMIND_AFTER
from levada.job.connections import Acceptor, Address, call, describe_failure, keep_one_each, watched_by
from levada.job.gathering import on_all
from levada.job.gloo import Network, first_line, open_devices, own_group, sockets_by_name, store_of
from levada.job.stalls import Stalls, seconds_since_answer

_HEADERS, _BODIES, _NOTHING = 1, 2, 3  # tags; nothing is ever sent under the last one
_MAX_HEADER_BYTES = 256 << 10
"""gloo does not report message lengths, so all headers are received with one size."""
_SLOTS = 4
"""Number of slots for headers: one is processed while the others may be filled."""
_FOREVER = datetime.timedelta(days=3650)
"""A wait that times out would close the connection, so waits never do."""
_RETRIES, _PAUSE = 100, 0.05
"""Number of times that a failed receive from any rank is retried, and the seconds between retries."""
_SLOW_BODY = 0.5
"""Seconds for which the thread that receives waits for a body before another thread takes its place."""
_LAST_FRAME = 1.0
"""Seconds after the end of a peer's process within which its last frame may arrive at a rank that has left, too."""
_LAST_ANSWER = 1800.0
"""Seconds that an ending rank waits until its last messages, which a peer may still be receiving, are acknowledged."""
_OTHER_FILES = 64
"""Descriptors needed in addition to two for each watched rank. One of those two is closed before gloo has one for each
other rank."""
_SILENCE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a connection whose other end does not answer."""
_CONNECT = 30.0
"""Maximum number of seconds for connecting to ranks that have arrived."""


_MAX_SILENCE = 24 * 60 * 60
_MAX_PROBES = 127
"""The maximum TCP_KEEPCNT of Linux."""


class _Watched(NamedTuple):
    address: str
    connection: socket.socket


class _Awaited(NamedTuple):
    """A frame that the thread that receives is delivering, once its body and the sender's earlier frames are there."""

    sender: int
    since: float
    thread: threading.Thread


class ProcessGroupTransport:
    """Sends frames between the ranks of a private gloo group."""

    def __init__(self, group: Any, name: str, secret: bytes, timeout: float, host_of: list[int]) -> None:
        """Collective over the ranks of `group`, which is not used afterwards. `name` and `secret` are the same on all
        of these ranks, and no other process knows the secret."""
        self._torch = importlib.import_module("torch")
        self.rank, self.size = int(group.rank()), int(group.size())
        self._host_of = host_of
        self._group: Any = None
        self._network = Network([], set())
        if self.size > 1:
            store, until = store_of(group, name), time.monotonic() + timeout
            self._watched, self._silence = _watch_each_other(group, secret, host_of, self._network, until)
            before = sockets_by_name()
            limit = max(until - time.monotonic(), 0.001)
            self._group = own_group(store, self.rank, self.size, self._network.devices, limit)
            gloos = {name: fd for name, fd in sockets_by_name().items() if name not in before}
            self._stalls = Stalls(gloos, self._silence) if self._silence else None
        self._end_of_watch, end = socket.socketpair()
        self._ends_of_watch = [end]
        """The other end of that pair, until a thread takes it to end the watch."""
        self._finished: set[int] = set()
        self._taken: set[int] = set()
        """The peers that have taken this rank's last frame, or to which it could not be sent."""
        self._settling = self.rank
        """The peer of the send that is waited for."""
        self._sent: queue.SimpleQueue[list[tuple[int, Any, Any]] | None] = queue.SimpleQueue()
        self._flushes: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._posted: collections.deque[tuple[Any, Any]] = collections.deque()
        """Slots for headers and the receives into them. Only the thread that receives uses them."""
        self._delivering = threading.Lock()
        """Guards what follows, and the calls of the link that only one thread at a time may make."""
        self._awaited: _Awaited | None = None
        self._slow: dict[int, threading.Thread] = {}
        """The thread that delivers the frame with a slow body, by sender."""
        self._link: Link | None = None
        """None once all threads have ended, because the link keeps the engine alive, which keeps this object alive."""
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._offer_calls()

    def _offer_calls(self) -> None:
        """Sets the callables that the engine uses, including those that it calls while the program waits in it. Each is
        implemented in C, so that none of them runs the program's signal handlers."""
        self.from_numpy = self._torch.from_numpy
        """Returns a tensor that is a view of an array and keeps it alive."""
        self.send = None if self._group is None else self._group.send
        """Starts sending tensors to a peer: (tensors, peer, tag). The result keeps them alive until they have been
        sent."""
        self.settle = self._sent.put
        """Enqueues sends to wait for: [(peer, result of send(), None) or (peer, None, exception of send())]. (peer, None,
        None) follows the peer's last frame."""
        self.close = self._finished.add
        """Called after the last frame to a peer."""
        self.schedule_flush = self._flushes.put
        """Schedules one flush at a time of time.monotonic()."""

    def start(self, link: Link) -> None:
        """Starts delivering incoming frames to `link`. The engine calls this once."""
        if self._group is None:
            return self._over.set()
        self._link = link
        all_started = threading.Event()

        def run(work: Callable[[Link], None]) -> None:
            all_started.wait()
            if not self._over.is_set():
                work(link)

        try:
            for work in (self._receive, self._settle, self._watch, self._flush):
                self._threads.append(start_thread("the engine c10d", f"levada c10d {work.__name__}", run, work))
        except BaseException:
            self._over.set()  # keeps the link: the threads that were started must not free gloo's group while Python exits
            raise
        finally:
            all_started.set()

    def is_alive(self) -> bool:
        """Returns whether any of the threads is running."""
        return any(thread.is_alive() for thread in self._threads)

    def finish(self, failed_until: float) -> None:
        """Waits until all peers have closed and have taken this rank's last frame, and until the threads have ended,
        which must not happen during interpreter exit. Waits at most until `failed_until`, a time of time.monotonic(),
        after a loss and after any group of this process has ended with an error, because a peer may be gone or hang, and
        no rank needs the frames in flight then."""
        if self._process != os.getpid():
            return
        link, began, remind_after = self._link, time.monotonic(), REMIND_AFTER
        has_failed = False
        unreachable: set[int] = set()
        while link is not None:
            is_over = self._over.wait(1.0)
            has_failed = has_failed or link.has_failed()
            now = time.monotonic()
            waited = now - began
            if is_over or (now > failed_until if has_failed else waited > _LAST_ANSWER):
                break
            if waited > remind_after:
                remind_after *= 2
                write_line(f"{self._describe_wait(link, waited)}; still waiting")
            before, unreachable = unreachable, {peer for peer in self._awaited_peers(link) if not self._reaches(peer)}
            self._lose(link, before & unreachable, "its process no longer runs")  # its last frame had a second to arrive
        self._stop()
        if not self._have_ended(0.2 if has_failed else 2.0):
            shut_down_gloo(self._network.listening.intersection)  # a lost peer neither sends nor receives
            self._have_ended(2.0)

    def _have_ended(self, limit: float) -> bool:
        """Waits for at most `limit` seconds until the threads have ended, and returns whether they have."""
        until = time.monotonic() + limit
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not self.is_alive()

    def _awaited_peers(self, link: Link) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank and not link.is_closed(peer)]

    def _reaches(self, peer: int) -> bool:
        """Returns whether gloo's connection to a peer is open. This rank watches only one rank of each other host, and
        the others may have left before they could report that the peer's process has ended."""
        try:
            self._group.recv([self._torch.empty(1, dtype=self._torch.uint8)], peer, _NOTHING)
        except RuntimeError:
            return False
        return True

    def _describe_wait(self, link: Link, waited: float) -> str:
        awaited = ", ".join(map(str, self._awaited_peers(link) or [self._settling]))
        return f"rank {self.rank} has ended, and has waited {waited:.0f} s for rank {awaited} to receive its last messages"

    def _receive(self, link: Link) -> None:
        """Receives frames until none is left to receive, or until another thread has taken this one's place."""
        free: list[Any] = []
        failures = 0
        while not (link.all_closed() or self._over.is_set()):
            try:
                while len(self._posted) < _SLOTS:
                    slot = free.pop() if free else self._torch.empty(_MAX_HEADER_BYTES, dtype=self._torch.uint8)
                    self._posted.append((slot, self._group.recv_anysource([slot], _HEADERS)))
                slot, work = self._posted.popleft()
                work.wait(_FOREVER)
            except RuntimeError as error:
                # A sender has died, and the watch will identify it. Only if the watch finds none are all out of reach.
                failures += 1
                if failures == _RETRIES:
                    self._lose(link, range(self.size), first_line(error))
                time.sleep(_PAUSE)
                continue
            failures = 0
            if not self._deliver(link, work._source_rank(), slot.numpy()):
                break
            free.append(slot)
        self._ends(link)

    def _deliver(self, link: Link, sender: int, header: Any) -> bool:
        """Returns False if another thread has taken this one's place."""
        this = _Awaited(sender, time.monotonic(), threading.current_thread())
        with self._delivering:
            earlier, self._awaited = self._slow.pop(sender, None), this
        if earlier is not None:
            earlier.join()  # a header may arrive before the body of an earlier frame
        try:
            with self._delivering:
                room = link.room_for_body(sender, header)
            if room is not None:
                self._group.recv([self._torch.from_numpy(room)], sender, _BODIES).wait(_FOREVER)
            with self._delivering:
                link.deliver(sender, header)
        except RuntimeError as error:
            self._lose(link, [sender], first_line(error))
        with self._delivering:
            receives = self._awaited is this
            if receives:
                self._awaited = None
        return receives

    def _replace_slow_receiver(self, link: Link) -> None:
        with self._delivering:
            awaited = self._awaited
            if awaited is None or time.monotonic() - awaited.since < _SLOW_BODY:
                return
            self._slow[awaited.sender], self._awaited = awaited.thread, None
            try:
                self._threads.append(start_thread("the engine c10d", "levada c10d _receive", self._receive, link))
            except EngineError:  # without another thread, the other ranks wait, too
                del self._slow[awaited.sender]
                self._awaited = awaited

    def _settle(self, link: Link) -> None:
        while (batch := self._sent.get()) is not None:
            while batch:
                peer, work, failure = batch.pop(0)
                self._settling = peer
                try:
                    if work is None and failure is None:
                        self._taken.add(peer)
                        self._ends(link)
                    elif failure is None:
                        work.wait(_FOREVER)
                except RuntimeError as error:
                    failure = error
                if failure is not None:
                    self._lose(link, [peer], first_line(failure))
                del work, failure  # releases the memory that was sent

    def _watch(self, link: Link) -> None:
        """Watches for the loss of any rank that has not left. A rank is lost if its process ends, or if its host stops
        answering or stops accepting data."""
        poll = select.poll()
        poll.register(self._end_of_watch, 0)
        peers = {each.connection.fileno(): peer for peer, each in self._watched.items()}
        for fd in peers:
            poll.register(fd, select.POLLIN)
        interval = _probe_interval(self._silence) if self._silence else 1
        ended: list[int] = []
        overdue: set[int] = set()
        while not self._over.is_set():
            found = {fd for fd, _ in poll.poll(1000 * interval)}
            self._replace_slow_receiver(link)
            if not found:
                # Checks twice, because a machine that was suspended needs a moment for its probes.
                before, overdue = overdue, {fd for fd in peers if self._is_overdue(peers[fd])}
                found = overdue & before
            for fd in found & peers.keys():  # another descriptor means that this rank is closing
                poll.unregister(fd)
                ended.append(peers.pop(fd))
            ended = [peer for peer in ended if not self._lose_watched(link, peer, ended)]
            for address in self._stalls.find(self._seconds_since_probe) if self._stalls else ():
                self._lose_stalled(link, address)
        for each in (self._end_of_watch, *(watched.connection for watched in self._watched.values())):
            each.close()
        for thread in self._threads:  # only this thread starts any
            if thread is not threading.current_thread():
                thread.join()
        self._link = None

    def _lose_watched(self, link: Link, peer: int, ended: list[int]) -> bool:
        """Handles a closed connection. Returns False if the cause is not known yet: the peer may have left because of
        an unresponsive host, which this rank notices a moment later."""
        # If both ranks leave, the peer's connection may close before its last frame has been delivered.
        until = time.monotonic() + (_LAST_FRAME if peer in self._finished else 0)
        while not link.is_closed(peer) and time.monotonic() < until:
            time.sleep(0.002)
        connection = self._watched[peer].connection
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        here = connection.getsockname()[0]
        if link.is_closed(peer):
            self._lose(link, [], "")
        elif error in _SILENCE or self._is_overdue(peer):
            silence = seconds_since_answer(connection)
            self._lose_host(link, peer, f"has not answered host {here} for {silence:.1f} s")
        elif error == errno.ECONNRESET:  # a process that ends closes its connection, on which nothing is unread
            self._lose_host(link, peer, f"no longer receives what host {here} sends, or has been restarted")
        elif any(not link.is_closed(other) and not self._answers(other) for other in self._watched if other not in ended):
            return False
        else:
            self._lose(link, [peer], "its process no longer runs")
        return True

    def _answers(self, peer: int) -> bool:
        """Returns whether a peer's host has answered the last probes."""
        limit = 2 * _probe_interval(self._silence) + 0.5
        return not self._silence or seconds_since_answer(self._watched[peer].connection) < limit

    def _is_overdue(self, peer: int) -> bool:
        """Returns whether the system should already have closed the connection. The system does not close it while the
        interface of this host rejects packets, because it does not count such probes."""
        limit = self._silence + 3 * _probe_interval(self._silence)
        return bool(self._silence) and seconds_since_answer(self._watched[peer].connection) > limit

    def _seconds_since_probe(self, address: str) -> float | None:
        """Returns the seconds since the host at an address last answered a probe, or None while it misses probes."""
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
        """Marks the host of a peer, with all its ranks, as lost."""
        ranks = [rank for rank in range(self.size) if self._host_of[rank] == self._host_of[peer]]
        listed = ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(str(rank) for rank in ranks)
        self._lose(link, ranks, f"its host {self._watched[peer].address} ({listed}) {how}")

    def _flush(self, link: Link) -> None:
        while (due := self._flushes.get()) is not None:
            if self._over.wait(max(due - time.monotonic(), 0.0)):
                return
            link.flush_deferred()

    def _ends(self, link: Link) -> None:
        """Makes the threads end once nothing is left to receive or to send. Before each peer has taken this rank's last
        frame, the process must not end, because gloo may not have sent it."""
        if link.all_closed() and (len(self._taken) == self.size - 1 or link.has_failed()):
            self._stop()

    def _stop(self) -> None:
        """Makes the threads end once gloo no longer holds them up."""
        self._over.set()
        self._sent.put(None)
        self._flushes.put(None)
        with contextlib.suppress(IndexError), self._ends_of_watch.pop() as end:
            end.shutdown(socket.SHUT_RDWR)  # unlike close(), reaches the watch even if a forked child has a copy

    def _lose(self, link: Link, peers: Iterable[int], why: str) -> None:
        if lost := [peer for peer in peers if peer != self.rank]:
            link.lost(lost, why)
        self._ends(link)


def _silence(rank: int) -> int:
    """Returns the seconds after which a host that does not answer this rank is lost; 0 means never."""
    text = os.environ.get("LEVADA_SILENCE", "10")
    if not text.isdecimal() or 0 < int(text) < 3 or int(text) > _MAX_SILENCE:
        raise InvalidArgument(
            f"LEVADA_SILENCE of rank {rank} is '{text}'; it must be a number of seconds from 3 to {_MAX_SILENCE}, or 0 for no limit"
        )
    return int(text)


def _watch_each_other(
    group: Any, secret: bytes, host_of: list[int], network: Network, until: float
) -> tuple[dict[int, _Watched], int]:
    """Returns this rank's connections to the ranks that it watches, by rank, and rank 0's _silence(), which applies to
    all. Adds to `network` the devices over which gloo is to send. Collective: raises on all ranks if one cannot connect
    to another."""
    rank = group.rank()
    peers = watched_by(rank, host_of)
    with contextlib.ExitStack() as undone:
        acceptors: list[Acceptor] = []
        called: dict[int, socket.socket] = {}

        def listen() -> str:
            own_silence = _silence(rank)
            num_files = len(peers) + max(len(peers), group.size()) + _OTHER_FILES
            _levada.reserve_open_files(num_files, f"rank {rank} on host {socket.gethostname()}")
            address = open_devices(rank, network)
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


def _keep_alive(connection: socket.socket, silence: int) -> None:
    """Makes the system probe the other end at even intervals. The system closes the connection if the other end answers
    no probe for at least `silence` seconds, and at most two intervals later. An end that answers before `silence`
    seconds have passed is not lost, no matter when in an interval it stopped answering."""
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


def join_over(
    group: Any, name: str, secret: bytes, host_of: list[int], timeout: float, degree: int
) -> tuple[Membership, ProcessGroupTransport]:
    """Returns the Membership of a process group's ranks, which communicate over that group. Collective over them."""
    transport = ProcessGroupTransport(group, name, secret, timeout, host_of)
    return _levada.join_over(transport, "c10d", transport.rank, host_of, _MAX_HEADER_BYTES, degree), transport
