"""Aborts the collectives of torch.distributed in which this process waits, so that they raise."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

own_sockets: set[str] = set()
"""Names, as in /proc/self/fd, of the sockets on which Levada's own gloo groups listen."""

_POLLED = re.compile(r"^tfd: *(\d+) events: *\w+ data: *(\w+)", re.MULTILINE)


def abort_collectives() -> None:
    """Aborts all process groups of torch.distributed. They remain registered, so the program may still destroy them."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    names = distributed.distributed_c10d._world.pg_names
    groups = sorted(names, key=names.__getitem__, reverse=True)
    with _one_nccl_call(distributed, groups):
        for group in groups:
            with contextlib.suppress(RuntimeError):  # a backend that cannot abort, or has already aborted
                group.abort()
    shut_down_gloo(own_sockets.isdisjoint)


@contextlib.contextmanager
def _one_nccl_call(distributed: Any, groups: list[Any]) -> Iterator[None]:
    """Lets nccl abort its communicators together, because each of them may wait for the others."""
    nccl = getattr(distributed, "ProcessGroupNCCL", None)
    backends = [group._get_backend(device) for group in groups for device in group._device_types] if nccl else []
    first = next((each for each in backends if nccl is not None and isinstance(each, nccl)), None)
    if first is not None:
        first._group_start()
    try:
        yield
    finally:
        if first is not None:
            first._group_end()


def shut_down_gloo(is_meant: Callable[[Iterable[str]], object]) -> None:
    """Shuts down connections of gloo, which has no abort, so that waits for them raise. `is_meant` is called with the
    names of an event loop's sockets, as in /proc/self/fd, and returns whether to shut down its connections. Recognizes
    gloo's event loops by two properties: they poll their listening socket, and they use pointers as poll data. Other
    loops that poll a listening socket, such as asyncio's, use descriptor numbers."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            info = pathlib.Path(f"/proc/self/fdinfo/{fd}").read_text()
            polled = [int(number) for number, data in _POLLED.findall(info) if int(data, 16) != int(number)]
            sockets = {number: os.readlink(f"/proc/self/fd/{number}") for number in polled}
            listening = [number for number in polled if sockets[number].startswith("socket:") and _is_listening(number)]
            if not listening or not is_meant(sockets.values()):
                continue
            for number in set(polled).difference(listening):
                _shut_down(number)


def _is_listening(fd: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
        return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _shut_down(fd: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
        each.shutdown(socket.SHUT_RDWR)
