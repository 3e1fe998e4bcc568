"""Ranks started by launchers, on one host and on several, each of which is a network namespace; without torch."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import hosts as several
import levada
import pytest
import ranks
from host_jobs import Launcher


@pytest.fixture(scope="module")
def hosts() -> Iterator[several.Hosts]:
    with several.hosts_or_skip(2) as made:
        yield made


@pytest.fixture(scope="module")
def launcher(hosts: several.Hosts) -> Iterator[Launcher]:
    with Launcher(hosts, ["numpy", "levada"]) as made:
        yield made


@pytest.mark.parametrize("engine", ["mpi", "shm+mpi"])
def test_refusing_an_mpi_engine_names_the_function_that_joins_over_mpi(engine: str) -> None:
    with pytest.raises(levada.InvalidArgument) as refused:
        levada.join(engine=engine)
    assert str(refused.value) == (
        f'engine is "{engine}"; it must be one of auto, shm, c10d, shm+c10d, and C++ programs join over MPI by '
        "levada::mpi::join()"
    )


@pytest.mark.parametrize("degree", [0, -1, 2**31])
def test_a_degree_is_a_positive_number(degree: int) -> None:
    with pytest.raises(levada.InvalidArgument, match=f"^degree must be from 1 to 2147483647, got {degree}$"):
        levada.join(degree=degree)


@pytest.mark.parametrize("name", ["timeout", "leave_timeout"])
@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e12, -1, 0, "3", True])
def test_a_time_of_a_join_is_a_positive_number_of_seconds(name: str, seconds: Any) -> None:
    with pytest.raises(levada.InvalidArgument, match=f"^{name} must be a number of seconds, positive and at most 1e.08, got"):
        levada.join(**{name: seconds})


@pytest.mark.parametrize("size", [1, 2])
def test_a_forked_child_and_a_rank_that_has_left_know_their_place(tmp_path: pathlib.Path, size: int) -> None:
    told = ranks.succeed(
        tmp_path,
        size,
        """
        job, mesh = levada.join(), levada.Mesh(dp=levada.world_size())
        def tell_place():
            try:
                levada.join()
            except levada.Unsupported as error:
                refusal = str(error)
            places = [levada.rank(), mesh.coordinate("dp"), levada.Mesh.from_env().coordinate("dp")]
            tell(places=places, size=levada.world_size(), refusal=refusal)
        if (child := os.fork()) == 0:
            tell_place()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        job.leave()
        tell_place()
        """,
    )
    for rank, (forked, left) in enumerate(told):
        assert forked["places"] == left["places"] == [rank] * 3
        assert forked["size"] == left["size"] == size
        assert "was forked from a rank" in forked["refusal"] and left["refusal"] == "this rank has left its job"


def test_a_rank_can_join_after_an_interrupted_join(tmp_path: pathlib.Path) -> None:
    script = """
import os, signal, sys, time
import levada
from levada import exchange
if os.environ["RANK"] == sys.argv[1]:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        levada.join()
    except KeyboardInterrupt:
        open(sys.argv[2], "w").close()
    else:
        raise AssertionError("nobody was there")
else:
    while not os.path.exists(sys.argv[2]): time.sleep(0.01)
job = levada.join(timeout=20)
exchange.all_gather(exchange.Store(), timeout=20)
"""
    for early in range(2):
        started = []
        for rank in range(2):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": os.getpid()}
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "host"}
            started.append(subprocess.Popen([sys.executable, "-c", script, str(early), tmp_path / str(early)], env=environment))
        assert [process.wait(60) for process in started] == [0, 0]


def test_traffic_between_hosts_is_counted_and_blocked_while_one_is_cut_off(
    hosts: several.Hosts, launcher: Launcher, tmp_path: pathlib.Path
) -> None:
    script = """
