"""Joining by a process group. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import levada
import process_groups
import pytest


def test_the_members_of_a_process_group_are_a_job_of_their_own(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        group = dist.new_group([1, 3])
        if rank in (1, 3):
            job = levada.join(group)
            tell(rank=job.rank, size=job.size, engine=job.engine)
            tell(same=levada.join(group) is job and levada.join(group, engine="shm") is job and levada.join(job) is job)
            tell(got=list(levada.Feed(range(4), group=group)), again=list(levada.Feed(range(2), group=job)))
            assert levada.join(engine="auto") is not job and levada.join().size == 1
        other = dist.new_group([0, 1, 2])
        try:
            if rank != 3:
                levada.join(other, engine="shm" if rank == 2 else "auto")
        except levada.InvalidArgument as error:
            tell(text=str(error))
        everybody = levada.join(dist.group.WORLD)
        tell(rank=everybody.rank, got=list(levada.Feed(range(8), levada.Mesh(dp=2, tp=2), group=everybody)))
        dist.destroy_process_group()
        del group, other
        if rank in (1, 3):
            tell(size=job.size, got=list(levada.Feed(range(2), group=job)))
        """,
    )
    for rank in (1, 3):
        assert told[rank][0] == {"rank": rank // 2, "size": 2, "engine": "shm"}
        assert told[rank][1] == {"same": True}
        assert told[rank][2] == {"got": [rank // 2, 2 + rank // 2], "again": [rank // 2]}
        assert told[rank][-1] == {"size": 2, "got": [rank // 2]}
    for rank in (0, 1, 2):
        assert "different engines: auto, auto, shm" in str(told[rank][-3 if rank == 1 else -2]["text"])
    for rank in range(4):
        assert {"rank": rank, "got": [rank // 2 + 2 * i for i in range(4)]} in told[rank]


def test_what_is_no_group_or_engine_is_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="auto, shm, c10d"):
        levada.join(engine="smoke")
    with pytest.raises(levada.InvalidArgument, match="neither a process group"):
        levada.join([0, 1])
    with pytest.raises(levada.InvalidArgument, match="neither a process group"):
        levada.Feed([1], group=-100)  # what new_group() gives who is not in it
