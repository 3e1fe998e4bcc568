"""How ranks on several hosts join, and the errors if they cannot. Run by `script/check hosts`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile

import hosts as several
import pytest
from host_jobs import Launcher
from host_scripts import JOIN


@pytest.mark.parametrize("which", ["torchrun", "deepspeed", "azureml", "plain", "slurm with RANK"])
def test_an_initialized_torch_distributed_joins_hosts_under_any_launcher(launcher: Launcher, which: str) -> None:
    script = JOIN + """
tell(engine=job.engine, host_of=job.host_of, rank=job.rank, job=levada.join() is job)
tell(got=list(levada.Feed(range(8))))
"""
    for ranks, host_of in (([2, 2], [0, 0, 1, 1]), ([1, 3], [0, 1, 1, 1])):
        for rank, mine in enumerate(launcher.start(ranks, script, launcher=which).succeed()):
            assert mine[0]["engine"] != "shm" and mine[0]["host_of"] == host_of
            assert mine[0]["rank"] == rank and mine[1]["got"] == [rank, rank + 4]


@pytest.mark.parametrize(
    "ranks, choice",
    [
        ([2, 0], "shm: all 2 ranks are on one host"),
        ([1, 1], "c10d: 2 ranks on 2 hosts, 1 on each"),
        ([1, 2], "shm+c10d: 3 ranks on 2 hosts, 1 to 2 on each"),
        ([2, 2], "shm+c10d: 4 ranks on 2 hosts, 2 on each"),
    ],
)
def test_the_chosen_engine_is_logged_once_with_the_reason(launcher: Launcher, ranks: list[int], choice: str) -> None:
    script = """
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
tell(choice=levada.join().engine_choice)
"""
    ended = launcher.start(ranks, script, environment={"LEVADA_LOG": "info"}).finish()
    assert [each.told for each in ended] == [[{"choice": choice}]] * sum(ranks), ended
    logged = [[line for line in each.errors.splitlines() if line.startswith("levada:")] for each in ended]
    assert logged == [[f"levada: engine {choice}"]] + [[]] * (sum(ranks) - 1)


ENTRIES = {
    "join": "got = levada.join().size",
    "feed": "got = len([*levada.Feed(range(4))])",
    "exchange": """
from levada import exchange
store = exchange.Store()
store.store(exchange.SampleBatch([str(rank)], {"tokens": [np.arange(9)]}))
exchange.redistribute(store, {0: ["0", "1"], 1: ["0", "1"]}, ["tokens"])
got = len(store.get(["0", "1"], ["tokens"])["tokens"]) // 9
""",
    "reduce": """
with levada.ReduceScatter() as reduce:
    got = int(reduce.all_reduce(np.ones(1)).wait()[0])
""",
    "pipeline": "got = len([*levada.Pipeline(range(4)).shard().run(0, group=levada.join())])",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_initialized_torch_distributed_takes_precedence_over_the_environment(launcher: Launcher, entry: str) -> None:
    script = f"""
import os
import numpy as np
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
os.environ.update(RANK="0", WORLD_SIZE="1")
{ENTRIES[entry]}
tell(got=got, size=levada.world_size(), rank=levada.rank())
"""
    told = launcher.start([1, 1], script, launcher="plain").succeed()
    assert told == [[{"got": 2, "size": 2, "rank": rank}] for rank in range(2)]


def join_errors(
    launcher: Launcher,
    ranks: list[int],
    script: str = "",
    *,
    degree: str = "16",
    timeout: float = 60,
    cut: contextlib.AbstractContextManager[None] = contextlib.nullcontext(),
) -> list[str]:
    """Returns the class and text of the error that levada.join() raises on each rank within its timeout, after
    `script`. `cut` begins when torch.distributed is initialized and holds during the call."""
    script = f"""
import os, time
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
engine = "auto"
{script}
tell(ready=True)
while not os.path.exists(os.environ["LEVADA_TEST_GO"]): time.sleep(0.01)
began = time.monotonic()
try:
    levada.join(engine=engine, timeout={timeout}, degree={degree})
except levada.Error as error:
    tell(text=f"{{type(error).__name__}}: {{error}}", seconds=time.monotonic() - began)
