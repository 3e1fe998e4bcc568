"""An exchange of torch's tensors. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import process_groups
import pytest
import ranks
import torch
from levada import exchange

BODY = """
import torch
from levada import exchange
kinds = {str(kind).removeprefix("torch."): kind for kind in (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128)}
def made(i, name):
    torch.manual_seed(1000 * i + list(kinds).index(name))
    shape = (i % 4, 3)
    if kinds[name] == torch.bool: return torch.rand(shape) < 0.5
    if kinds[name] == torch.int64: return torch.randint(2**53, 2**62, shape)
    return torch.randint(0, 256, (i % 4, 3 * kinds[name].itemsize), dtype=torch.uint8).view(kinds[name])  # any bits
def batch_of(numbers):
    return exchange.SampleBatch([f"s{i}" for i in numbers],
                                {name: torch.cat([made(i, name) for i in numbers]) for name in kinds},
                                {name: [i % 4 for i in numbers] for name in kinds})
def bits(tensor): return tensor.contiguous().view(torch.uint8).tolist() if tensor.numel() else []
def same(batch, i, position):
    return all(item.dtype == kinds[name] and item.shape == made(i, name).shape and bits(item) == bits(made(i, name))
               for name in kinds for item in [batch.item(name, position)])
store = exchange.Store(tensors="torch")
store.store(batch_of(range(rank, 20, 4)))
wants = exchange.destinations(levada.Mesh(dp=2, tp=2), [[f"s{i}" for i in range(half, 20, 2)] for half in range(2)])
done = exchange.redistribute(store, wants, list(kinds), group=job)
mine = list(range(rank // 2, 20, 2))
got = store.get([f"s{i}" for i in mine], list(kinds))
tell(engine=job.engine, moved=done.moved_bytes == done.lower_bound_bytes > 0, kinds=len(kinds),
     wrong=[i for position, i in enumerate(mine) if not same(got, i, position)])
"""


def check(told: list[list[dict[str, object]]], engine: str) -> None:
    assert told == [[{"engine": engine, "moved": True, "kinds": 14, "wrong": []}]] * 4


def test_all_dtypes_arrive_bit_for_bit_over_shared_memory(tmp_path: pathlib.Path) -> None:
    check(ranks.succeed(tmp_path, 4, "job = levada.join()\n" + BODY), "shm")


def test_all_dtypes_arrive_bit_for_bit_over_a_process_group(tmp_path: pathlib.Path) -> None:
    join = 'job = levada.join(dist.group.WORLD, engine="c10d")\n'
    check(process_groups.succeed(tmp_path, 4, join + BODY), "c10d")


def test_values_of_torch_cross_as_they_are() -> None:
    values = {"size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "loss": torch.tensor(0.5)}
    batch = exchange.SampleBatch.from_json(exchange.SampleBatch(["a"], values=[values]).to_json())
    assert batch.values(0) == values and {name: type(each) for name, each in batch.values(0).items()} == {
        name: type(each) for name, each in values.items()
    }


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.ones(2, requires_grad=True), "requires gradients"),
        (torch.ones(2, requires_grad=True) * 2, "requires gradients"),
        (torch.nn.Parameter(torch.ones(2)), "is a torch.nn.Parameter"),
        (torch.nn.Parameter(torch.ones(2), requires_grad=False), "is a torch.nn.Parameter"),
    ],
)
def test_tensors_that_require_gradients_are_refused_by_key_and_sample(tensor: torch.Tensor, why: str) -> None:
    with pytest.raises(TypeError, match=f"key x {why}.*detach"):
        exchange.SampleBatch(["a", "b"], {"x": tensor})
    with pytest.raises(TypeError, match=f"key x of sample b {why}.*detach"):
        exchange.SampleBatch(["a", "b"], {"x": [torch.ones(2), tensor]})
    assert exchange.SampleBatch(["a"], {"x": [tensor.detach()]}).item("x", 0).tolist() == tensor.tolist()


def test_writing_to_returned_tensors_changes_no_store(tmp_path: pathlib.Path) -> None:
    """For one sample or several, by key or one by one, before or after an exchange."""
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from levada import exchange
        store = exchange.Store(tensors="torch", name="s")
        def of(*numbers): return exchange.SampleBatch([f"s{n}" for n in numbers],
            {"x": [torch.full((n + 1, 2), float(n)) for n in numbers]}, {"x": [n + 1 for n in numbers]}, values=None)
        if rank == 0: store.store(of(0, 1, 2, 3))
        for _ in range(2):
            exchange.redistribute(store, {1: ["s0", "s1", "s2", "s3"]}, ["x"], timeout=20)
            for ids in (["s1"], ["s1", "s2"], ["s3", "s0"]):
                batch = store.get(ids)
                batch["x"].sub_(batch["x"].mean() + 5)
                for position in range(len(ids)): batch.item("x", position).zero_()
                assert batch["x"].abs().sum() == 0  # the batch's own memory is written, and stays so
                batch.sequence("x", 0, 0).add_(1)
        tell(same=store.get(store.ids) == of(0, 1, 2, 3))
        """,
    )
    assert told == [[{"same": True}]] * 2
