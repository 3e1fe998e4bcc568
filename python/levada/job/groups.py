"""Memberships of process groups of torch.distributed, and the exchange between their ranks before they have an
engine."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import pathlib
import socket
import struct
import threading
import time
import weakref
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Membership
from levada.base.errors import InvalidArgument, Unsupported
from levada.job.gathering import all_gather, on_all
from levada.job.meshes import is_device_mesh, ranks_of
from levada.job.proofs import SECRET_BYTES, derive

ENGINES = ("auto", "shm", "c10d", "shm+c10d")
"""The values of join()'s `engine`."""

_memberships: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
_transports: set[Any] = set()  # their threads may still be running
_locks: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], threading.RLock]] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()

MAX_DEGREE = 2**31 - 1

_HOST_BYTES = 16
_PLACE = struct.Struct(f"<{_HOST_BYTES}s{SECRET_BYTES}sIB")
_PLACE_BYTES = 64
"""Size of the message with a rank's _Place. It is the same in every release, because gloo aborts the process if the
messages of ranks differ in size."""


class GroupNumbers:
    """Numbers the objects of one kind that are made for a group. All ranks of the group make them in the same order,
    and so get the same numbers."""

    def __init__(self) -> None:
        self._of_job = itertools.count(1)
        self._of_groups: weakref.WeakKeyDictionary[Any, itertools.count[int]] = weakref.WeakKeyDictionary()

    def next(self, group: Any) -> int:
        if group is None:
            return next(self._of_job)
        try:
            return next(self._of_groups.setdefault(group, itertools.count(1)))
        except TypeError:
            return 0  # no group; join() rejects it


class Options(NamedTuple):
    """Options for joining, as in join()."""

    engine: str
    timeout: float
    degree: int
    leave_timeout: float


class _Place(NamedTuple):
    """A rank's description of itself for the others."""

    host: bytes
    """The same on ranks that can share memory."""
    secret: bytes
    """Rank 0's becomes the job's."""
    degree: int
    engine: str

    def encode(self) -> bytes:
        encoded = _PLACE.pack(self.host, self.secret, self.degree, ENGINES.index(self.engine))
        assert len(encoded) <= _PLACE_BYTES
        return encoded.ljust(_PLACE_BYTES, b"\0")

    @classmethod
    def decode(cls, sent: bytes) -> _Place:
        host, secret, degree, engine = _PLACE.unpack_from(sent)
        return cls(host, secret, degree, ENGINES[engine] if engine < len(ENGINES) else "another")


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


def _network() -> str:
    """Returns the network namespace, whose processes see each other's abstract sockets. If it cannot be read, as under
    gVisor, returns the host's name, which differs between containers."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


def _host() -> bytes:
    """Returns a text that is the same on ranks that can share memory, which have the same user, kernel and network
    namespace."""
    boot = _read("/proc/sys/kernel/random/boot_id") or socket.gethostname()
    identity = (boot, _network(), os.getuid())
    return hashlib.blake2b(repr(identity).encode(), digest_size=_HOST_BYTES).digest()


def lock_of(group: Any, ranks: tuple[int, ...] = ()) -> threading.RLock:
    """Returns the lock that a thread holds while it joins the group, or some ranks of it. Threads may join different
    groups concurrently, because their peers may join them in another order."""
    with _locks_guard:
        return _locks.setdefault(group, {}).setdefault(ranks, threading.RLock())


def finish(failed_until: float) -> None:
    """Waits until everything in flight to ranks of other groups, which must have been left, has been sent. After a
    failure, waits at most until `failed_until`, a time of time.monotonic()."""
    for transport in list(_transports):
        transport.finish(failed_until)


def size_of(group: Any) -> int:
    """Returns the number of ranks of a Membership, a DeviceMesh, or a process group that this process belongs to."""
    if isinstance(group, Membership):
        return group.size
    if is_device_mesh(group):
        return len(ranks_of(group))
    if not callable(getattr(group, "allgather", None)) or group.rank() < 0:
        raise InvalidArgument(
            f"group is {group!r}, which is neither a process group that this process belongs to nor a Membership"
        )
    return int(group.size())


def join_group(group: Any, options: Options) -> Membership:
    """Returns the Membership of a process group's ranks, numbered as in the group. Returns the same object as long as
    the group exists."""
    if isinstance(group, Membership):
        return group
    size_of(group)
    known, engine = _memberships.setdefault(group, {}), options.engine
    with lock_of(group):
        if engine not in known:
            joined = _start(group, options)
            known[engine] = known[joined.engine] = known.get(joined.engine, joined)
            known.setdefault("auto", joined)
        return known[engine]


def _check_same(what: str, asked: list[Any]) -> None:
    if len(set(asked)) > 1:
        by_value = {each: [str(rank) for rank, other in enumerate(asked) if other == each] for each in asked}
        listed = "; ".join(f"{each} on rank {', '.join(ranks)}" for each, ranks in by_value.items())
        raise InvalidArgument(f"the group's ranks join it with different {what}: {listed}; pass the same on all of them")


def _number(hosts: list[bytes]) -> list[int]:
    """Returns the host of each rank. Hosts are numbered in the order of their first ranks."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return [numbers[host] for host in hosts]


def _start(group: Any, options: Options) -> Membership:
    engine, timeout, degree, leave_timeout = options
    _levada.check_greetings(all_gather(group, _levada.group_greeting(socket.gethostname()), timeout))
    mine = _Place(_host(), os.urandom(SECRET_BYTES), degree, engine)
    places = [_Place.decode(sent) for sent in all_gather(group, mine.encode(), timeout)]
    _check_same("engines", [place.engine for place in places])
    _check_same("degrees", [place.degree for place in places])
    host_of = _number([place.host for place in places])
    if engine == "auto":
        engine = _levada.choose_engine(host_of, "c10d", degree)
    secret = places[0].secret
    name = f"levada-{derive(secret, 'name').hex()}"
    if engine == "shm" and len(set(host_of)) > 1:
        raise Unsupported(f"the group's ranks are on {len(set(host_of))} hosts, which the engine shm cannot join; use shm+c10d")
    if engine == "c10d":
        joined = _join_far(group, name, secret, host_of, timeout, degree)
    else:
        joined = _join_near(group, name, secret, host_of, timeout)
    if engine == "shm+c10d":
        far = _join_far(group, name, secret, host_of, timeout, degree)
        joined = _levada.join_hosts(joined, far, degree, leave_timeout)
    _levada.log_engine(joined)
    return joined


def _join_near(group: Any, name: str, secret: bytes, host_of: list[int], timeout: float) -> Membership:
    """Joins over shared memory. Collective over all hosts, so that no rank waits for one without shared memory."""
    host = host_of[group.rank()]
    here = [rank for rank, other in enumerate(host_of) if other == host]
    near: list[Membership] = []

    def meet() -> str:
        near.append(_levada.meet(here.index(group.rank()), len(here), f"{name}-{host}", secret, timeout))
        return ""

    if len(here) == len(host_of):
        meet()
    else:
        on_all(group, time.monotonic() + 2 * timeout, meet)
    return near[0]


def _join_far(
    group: Any, name: str, secret: bytes, host_of: list[int], timeout: float, degree: int
) -> Membership:
    c10d = importlib.import_module("levada.job.c10d")
    _transports.difference_update([transport for transport in list(_transports) if not transport.is_alive()])
    joined: Membership
    joined, transport = c10d.join_over(group, name, secret, host_of, timeout, degree)
    _transports.add(transport)
    return joined