os._exit(0)  # torch's own end would wait for what is cut off
"""
    with tempfile.TemporaryDirectory() as folder:
        go = pathlib.Path(folder) / "go"
        job = launcher.start(ranks, script, environment={"LEVADA_TEST_GO": str(go)})
        job.wait_for("ready", range(sum(ranks)))
        try:
            with cut:
                go.touch()
                told = job.succeed()
        finally:
            job.kill()
    assert all(mine[1]["seconds"] < timeout + 5 for mine in told), told
    return [str(mine[1]["text"]) for mine in told]


def test_the_error_for_different_engines_names_the_choice_of_each_rank(launcher: Launcher) -> None:
    texts = join_errors(launcher, [2, 1], 'engine = ["auto", "auto", "c10d"][rank]')
    assert set(texts) == {
        "InvalidArgument: the group's ranks join it with different engines: auto on rank 0, 1; c10d on rank 2; pass the same "
        "on all of them"
    }


def test_the_error_for_different_degrees_names_the_choice_of_each_rank(launcher: Launcher) -> None:
    texts = join_errors(launcher, [2, 1], degree="[16, 4, 16][rank]")
    assert set(texts) == {
        "InvalidArgument: the group's ranks join it with different degrees: 16 on rank 0, 2; 4 on rank 1; pass the same on all "
        "of them"
    }


def test_an_interface_that_a_host_lacks_is_named_on_every_rank(launcher: Launcher) -> None:
    script = 'if rank == 3: os.environ["GLOO_SOCKET_IFNAME"] = "ib7"'
    texts = join_errors(launcher, [2, 2], script)
    assert set(texts) == {
        "EngineError: rank 3 on host host1 finds no network to reach other ranks by (GLOO_SOCKET_IFNAME is 'ib7'); set "
        "GLOO_SOCKET_IFNAME to an interface that `ip address` lists on that host"
    }


def test_networks_that_cannot_reach_each_other_are_an_error_on_every_rank(launcher: Launcher) -> None:
    texts = join_errors(launcher, [1, 1], 'os.environ["GLOO_SOCKET_IFNAME"] = "lo"')
    assert len(set(texts)) == 1
    assert texts[0].startswith("EngineError: rank 0 on host host0 cannot connect to rank 1 on host host1 at 127.0.0.1, port ")
    assert "set GLOO_SOCKET_IFNAME to the interface of a network that both are in" in texts[0]


def test_a_firewall_between_hosts_is_named_on_every_rank(hosts: several.Hosts, launcher: Launcher) -> None:
    texts = join_errors(launcher, [2, 2], timeout=6, cut=hosts[1].firewall())
    assert len(set(texts)) == 1
    assert texts[0].startswith("EngineError: rank 0 on host host0 cannot connect to rank 2 on host host1 at 10.0.0.2, port ")
    assert "(timed out); open the firewall between them for TCP" in texts[0]


def test_a_different_release_of_levada_on_a_host_is_one_sentence_on_every_rank(launcher: Launcher) -> None:
    script = """
from levada import _levada
if rank >= 2:
    own = _levada.group_greeting("host1")
    _levada.group_greeting = lambda host: own[:16] + b"99.0.0".ljust(16, bytes(1)) + own[32:]
"""
    (text,) = set(join_errors(launcher, [2, 2], script))
    assert text.startswith("EngineError: rank 2 on host host1 runs Levada 99.0.0, but rank 0 on host host0 runs ")
    assert text.endswith("; install the same release for all ranks of the job")


@pytest.mark.parametrize("free", [10, 25])
def test_too_few_descriptors_are_an_error_on_every_rank_that_names_the_number(launcher: Launcher, free: int) -> None:
    script = f"""
import resource
limit = len(os.listdir("/proc/self/fd")) + {free}
if rank == 3: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
"""
    (text,) = set(join_errors(launcher, [2, 2], script))
    assert text.startswith("InvalidArgument: rank ") and " open files to connect the ranks, but may have " in text
    assert "for example with `ulimit -n " in text and "firewall" not in text


SCANNER = """
import select, socket, sys, time
until, seen, kept = time.monotonic() + 60, set(), []
print("scans", flush=True)
while not select.select([sys.stdin], [], [], 0)[0] and time.monotonic() < until:
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        address, port = fields[1].split(":")
        if fields[3] != "0A" or port in seen or len(kept) > 800: continue
        seen.add(port)
        host = "127.0.0.1" if int(address, 16) == 0 else ".".join(str(int(address[at:at + 2], 16)) for at in (6, 4, 2, 0))
        for _ in range(16):
            connection = socket.socket()
            connection.settimeout(0.2)
            try:
                connection.connect((host, int(port, 16)))
            except OSError:
                break
            kept.append(connection)
print(len(seen), flush=True)
"""


def test_a_port_scanner_neither_joins_nor_stops_a_start(hosts: several.Hosts, launcher: Launcher) -> None:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    scanner = subprocess.Popen(
        hosts[0].command([*user, "/usr/bin/env", "python3", "-c", SCANNER]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert scanner.stdout is not None and scanner.stdout.readline() == "scans\n"
        feed = JOIN + "tell(got=[int(x) for x in levada.Feed(iter(range(8)) if rank == 0 else None, mesh=levada.Mesh(tp=4))])"
        for _ in range(2):
            assert [mine[0]["got"] for mine in launcher.start(2, feed).succeed()] == [list(range(8))] * 4
        said, _ = scanner.communicate(timeout=30)
        assert int(said) >= 4, "it found no ports"
    finally:
        scanner.kill()
        scanner.wait()


def test_a_host_that_is_cut_off_while_ranks_join_is_an_error_on_every_rank(
    hosts: several.Hosts, launcher: Launcher
) -> None:
    for rank, text in enumerate(join_errors(launcher, [1, 1], timeout=3, cut=hosts[1].is_cut())):
        assert f"rank {rank} on host host{rank} has waited " in text and " to join its group for " in text
        assert "that no firewall is between their hosts" in text


def test_hosts_whose_kernels_differ_are_joined(launcher: Launcher) -> None:
    script = JOIN.replace("job =", "from levada.job import groups\ngroups._read = lambda path: f'kernel {rank}'\njob =")
    told = launcher.start([1, 1], script + "tell(engine=job.engine, got=list(levada.Feed(range(4))))").succeed()
    assert [mine[0]["got"] for mine in told] == [[0, 2], [1, 3]] and told[0][0]["engine"] != "shm"
