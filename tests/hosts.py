"""Simulated hosts for tests and benchmarks: namespaces of this machine, joined by a bridge.

Each host has a separate network with one interface, eth0, a separate host name and /dev/shm, and on request a separate
monotonic clock; processes and files are the machine's. Nothing has a name outside: a namespace lives as long as the
process that holds it, which ends when its standard input closes. A killed test therefore leaves nothing, and the hosts'
traffic reaches no other network.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SPAWN_GRACE = 120.0
"""Seconds that creating a namespace, or importing torch in a launcher, may take."""
FIRST_PORT = 29500

_SLURM = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
LAUNCHERS: dict[str, tuple[str, ...]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    "deepspeed": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    "azureml": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"),
    "plain": ("RANK", "WORLD_SIZE"),
    "slurm": _SLURM,
    "slurm with RANK": ("RANK", "WORLD_SIZE", *_SLURM),
}
"""The variables that each launcher sets in addition to MASTER_ADDR and MASTER_PORT. The last entry is a script that
srun runs, with RANK=$SLURM_PROCID."""


class Unavailable(Exception):
    """Hosts cannot be created here, for the reason in the text."""


class Traffic(NamedTuple):
    """Bytes that a host's interface has sent and received since it was created, with network headers."""

    sent: int
    received: int


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SPAWN_GRACE)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")


