"""Jobs of MPI programs on several hosts, which are network namespaces. Run by `script/check hosts`, which builds the
programs with both MPIs. LEVADA_MPI names the MPIs, both if unset. LEVADA_KILLS sets how often a rank is killed, for
each MPI a quarter as often as in test_host_losses.py; LEVADA_FAULTS sets how often a host is cut off, over all MPIs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import hosts as several
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MPIS = os.environ.get("LEVADA_MPI", "openmpi mpich").split()
KILLS = max(1, int(os.environ.get("LEVADA_KILLS", "4")) // 4)
CUTS = max(1, int(os.environ.get("LEVADA_FAULTS", "1")) // len(MPIS))
OVER_TCP = {"UCX_TLS": "tcp,self"}
"""Keeps UCX, which MPICH uses, from finding memory that these hosts share. Over TCP its MPI_Finalize() may hang, but no
rank calls it after a loss."""


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
    """Returns an mpirun command on the first host, for `ranks` ranks on each host."""
    where = ",".join(f"{host.address}:{ranks}" for host in hosts)
    if mpi == "openmpi":
        options = ["--mca", "plm_rsh_agent", str(agent), "--host", where]
        for component in ("oob", "btl"):
            options += ["--mca", f"{component}_tcp_if_include", "eth0"]
    else:
        options = ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", where, "-iface", "eth0"]
    mpirun = [str(ROOT / "script/mpirun"), f"mpirun.{mpi}", *options, "-n", str(ranks * len(hosts))]
    return hosts[0].command(mpirun)


def read_lines(job: subprocess.Popen[str], count: int, within: float = 90.0) -> list[str]:
    """Returns the next lines that ranks print, sorted. Kills the job if they are late; the lines are empty then."""
    assert job.stdout is not None
    late = threading.Timer(within, job.kill)
    late.start()
    try:
        return sorted(job.stdout.readline().rstrip("\n") for _ in range(count))
    finally:
        late.cancel()


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
    """Returns the job's status, what its ranks printed, and the standard error of mpirun and the ranks."""
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
def test_join_chooses_the_engine_by_the_hosts_and_all_operations_work_over_it(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, ranks: int, engine: str
) -> None:
    status, lines, errors = finish(start(mpi, hosts, agent, "work", ranks=ranks), 100)
    assert status == 0, (lines, errors)
    size = 2 * ranks
    assert f"{engine}: {size} ranks on 2 hosts, {ranks} on each" in lines
    assert sorted(lines[-size:]) == [f"rank {rank} is done" for rank in range(size)]
    assert hosts.left() == []


