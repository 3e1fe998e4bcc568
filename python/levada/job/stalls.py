"""Connections whose data do not arrive although the other host answers: the path drops large packets.

TCP's probes are small. They pass where the MTU on the way is less than both ends assume, and so does all else that is
small; what a rank sends is sent again and again, and the other end never says so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

_INFO = struct.Struct("24xI28xI40xI")
"""Of Linux's struct tcp_info: packets that have not been acknowledged, milliseconds since the other end last acknowledged
anything, packets that were sent again."""
_MIN_RETRIES = 2
"""After a cut, TCP may wait for longer than the silence limit before it tries again once."""


class _Info(NamedTuple):
    num_unacknowledged: int
    silent_ms: int
    num_retries: int


class _Trial(NamedTuple):
    since: float
    num_retries: int


def seconds_since_answer(connection: socket.socket) -> float:
    """Returns for how long the other end has acknowledged nothing."""
    return _info_of(connection).silent_ms / 1000


def _info_of(connection: socket.socket) -> _Info:
    return _Info(*_INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)))


class Stalls:
    """Watches connections that others own and may close. One thread."""

    def __init__(self, sockets: dict[str, int], silence: float) -> None:
        """`sockets`: descriptors, by what names each socket while it is open."""
        self._sockets = sockets
        self._silence = silence
        self._trials: dict[str, _Trial] = {}

    def find(self, is_answering: Callable[[str], bool]) -> set[str]:
        """Returns the addresses of hosts that have answered probes for `silence` seconds and acknowledged no data meanwhile,
        though there was some. `is_answering`: whether the host of an address answers probes now."""
        found = set()
        for name, fd in self._sockets.items():
            with contextlib.suppress(OSError, struct.error):  # it has been closed, or the system is too old
                if os.readlink(f"/proc/self/fd/{fd}") != name:
                    continue
                with socket.socket(fileno=os.dup(fd)) as connection:
                    address = str(connection.getpeername()[0])
                    if self._has_stalled(name, _info_of(connection), is_answering(address)):
                        found.add(address)
        return found

    def _has_stalled(self, name: str, info: _Info, is_answering: bool) -> bool:
        now = time.monotonic()
        trial = self._trials.pop(name, None)
        if info.num_unacknowledged == 0 or not is_answering:
            return False
        if trial is None or info.silent_ms < 1000 * (now - trial.since):
            trial = _Trial(now, info.num_retries)
        self._trials[name] = trial
        return now - trial.since >= self._silence and info.num_retries - trial.num_retries >= _MIN_RETRIES
