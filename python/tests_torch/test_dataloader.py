"""levada.DataLoader compared with torch's DataLoader, and with torch's and Hugging Face's data sets."""

from __future__ import annotations

import pathlib
import random
import sys
import types
from typing import Any

import levada
import numpy as np
import pyarrow
import pytest
import torch
from ranks import succeed
from torch.utils import data as torch_data


class Squares(torch_data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": torch.full((2,), float(number)), "y": number * number, "name": f"n{number}", "pair": (number, [1.5])}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def datasets() -> list[Any]:
    tensors = torch_data.TensorDataset(torch.arange(23), torch.rand(23, 3))
    return [
        Squares(17),
        list(range(9)),
        np.arange(12).reshape(6, 2),
        tensors,
        torch_data.Subset(tensors, [3, 5, 8, 13, 21]),
        torch_data.ConcatDataset([Squares(3), Squares(8)]),
        torch.rand(7, 4),
    ]


def test_batches_equal_torchs_for_every_kind_of_data_set() -> None:
    drawn = random.Random(2)
    for dataset in datasets():
        for _ in range(4):
            batch, drop_last = drawn.choice([None, 1, 2, 3, 5]), drawn.random() < 0.5
            options = {"batch_size": batch, "drop_last": drop_last and batch is not None}
            theirs = list(torch_data.DataLoader(dataset, **options))
            ours = [pair for pair in levada.DataLoader(dataset, **options)]
            assert len(ours) == len(theirs)
            assert all(map(same, ours, theirs)), (type(dataset), options)
            listed = torch_data.SubsetRandomSampler(range(0, len(dataset), 2), torch.Generator().manual_seed(3))
            loader = levada.DataLoader(dataset, 2, sampler=listed)
            drawn_numbers = [number for _ in loader for number in loader.numbers or []]
            assert sorted(drawn_numbers) == list(range(0, len(dataset), 2))


class Frame:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, column: Any) -> Any:
        return [column]


def test_a_table_is_refused_because_its_index_is_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarrow.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=Frame))
    for each in (table, table.to_batches()[0], Frame()):
        kind = type(each).__name__
        with pytest.raises(levada.InvalidArgument, match=rf"{kind}, which is indexed by column; pass its rows"):
            levada.DataLoader(each)
        with pytest.raises(levada.InvalidArgument, match="which is indexed by column"):
            levada.DataLoader({"one": each})
    loader = levada.DataLoader(table.to_pylist(), 2)
    batches = [{name: column.tolist() for name, column in batch.items()} for batch in loader]
    assert batches == [{"a": [1, 2], "b": [3, 4], "c": [5, 6]}]


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_a_loader_of_torch_becomes_a_levada_loader_with_its_order() -> None:
    dataset, generator = list(range(40)), torch.Generator().manual_seed(9)

    def numbers(loader: Any) -> list[int]:
        return [int(number) for batch in loader for number in batch]

    plain = levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, drop_last=True))
    assert numbers(plain) == list(range(36)) and (plain.batch_size, plain.drop_last) == (6, True)
    shuffled = levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, shuffle=True, generator=generator))
    assert sorted(numbers(shuffled)) == dataset and numbers(shuffled) != dataset
    assert numbers(levada.DataLoader(dataset, 6, True, seed=generator.initial_seed())) == numbers(
        levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, shuffle=True, generator=generator))
    )
    for rank in range(2):
        sampler = torch_data.distributed.DistributedSampler(dataset, num_replicas=2, rank=rank, seed=4)
        shared = levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, sampler=sampler))
        assert sorted(numbers(shared)) == dataset and shared.seed == 4
    weighted = torch_data.WeightedRandomSampler([0.0] * 20 + [1.0] * 20, 100)
    drawn = numbers(levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, sampler=weighted)))
    assert len(drawn) == 100 and min(drawn) >= 20
    again = torch_data.RandomSampler(dataset, replacement=True, num_samples=55)
    assert len(numbers(levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6, sampler=again)))) == 55
    batches = [[1, 2], [3], [4, 5, 6]]
    assert [batch.tolist() for batch in levada.DataLoader.like(torch_data.DataLoader(dataset, batch_sampler=batches))] == batches
    assert levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=6), batch_size=10).batch_size == 10
    assert not levada.DataLoader.like(torch_data.DataLoader(dataset, num_workers=1)).persistent_workers
    with pytest.raises(levada.InvalidArgument, match=r"Stream cannot be read by number.*levada\.Feed"):
        levada.DataLoader.like(torch_data.DataLoader(Stream()))
    with pytest.raises(levada.InvalidArgument, match=r"use levada\.DataLoader\.like"):
        levada.DataLoader(torch_data.DataLoader(dataset))
    with pytest.raises(levada.InvalidArgument, match="generator and seed both set the seed"):
        levada.DataLoader(dataset, seed=3, generator=generator)
    with pytest.raises(levada.InvalidArgument, match="num_replicas=3"):
        levada.DataLoader(dataset, sampler=torch_data.distributed.DistributedSampler(dataset, num_replicas=3, rank=0))


