"""Joining by a process group. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib
import re
import textwrap

import levada
import process_groups
import pytest


def test_the_members_of_a_process_group_form_a_job(tmp_path: pathlib.Path) -> None:
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
        assert "different engines: auto on rank 0, 1; shm on rank 2; pass the same" in str(told[rank][-3 if rank == 1 else -2]["text"])
    for rank in range(4):
        assert {"rank": rank, "got": [rank // 2 + 2 * i for i in range(4)]} in told[rank]


def test_the_world_of_torch_is_joined_if_the_environment_names_no_job(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        if rank == 0: os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}   # names no other ranks
        tell(place=[levada.rank(), levada.world_size(), levada.join().size, levada.Mesh.from_env().size])
        tell(got=list(levada.Feed(range(4))), shard=list(levada.Pipeline(range(4)).shard().run(group=levada.join())))
        group = dist.new_group([1, 0])
        levada.join(group)
        tell(rest=list(levada.Feed(range(4, 6))), same=levada.join() is levada.join(dist.group.WORLD))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"place": [rank, 2, 2, 2]}
        assert mine[1] == {"got": [rank, 2 + rank], "shard": [rank, 2 + rank]}
        assert mine[2] == {"rest": [4 + rank], "same": True}


def test_a_rank_whose_process_group_has_been_destroyed_does_not_take_all_data_as_its_own(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        feed = levada.Feed(range(4))
        early = levada.DataLoader([5, 6])
        job = levada.join()
        tell(got=list(feed), place=[levada.rank(), levada.world_size()])
        if rank == 0: os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}   # names no other ranks
        dist.destroy_process_group()
        for name, call in dict(pass_=lambda: list(feed), early=lambda: list(early), feed=lambda: list(levada.Feed(range(4))),
                               loader=lambda: list(levada.DataLoader([5, 6])), join=levada.join).items():
            try: tell(name=name, wrong=str(call()))
            except levada.InvalidArgument as error: tell(name=name, text=str(error))
        tell(place=[levada.rank(), levada.world_size()], own=list(levada.Pipeline(range(2))))
        dist.init_process_group("gloo", init_method=f"file://{os.path.dirname(os.path.abspath(__file__))}/second", rank=rank, world_size=size)
        tell(got=list(feed), loader=[batch.tolist() for batch in early], new=list(levada.Feed(range(2))))
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tell(one=list(levada.Feed(range(2))))
        dist.destroy_process_group()
        tell(one=list(levada.Feed(range(2))))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"got": [rank, 2 + rank], "place": [rank, 2]}
        for refused in mine[1:6]:
            assert f"rank {rank} of 2 in torch.distributed, whose process group has been destroyed" in str(refused.get("text")), refused
        assert mine[6] == {"place": [rank, 2], "own": [0, 1]}
        assert mine[7] == {"got": [rank, 2 + rank], "loader": [[5 + rank]], "new": [rank]}
        assert mine[8] == mine[9] == {"one": [0, 1]}


def test_a_job_outlives_its_process_group_by_its_membership_or_by_the_launchers_variables(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        job = levada.join()
        dist.destroy_process_group()
        tell(got=list(levada.Feed(range(4), group=job)), loader=[batch.tolist() for batch in levada.DataLoader([5, 6], group=job)])
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(29000 + os.getppid() % 900)}
        tell(place=[levada.rank(), levada.world_size()], got=list(levada.Feed(range(4))))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"got": [rank, 2 + rank], "loader": [[5 + rank]]}
        assert mine[1] == {"place": [rank, 2], "got": [rank, 2 + rank]}


def test_a_feed_created_before_its_process_group_is_refused_or_joins_it(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        dist.destroy_process_group()
        def init(name):
            folder = os.path.dirname(os.path.abspath(__file__))
            dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=size)
        feed, loader = levada.Feed(range(4)), levada.DataLoader([5, 6])   # nothing indicates other ranks
        init("second")
        for each in (feed, loader):
            try: tell(wrong=str(list(each)))
            except levada.InvalidArgument as error: tell(text=str(error))
        dist.destroy_process_group()
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(29000 + os.getppid() % 900)}
        feed = levada.Feed(range(4))
        init("third")
        tell(got=list(feed))
        """,
    )
    for rank, mine in enumerate(told):
        for refused in mine[:2]:
            assert "1 ranks, the job has 2" in str(refused.get("text")), refused
        assert mine[2] == {"got": [rank, 2 + rank]}