class _Namespace:
    """A process that holds namespaces, started by `command`; in a separate user namespace if `user`."""

    def __init__(self, command: Sequence[str], name: str, *, user: bool) -> None:
        self._user = user
        script = f"hostname {name} && mount -t tmpfs levada /dev/shm && ip link set lo up && echo ready && exec cat"
        try:
            self._holder = subprocess.Popen(
                [*command, "--net", "--uts", "--mount", "sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename} is missing; install util-linux and iproute2") from None
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "ready\n":
            errors = self._holder.stderr.read().strip()
            self.end()
            raise Unavailable(f"`{' '.join(command)}` makes no namespaces: {errors}")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def enter(self, *kinds: str) -> list[str]:
        """Returns the prefix that runs a command in the namespaces of these kinds."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", "--target", str(self.pid), *user, *(f"--{kind}" for kind in kinds)]

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()


class Host:
    """One host, created by Hosts."""

    def __init__(self, number: int, bridge: _Namespace, *, user: bool, clock_ahead_s: int) -> None:
        self.number = number
        self.name = f"host{number}"
        self.address = f"10.0.0.{number + 1}"
        self._port = f"port{number}"
        self._bridge = bridge
        unshare = ["unshare"] if not user else [*bridge.enter("net"), "unshare"]
        self._kinds = ["net", "uts", "mount"]
        if clock_ahead_s:
            unshare += ["--time", "--monotonic", str(clock_ahead_s)]
            self._kinds.append("time")
        self._namespace = _Namespace(unshare, self.name, user=user)
        try:
            eth0 = ["type", "veth", "peer", "name", "eth0", "netns", str(self._namespace.pid)]
            self._in_bridge("ip", "link", "add", self._port, *eth0)
            self._in_bridge("ip", "link", "set", self._port, "master", "bridge", "up")
            self._in_host("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
            self._in_host("ip", "link", "set", "eth0", "up")
        except BaseException:
            self._namespace.end()
            raise

    def _in_bridge(self, *command: str) -> None:
        _run([*self._bridge.enter("net"), *command])

    def _in_host(self, *command: str) -> None:
        _run([*self._namespace.enter("net"), *command])

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns a command that runs `command` in this host, in a process that is killed when its parent dies."""
        enter = self._namespace.enter(*self._kinds)
        return [*enter, f"--wd={os.getcwd()}", "setpriv", "--pdeathsig", "KILL", *command]

    def limit(self, bits_per_s: float | None) -> None:
        """Limits the host's sending rate and its receiving rate, each to this value; None lifts the limit."""
        for where, device in ((self._in_host, "eth0"), (self._in_bridge, self._port)):
            with contextlib.suppress(Unavailable):  # no limit is set
                where("tc", "qdisc", "del", "dev", device, "root")
            if bits_per_s is not None:
                # The burst must hold the largest piece that the system passes to an interface at once.
                burst = f"{max(128 << 10, int(bits_per_s / 8 / 1000))}b"
                rate = ["rate", f"{int(bits_per_s)}bit", "burst", burst, "latency", "50ms"]
                where("tc", "qdisc", "add", "dev", device, "root", "tbf", *rate)

    def cut(self) -> None:
        """Cuts the host off: the network silently drops everything that it sends or that is sent to it."""
        # The interface stays up, since the system may need seconds to notice one that goes up or down.
        self._in_bridge("ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Reconnects the host."""
        self._in_bridge("ip", "link", "set", self._port, "master", "bridge")

    @contextlib.contextmanager
    def takes_no_packets(self) -> Iterator[None]:
        """Makes the host's interface refuse packets, as a full queue does, until the `with` statement ends. TCP retries
        each packet and counts none as sent."""
        queue = ["dev", "eth0", "root", "pfifo", "limit", "0"]
        self._in_host("tc", "qdisc", "add", *queue)
        try:
            yield
        finally:
            self._in_host("tc", "qdisc", "del", *queue[:3])

    @contextlib.contextmanager
    def is_cut(self) -> Iterator[None]:
        """Cuts the host off until the `with` statement ends."""
        self.cut()
        try:
            yield
        finally:
            self.mend()

    @contextlib.contextmanager
    def is_not_heard_by(self, other: Host) -> Iterator[None]:
        """Makes all packets that this host sends to another one get lost until the `with` statement ends. Those in the
        other direction arrive."""
        neighbour = [other.address, "dev", "eth0"]
        self._in_host("ip", "neighbour", "replace", *neighbour, "lladdr", "02:00:00:00:00:99", "nud", "permanent")
        try:
            yield
        finally:
            self._in_host("ip", "neighbour", "delete", *neighbour)

    def lose_large_packets(self) -> None:
        """Silently drops packets of more than 600 bytes to this host, as a network with a smaller MTU than both ends
        assume does. Senders must pass packets to their interfaces one by one."""
        self._in_bridge("ip", "link", "set", self._port, "mtu", "600")

    def send_single_packets(self) -> None:
        """Makes the system pass packets to the interface one by one."""
        self._in_host("ip", "link", "set", "eth0", "gso_max_segs", "1")

    def repair(self) -> None:
        """Undoes lose_large_packets() and send_single_packets()."""
        self._in_bridge("ip", "link", "set", self._port, "mtu", "1500")
        self._in_host("ip", "link", "set", "eth0", "gso_max_segs", "65535")

    @contextlib.contextmanager
    def firewall(self) -> Iterator[None]:
        """Silently drops new connections to and from this host until the `with` statement ends. Open connections and
        listening at a given port keep working."""
        ports, range_of_ports = "61000-65000", "/proc/sys/net/ipv4/ip_local_port_range"
        before = pathlib.Path(range_of_ports).read_text()
        self._in_host("sh", "-c", f"echo {ports.replace('-', ' ')} > {range_of_ports}")
        # The table of this host's addresses must move, since it is looked at first.
        self._in_host("ip", "rule", "add", "pref", "10", "lookup", "local")
        self._in_host("ip", "rule", "del", "pref", "0")
        self._in_host("ip", "rule", "add", "pref", "1", "iif", "eth0", "ipproto", "tcp", "dport", ports, "blackhole")
        try:
            yield
        finally:
            self._in_host("ip", "rule", "add", "pref", "0", "lookup", "local")
            self._in_host("ip", "rule", "del", "pref", "10")
            self._in_host("ip", "rule", "del", "pref", "1")
            self._in_host("sh", "-c", f"echo {before.strip()} > {range_of_ports}")

    def traffic(self) -> Traffic:
        for line in pathlib.Path(f"/proc/{self._namespace.pid}/net/dev").read_text().splitlines():
            device, _, counts = line.partition(":")
            if device.strip() == "eth0":
                numbers = counts.split()
                return Traffic(sent=int(numbers[8]), received=int(numbers[0]))
        raise AssertionError(f"{self.name} has no interface")

    def processes(self) -> list[int]:
        """Returns all processes of this host, except the one that holds its namespaces."""
        network = os.readlink(f"/proc/{self._namespace.pid}/ns/net")
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/net") == network:
                    found.append(int(name))
        return [pid for pid in found if pid != self._namespace.pid]

    def left(self, beside: Sequence[int] = ()) -> list[str]:
        """Lists leftovers of jobs: processes other than those in `beside`, shared memory and sockets."""
        here = pathlib.Path(f"/proc/{self._namespace.pid}")
        found = [f"process {pid}: {_text(f'/proc/{pid}/cmdline')}" for pid in self.processes() if pid not in beside]
        for pid in beside:
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(fd).startswith("/memfd:"):
                        found.append(f"memory file in process {pid}: {os.readlink(fd)}")
        found += [f"/dev/shm/{file.name}" for file in (here / "root/dev/shm").iterdir()]
        for protocol in ("tcp", "tcp6"):
            for line in (here / "net" / protocol).read_text().splitlines()[1:]:
                _, local, remote, state, *_, inode = line.split()[:10]
                # The system keeps TIME_WAIT sockets, and FIN_WAIT2 sockets without an owner, for up to a minute.
                if state != "06" and (state, inode) != ("05", "0"):
                    found.append(f"{protocol} socket {local} to {remote} in state {state}")
        found += [line for line in (here / "net/unix").read_text().splitlines() if "@" in line]
        return found

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._namespace.end()


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(path).read_text(errors="replace").replace("\0", " ").strip()
    return "?"


class Hosts:
    """Several hosts, until the end of the `with` statement. Raises Unavailable if none can be created.

    Root creates the namespaces directly. Other users create them in a user namespace, which needs no rights if the
    system allows user namespaces.

    clock_step_s: seconds by which each host's monotonic clock is ahead of the previous host's. Unless it is 0, ranks'
    times cannot be compared with each other or with this process's.
    """

    def __init__(self, count: int, bits_per_s: float | None = None, *, clock_step_s: int = 0) -> None:
        if not 2 <= count <= 16:
            raise ValueError(f"count must be from 2 to 16, got {count}")
        self._hosts: list[Host] = []
        self._next_port = FIRST_PORT
        self._bridge, user = self._make_bridge()
        try:
            _run([*self._bridge.enter("net"), "ip", "link", "add", "bridge", "type", "bridge"])
            _run([*self._bridge.enter("net"), "ip", "link", "set", "bridge", "up"])
            for number in range(count):
                self._hosts.append(Host(number, self._bridge, user=user, clock_ahead_s=number * clock_step_s))
                if bits_per_s is not None:
                    self._hosts[-1].limit(bits_per_s)
        except BaseException:
            self.end()
            raise

    @staticmethod
    def _make_bridge() -> tuple[_Namespace, bool]:
        refusals = []
        for user, command in ((False, ["unshare"]), (True, ["unshare", "--user", "--map-root-user"])):
            try:
                return _Namespace(command, "bridge", user=user), user
            except Unavailable as error:
                refusals.append(str(error))
        raise Unavailable("; ".join(refusals))

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def environments(self, ranks: int | Sequence[int], launcher: str = "torchrun") -> list[list[dict[str, str]]]:
        """Returns the variables that a launcher adds to the environment of each rank of a new job, by host and local
        rank.

        ranks: the number of ranks on each host, as one number or as a list; the ranks of a host are consecutive.
        """
        per_host = [ranks] * len(self) if isinstance(ranks, int) else list(ranks)
        if len(per_host) != len(self):
            raise ValueError(f"there are {len(self)} hosts, but ranks for {len(per_host)}")
        self._next_port += 1
        return [
            [self._environment(host, local, per_host, launcher) for local in range(count)]
            for host, count in enumerate(per_host)
        ]

    def _environment(self, host: int, local: int, per_host: list[int], launcher: str) -> dict[str, str]:
        rank, size = sum(per_host[:host]) + local, sum(per_host)
        values = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": per_host[host],
            "LOCAL_SIZE": per_host[host],
            "GROUP_RANK": host,
            "NODE_RANK": host,
            "CROSS_RANK": host,
            "CROSS_SIZE": len(self._hosts),
            "TORCHELASTIC_RUN_ID": "none",
            "SLURM_JOB_ID": self._next_port,
            "SLURM_STEP_ID": 0,
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": size,
            "SLURM_LOCALID": local,
            "SLURM_NODEID": sum(count > 0 for count in per_host[:host]),
            "SLURM_STEP_NUM_TASKS": size,
            "SLURM_STEP_TASKS_PER_NODE": ",".join(str(count) for count in per_host if count > 0),
        }
        chosen = {name: str(values[name]) for name in LAUNCHERS[launcher]}
        master = {"MASTER_ADDR": self._hosts[0].address, "MASTER_PORT": str(self._next_port)}
        return {**chosen, **master, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}

    @contextlib.contextmanager
    def lose_large_packets(self) -> Iterator[None]:
        """Drops packets of more than 600 bytes between all hosts until the `with` statement ends."""
        try:
            for host in self:
                host.send_single_packets()
                host.lose_large_packets()
            yield
        finally:
            for host in self:
                host.repair()

    def write_agent(self, path: pathlib.Path) -> None:
        """Writes a program to `path` that runs commands in these hosts as rsh does: `path HOST COMMAND...`. HOST is a
        host's name or address; options before it are ignored. An mpirun in a host starts its daemons with it: Open
        MPI's with `--mca plm_rsh_agent path`, MPICH's with `-launcher ssh -launcher-exec path`."""
        lines = ["#!/bin/sh", 'while case $1 in -*) true ;; *) false ;; esac do shift; done', "host=$1", "shift"]
        lines.append("case $host in")
        for host in self:
            command = shlex.join(host.command(["sh", "-c"]))
            lines.append(f'  {host.name} | {host.address}) exec {command} "$*" ;;')
        lines += ['  *) echo "$0: there is no host $host" >&2; exit 1 ;;', "esac"]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)

    def left(self, beside: Sequence[int] = (), within: float = 10.0) -> list[str]:
        """Lists leftovers of jobs on any host. Waits up to `within` seconds until there are none."""
        until = time.monotonic() + within
        while True:
            found = [f"{host.name}: {each}" for host in self for each in host.left(beside)]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.05)

    def end(self) -> None:
        for host in self._hosts:
            host.end()
        self._bridge.end()


def hosts_or_skip(count: int, *, clock_step_s: int = 0) -> Hosts:
    """Returns hosts for a test. If hosts cannot be created, skips the test, or fails it if LEVADA_HOSTS is
    "required"."""
    import pytest

    try:
        return Hosts(count, clock_step_s=clock_step_s)
    except Unavailable as why:
        text = f"no hosts can be made of namespaces: {why}"
        if os.environ.get("LEVADA_HOSTS") == "required":
            pytest.fail(text)
        print(f"\n{os.path.basename(__file__)}: {text}; the tests of several hosts are left out", file=sys.__stderr__)
        pytest.skip(text)