def test_like_draws_what_the_samplers_of_a_torch_loader_draw() -> None:
    dataset = list(range(10))

    def batches(**options: Any) -> list[Any]:
        return [np.asarray(batch).tolist() for batch in levada.DataLoader.like(torch_data.DataLoader(dataset, **options))]

    def in_batches(sampler: Any, size: int, drop_last: bool) -> list[list[int]]:
        return batches(batch_sampler=torch_data.BatchSampler(sampler, size, drop_last))

    shuffled = in_batches(torch_data.RandomSampler(dataset), 4, True)
    assert [len(set(each)) for each in shuffled] == [4, 4] and sum(shuffled, []) != sorted(sum(shuffled, []))
    assert in_batches(torch_data.SequentialSampler(dataset), 4, False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(sum(in_batches(torch_data.SubsetRandomSampler([1, 3, 5, 7]), 2, False), [])) == [1, 3, 5, 7]
    assert in_batches([7, 2, 9], 2, False) == [[7, 2], [9]]
    first = dataset[:5]
    assert sorted(sum(batches(sampler=torch_data.RandomSampler(first), batch_size=2), [])) == first
    again = torch_data.RandomSampler(first, replacement=True, num_samples=40)
    assert {*sum(batches(sampler=again, batch_size=4), [])} <= {*first}
    weighted = torch_data.WeightedRandomSampler([1.0] * 5, 40)
    assert {*sum(batches(sampler=weighted, batch_size=4), [])} <= {*first}
    assert batches(sampler=torch_data.SequentialSampler(first), batch_size=2) == [[0, 1], [2, 3], [4]]
    assert batches(sampler=torch_data.SequentialSampler(first), batch_size=None) == [0, 1, 2, 3, 4]
    distributed = torch_data.distributed.DistributedSampler(first, num_replicas=2, rank=0)
    with pytest.raises(levada.InvalidArgument, match="divides 5 items, and the loader's data set has 10"):
        batches(sampler=distributed, batch_size=2)
    longer = levada.DataLoader.like(torch_data.DataLoader(dataset, batch_size=5, shuffle=True), dataset=range(20))
    assert sorted(number for batch in longer for number in batch.tolist()) == list(range(20))


def test_like_replaces_the_order_of_the_torch_loader_as_a_whole() -> None:
    dataset = list(range(10))
    ends = [float(number in (0, 9)) for number in dataset]
    weighted = torch_data.WeightedRandomSampler(ends, 6)
    orders: list[dict[str, Any]] = [{}, {"shuffle": True}, {"sampler": [4, 2]}, {"sampler": weighted}]

    def batches(order: dict[str, Any], **changes: Any) -> list[list[int]]:
        given = {"batch_sampler": [[8, 9]]} if order is own else {"batch_size": 4, "drop_last": True, **order}
        loader = levada.DataLoader.like(torch_data.DataLoader(dataset, **given), **changes)
        return [np.asarray(batch).tolist() for batch in loader]

    own: dict[str, Any] = {"batch_sampler": [[8, 9]]}
    for order in (*orders, own):
        assert batches(order, batch_sampler=[[3], [1, 2]]) == [[3], [1, 2]]
        assert batches(order, sampler=[3, 1], batch_size=1) == [[3], [1]]
        assert {*sum(batches(order, weights=ends, batch_size=2), [])} <= {0, 9}
        assert len(batches(order, shuffle=True, batch_size=2)) == (3 if order == {"sampler": weighted} else 5)
    for order in orders:
        assert batches(order, sampler=[3, 1, 5, 7, 2]) == [[3, 1, 5, 7]]
    assert len(batches({"shuffle": True}, num_samples=8)) == 2
    assert sum(batches({"shuffle": True}, num_samples=8), []) != list(range(8))
    assert {*sum(batches({"sampler": weighted}, num_samples=40), [])} == {0, 9}
    for changes in ({"shuffle": True}, {"sampler": [3, 1]}, {"weights": ends}):  # the size of the batches is unknown
        with pytest.raises(levada.InvalidArgument, match="batch_sampler"):
            batches(own, **changes)


class Unlike(torch_data.Dataset[Any]):
    "Items on whose types collate functions disagree."

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return {
            "large and half": 2**24 + 1 if number == 0 else 0.5,
            "half and one": 0.5 if number == 0 else 1,
            "widths": np.full(2, number, np.int32 if number % 2 else np.int64),
            "complex": np.complex64(1) if number else 1.0,
            "texts": np.str_(number),
            "bytes": {"raw": np.bytes_(b"%d" % number)},
            "big-endian": np.arange(3, dtype=">i4"),
            "negative stride": np.arange(4)[::-1],
            "nothing": torch.zeros(0, 3),
            "half": torch.full((2,), number, dtype=torch.bfloat16),
            "masked": np.ma.masked_array([number, -9999], [False, True]),
            "matrix": [np.asmatrix([[1, 2]])],
            "derived": np.ones(2).view(Derived),
            "dates": np.datetime64("2020-01-01"),
        }[self.kind]


class Derived(np.ndarray[Any, Any]):
    pass


KINDS = ["large and half", "half and one", "widths", "complex", "texts", "bytes", "big-endian", "negative stride"]
KINDS += ["nothing", "half"]
REFUSED = ["masked", "matrix", "derived", "dates"]


@pytest.mark.parametrize("kind", KINDS + REFUSED)
def test_workers_of_levada_and_torch_collate_as_the_process_itself_does(kind: str) -> None:
    def batches(workers: int) -> Any:
        loader = levada.DataLoader(Unlike(kind), 2, num_workers=workers)
        try:
            return list(loader)
        except levada.ItemError as error:
            return str(error).splitlines()[0].split(", in ")[0]
        finally:
            loader.close()

    here = batches(0)
    assert isinstance(here, str) == (kind in REFUSED), here
    assert same(batches(1), here), here
    if kind in KINDS:
        theirs = torch_data.DataLoader(Unlike(kind), 2, num_workers=1, collate_fn=levada.collate)
        assert same(list(theirs), here)


class Epochs(Squares):
    calls = epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.calls = epoch, self.calls + 1

    def __getitem__(self, number: int) -> Any:
        return self.epoch


class Forwarding(torch_data.Subset[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined, unused-ignore]


def test_the_epoch_reaches_the_data_sets_within_torchs_wrappers_once() -> None:
    for workers in (0, 1):
        data = Epochs(4)
        for dataset in (
            torch_data.Subset(data, range(4)),
            torch_data.ConcatDataset([torch_data.Subset(data, range(2)), torch_data.Subset(data, range(2))]),
            torch_data.random_split(data, [4, 0])[0],
            {"one": torch_data.ConcatDataset([data]), "two": data},
            Forwarding(data, range(4)),
            torch_data.StackDataset(data),
            torch_data.StackDataset(a=data),
        ):
            data.calls = 0
            loader = levada.DataLoader(dataset, 4, num_workers=workers)
            for epoch in range(3):
                for batch in loader:
                    value = batch["a"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
                    assert value.tolist() == [epoch] * 4, (dataset, workers)
            assert workers or data.calls == 3, dataset
            loader.close()


class EpochStream(torch_data.IterableDataset[int]):
    def __init__(self, data: Epochs) -> None:
        self.data, self.set_epoch = data, data.set_epoch

    def __iter__(self) -> Any:
        return iter([self.data.epoch])


class ByEpoch(torch_data.Sampler[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter([self.epoch])


def test_the_epoch_reaches_the_data_sets_within_torchs_wrappers_through_feeds_and_pipelines() -> None:
    data = Epochs(4)
    within = torch_data.Subset(torch_data.ConcatDataset([data]), range(2))
    for source in (torch_data.Subset(within, [1]), within, torch_data.DataLoader(within), torch_data.ChainDataset([EpochStream(data)])):
        feed = levada.Feed(source)
        for epoch in (3, 5):
            data.calls = 0
            feed.set_epoch(epoch)
            assert {int(batch) for batch in feed} == {epoch} and data.calls == 1, source
        run = levada.Pipeline(source).run()
        assert [{int(item) for item in run} for _ in range(3)] == [{0}, {1}, {2}], source
    run = levada.Pipeline(torch_data.DataLoader(torch.arange(4), sampler=ByEpoch())).run()  # type: ignore[arg-type, unused-ignore]
    assert [[int(item) for item in run] for _ in range(3)] == [[0], [1], [2]]


def test_a_state_is_plain_and_torchs_loader_accepts_a_loader(tmp_path: pathlib.Path) -> None:
    loader = levada.DataLoader(Squares(20), 4, True, seed=1, pin_memory=True)
    for _ in loader:
        break
    torch.save(loader.state_dict(), tmp_path / "state")
    loader.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert len(list(loader)) == 4
    wrapped = torch_data.DataLoader(levada.DataLoader(Squares(20), 4), batch_size=None)  # type: ignore[arg-type, unused-ignore]
    assert [len(batch["y"]) for batch in wrapped] == [4] * 5
    evaluated = levada.DataLoader(Squares(10), 4)
    gathered = [evaluated.gather({"y": batch["y"]})["y"] for batch in evaluated]
    assert torch.cat(gathered).tolist() == [number * number for number in range(10)]


def test_workers_know_torchs_worker_info_and_draw_the_same_random_numbers(tmp_path: pathlib.Path) -> None:
    body = """
import random, torch
from torch.utils.data import Dataset, get_worker_info
torch.set_num_threads(1)
class Noisy(Dataset):
    opened = "here"
    def __len__(self): return 40
    def __getitem__(self, number):
        info = get_worker_info()
        where = -1 if info is None else (info.id, info.num_workers, info.dataset is self, self.opened)
        return {"n": number, "t": torch.rand(2), "p": random.random(), "np": np.random.rand(), "where": str(where)}
def opens(worker): get_worker_info().dataset.opened = f"by {worker}"
def fork_of(ranks): return levada.DataLoader(Noisy(), 4, True, seed=7, num_workers=1, multiprocessing_context="fork", mesh=ranks)
if __name__ == "__main__":
    forked = fork_of(levada.Mesh(dp=2))
    torch.manual_seed(5)
    results = []
    for mesh, batch, workers in ((levada.Mesh(dp=2), 4, 2), (levada.Mesh(tp=2), 7, 0)):
        loader = levada.DataLoader(Noisy(), batch, True, seed=7, num_workers=workers, mesh=mesh, worker_init_fn=opens)
        got = []
        for each in loader:
            got.append([[each["n"][i].item(), each["t"][i].tolist(), each["p"][i].item(), each["np"][i].item()] for i in range(loader.valid)])
            where = {text for text in each["where"]}
            assert where == {"-1"} if not workers else where <= {"(0, 2, True, 'by 0')", "(1, 2, True, 'by 1')"}, where
        every = [json.loads(each) for each in levada._levada.agree(levada.join(), json.dumps(got).encode(), 60, "test")]
        parts = every if mesh.data_size == 2 else every[:1]
        results.append([row for step in zip(*parts) for part in step for row in part])
        loader.close()
    assert results[0] == results[1] and len(results[0]) == 40
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(5)).item(), "generators moved"
    assert sum(forked.valid for _ in forked) == 20
    forked.close()
    try: everything = [each for each in fork_of(levada.Mesh(dp=2))]
    except levada.Unsupported as error: tell(refused="forkserver" in str(error))
"""
    assert succeed(tmp_path, 2, body) == [[{"refused": True}]] * 2