def test_the_world_of_torch_takes_precedence_over_the_environment(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        # Like a launcher that numbers ranks in reverse and does not name the ranks of this host.
        os.environ |= {"RANK": str(1 - rank), "WORLD_SIZE": "2", "MASTER_PORT": "29511"}
        tell(place=[levada.rank(), levada.world_size()], got=list(levada.Feed(range(4))))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine == [{"place": [rank, 2], "got": [rank, 2 + rank]}]


def test_a_device_mesh_is_accepted_wherever_a_mesh_is(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        from levada import exchange
        from torch.distributed.device_mesh import init_device_mesh
        whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
        feed = levada.Feed(range(4), mesh=whole)
        tell(mesh=str(feed.mesh), got=list(feed))
        # The ranks of one tp coordinate, and of one dp coordinate: each is a separate job.
        tell(rows=list(levada.Feed(range(4), mesh=whole["dp_shard"])), columns=list(levada.Feed(range(2), whole["tp"])))
        tell(size=levada.join(whole["tp"]).size, heads=exchange.data_heads(whole["dp_shard"]))
        try:
            levada.Feed([1], mesh=("dp", 4))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        named = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tp"))
        tell(named=list(levada.Feed(range(4), named, data_axes=["replica"])))
        critic = exchange.destinations(named, [["a"], ["b"]], data_axes=["replica"])
        tell(ranks=[each.ranks for each in critic], ids=[each.ids for each in critic],
             heads=exchange.data_heads(named, data_axes=["replica"]))
        try:
            levada.Feed([1], levada.Mesh(dp=4), data_axes=["dp"])
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"mesh": "dp_shard=2,tp=2", "got": [rank // 2, 2 + rank // 2]}
        assert mine[1] == {"rows": [rank // 2, 2 + rank // 2], "columns": [0, 1]}
        assert mine[2] == {"size": 2, "heads": [rank % 2, 2 + rank % 2]}
        assert "or a DeviceMesh of torch.distributed" in str(mine[3]["error"])
        assert mine[4] == {"named": [rank // 2, 2 + rank // 2]}
        assert mine[5] == {"ranks": [[0, 1], [2, 3]], "ids": [["a"], ["b"]], "heads": [0, 2]}
        assert "data_axes is for a mesh that is no levada.Mesh" in str(mine[6]["error"])


def test_a_device_mesh_given_as_the_group_is_also_the_mesh(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from torch.distributed.device_mesh import init_device_mesh
        devices = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        feed = levada.Feed(range(2), group=devices)
        tell(mesh=str(feed.mesh), got=list(feed))
        loader = levada.DataLoader([5, 6], group=devices)
        tell(loader=[batch.tolist() for batch in loader])
        other = levada.Feed(range(2), mesh=levada.Mesh(dp=2), group=devices)
        tell(mesh=str(other.mesh), got=list(other))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"mesh": "dp=1,tp=2", "got": [0, 1]}
        assert mine[1] == {"loader": [[5], [6]]}
        assert mine[2] == {"mesh": "dp=2", "got": [rank]}


def test_a_mesh_of_a_device_mesh_knows_this_process_s_rank_in_it(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        8,
        """
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        whole = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        for axes in (("pp", "dp", "tp"), ("dp",), ("pp", "tp"), ("pp", "dp")):
            devices = whole[axes]
            mesh = levada.Mesh.from_device_mesh(devices)
            assert [mesh.coordinate(axis) for axis in axes] == list(devices.get_coordinate()), (axes, mesh)
            assert [mesh[axis].coordinate(axis) for axis in axes] == [devices.get_local_rank(axis) for axis in axes]
        named = levada.Feed(range(4), whole["dp"], data_axes=[]).mesh
        tell(dp=levada.Feed(range(4), whole["dp"]).mesh.coordinate("dp"), named=named.coordinate("dp"), data=named.data_axes)
        some = DeviceMesh("cpu", [[2, 3], [6, 7]], mesh_dim_names=("dp", "tp"))
        mesh = levada.Mesh.from_device_mesh(some)
        try:
            tell(some=[mesh.coordinate("dp"), mesh.coordinate("tp")], group=mesh.group(["tp"]))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"dp": rank // 2 % 2, "named": rank // 2 % 2, "data": []}
        if rank in (2, 3, 6, 7):
            dp, tp = rank // 4, rank % 2
            assert mine[1] == {"some": [dp, tp], "group": [2 * dp, 2 * dp + 1]}
        else:
            assert f"rank {rank} of the job is not in the device mesh of 'dp=2,tp=2'" in str(mine[1]["error"])


def test_a_mesh_is_checked_against_process_groups(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        import types
        groups = {}
        for axis, members in {"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]], "dp": [[0], [1], [2], [3]]}.items():
            for ranks in members:
                group = dist.new_group(ranks)
                if rank in ranks:
                    groups[axis] = group
        levada.Mesh(pp=2, tp=2).check_groups(**groups)
        # Groups that Megatron-LM has initialized have separate tests.
        state = types.ModuleType("megatron.core.parallel_state")
        state.model_parallel_is_initialized = lambda: True
        for name, axis in (("tensor_model", "tp"), ("context", "dp"), ("pipeline_model", "pp"), ("data", "dp")):
            setattr(state, f"get_{name}_parallel_group", lambda axis=axis: groups[axis])
        sys.modules["megatron.core.parallel_state"] = state
        tell(mesh=str(levada.Mesh.from_env(pp=2, tp=2)))
        try:
            levada.Mesh.from_env(pp=2, tp=2, order="pp-tp-dp")
        except levada.InvalidArgument as error:
            tell(error=str(error))
        try:
            levada.Feed(range(4), levada.Mesh(dp=1, tp=2, pp=2))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        # A mesh with only data axes is compared, too, and any group of all ranks.
        everybody = dist.new_group([0, 1, 2, 3])
        from torch.distributed.device_mesh import init_device_mesh
        devices = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        for arguments in ({}, {"group": dist.group.WORLD}, {"mesh": levada.Mesh(dp=4), "group": everybody}, {"mesh": devices}):
            try:
                tell(wrong=list(levada.Feed(range(4), **arguments)))
            except levada.InvalidArgument as error:
                tell(alone=str(error))
        tell(got=list(levada.Feed(range(4), levada.Mesh(pp=2, tp=2))), own=list(levada.Feed(range(4), group=levada.join())))
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        tell(half=list(levada.Feed(range(2), levada.Mesh(tp=2), group=halves[rank % 2])))
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"mesh": "pp=2,dp=1,tp=2"}
        assert f"rank {rank} is dp0 tp{rank // 2} pp{rank % 2}" in str(mine[1]["error"])
        for refused in mine[1:3]:
            assert "Megatron's process group for tp has ranks" in str(refused["error"])
        assert "levada.join()" not in str(mine[1]["error"])
        for refused in mine[3:7]:
            assert f"rank {rank} is dp{rank} in the mesh 'dp=4'" in str(refused["alone"])
            assert "as Mesh.from_env(tp=2, pp=2); a feed that is not to follow" in str(refused["alone"])
        assert mine[7] == {"got": [0, 1, 2, 3], "own": [rank]}  # a Membership is not checked against the mesh
        assert mine[8] == {"half": [0, 1]}


def test_a_mesh_is_checked_against_the_groups_of_megatron_core(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        from megatron.core import parallel_state
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, expert_model_parallel_size=2)
        tell(mesh=str(levada.Mesh.from_env(tp=2)), got=list(levada.Feed(range(4), levada.Mesh(dp=2, tp=2))))
        meshes = ({"dp": 4}, None), ({"ep": 2, "tp": 2}, None), ({"tp": 2, "ep": 2}, ["ep"]), ({"ep": 2, "tp": 2}, ["ep"])
        for axes, data_axes in meshes:
            try:
                tell(got=list(levada.Feed(range(4), levada.Mesh(**axes, data_axes=data_axes))))
            except levada.InvalidArgument as error:
                tell(error=str(error))
        """,
    )
    for rank, mine in enumerate(told):
        got = [rank // 2, 2 + rank // 2]
        assert mine[0] == {"mesh": "dp=2,tp=2", "got": got}
        for refused, axis in zip(mine[1:4], ("tp", "dp", "tp"), strict=True):
            assert f"Megatron's process group for {axis} has ranks" in str(refused["error"])
        assert mine[4] == {"got": got}


ABSENT = """
from levada.job import arrivals, gloo
arrivals.REMIND_AFTER = 0.3
"""


OVER_TCP = """
port = os.path.join(os.path.dirname(os.path.abspath(__file__)), "port")
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
    with open(port + "+", "w") as file: file.write(str(store.port))
    os.rename(port + "+", port)
else:
    while not os.path.exists(port): time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int(open(port).read()), size, False, wait_for_workers=False)
dist.destroy_process_group()
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
"""


@pytest.mark.parametrize("over", ["", OVER_TCP], ids=["file", "tcp"])
def test_a_reminder_and_the_timeout_name_the_ranks_that_do_not_join(tmp_path: pathlib.Path, over: str) -> None:
    make = """
        arrivals.REMIND_AFTER = 2
        done = dist.new_group([0, 1, 2, 3])
        if rank not in (1, 3):
            try:
                levada.join(dist.group.WORLD, timeout=9)
            except levada.Timeout as error:
                tell(error=str(error))
        dist.monitored_barrier(done)
        """
    outcomes = process_groups.finish(process_groups.start(tmp_path, 4, ABSENT + over + textwrap.dedent(make)), tmp_path)
    assert [outcome.status for outcome in outcomes] == [0] * 4, "\n".join(each.errors for each in outcomes)
    for rank in (0, 2):
        lines = [line for line in outcomes[rank].errors.splitlines() if line.startswith("levada: ")]
        assert len(lines) == 2, outcomes[rank].errors  # after 2 and 6 s
        said = re.compile(rf"rank {rank} on host \S+ has waited (\d+\.\d) s to join its group for rank\(s\) 1, 3 of its 4")
        assert all(said.search(line) and line.endswith("; still waiting") for line in lines), lines
        error = str(outcomes[rank].told[0][0]["error"])
        assert (found := said.search(error)) and float(found[1]) >= 9 and "that all of them join" in error, error


@pytest.mark.parametrize("over", ["", OVER_TCP], ids=["file", "tcp"])
def test_a_group_that_cannot_connect_names_the_ranks_that_are_missing(tmp_path: pathlib.Path, over: str) -> None:
    body = """
        store = dist.PrefixStore("own", dist.group.WORLD.get_group_store())
        if rank == 0:
            try:
                gloo.own_group(store, 0, 2, [dist.ProcessGroupGloo.create_default_device()], 1.0)
            except levada.Timeout as error:
                tell(error=str(error))
        dist.monitored_barrier()
        """
    first, second = process_groups.finish(process_groups.start(tmp_path, 2, ABSENT + over + textwrap.dedent(body)), tmp_path)
    assert (first.status, second.status) == (0, 0), first.errors + second.errors
    named = "to connect its group over gloo for rank(s) 1 of its 2"
    assert named in first.errors and named in str(first.told[0][0]["error"])


def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_join(tmp_path: pathlib.Path) -> None:
    body = """
        import threading
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank == 0:
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                levada.join(dist.group.WORLD, timeout=30)
            except KeyboardInterrupt:
                tell(seconds=time.monotonic() - began)
        barrier("interrupted")
        os._exit(0)
        """
    first, _ = process_groups.finish(process_groups.start(tmp_path, 2, body), tmp_path)
    assert float(str(first.told[0][0]["seconds"])) < 15, first.errors


def test_waiting_for_the_seed_of_an_epoch_names_the_ranks_that_have_not_begun_it(tmp_path: pathlib.Path) -> None:
    body = """
        from levada.dropin.torchdata.random import dist_share_seed
        errors = os.path.join(os.path.dirname(os.path.abspath(__file__)), "errors.1")
        for seed in (5, 6):   # the second one late
            while rank == 0 and seed == 6 and "still waiting" not in open(errors).read(): time.sleep(0.01)
            tell(seed=dist_share_seed(seed + rank))
        """
    outcomes = process_groups.finish(process_groups.start(tmp_path, 2, ABSENT + textwrap.dedent(body)), tmp_path)
    assert [outcome.told[0] for outcome in outcomes] == [[{"seed": 5}, {"seed": 6}]] * 2, outcomes[1].errors
    assert "to share a seed in its group for rank(s) 0 of its 2; still waiting" in outcomes[1].errors


def test_an_invalid_group_or_engine_is_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="auto, shm, c10d"):
        levada.join(engine="smoke")
    with pytest.raises(levada.InvalidArgument, match="neither a process group"):
        levada.join([0, 1])
    with pytest.raises(levada.InvalidArgument, match="neither a process group"):
        levada.Feed([1], group=-100)  # new_group() returns this to ranks outside the group


def test_placements_of_dtensors_place_a_field() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    layout = levada.Layout({"ids": {"dp": Shard(0), "tp": Replicate()}, "x": {"dp": Shard(1)}})
    assert layout == levada.Layout({"ids": ["shard(dp,0)", "replicate(tp)"], "x": "shard(dp,1)"})
    for placement in (Partial(), Shard):
        with pytest.raises(levada.InvalidArgument, match="cannot be placed along dp"):
            levada.Layout({"ids": {"dp": placement}})
    with pytest.raises(levada.InvalidArgument, match=r'Shard\(dim=0\) in a list names no axis; write \{"dp": Shard\(dim=0\)\}'):
        levada.Layout({"ids": [Shard(0), Replicate()]})


def test_a_placement_that_names_an_axis_is_refused_for_another_axis() -> None:
    with pytest.raises(levada.InvalidArgument, match=r"shard\(tp,1\) cannot be placed along dp: a dict has"):
        levada.Layout({"ids": {"dp": levada.Shard("tp", 1)}})


def test_a_list_of_dtensors_placements_follows_the_axes_of_a_device_mesh(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        feed = levada.Feed([], mesh, layout={"ids": [Shard(0), Replicate()]})
        try:
            levada.Feed([], mesh, layout={"ids": [Shard(0)]})
        except levada.InvalidArgument as error:
            tell(same=feed.layout == levada.Layout({"ids": ["shard(dp,0)", "replicate(tp)"]}), text=str(error))
        """,
    )
    for (mine,) in told:
        assert mine["same"] and "1 placements, and the mesh has the axes dp, tp" in str(mine["text"])
