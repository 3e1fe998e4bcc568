"""Opens gloo's devices, and connects a private group over them."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from levada.base.errors import EngineError, Timeout, Unsupported
from levada.job.aborting import own_sockets
from levada.job.arrivals import Arrivals
from levada.job.gathering import wait


class Network(NamedTuple):
    devices: list[Any]
    """Gloo's devices, one for each interface."""
    listening: set[str]
    """Names, as in /proc/self/fd, of the sockets on which they listen."""


def sockets_by_name() -> dict[str, int]:
    """Returns the descriptors of this process's sockets, by a name that identifies each socket while it is open."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                found[name] = int(fd)
    return found


def open_devices(rank: int, network: Network) -> str:
    """Opens the devices of torch's own gloo groups. Returns the address on which the first one listens."""
    gloo = importlib.import_module("torch.distributed").ProcessGroupGloo
    before, names = sockets_by_name(), os.environ.get("GLOO_SOCKET_IFNAME", "")
    try:
        with _starting_polite_threads():
            network.devices.extend(gloo.create_device(interface=name) for name in names.split(",") if name)
            if not network.devices:
                network.devices.append(gloo.create_default_device())
    except RuntimeError as error:
        raise EngineError(
            f"rank {rank} on host {socket.gethostname()} finds no network to reach other ranks by "
            f"(GLOO_SOCKET_IFNAME is '{names}'); set GLOO_SOCKET_IFNAME to an interface that `ip address` lists on that host"
        ) from error
    network.listening.update(sockets_by_name().keys() - before)
    own_sockets.update(network.listening)
    return _address_of_gloo(before)


def _address_of_gloo(before: dict[str, int]) -> str:
    """Returns the address of this host on which gloo has started to listen since `before`."""
    for name, fd in sockets_by_name().items():
        if name not in before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:  # it may be closed by now
                is_inet = each.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return str(each.getsockname()[0])
    raise EngineError("gloo listens at no address, so that the engine c10d does not know by which network to reach others")


def store_of(group: Any, name: str) -> Any:
    distributed = importlib.import_module("torch.distributed")
    if not hasattr(distributed, "ProcessGroupGloo"):
        raise Unsupported("this torch has no gloo, over which the engine c10d sends; use one that has")
    if not hasattr(group, "get_group_store"):
        raise Unsupported("this process group does not show its store; make it with torch.distributed, of version 2.6 on")
    return distributed.PrefixStore(name, group.get_group_store())


def own_group(store: Any, rank: int, size: int, devices: list[Any], timeout: float) -> Any:
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
            # If a rank left before another one is connected to all, that one's connection would fail.
            wait(group.barrier(barrier), began + timeout)
            return group
        except RuntimeError as error:
            kind = Timeout if time.monotonic() - began >= timeout else EngineError
            raise kind(
                f"{arrivals.describe()} ({first_line(error)}); see whether a firewall lies between the hosts"
            ) from error


@contextlib.contextmanager
def _starting_polite_threads() -> Iterator[None]:
    """Makes threads that start in this context not preempt the threads that wake them. Otherwise, gloo's threads would
    preempt a sending rank while it holds a lock that gloo spins on, until the system reschedules milliseconds later."""
    before = os.sched_getscheduler(0)
    try:
        if before == os.SCHED_OTHER:  # any other policy was chosen on purpose
            with contextlib.suppress(OSError):  # without permission, sending is only slower
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # for this thread; new threads inherit it
        yield
    finally:
        if os.sched_getscheduler(0) != before:
            os.sched_setscheduler(0, before, os.sched_param(0))


def first_line(error: object) -> str:
    return str(error).partition("\n")[0]
