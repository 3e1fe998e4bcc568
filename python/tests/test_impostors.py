"""Processes that are not ranks of a job but can reach its sockets: they neither join it nor stop it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import containers
import pytest

RANK = """
import sys, time
import levada
job = levada.join(timeout=float(sys.argv[1]))
feed = levada.Feed(({"x": i} for i in range(5)) if job.rank == 0 else None, mesh=levada.Mesh(tp=job.size))
print(job.engine, [batch["x"] for batch in feed])
"""
FED = "shm [0, 1, 2, 3, 4]"
SECRET = "only the ranks of this test know it"


def place(rank: int, size: int, name: str, **more: str) -> dict[str, str]:
    """Returns an environment with the variables that torchrun sets."""
    known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": name}
    return {**os.environ, **{key: str(value) for key, value in known.items()}, "MASTER_ADDR": "host", **more}


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def end(processes: list[subprocess.Popen[str]], within: float = 60) -> list[str]:
    try:
        return [process.communicate(timeout=within)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rest_of(process: subprocess.Popen[str], within: float = 60) -> str:
    """Returns the rest of a process's output after the lines that were read; communicate() would lose what the reader
    has buffered."""
    assert process.stdout is not None
    late = threading.Timer(within, process.kill)
    late.start()
    try:
        return process.stdout.read()
    finally:
        late.cancel()
        process.kill()
        process.wait()


def last_lines(said: list[str]) -> list[str]:
    """Returns the ranks' last lines; on a busy machine, reminders may precede them."""
    return [each.splitlines()[-1] if each else "" for each in said]


def test_a_container_with_the_hosts_network_cannot_join_or_stop_a_job(tmp_path: pathlib.Path) -> None:
    ranks = [
        start([sys.executable, "-c", RANK, "30"], place(rank, 3, str(tmp_path))) for rank in range(2)
    ]
    impostor = containers.start(["-c", containers.IMPOSTOR, "3", "2", "30"])
    assert impostor.stdout is not None
    try:
        assert impostor.stdout.readline() == "impostor looks\n"
        assert impostor.stdout.readline() == "impostor connected\n"
        ranks.append(start([sys.executable, "-c", RANK, "30"], place(2, 3, str(tmp_path))))
        assert last_lines(end(ranks)) == [FED] * 3
    finally:
        said = rest_of(impostor)
    assert said.startswith("impostor refused: "), said


def test_ranks_in_containers_meet_if_they_share_a_secret(tmp_path: pathlib.Path) -> None:
    with_secret = [place(rank, 2, str(tmp_path), LEVADA_SECRET=SECRET) for rank in range(2)]
    ranks = [containers.start(["-c", RANK, "30"], environment) for environment in with_secret]
    assert last_lines(end(ranks)) == [FED] * 2


def test_ranks_in_containers_without_a_secret_do_not_meet(tmp_path: pathlib.Path) -> None:
    ranks = [containers.start(["-c", RANK, "3"], place(rank, 2, str(tmp_path))) for rank in range(2)]
    for said in end(ranks):
        assert "errors.Timeout: " in said and "LEVADA_SECRET" in said, said


def test_an_unmapped_user_is_refused_because_its_id_proves_nothing(tmp_path: pathlib.Path) -> None:
    (said,) = end([start(containers.as_unmapped_user("-c", RANK, "30"), place(0, 2, str(tmp_path)))])
    assert "errors.InvalidArgument: this process has the user id 65534, which the system reports for every" in said, said
    assert "LEVADA_SECRET" in said


def test_a_different_user_with_the_same_visible_id_cannot_join(tmp_path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")  # skipped without: root
    variables = [place(rank, 2, str(tmp_path), LEVADA_SECRET=SECRET) for rank in range(2)]
    first = start(containers.as_unmapped_user("-c", RANK, "30"), variables[0])
    other = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", sys.executable, "-c", containers.IMPOSTOR, "2", "1", "30"]
    impostor = start(other, dict(os.environ))
    assert impostor.stdout is not None
    try:
        assert impostor.stdout.readline() == "impostor looks\n"
        assert impostor.stdout.readline() == "impostor connected\n"
        second = start(containers.as_unmapped_user("-c", RANK, "30"), variables[1])
        assert last_lines(end([first, second])) == [FED] * 2
    finally:
        said = rest_of(impostor)
    assert said.startswith("impostor refused: "), said
