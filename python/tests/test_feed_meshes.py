"""The batches of a feed that each rank of a mesh gets."""

from __future__ import annotations

import pathlib
from typing import Any

import levada
import pytest
import ranks


@pytest.mark.parametrize("mesh", ["data=4", "fsdp=4", "dp_replicate=2,dp_shard=2", "dp=2,fsdp=2", "ddp=4"])
def test_each_rank_along_any_data_axis_gets_its_own_batches(tmp_path: pathlib.Path, mesh: str) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        f"""
        mesh = levada.Mesh.parse({mesh!r})
        tell(data=[mesh.data_size, mesh.data_coordinate(rank)])
        for readers in ("one", "dp", "all"):
            tell(got=list(levada.Feed(range(10), mesh=mesh, readers=readers)), size=len(levada.Feed(range(10), mesh=mesh)))
        rows = [np.arange(8) + 8 * step for step in range(2)]
        tell(rows=[list(map(int, batch)) for batch in levada.Feed(rows, mesh=mesh, divide="split")])
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"data": [4, rank]}
        assert mine[1:4] == [{"got": [rank, 4 + rank], "size": 2}] * 3
        assert mine[4] == {"rows": [[2 * rank, 2 * rank + 1], [8 + 2 * rank, 9 + 2 * rank]]}


def test_an_unknown_axis_is_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        try:
            list(levada.Feed(range(4), mesh=levada.Mesh(replica=2)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2, data_axes=["replica"]))))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2, data_axes=[]))))
        tell(got=list(levada.Feed(range(4), mesh=levada.Mesh(replica=2), layout={"*": "replicate(replica)"})))
        """,
    )
    for rank, mine in enumerate(told):
        assert "axis replica" in mine[0]["error"] and "data_axes=" in mine[0]["error"]
        assert [each["got"] for each in mine[1:]] == [[rank, 2 + rank], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_mesh_knows_its_data_axes() -> None:
    mesh = levada.Mesh(dp_replicate=2, tp=2, dp_shard=3)
    assert mesh.data_axes == ["dp_replicate", "dp_shard"] and mesh.data_size == 6 and mesh.data_coordinate(9) == 3
    mesh = levada.Mesh(replica=2, tp=2, data_axes=["replica"])
    assert mesh.data_axes == ["replica"] and mesh == eval(repr(mesh), {"Mesh": levada.Mesh})
    with pytest.raises(levada.InvalidArgument, match="not an axis of the mesh"):
        levada.Mesh(dp=2, data_axes=["x"])
    with pytest.raises(levada.InvalidArgument, match="no rank 12"):
        levada.Mesh(dp=2, tp=6).data_coordinate(12)


@pytest.mark.parametrize("size", [2.0, 2**40, "2", None])
def test_the_size_of_an_axis_is_a_whole_number(size: Any) -> None:
    for make in (levada.Mesh, levada.Mesh.from_env):
        with pytest.raises(levada.InvalidArgument, match="axis dp of a mesh has size .*; it must be a whole number from 1 to"):
            make(dp=size)


def test_a_mesh_must_fit_the_job(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        tell(mesh=str(levada.Mesh.from_env(tp=2)), size=levada.world_size())
        tell(
            megatron=str(levada.Mesh.from_env(tp=2, pp=2)),
            hybrid=str(levada.Mesh.from_env(dp_replicate=2, dp_shard=2)),
            other=str(levada.Mesh.from_env(tp=2, pp=2, order="tp-pp-dp")),
        )
        try:
            list(levada.Feed([1], mesh=levada.Mesh(dp=3)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        try:
            list(levada.Feed([1], mesh=levada.Mesh(dp=4) if rank else levada.Mesh(tp=4)))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for mine in told:
        assert mine[0] == {"mesh": "dp=2,tp=2", "size": 4}
        assert mine.pop(1) == {
            "megatron": "pp=2,dp=1,tp=2",
            "hybrid": "dp_replicate=2,dp_shard=2",
            "other": "dp=1,pp=2,tp=2",
        }
        assert "the job has 4" in mine[1]["error"] and "ranks disagree on the feed's mesh" in mine[2]["error"]
        assert mine[1:] == told[0][1:]


@pytest.mark.parametrize("readers", ["one", "dp", "host", "spread"])
def test_a_mesh_of_more_ranks_than_the_job_is_refused_before_readers_are_chosen(readers: str) -> None:
    mesh = levada.Mesh(dp=2, tp=2)
    said = "mesh 'dp=2,tp=2' has 4 ranks, the job has 1; make the axes multiply to 1, or start 4 ranks: levada run -n 4"
    for loader in (levada.DataLoader([1, 2], mesh=mesh, readers=readers), levada.Feed([1, 2], mesh, readers=readers)):
        with pytest.raises(levada.InvalidArgument) as refused:
            list(loader)
        assert str(refused.value) == said


def test_without_a_job_there_is_one_rank() -> None:
    assert list(levada.Feed([1, 2, 3])) == [1, 2, 3]
    with pytest.raises(levada.InvalidArgument, match="tail is \"pad\"; with divide=\"split\" an item is a whole step"):
        levada.Feed([1], tail="pad", divide="split")
    with pytest.raises(levada.InvalidArgument, match="batch_size is for a Corpus"):
        levada.Feed([1], batch_size=2)
    with pytest.raises(levada.InvalidArgument, match="access must be one of .*'secret'"):
        levada.Feed([1], access="secret")


def test_placements_are_objects_or_their_text() -> None:
    from levada import Layout, Replicate, Shard, Stages, Zigzag

    objects = Layout(
        {"ids": [Shard("dp"), Zigzag("cp"), Stages("pp", "first", "mtp")], "x.*": Shard("dp", 1)},
        otherwise=Replicate("tp"),
        optional=["x.*"],
        stages={"mtp": [1]},
        name="mine",
    )
    text = Layout(
        {"ids": ("shard(dp,0)", "zigzag(cp,1)", "stages(pp,first,mtp)"), "x.*": "shard(dp,1)"},
        otherwise=["replicate(tp)"],
        optional=["x.*"],
        stages={"mtp": [1]},
        name="mine",
    )
    assert objects == text == Layout.from_json(objects.to_json())
    assert repr([Shard("dp", 1), Replicate("tp"), Zigzag("cp"), Stages("pp", "last")]) == (
        "[Shard('dp', 1), Replicate('tp'), Zigzag('cp', 1), Stages('pp', 'last')]"
    )
    assert Shard("dp") == Shard("dp", 0) != Shard("dp", 1) and len({Shard("dp"), Shard("dp", 0)}) == 1
    assert Stages("pp", "first").names == ("first",) and Zigzag("cp", 2).dim == 2


@pytest.mark.parametrize(
    "fields, problem",
    [
        (5, "fields is 5; it must be a mapping from names to placements"),
        ({"x": 1}, "1 is not a placement"),
        ({"x": "cut(dp)"}, "cut"),
        ({"x": levada.Shard("d p")}, "d p"),
        ({"x": {"dp": "shard(dp,0)"}}, "cannot be placed along dp"),
    ],
)
def test_an_invalid_placement_is_refused(fields: Any, problem: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=problem):
        levada.Layout(fields)
    with pytest.raises(levada.InvalidArgument, match="optional"):
        levada.Layout({}, optional=["x"])


def test_a_mesh_knows_its_own_rank_and_its_parts(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        mesh = levada.Mesh(dp=2, tp=2)
        tell(dp=mesh.coordinate("dp"), tp=mesh.coordinate("tp"), group=mesh.group(["tp"]), both=mesh.group(["dp", "tp"]),
             part=str(mesh["tp"]), data=mesh["tp"].data_axes, parts=str(mesh["tp", "dp"]), epoch=levada.Feed([1]).epoch)
        """,
    )
    for rank, (mine,) in enumerate(told):
        assert (mine["dp"], mine["tp"]) == divmod(rank, 2)
        assert mine["group"] == [rank // 2 * 2, rank // 2 * 2 + 1] and mine["both"] == [0, 1, 2, 3]
        assert (mine["part"], mine["data"], mine["parts"], mine["epoch"]) == ("tp=2", [], "dp=2,tp=2", 0)
    with pytest.raises(KeyError, match="the mesh 'dp=2' has no axis 'cp'"):
        levada.Mesh(dp=2)["cp"]


def test_an_absent_axis_counts_as_one_rank_only_if_its_name_is_known() -> None:
    mesh = levada.Mesh(dp=2, tp=2)
    assert (mesh.coordinate(3, "cp"), mesh.axis_size("pp"), mesh.group(3, ["cp"])) == (0, 1, [3])
    for wrong in (lambda: mesh.coordinate(1, "dpp"), lambda: mesh.axis_size("dpp"), lambda: mesh.group(1, ["tp", "dpp"])):
        with pytest.raises(levada.InvalidArgument, match="the mesh 'dp=2,tp=2' has no axis 'dpp'$"):
            wrong()
    with pytest.raises(levada.InvalidArgument, match="no axis 'dp'; data_coordinate"):
        levada.Mesh(dp_replicate=2, dp_shard=2).coordinate(1, "dp")


def test_a_part_of_a_mesh_knows_its_own_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        8,
        """
        mesh = levada.Mesh(pp=2, dp=2, tp=2)
        outer = mesh["pp", "dp"]
        tell(dp=mesh["dp"].coordinate("dp"), outer=[outer.coordinate("pp"), outer.coordinate("dp")], group=outer.group(["dp"]),
             part=outer["pp"].coordinate("pp"), equal=mesh["dp"] == levada.Mesh(dp=2),
             alike=hash(mesh["dp"]) == hash(levada.Mesh(dp=2)))
        # Neither is of this job, though the part has as many ranks.
        for other in (levada.Mesh(dp=2), levada.Mesh(dp=8, tp=2)["dp"]):
            try:
                tell(wrong=other.coordinate("dp"))
            except levada.InvalidArgument as error:
                tell(error=str(error), given=other.coordinate(1, "dp"))
            try:
                tell(wrong=other.group(["dp"]))
            except levada.InvalidArgument as error:
                tell(error=str(error), given=other.group(1, ["dp"])[:2])
        """,
    )
    for rank, mine in enumerate(told):
        pp, dp = rank // 4, rank // 2 % 2
        assert mine[0] == {"dp": dp, "outer": [pp, dp], "group": [2 * pp, 2 * pp + 1], "part": pp, "equal": True, "alike": True}
        meshes = ["'dp=2' has 2"] * 2 + ["'dp=8,tp=2' has 16"] * 2
        for refused, mesh, given in zip(mine[1:], meshes, [1, [0, 1]] * 2, strict=True):
            assert f"the mesh {mesh} ranks and the job has 8" in refused["error"] and "pass a rank" in refused["error"]
            assert refused["given"] == given


def test_ranks_with_different_layouts_get_one_message_of_one_line(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        layout = {"x": ["shard(tp,0)"], "y\\x1b*": "replicate(tp)"} if rank else {"x": "replicate(tp)"}
        try:
            list(levada.Feed([{"x": np.zeros(4)}], mesh=levada.Mesh(tp=2), layout=layout, timeout=60))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    (first,), (second,) = ([each["error"] for each in mine] for mine in told)
    assert first == second and first.isprintable(), (first, second)
    assert "layout" in first and "rank 1" in first and "rank 0" in first and "shard(tp,0)" in first, first
