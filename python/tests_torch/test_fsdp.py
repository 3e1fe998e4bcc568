"""FSDP2 with levada.fsdp.ReduceScatter."""

from __future__ import annotations

import pathlib

import process_groups
import pytest

TRAIN = """
    import levada.fsdp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    def train(comm, dtype=None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(33, 33) for _ in range(3)])
        mesh = init_device_mesh("cpu", (size,))
        policy = MixedPrecisionPolicy(reduce_dtype=dtype)
        for module in (*model, model): fully_shard(module, mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if comm is not None and isinstance(module, FSDPModule): module.set_custom_reduce_scatter(comm)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(5):
            torch.manual_seed(100 * step + rank)
            loss = model(torch.randn(8, 33)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [parameter.to_local().flatten().tolist() for parameter in model.parameters()]
"""


def test_fsdp2_trains_with_levadas_sums_as_with_gloos_in_two_equal_runs(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        TRAIN
        + """
    theirs, _ = train(None)
    (ours, first), (again, second) = train(levada.fsdp.ReduceScatter()), train(levada.fsdp.ReduceScatter())
    tell(theirs=theirs, ours=ours, alike=ours == again and first == second)
    """,
    )
    for ((only,),) in zip(told):
        assert only["ours"] == pytest.approx(only["theirs"], rel=1e-5) and only["alike"]


def test_torch_reduces_what_levada_does_not(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import levada.fsdp
        comm = levada.fsdp.ReduceScatter()
        given, output = torch.full((4,), 1.0 + rank), comm.allocate((2,), dtype=torch.float32, device=torch.device("cpu"))
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            work = comm(output, given, dist.group.WORLD, op, async_op=True)
            work.wait()
            tell(output=output.tolist())
        """,
    )
    assert told == [[{"output": [3.0] * 2}, {"output": [1.5] * 2}, {"output": [2.0] * 2}]] * 2
