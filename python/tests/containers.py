"""Processes that see a host as another container with the host's network does: in separate namespaces for processes,
mounts, host name and IPC, and with a separate /tmp."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

_CONTAINER = ("unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--mount-proc")
_OWN_TMP = ("sh", "-c", 'mount -t tmpfs levada /tmp && exec "$@"', "sh")

IMPOSTOR = """
import os, re, socket, sys, time
for name in list(os.environ):
    if name.startswith(("MASTER", "RANK", "WORLD", "LOCAL", "TORCH", "LEVADA")): del os.environ[name]
import levada
size, rank, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
print("impostor looks", flush=True)
named = re.compile(rb"@(levada-[^\\0\\n]+)")
table = open("/proc/net/unix", "rb", 0)
link = None
while link is None and time.monotonic() < until:
    table.seek(0)
    for name in named.findall(table.read(1 << 20)):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(b"\\0" + name)
            break
        except OSError:
            link = None
if link is None: sys.exit("impostor: found no rendezvous")
print("impostor connected", flush=True)
os.set_inheritable(link.fileno(), True)
os.environ.update(LEVADA_RANK=rank, LEVADA_WORLD_SIZE=size, LEVADA_LINKS=f"{link.fileno()}:{os.fstat(link.fileno()).st_ino}")
try:
    job = levada.join(timeout=10)
    print("impostor joined", flush=True)
    for batch in levada.Feed(None, mesh=levada.Mesh(tp=job.size), timeout=5): print("impostor reads", batch, flush=True)
except levada.Error as error:
    print("impostor refused:", error, flush=True)
"""
"""An attacker that only knows what /proc/net/unix shows and the number of ranks, and uses Levada's code. Arguments: the
size, the rank that it claims, the seconds for which it searches."""


@functools.cache
def _why_not() -> str:
    done = subprocess.run([*_CONTAINER, *_OWN_TMP, "true"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def command(*arguments: str) -> list[str]:
    """Returns the command that runs Python with `arguments` in such a container. Skips the test if the machine cannot
    create one."""
    if why := _why_not():
        pytest.skip(f"this machine makes no namespaces: {why}")  # skipped without: root
    return [*_CONTAINER, *_OWN_TMP, sys.executable, *arguments]


def start(arguments: Sequence[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts Python in such a container."""
    return subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(environment or {})}
    )


def as_unmapped_user(*arguments: str) -> list[str]:
    """Returns the command that runs Python in a user namespace, as the user id that stands for all unmapped users."""
    made = ["unshare", "--user", "--map-user=65534"]
    if subprocess.run([*made, "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no user namespaces")  # skipped without: user namespaces
    return [*made, sys.executable, *arguments]