@pytest.mark.parametrize("mpi", MPIS)
def test_plain_shared_memory_is_refused_on_two_hosts(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    status, lines, _ = finish(start(mpi, hosts, agent, "work", "shm"), 60)
    assert status != 0
    refusal = "the ranks are on 2 hosts, which the engine shm cannot join; use shm+mpi, or auto"
    assert any(refusal in line for line in lines), lines


@pytest.mark.parametrize("mpi", MPIS)
def test_a_firewall_between_hosts_is_a_timeout_on_every_rank(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, tmp_path: pathlib.Path
) -> None:
    begin, end = tmp_path / "begin", tmp_path / "end"
    # MPI listens at ports that the firewall blocks.
    variables = {"OMPI_MCA_btl_tcp_port_min_v4": "61000", "OMPI_MCA_btl_tcp_port_range_v4": "4000"}
    variables |= {**OVER_TCP, "UCX_TCP_PORT_RANGE": "61000-65000"}
    job = start(mpi, hosts, agent, "join_late", MPI_JOB_BEGIN=str(begin), MPI_JOB_END=str(end), **variables)
    initialized = read_lines(job, 4)
    with hosts[1].firewall():
        begin.touch()
        refusals = read_lines(job, 4)
    end.touch()
    status, lines, errors = finish(job, 60)
    assert initialized == [f"rank {rank} is initialized" for rank in range(4)], (initialized, errors)
    assert status != 0, (refusals, lines, errors)
    for rank, refusal in enumerate(refusals):
        text = f"rank {rank}: Timeout: rank {rank} on host host{rank // 2} has waited 3.0 s for all 4 ranks to join by MPI: "
        assert refusal.startswith(text) and "firewall" in refusal, (refusals, errors)
    assert hosts.left() == []


@pytest.mark.parametrize("mpi", MPIS)
def test_a_killed_rank_ends_the_job_on_all_hosts(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    status, lines, errors = finish(start(mpi, hosts, agent, "kill"), 60)
    assert status != 0, (lines, errors)
    assert hosts.left() == []


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_rank_killed_during_work_ends_the_job_on_all_hosts(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, number: int
) -> None:
    job = start(mpi, hosts, agent, "work_until_lost", "shm+mpi")
    works = read_lines(job, 4)
    running = [pid for host in hosts for pid in ranks_of(host)]
    time.sleep(random.Random(number).uniform(0, 0.3))  # a random moment of the ranks' work
    os.kill(running[number % 4], signal.SIGKILL)
    status, lines, errors = finish(job, 60)
    assert works == [f"rank {rank} works" for rank in range(4)] and len(running) == 4, (works, errors)
    assert status != 0, (lines, errors)
    assert hosts.left() == []


def ranks_of(host: several.Host, state: str = "") -> list[int]:
    """Returns the processes of ranks on a host; only those in `state` if given."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(OSError):
            is_rank = os.readlink(f"/proc/{pid}/exe").endswith("/mpi_job")
            status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if is_rank and state in ("", status[0]):
                found.append(pid)
    return found


@pytest.mark.parametrize("mpi", MPIS)
def test_a_stopped_rank_is_awaited(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    job = start(mpi, hosts, agent, "stop", LEVADA_SILENCE="3")
    until = time.monotonic() + 60.0
    while not (stopped := ranks_of(hosts[1], "T")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(6.0)  # twice the time that a host may be silent
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    status, lines, errors = finish(job, 60)
    assert len(stopped) == 1 and status == 0, (lines, errors)


def expect_cut(
    hosts: several.Hosts, job: subprocess.Popen[str], end: pathlib.Path, moment: float, silence: int
) -> None:
    """Cuts a host off from a job, `moment` seconds into its work. Checks that every rank names the other host."""
    works = read_lines(job, 4)
    time.sleep(moment)
    with hosts[1].is_cut():
        near = read_lines(job, 2)
        time.sleep(silence + 2)  # by then the other side has noticed, too
    # Until now mpirun waited for the other host, and did not show the output of its ranks.
    far = read_lines(job, 2)
    end.touch()
    status, lines, errors = finish(job, 60)
    assert works == [f"rank {rank} works" for rank in range(4)], (works, errors)
    assert status != 0, (near, far, lines, errors)
    for rank, line in enumerate(near + far):
        other, ranks = (hosts[1], "2, 3") if rank < 2 else (hosts[0], "0, 1")
        here = hosts[0] if rank < 2 else hosts[1]
        loss = f": its host {other.address} (ranks {ranks}) has not answered host {here.address} for "
        assert line.startswith(f"rank {rank}: PeerLost: ") and loss in line, (near, far, errors)
    assert hosts.left(within=60.0) == []


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("engine, silence", [("shm+mpi", 3), ("mpi", 3), ("mpi", None)])
def test_a_host_that_is_cut_off_is_named_with_its_ranks_on_both_sides(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, engine: str, silence: int | None, tmp_path: pathlib.Path
) -> None:
    variables = OVER_TCP | ({} if silence is None else {"LEVADA_SILENCE": str(silence)})
    end = tmp_path / "end"
    job = start(mpi, hosts, agent, "wait", engine, MPI_JOB_END=str(end), **variables)
    expect_cut(hosts, job, end, 0.0, silence or 10)


@pytest.mark.parametrize("mpi", MPIS)
def test_hosts_with_dead_interfaces_lose_each_other(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, tmp_path: pathlib.Path
) -> None:
    end = tmp_path / "end"
    job = start(mpi, hosts, agent, "wait", MPI_JOB_END=str(end), LEVADA_SILENCE="3", **OVER_TCP)

    read_lines(job, 4)
    with hosts[0].takes_no_packets(), hosts[1].takes_no_packets():
        near = read_lines(job, 2)  # mpirun gets no more output of the other host, since its connections end, too
    end.touch()
    status, lines, errors = finish(job, 60)
    assert status != 0, (near, lines, errors)
    loss = f": its host {hosts[1].address} (ranks 2, 3) has not answered host {hosts[0].address} for "
    assert all(f"rank {rank}: PeerLost: " in line and loss in line for rank, line in enumerate(near)), (near, errors)
    assert hosts.left(within=60.0) == []


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("number", range(CUTS))
def test_a_host_cut_off_during_work_is_named_with_its_ranks_on_both_sides(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, number: int, tmp_path: pathlib.Path
) -> None:
    end = tmp_path / "end"
    job = start(mpi, hosts, agent, "work_until_lost", MPI_JOB_END=str(end), LEVADA_SILENCE="3", **OVER_TCP)
    expect_cut(hosts, job, end, random.Random(number).uniform(0, 0.3), 3)


@pytest.mark.parametrize("mpi", MPIS)
def test_times_of_hosts_with_different_clocks_are_gathered_on_one_clock(
    mpi: str, tmp_path: pathlib.Path
) -> None:
    with several.hosts_or_skip(2, clock_step_s=5 * 24 * 3600) as apart:
        agent = tmp_path / "agent"
        apart.write_agent(agent)
        status, lines, errors = finish(start(mpi, apart, agent, "clocks"), 60)
        found = [re.fullmatch(r"rank (\d) is apart by (.*) ms", line) for line in lines]
    assert status == 0 and len(found) == 4, (lines, errors)
    # Ranks take their times at about the same moment, but the machine may be busy.
    assert all(each and abs(float(each[2])) < 5000 for each in found), lines
