"""TCP connections between ranks of a group that watch each other. Nothing is sent on them after the proofs of
levada.job.proofs. A connection from any other process is dropped and delays nothing, because the number of such
connections and the time of each are bounded."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
import weakref
from typing import NamedTuple

from levada.base.errors import EngineError
from levada.base.threads import start_thread
from levada.job.proofs import CALL_BYTES, CHALLENGE_BYTES, PROOF_BYTES, Caller, Listener

_MAX_STRANGERS = 256
_PATIENCE = 5.0
"""Seconds within which a connecting process must prove that it is a rank."""
_RETRY = 0.05
_own_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """Closes the connections in a forked child. They must end with the rank, which the child may outlive."""
    for each in list(_own_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)


def watched_by(rank: int, host_of: list[int]) -> list[int]:
    """Returns the ranks that a rank watches and that watch it: all ranks of its host, and on each other host one, or a
    few if the rank's own host has fewer ranks. Every rank thus notices by itself that a host has become unresponsive,
    and on every host some rank notices that a rank elsewhere has ended."""
    ranks_of: dict[int, list[int]] = {}
    for each, host in enumerate(host_of):
        ranks_of.setdefault(host, []).append(each)
    here = ranks_of[host_of[rank]]
    place = here.index(rank)
    watched: list[int] = []
    for host, there in ranks_of.items():
        if host == host_of[rank]:
            watched += [each for each in there if each != rank]
        elif len(there) > len(here):
            watched += there[place :: len(here)]
        else:
            watched.append(there[place % len(there)])
    return sorted(watched)


class Address(NamedTuple):
    """The address on which a rank listens."""

    host: str
    """Name of the host, for messages."""
    address: str
    port: int


class _Stranger(NamedTuple):
    connection: socket.socket
    proof: Listener
    until: float
    received: bytearray


class Acceptor:
    """Accepts the connections of the other ranks on a thread, until it is closed."""

    def __init__(self, address: str, secret: bytes, size: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._secret, self._size = secret, size
        self._ranks: dict[int, socket.socket] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._poll = select.poll()
        self._end = socket.socketpair()
        for each in (self._listener, self._end[0]):
            self._poll.register(each, select.POLLIN)
        _own_sockets.update((self._listener, *self._end))
        try:
            self._thread: threading.Thread = start_thread("connections of other ranks", "levada acceptor", self._accept)
        except BaseException:
            self._end[1].close()
            self._close_strangers()
            raise

    def close(self) -> dict[int, socket.socket]:
        """Stops accepting. Returns the connections of the ranks that have connected."""
        self._end[1].close()
        self._thread.join()
        return self._ranks

    def _accept(self) -> None:
        while True:
            self._drop_late()
            ready = {fd for fd, _ in self._poll.poll(1000 if self._strangers else None)}
            if self._end[0].fileno() in ready:
                return self._close_strangers()
            for fd in ready & self._strangers.keys():
                self._receive(fd)
            if self._listener.fileno() in ready:
                self._accept_one()

    def _accept_one(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_oldest():
                time.sleep(_RETRY)  # the listener stays readable
            return
        if len(self._strangers) == _MAX_STRANGERS:
            self._drop_oldest()
        connection.setblocking(False)
        _own_sockets.add(connection)
        stranger = _Stranger(connection, Listener(self._secret), time.monotonic() + _PATIENCE, bytearray())
        self._strangers[connection.fileno()] = stranger
        self._poll.register(connection, select.POLLIN)
        with contextlib.suppress(OSError):  # it has been closed, which poll() reports
            connection.send(stranger.proof.greeting)

    def _receive(self, fd: int) -> None:
        stranger = self._strangers[fd]
        try:
            received = stranger.connection.recv(CALL_BYTES + 1 - len(stranger.received))
        except OSError:
            received = b""
        stranger.received.extend(received)
        if received and len(stranger.received) < CALL_BYTES:
            return
        answer = stranger.proof.answer(bytes(stranger.received))
        if answer is None or answer[0] >= self._size:
            return self._drop(fd)
        rank, proof = answer
        self._forget(fd)
        if earlier := self._ranks.pop(rank, None):
            earlier.close()
        self._ranks[rank] = stranger.connection
        with contextlib.suppress(OSError):  # it has been closed, which its watch notices
            stranger.connection.send(proof)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, stranger in self._strangers.items() if stranger.until < now]:
            self._drop(fd)

    def _drop_oldest(self) -> bool:
        if not self._strangers:
            return False
        self._drop(next(iter(self._strangers)))
        return True

    def _forget(self, fd: int) -> _Stranger:
        self._poll.unregister(fd)
        return self._strangers.pop(fd)

    def _drop(self, fd: int) -> None:
        self._forget(fd).connection.close()

    def _close_strangers(self) -> None:
        for fd in list(self._strangers):
            self._drop(fd)
        self._listener.close()
        self._end[0].close()


def call(where: Address, secret: bytes, rank: int, timeout: float) -> socket.socket:
    """Returns a connection to the rank that listens at `where`. Raises OSError if it cannot be made in time, and
    EngineError if the listener is not a rank of this job."""
    until = time.monotonic() + timeout
    while True:
        connection = socket.create_connection((where.address, where.port), max(until - time.monotonic(), 0.001))
        _own_sockets.add(connection)
        try:
            caller = Caller(secret, rank, _receive(connection, CHALLENGE_BYTES, until))
            connection.sendall(caller.call)
            is_rank = caller.is_answered_by(_receive(connection, PROOF_BYTES, until))
        except ConnectionError:  # the listener had too many unknown connections, or is ending
            connection.close()
            if time.monotonic() + _RETRY > until:
                raise
            time.sleep(_RETRY)
            continue
        except BaseException:
            connection.close()
            raise
        if not is_rank:
            connection.close()
            raise EngineError(f"the listener at {where.address}, port {where.port} is not a rank of this job")
        connection.settimeout(None)
        return connection


def _receive(connection: socket.socket, count: int, until: float) -> bytes:
    received = b""
    while len(received) < count:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        received += part
    return received


def keep_one_each(rank: int, accepted: dict[int, socket.socket], called: dict[int, socket.socket]) -> dict[int, socket.socket]:
    """Keeps one connection to each rank, the one that the lower rank made, so that both ends keep the same. Closes the
    others."""
    kept = {}
    for peer in called:
        mine, its = called[peer], accepted[peer]
        kept[peer], other = (mine, its) if rank < peer else (its, mine)
        other.close()
    return kept


def describe_failure(rank: int, peer: int, where: Address, error: Exception) -> str:
    """Returns the reason why one rank cannot connect to another, with a remedy."""
    text = (
        f"rank {rank} on host {socket.gethostname()} cannot connect to rank {peer} on host {where.host} at {where.address}, "
        f"port {where.port} ({error}); "
    )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return text + "raise the number of open files, for example with `ulimit -n 65536`, before the job starts"
    return text + (
        "open the firewall between them for TCP, or set GLOO_SOCKET_IFNAME to the interface of a network that both are in"
    )
