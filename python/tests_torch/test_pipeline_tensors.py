"""Torch's tensors in a pipeline."""

from __future__ import annotations

import functools
from typing import Any

import levada
import pytest
import torch
from levada import _levada

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def crossed(*items: Any) -> tuple[list[Any], int]:
    return _levada.ItemTraits().copy(list(items))


def bits(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_dtypes_and_shapes_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (4, 0), (5,), (600, 3)):
        count = int(torch.tensor(shape).prod()) if shape else 1
        tensor = torch.arange(count).reshape(shape).to(dtype)
        (received,), beside = crossed(tensor)
        assert received.dtype == dtype and received.shape == tensor.shape and bits(received) == bits(tensor)
        assert beside in (0, tensor.nbytes)


def test_large_tensors_are_outside_the_pickle_in_separate_memory() -> None:
    tensor = torch.arange(10_000)
    (received, again), beside = crossed(tensor, [tensor])
    assert beside == 2 * tensor.nbytes and torch.equal(again[0], received)
    received[0] = 5
    assert again[0][0] == 0
    assert tensor[0] == 0 and received.data_ptr() % 64 == 0


def test_a_view_sends_only_its_own_elements() -> None:
    base = torch.arange(1_000_000).reshape(1000, 1000)
    for view in (base[3], base[:, 3], base[::7, ::5], base[10:20]):
        (received,), beside = crossed(view)
        assert torch.equal(received, view) and beside == view.nbytes


def test_dense_tensors_keep_their_strides() -> None:
    for tensor in (torch.rand(40, 50).t(), torch.rand(2, 3, 20, 20).to(memory_format=torch.channels_last)):
        (received,), _ = crossed(tensor)
        assert torch.equal(received, tensor) and received.stride() == tensor.stride()


def test_a_tensor_keeps_its_special_attributes() -> None:
    (wants, not_wants), _ = crossed(torch.ones(3, requires_grad=True), torch.ones(3))
    assert wants.requires_grad and not not_wants.requires_grad
    parameter = torch.nn.Parameter(torch.ones(2000))
    conjugate = torch.full((2000,), 1j).conj()
    sparse = torch.eye(5).to_sparse()
    named = torch.ones(4)
    named.label = "a"  # type: ignore[attr-defined]
    received, _ = crossed(parameter, conjugate, sparse, named, torch.Size([2, 3]), torch.float16)
    assert type(received[0]) is torch.nn.Parameter and received[0].requires_grad
    assert torch.equal(received[1], conjugate) and torch.equal(received[2].to_dense(), torch.eye(5))
    assert received[3].label == "a" and received[4:] == [torch.Size([2, 3]), torch.float16]


def test_a_result_of_a_computation_arrives_without_its_graph() -> None:
    (received,), _ = crossed(torch.ones(3000, requires_grad=True) * 2)
    assert received.requires_grad and received.is_leaf and received.sum() == 6000


NUM_REUSED = 1000
PIXELS = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
MARKED, TRAINED = torch.zeros(4), torch.zeros(4, requires_grad=True)


def rewritten(kind: str, number: int) -> Any:
    """Returns an item of this number in a tensor that the next call changes."""
    for tensor in (PIXELS, MARKED, TRAINED.detach()):
        tensor.fill_(number)
    MARKED.mark = number  # type: ignore[attr-defined]
    return {"pixels": {"x": PIXELS}, "mark": MARKED, "trained": TRAINED}[kind]


@pytest.mark.parametrize("kind", ["pixels", "mark", "trained"])
def test_items_may_be_in_tensors_that_the_next_item_changes(kind: str) -> None:
    with levada.Pipeline(range(NUM_REUSED)).shard().map(functools.partial(rewritten, kind)).run(1) as run:
        for number, item in enumerate(run):
            tensor = item["x"] if kind == "pixels" else item
            assert tensor.eq(number).all() and tensor.requires_grad == (kind == "trained")
            assert kind != "pixels" or tensor.is_contiguous(memory_format=torch.channels_last)
