"""Finds connections whose data does not arrive although the other host answers, because the path drops large packets.

TCP's probes are small. If the MTU on the path is less than both ends assume, probes and all other small data arrive,
but larger packets are retransmitted again and again without an acknowledgment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

_INFO = struct.Struct("24xI28xI40xI")
"""Layout of Linux's struct tcp_info: unacknowledged packets, milliseconds since the other end last acknowledged
anything, and retransmitted packets."""
_MIN_TRIES = 3
"""Minimum number of tries. Two pairs of looks with retransmissions and an answer may be chance: in the first, the link
may have failed after the answer; in the second, it may have recovered before the answer arrived."""


class _Info(NamedTuple):
    num_unacknowledged: int
    silent_ms: int
    num_retries: int


class _Trial(NamedTuple):
    since: float
    num_retries: int
    num_tries: int
    """Number of pairs of looks between which packets were retransmitted in vain while the host answered."""


def seconds_since_answer(connection: socket.socket) -> float:
    """Returns the seconds since the other end last acknowledged anything."""
    return _info_of(connection).silent_ms / 1000


def _info_of(connection: socket.socket) -> _Info:
    return _Info(*_INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)))


class Stalls:
    """Watches connections that belong to others, who may close them. Must be used by one thread."""

    def __init__(self, sockets: dict[str, int], silence: float) -> None:
        """`sockets`: descriptors, by a name that identifies each socket while it is open."""
        self._sockets = sockets
        self._silence = silence
        self._trials: dict[str, _Trial] = {}
        self._looked = time.monotonic()

    def find(self, since_probe: Callable[[str], float | None]) -> set[str]:
        """Returns the addresses of hosts that have answered probes for `silence` seconds but acknowledged none of the
        data in flight to them. Must be called periodically. `since_probe`: returns the seconds since the host at an
        address answered a probe, or None while it misses probes."""
        found = set()
        before, self._looked = self._looked, time.monotonic()
        since_probe = functools.cache(since_probe)
        for name, fd in self._sockets.items():
            with contextlib.suppress(OSError, struct.error):  # it has been closed, or the system is too old
                if os.readlink(f"/proc/self/fd/{fd}") != name:
                    continue
                with socket.socket(fileno=os.dup(fd)) as connection:
                    trial, info = self._trials.pop(name, None), _info_of(connection)
                    if info.num_unacknowledged == 0:
                        continue
                    address = str(connection.getpeername()[0])
                    trial = _next_trial(trial, info, since_probe(address), self._looked, before)
                    if trial is None:
                        continue
                    self._trials[name] = trial
                    if self._looked - trial.since >= self._silence and trial.num_tries >= _MIN_TRIES:
                        found.add(address)
        return found


def _next_trial(trial: _Trial | None, info: _Info, since_answer: float | None, now: float, before: float) -> _Trial | None:
    """Returns the trial as of `now` of a connection with data in flight. `before`: time of the previous look."""
    if since_answer is None:
        return None
    if trial is None or info.silent_ms < 1000 * (now - trial.since):
        return _Trial(now, info.num_retries, 0)
    tried = info.num_retries > trial.num_retries and since_answer < now - before
    return _Trial(trial.since, info.num_retries, trial.num_tries + tried)
