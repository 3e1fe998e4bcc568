"""Torch batches made in memory that feeds send from, and written by their receivers. Run by `script/check
python-torch`."""

from __future__ import annotations

import collections
import itertools
import pathlib
from typing import Any, NamedTuple

import levada
import numpy as np
import pytest
import ranks
import torch


class Pair(NamedTuple):
    left: Any
    right: Any


def samples() -> list[Any]:
    def sample(i: int) -> dict[str, Any]:
        return {
            "image": torch.full((2, 3), float(i)),
            "half": torch.tensor(i, dtype=torch.bfloat16),
            "array": np.full((2,), i, np.int16),
            "scalar": np.float32(i),
            "label": i,
            "weight": i / 3,
            "flag": i % 2 == 0,
            "name": f"sample {i}",
            "raw": bytes([i]),
            "pair": Pair(torch.tensor(i), [i, torch.zeros(0)]),
            "tuple": (i, str(i)),
            "ordered": collections.OrderedDict(z=torch.tensor([i]), a=i),
        }

    return [sample(i) for i in range(5)]


def same(one: Any, other: Any) -> bool:
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*each) for each in zip(one, other, strict=True))
    return bool(one == other)


def test_collate_equals_default_collate() -> None:
    assert same(levada.collate(samples()), torch.utils.data.default_collate(samples()))
    assert levada.collate([torch.ones(2, requires_grad=True)] * 2).requires_grad
    with pytest.raises(RuntimeError, match="equal size"):
        levada.collate([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TypeError, match="which no tensor has"):
        levada.collate([np.array(["text"])])


def test_empty_returns_torch_tensors_for_torch_dtypes() -> None:
    tensor = levada.empty((2, 3), torch.bfloat16)
    assert tensor.dtype == torch.bfloat16 and tensor.shape == (2, 3)


def test_a_data_loader_that_collates_into_levadas_memory_needs_no_further_copy(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        from levada import _levada
        torch.set_num_threads(1)
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, i): return {"x": torch.full((2**16,), i), "b": torch.tensor(i, dtype=torch.bfloat16)}
        for workers in (0, 1):
            loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=workers,
                                                 collate_fn=levada.collate)
            before = _levada.copied_bytes()
            for step, batch in enumerate(levada.Feed(loader, mesh=levada.Mesh(tp=2))):
                expected = torch.arange(4 * step, 4 * step + 4)
                assert batch["x"].shape == (4, 2**16) and (batch["x"] == expected[:, None]).all()
                assert (batch["b"] == expected).all() and batch["b"].dtype == torch.bfloat16
                batch["x"][0, rank] = -1  # unseen by the other rank
                assert (batch["x"][0] != expected[0]).sum() == 1
            tell(copied=(_levada.copied_bytes() - before) / 2**20)
        """,
    )
    reader, other = told
    assert reader[0]["copied"] < 0.1 and other[0]["copied"] < 0.1, "made in place and seen through private views"
    assert 20 <= reader[1]["copied"] < 20.5, "what a worker sends is copied once"


def test_arrays_next_to_tensors_stay_read_only(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        for access in (None, "private", "copy"):
            for batch in levada.Feed([{"t": torch.ones(2**17), "a": np.ones(2**17)}] * 2, access=access):
                batch["t"][0] = 2
                tell(writeable=batch["a"].flags.writeable)
        """,
    )
    assert [[each["writeable"] for each in mine] for mine in told] == [[False, True, True]] * 2


def test_writing_a_tensor_over_an_array_of_a_batch_changes_only_its_own_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        for size in (16, 2**20):
            for step, batch in enumerate(levada.Feed([{"a": np.zeros(size)}] * 3, mesh=levada.Mesh(tp=2))):
                view = torch.from_numpy(batch["a"])
                if rank == 1:
                    view[::512] = 7
                barrier(f"written {size} {step}")
                tell(seen=float(view.max()), writeable=batch["a"].flags.writeable)
        """,
    )
    assert told == [[{"seen": 7.0 * rank, "writeable": False}] * 6 for rank in range(2)]


def test_packed_rows_of_torch_tensors_equal_assigned_ones() -> None:
    lengths = [5, 1, 8]
    samples = [
        {
            "tokens": torch.arange(n) + 10 * n,
            "labels": torch.arange(n, dtype=torch.int32),
            "weights": torch.rand(n, 3).to(torch.bfloat16),
            "parameter": torch.nn.Parameter(torch.rand(n)),
            "strided": torch.rand(n, 4)[:, ::2],
            "conjugate": torch.rand(n, dtype=torch.complex64).conj(),
            "id": torch.tensor(n),
        }
        for n in lengths
    ]
    row = levada.collate_packed(samples, pad_to=4)
    for field, fill in {"tokens": 0, "labels": -100, "weights": 0, "parameter": 0, "strided": 0, "conjugate": 0}.items():
        first = samples[0][field]
        expected = torch.full((1, 20, *first.shape[1:]), fill, dtype=first.dtype)
        for begin, sample in zip((0, 8, 12), samples):
            expected[0, begin : begin + len(sample[field])] = sample[field].detach()
        assert row[field].dtype == first.dtype and torch.equal(row[field], expected)
    assert row["id"] == [sample["id"] for sample in samples]
    assert row["cu_seqlens"].tolist() == [[0, 8, 12, 20]] and row["position_ids"].dtype == torch.int64
    with pytest.raises(levada.InvalidArgument, match="cannot be padded with -100"):
        levada.collate_packed([{"tokens": [1], "labels": torch.ones(1, dtype=torch.uint8)}], pad_to=2)


def test_tensors_arrays_and_lists_of_one_field_are_packed_together() -> None:
    for tokens in itertools.permutations([torch.tensor([1, 2]), np.array([3]), [4, 5]]):
        row = levada.collate_packed([{"tokens": each, "labels": each} for each in tokens])
        expected = [int(number) for each in tokens for number in each]
        assert type(row["tokens"]) is torch.Tensor and row["tokens"].tolist() == [expected]
        assert type(row["labels"]) is torch.Tensor and row["position_ids"].dtype == torch.int64
        padded = levada.collate_padded([{"tokens": each} for each in tokens])["tokens"]
        assert padded.tolist() == [[int(number) for number in each] + [0] * (2 - len(each)) for each in tokens]
    assert levada.collate_padded([[], torch.tensor([1])]).tolist() == [[0], [1]]
    with pytest.raises(levada.InvalidArgument, match="field tokens of a packed row: sample 1 is int32"):
        levada.collate_packed([torch.tensor([1, 2]), np.array([3], np.int32)])
    words = levada.collate_packed([{"tokens": [1], "extra": torch.ones(1)}, {"tokens": [2], "extra": ["a"]}])["extra"]
    assert words[1] == ["a"]


def test_labels_of_a_dtype_that_numpy_lacks_are_packed_unchanged() -> None:
    scores = torch.tensor([0.5, 2.0], dtype=torch.bfloat16)
    row = levada.collate_packed([{"tokens": torch.tensor([1, 2]), "labels": scores}])
    assert torch.equal(row["labels"], scores[None])
