"""MPI programs on several hosts in which a rank hangs, or a host is unreachable for a while. Run by `script/check
hosts`; LEVADA_MPI names the MPIs, both if unset."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import time
from collections.abc import Iterator

import hosts as several
import pytest
from test_mpi_hosts import MPIS, OVER_TCP, finish, ranks_of, read_lines, start

LEAVES = 30.0
"""Seconds within which all other ranks must have left, after the feed's timeout of 4 seconds."""


@pytest.fixture(scope="module", params=[2, 3], ids=["two hosts", "three hosts"])
def hosts(request: pytest.FixtureRequest) -> Iterator[several.Hosts]:
    with several.hosts_or_skip(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def agent(hosts: several.Hosts, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("agent") / "agent"
    hosts.write_agent(path)
    return path


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize(
    "engine, hung, how",
    [
        ("shm+mpi", -1, "feed, stops"),
        ("shm+mpi", -2, "feed, sleeps"),
        ("shm+mpi", 0, "feed, stops"),
        ("shm+mpi", -1, "agree, sleeps"),
        ("mpi", -1, "feed, sleeps"),
        ("mpi", 0, "agree, sleeps"),
    ],
)
def test_a_rank_that_hangs_is_named_and_the_others_leave(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, engine: str, hung: int, how: str, tmp_path: pathlib.Path
) -> None:
    """A negative `hung` counts from the end: the last host's first rank forwards to its second."""
    size, end = 2 * len(hosts), tmp_path / "end"
    hung %= size
    job = start(mpi, hosts, agent, "hang", engine, how, MPI_JOB_HUNG=str(hung), MPI_JOB_END=str(end), **OVER_TCP)
    works = read_lines(job, size)
    since = time.monotonic()
    errors_of = read_lines(job, size - 1, within=4.0 + LEAVES + 10.0)
    took = time.monotonic() - since
    end.touch()
    status, lines, errors = finish(job, 60)
    assert works == [f"rank {rank} works" for rank in range(size)], (works, errors)
    assert [line.partition(":")[0] for line in errors_of] == [f"rank {rank}" for rank in range(size) if rank != hung], (
        errors_of,
        lines,
        errors,
    )
    name_it = [f"rank {hung}" in line.partition(": ")[2] for line in errors_of]
    # A collective call outside a feed does not end the group: ranks that wait for a rank that has timed out name that
    # one.
    assert any(name_it) if how.startswith("agree") else all(name_it), (errors_of, errors)
    assert all(line.split(": ")[1] in ("Timeout", "PeerLost") for line in errors_of), (errors_of, errors)
    assert took < 4.0 + LEAVES, (took, errors_of)
    assert status != 0 and hosts.left(within=30.0) == []


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_is_killed_ends_the_job_on_all_hosts(hosts: several.Hosts, agent: pathlib.Path, mpi: str) -> None:
    job = start(mpi, hosts, agent, "work_until_lost", "shm+mpi")
    read_lines(job, 2 * len(hosts))
    os.kill(ranks_of(hosts[len(hosts) - 1])[0], 9)
    status, lines, errors = finish(job, 60)
    assert status != 0, (lines, errors)
    assert hosts.left(within=30.0) == []


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("number", range(2))
def test_a_link_restored_within_the_limit_ends_no_job(
    hosts: several.Hosts, agent: pathlib.Path, mpi: str, number: int, tmp_path: pathlib.Path
) -> None:
    moment, end = random.Random(number), tmp_path / "end"
    job = start(mpi, hosts, agent, "work_until_end", "shm+mpi", MPI_JOB_END=str(end), **OVER_TCP)
    works = read_lines(job, 2 * len(hosts))
    for _ in range(2):  # the limit is 10 s, and the system may take two seconds to use a restored link
        with hosts[moment.randrange(len(hosts))].is_cut():
            time.sleep(moment.uniform(4.0, 8.0))
        time.sleep(5.0)
    end.touch()
    done = read_lines(job, 2 * len(hosts))
    job.kill()  # MPICH's MPI_Finalize() may hang
    _, errors = job.communicate()
    assert works == [f"rank {rank} works" for rank in range(2 * len(hosts))], (works, errors)
    assert done == [f"rank {rank} is done" for rank in range(2 * len(hosts))], (done, errors)
    for host in hosts:
        for pid in ranks_of(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
