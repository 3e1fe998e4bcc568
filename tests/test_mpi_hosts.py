"""Jobs of programs over MPI on several hosts, which are network namespaces. Run by `script/check hosts`, which builds
the programs with both MPIs; LEVADA_MPI names the MPIs, both of them if it is not set."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import hosts as several
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MPIS = os.environ.get("LEVADA_MPI", "openmpi mpich").split()


@pytest.fixture(scope="module")
def hosts() -> Iterator[several.Hosts]:
    with several.hosts_or_skip(2) as made:
        yield made


@pytest.fixture(scope="module")
def agent(hosts: several.Hosts, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("agent") / "agent"
    hosts.write_agent(path)
    return path


def command_of(mpi: str, hosts: several.Hosts, agent: pathlib.Path, ranks: int) -> list[str]:
    """mpirun on the first host, for so many ranks on each."""
    where = ",".join(f"{host.address}:{ranks}" for host in hosts)
    if mpi == "openmpi":
        options = ["--mca", "plm_rsh_agent", str(agent), "--host", where]
        for component in ("oob", "btl"):
            options += ["--mca", f"{component}_tcp_if_include", "eth0"]
    else:
        options = ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", where, "-iface", "eth0"]
    mpirun = [str(ROOT / "script/mpirun"), f"mpirun.{mpi}", *options, "-n", str(ranks * len(hosts))]
    return hosts[0].command(mpirun)


def start(
    mpi: str, hosts: several.Hosts, agent: pathlib.Path, *arguments: str, ranks: int = 2, **environment: str
) -> subprocess.Popen[str]:
    program = ROOT / "build" / mpi / "mpi_job"
    assert program.exists(), f"build it: script/build {mpi} mpi_job"
    return subprocess.Popen(
        [*command_of(mpi, hosts, agent, ranks), str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finish(job: subprocess.Popen[str], within: float) -> tuple[int, list[str], str]:
    """The job's status, what its ranks printed and what mpirun and they complained of."""
    try:
        out, err = job.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        job.kill()
        out, err = job.communicate()
        raise AssertionError(f"the job has not ended within {within} s:\n{out}\n{err}") from None
    return job.returncode, out.splitlines(), err


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("engine", ["shm+mpi", "mpi"])
def test_the_contract_of_engines_holds_between_hosts(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, engine: str
) -> None:
    status, lines, errors = finish(start(mpi, hosts, agent, "conformance", engine), 100)
    assert status == 0, (lines, errors)
    assert f"{engine}: 4 ranks on 2 hosts, 2 on each" + (", as asked" if engine == "mpi" else "") in lines
    assert sum(line.endswith(" 0 failures") for line in lines) == 4
    assert hosts.left() == []


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("ranks, engine", [(1, "mpi"), (2, "shm+mpi")])
def test_join_chooses_the_engine_by_the_hosts_and_feeds_exchanges_and_sums_are_right_over_it(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, ranks: int, engine: str
) -> None:
    status, lines, errors = finish(start(mpi, hosts, agent, "work", ranks=ranks), 100)
    assert status == 0, (lines, errors)
    size = 2 * ranks
    assert f"{engine}: {size} ranks on 2 hosts, {ranks} on each" in lines
    assert sorted(lines[-size:]) == [f"rank {rank} is done" for rank in range(size)]
    assert hosts.left() == []


@pytest.mark.parametrize("mpi", MPIS)
def test_shared_memory_alone_is_refused_on_two_hosts(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    status, lines, _ = finish(start(mpi, hosts, agent, "work", "shm"), 60)
    assert status != 0
    refusal = "the ranks are on 2 hosts, which the engine shm cannot join; use shm+mpi, or auto"
    assert any(refusal in line for line in lines), lines


@pytest.mark.parametrize("mpi", MPIS)
def test_a_killed_rank_ends_the_job_on_all_hosts(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    status, lines, errors = finish(start(mpi, hosts, agent, "kill"), 60)
    assert status != 0, (lines, errors)
    assert hosts.left() == []


def ranks_of(host: several.Host, state: str = "") -> list[int]:
    """The processes of ranks on a host, or those in this state."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(OSError):
            is_rank = os.readlink(f"/proc/{pid}/exe").endswith("/mpi_job")
            status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if is_rank and state in ("", status[0]):
                found.append(pid)
    return found


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_is_stopped_is_waited_for(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    job = start(mpi, hosts, agent, "stop", LEVADA_SILENCE="3")
    until = time.monotonic() + 60.0
    while not (stopped := ranks_of(hosts[1], "T")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(6.0)  # twice as long as a host may be silent
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    status, lines, errors = finish(job, 60)
    assert len(stopped) == 1 and status == 0, (lines, errors)


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("engine, silence", [("shm+mpi", 3), ("mpi", 3), ("mpi", None)])
def test_a_host_that_is_cut_off_is_named_with_its_ranks(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, engine: str, silence: int | None
) -> None:
    # UCX, beneath MPICH, would find memory that these hosts share. Over TCP its MPI_Finalize() may hang, which no rank
    # calls here.
    variables = {} if silence is None else {"LEVADA_SILENCE": str(silence)}
    job = start(mpi, hosts, agent, "wait", engine, UCX_TLS="tcp,self", **variables)
    assert job.stdout is not None
    works = [job.stdout.readline() for _ in range(4)]
    hosts[1].cut()
    until = time.monotonic() + 40.0
    while (running := [host.name for host in hosts if ranks_of(host)]) and time.monotonic() < until:
        time.sleep(0.1)
    hosts[1].mend()  # or mpirun would wait for the other host
    status, lines, errors = finish(job, 60)
    assert sorted(works) == [f"rank {rank} works\n" for rank in range(4)], (works, errors)
    assert not running and status != 0, (running, lines, errors)
    loss = f"host {hosts[1].address}, which has ranks 2, 3, has not answered for {silence or 10} s"
    assert any(line.startswith("PeerLost: ") and loss in line for line in lines), "\n".join(lines) + errors
    assert hosts.left(within=60.0) == []