import os, socket, time
if rank == 0:
    connection = socket.create_server((os.environ["MASTER_ADDR"], 5000)).accept()[0]
    connection.sendall(bytes(10_000_000))
    while not os.path.exists(os.environ["IS_CUT"]): time.sleep(0.01)
    connection.sendall(b"x")
    tell(sent=True)
    connection.recv(1)
else:
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    received = 0
    while received < 10_000_000: received += len(connection.recv(1 << 20))
    tell(received=received)
    connection.recv(1)
    tell(at=time.monotonic())
"""
    before = [host.traffic() for host in hosts]
    is_cut = tmp_path / "cut"
    job = launcher.start(1, script, environment={"IS_CUT": str(is_cut)})
    job.wait_for("received", [1])
    sent, received = (host.traffic().sent - then.sent for host, then in zip(hosts, before, strict=True))
    assert 10_000_000 < sent < 11_000_000 and received < 1_000_000
    hosts[1].cut()
    is_cut.touch()
    job.wait_for("sent", [0])
    mended = time.monotonic()
    hosts[1].mend()
    assert job.succeed()[1][-1]["at"] > mended
    assert hosts.left(launcher.pids) == []


def test_an_agent_runs_commands_on_its_host(hosts: several.Hosts, tmp_path: pathlib.Path) -> None:
    agent = tmp_path / "agent"
    hosts.write_agent(agent)
    for where in (hosts[1].name, hosts[1].address):
        done = subprocess.run([agent, "-x", where, "echo `hostname`;", "echo 'two  words'"], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "host1\ntwo  words\n", "")
    # An agent may be called from within a host, as mpirun does.
    done = subprocess.run(hosts[0].command([str(agent), "host1", "hostname"]), capture_output=True, text=True)
    assert done.stdout == "host1\n", done.stderr
    assert subprocess.run([agent, "host9", "hostname"], capture_output=True).returncode == 1


@pytest.mark.parametrize("which", ["torchrun", "deepspeed", "azureml", "plain", "slurm", "slurm with RANK"])
def test_any_launcher_s_ranks_on_one_host_meet_without_torch(launcher: Launcher, which: str) -> None:
    script = """
import levada
tell(got=list(levada.Feed(range(8))), engine=levada.join().engine)
"""
    ended = launcher.start([0, 4], script, launcher=which, environment={"LEVADA_LOG": "info"}).finish()
    for rank, mine in enumerate(ended):
        assert mine.told == [{"got": [rank, rank + 4], "engine": "shm"}], mine
        logged = [line for line in mine.errors.splitlines() if "levada: engine" in line]
        assert logged == (["levada: engine shm: all 4 ranks are on one host"] if rank == 0 else [])


ALONE = """
import levada
try:
    levada.join(timeout=1)
except levada.Error as error:
    tell(kind=type(error).__name__, text=str(error))
"""


@pytest.mark.parametrize("which", ["torchrun", "deepspeed", "slurm", "slurm with RANK"])
def test_several_hosts_without_torch_are_refused_if_the_launcher_counts_local_ranks(launcher: Launcher, which: str) -> None:
    for rank, mine in enumerate(launcher.start([1, 2], ALONE, launcher=which).succeed()):
        assert mine[0]["kind"] == "Unsupported"
        assert f"rank {rank} is one of 3, but " in mine[0]["text"] and " gives this host only " in mine[0]["text"]
        assert "initialize torch.distributed first (in Python) or call levada::mpi::join() (in C++)" in mine[0]["text"]


@pytest.mark.parametrize("which", ["azureml", "plain"])
def test_several_hosts_without_torch_time_out_if_the_launcher_does_not_count_local_ranks(
    launcher: Launcher, which: str
) -> None:
    told = launcher.start([1, 2], ALONE, launcher=which).succeed()
    for mine in told:
        assert mine[0]["kind"] == "Timeout" and "initialize torch.distributed first" in mine[0]["text"]
    assert "for rank(s) 1, 2" in told[0][0]["text"] and "no rank 0" in told[2][0]["text"]
