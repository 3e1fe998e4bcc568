"""Batches of torch tensors. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import levada
import numpy as np
import pytest
import ranks
import torch

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
FLOAT8 = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"


def bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", [*DTYPES.split(), *FLOAT8.split()])
def test_tensors_of_all_dtypes_come_back_bit_for_bit(name: str) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    for view in (tensor, tensor[1:, ::2], tensor.t(), tensor[:0], tensor[1, 1]):
        result = levada.unpack(levada.pack({"x": view}))["x"]
        assert type(result) is torch.Tensor and result.dtype == view.dtype and result.shape == view.shape
        assert bits(result) == bits(view)


def test_kinds_do_not_mix() -> None:
    batch = [torch.ones(2), np.ones(2), torch.nn.Parameter(torch.ones(2))]
    result = levada.unpack(levada.pack(batch))
    assert [type(each) for each in result] == [torch.Tensor, np.ndarray, torch.nn.Parameter]


def test_tensors_that_require_gradients_still_do() -> None:
    batch = {
        "x": torch.ones(2),
        "g": torch.ones(2, requires_grad=True),
        "made": torch.ones(2, requires_grad=True) * 2,
        "w": torch.nn.Parameter(torch.ones(2)),
        "fixed": torch.nn.Parameter(torch.arange(2), requires_grad=False),
        "h": torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
    }
    result = levada.unpack(levada.pack(batch))
    assert [each.requires_grad for each in result.values()] == [False, True, True, True, False, True]
    assert [type(each) for each in result.values()] == [type(each) for each in batch.values()]
    assert all(each.is_leaf for each in result.values()) and result["made"].tolist() == [2, 2]
    (result["g"].sum() + result["w"].sum()).backward()
    assert result["g"].grad.tolist() == result["w"].grad.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 5), (2, 3, 2, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_images_keep_their_memory_format(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    images = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    for each in (images, images.contiguous(memory_format=format)):
        result = levada.unpack(levada.pack([each]))[0]
        assert torch.equal(result, images) and result.stride() == each.stride()


def test_other_values_of_torch_come_back() -> None:
    batch = [torch.Size([2, 3]), torch.Size([]), torch.float32, torch.float8_e4m3fn, torch.device("cuda:1"), torch.device("cpu")]
    result = levada.unpack(levada.pack(batch))
    assert result == batch and list(map(type, result)) == list(map(type, batch))


class Labelled(torch.Tensor):
    pass


class Registered(torch.Tensor):
    pass


def test_a_subclass_of_tensor_is_refused_by_name_unless_it_is_registered() -> None:
    with pytest.raises(TypeError, match=r"^batch\['x'\] cannot cross between ranks: its class is Labelled; register"):
        levada.pack({"x": torch.ones(2).as_subclass(Labelled)})
    with pytest.raises(TypeError, match="a Labelled is more than its elements"):
        levada.ReduceScatter()(torch.ones(2).as_subclass(Labelled))
    with pytest.raises(levada.InvalidArgument, match=r"Labelled is more than its elements.*pass its \.as_subclass"):
        levada.collate_padded([torch.ones(2).as_subclass(Labelled), torch.ones(3)])
    pickled = levada.pack([torch.ones(2).as_subclass(Labelled)], allow_pickle=True)
    assert type(levada.unpack(pickled, allow_pickle=True)[0]) is Labelled
    levada.register(
        Registered,
        lambda tensor: ((tensor.as_subclass(torch.Tensor),), None),
        lambda _, children: children[0].as_subclass(Registered),
    )
    result = levada.unpack(levada.pack([torch.ones(2).as_subclass(Registered)]))[0]
    assert type(result) is Registered and result.tolist() == [1, 1]


def test_aliases_come_back_aliased() -> None:
    tensor = torch.zeros(1000)
    result = levada.unpack(levada.pack({"tokens": tensor, "input_ids": tensor}))
    assert result["tokens"] is result["input_ids"]


def test_the_error_names_a_tensor_that_is_not_dense_on_the_cpu() -> None:
    with pytest.raises(TypeError, match=r"^batch\['a'\]\[0\] cannot cross between ranks: its layout is torch.sparse_coo"):
        levada.pack({"a": [torch.eye(3).to_sparse()]})
    with pytest.raises(levada.Unsupported, match=r"is on meta; batches must be on the CPU"):
        levada.pack(torch.empty(3, device="meta"))


def test_a_data_loader_with_workers_feeds_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        import torch
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return {"x": torch.full((3,), float(i)), "name": str(i)}
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
        for _ in range(2):
            got = []
            for batch in levada.Feed(loader, mesh=levada.Mesh(dp=2, tp=2)):
                batch["x"] += rank  # its own
                got.append([batch["x"][:, 0].tolist(), batch["name"]])
            tell(got=got)
        """,
    )
    for rank, mine in enumerate(told):
        items = [list(range(4 * b, 4 * b + 4)) for b in range(rank // 2, 16, 2)]
        assert mine == [{"got": [[[i + rank for i in item], [str(i) for i in item]] for item in items]}] * 2


def test_read_only_refuses_torch(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        try:
            list(levada.Feed([torch.ones(3)] * 2, access="read_only"))
        except levada.InvalidArgument as error:
            tell(text=str(error))
        """,
    )
    assert all("torch" in mine["text"] for (mine,) in told)


def test_ranks_of_torchrun_join_by_themselves(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ranks.PROLOGUE.format(folder=str(tmp_path)) + "tell(got=list(levada.Feed(range(6))))\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    assert [ranks.told_by(tmp_path, rank) for rank in range(3)] == [[{"got": [r, r + 3]}] for r in range(3)]


def test_a_corpus_yields_torch_tensors_that_a_rank_may_write(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        text = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"text{rank}.txt")
        open(text, "w").write("some text " * 100)
        batches = list(levada.Feed(levada.Corpus(text, seq_length=16, tensors="torch", tokenizer="bytes"), mesh=levada.Mesh(tp=2), batch_size=2, readers="one"))
        plain = list(levada.Feed(levada.Corpus(text, seq_length=16, tokenizer="bytes"), mesh=levada.Mesh(tp=2), batch_size=2))
        same = all(torch.equal(a["tokens"], torch.tensor(b["tokens"])) for a, b in zip(batches, plain, strict=True))
        batches[0]["tokens"].add_(rank)
        tell(kind=type(batches[0]["tokens"]).__name__, same=same, first=int(batches[0]["tokens"][0, 0]))
        """,
    )
    assert [only for (only,) in told] == [{"kind": "Tensor", "same": True, "first": ord("s") + rank} for rank in range(2)]
