"""torch's DataLoader in a feed: its order in states, its random numbers, and the context in which it is read."""

from __future__ import annotations

import pathlib

import ranks

DATA = """
import contextvars, random
import torch
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

class Counted(Dataset):
    "Augments at random, and counts what is loaded."
    loaded = 0
    def __len__(self): return 64
    def __getitem__(self, i):
        Counted.loaded += 1
        return {"i": i, "x": torch.rand(2) + float(np.random.rand()) + random.random()}

def seed(number):
    torch.manual_seed(number); np.random.seed(number); random.seed(number)
def numbers(feed): return [i for batch in feed for i in batch["i"].tolist()]
"""


def test_a_shuffled_loader_resumes_without_loading_earlier_samples_or_is_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
if __name__ == "__main__":
    def sampled(): return DataLoader(Counted(), batch_size=4, sampler=DistributedSampler(Counted(), num_replicas=1, rank=0, seed=3))
    def shuffled(): return DataLoader(Counted(), batch_size=4, shuffle=True)
    def seeded(): return DataLoader(Counted(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    def single(): return DataLoader(Counted(), batch_size=None, sampler=DistributedSampler(Counted(), num_replicas=1, rank=0))
    def workers(): return DataLoader(Counted(), batch_size=4, shuffle=True, num_workers=1)
    for make, iterate in ((sampled, None), (sampled, "thread"), (shuffled, None), (shuffled, "thread"),
                          (seeded, None), (workers, None)):
        seed(1)
        whole = numbers(levada.Feed(make()))
        seed(1)
        feed = levada.Feed(make())
        before = [i for _, batch in zip(range(3), feed) for i in batch["i"].tolist()]
        feed.close()
        seed(2)
        again = levada.Feed(make(), iterate=iterate)
        again.load_state_dict(feed.state_dict())
        loaded = Counted.loaded
        try: result = before + numbers(again) == whole
        except levada.InvalidArgument as error: result = str(error)
        tell(make=make.__name__, result=result, loaded=Counted.loaded - loaded)
""",
    )
    for rank, mine in enumerate(told):
        for each in mine:
            if each["make"] in ("sampled", "seeded"):
                assert each["result"] is True, each
            else:
                assert "is not the one that this state was saved after" in str(each["result"]), each
        assert [each["loaded"] for each in mine[:2]] == ([40, 40] if rank == 0 else [0, 0])


def test_a_loader_resumes_at_a_row_with_another_batch_size_or_is_refused_by_its_sampler(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
if __name__ == "__main__":
    def make(size, order): return DataLoader(Counted(), batch_size=size, sampler=DistributedSampler(Counted(), num_replicas=1, rank=0, seed=order))
    feed = levada.Feed(make(8, 3), divide="split", batch_size=4)
    for _ in zip(range(2), feed): pass
    feed.close()
    for size in (2, 4, 8, 16):
        for order in (3, 4):
            again = levada.Feed(make(size, order), divide="split", batch_size=size // 2)
            again.load_state_dict(feed.state_dict())
            loaded = Counted.loaded
            try: result = len(list(again))
            except levada.InvalidArgument as error: result = str(error)
            tell(size=size, order=order, result=result, loaded=Counted.loaded - loaded)
""",
    )
    for rank, mine in enumerate(told):
        for each in mine:
            size = each["size"]
            if each["order"] == 3:
                assert (each["result"], each["loaded"]) == (48 // size, 0 if rank else 48), each
            else:
                ends = f"item {16 // size - 1} " + ("is not the one" if size == 8 else "does not end with the row")
                assert f"{ends} that this state was saved after" in str(each["result"]), each


def test_ranks_draw_equal_random_numbers_after_a_pass_begins(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
def plain(loader):
    it = iter(loader)
    return it
if __name__ == "__main__":
    quiet = [{"i": i} for i in range(64)]
    for options in (dict(num_workers=0), dict(num_workers=1), dict(num_workers=1, prefetch_factor=4)):
        for shuffle in (False, True):
            runs = []
            for _ in range(2):
                seed(4)
                feed = levada.Feed(DataLoader(quiet, batch_size=4, shuffle=shuffle, **options), levada.Mesh(tp=2))
                got = [(batch["i"].tolist(), torch.rand(1).item()) for _, batch in zip(range(4), feed)]
                feed.close()
                runs.append(got)
            seed(4)
            loop = [(batch["i"].tolist(), torch.rand(1).item())
                    for _, batch in zip(range(4), DataLoader(quiet, batch_size=4, shuffle=shuffle, **options))]
            tell(equal=runs[0] == runs[1], plain=runs[0] == loop, got=repr(runs[0]), loop=repr(loop))
    for iterate in (None, "inline"):
        runs = []
        for _ in range(2):
            seed(6)
            feed = levada.Feed(DataLoader(Counted(), batch_size=4, shuffle=True), levada.Mesh(tp=2), iterate=iterate)
            runs.append([batch["x"].tolist() for batch in feed])
        tell(equal=runs[0] == runs[1], plain=True)
""",
    )
    for mine in told:
        assert all(each["equal"] and each["plain"] for each in mine), mine


def test_the_reading_thread_has_the_modes_and_variables_of_its_caller() -> None:
    import contextvars

    import levada
    import torch

    variable = contextvars.ContextVar("variable", default="unset")

    class Loader:
        def __iter__(self) -> object:
            for _ in range(2):
                with torch.inference_mode(torch.is_inference_mode_enabled()):
                    yield {
                        "grad": torch.is_grad_enabled(),
                        "inference": torch.is_inference_mode_enabled(),
                        "autocast": torch.is_autocast_enabled("cpu"),
                        "dtype": str(torch.get_autocast_dtype("cpu")),
                        "variable": variable.get(),
                    }

    for mode in (torch.no_grad(), torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16)):
        for value in ("one", "two"):
            variable.set(value)
            with mode:
                seen = [next(iter(levada.Feed(Loader(), iterate=iterate))) for iterate in ("thread", "inline")]
            assert seen[0] == seen[1] and seen[0]["variable"] == value


def test_sharded_samplers_and_data_sets_of_torch_and_accelerate_are_refused(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard, skip_first_batches
from torch.utils.data import BatchSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
class Stream(IterableDataset):
    def __init__(self, world): self._distributed = type("DistributedConfig", (), {"rank": 0, "world_size": world})()
    def __iter__(self): return iter(range(8))
class Nested(torch.utils.data.Sampler):
    def __init__(self, sampler): self.inner = sampler
    def __iter__(self): return iter(self.inner)
    def __len__(self): return len(self.inner)
if __name__ == "__main__":
    ds = list(range(16))
    torch.distributed.init_process_group("gloo")  # whose size iterators of loaders note
    def sharded(n): return DistributedSampler(ds, num_replicas=n, rank=0)
    for n in (2, 1):
        for loader in (
            (b for b in StatefulDataLoader(ds, sampler=sharded(n))), DataLoader(ds, sampler=sharded(n)), StatefulDataLoader(ds, sampler=sharded(n)), DataLoader(ds, sampler=Nested(sharded(n))),
            DataLoader(ds, batch_sampler=BatchSampler(sharded(n), 2, False)),
            DataLoader(ds, batch_sampler=BatchSamplerShard(BatchSampler(RandomSampler(ds), 2, False), n, 0)),
            DataLoader(Stream(n)), DataLoader(ChainDataset([Stream(1), Stream(n)])), DataLoader(Subset(ConcatDataset([Stream(n)]), [0]))
            if hasattr(Stream, "__len__") else DataLoader(IterableDatasetShard(Stream(1), num_processes=n)),
            skip_first_batches(DataLoader(ds, sampler=sharded(n)), 1), (b for b in DataLoader(ds, sampler=sharded(n))),
        ):
            try:
                levada.Feed(loader)
                tell(n=n, text="")
            except levada.InvalidArgument as error: tell(n=n, text=str(error))
""",
    )
    for mine in told:
        assert all(("divides them over its 2 ranks" in each["text"]) == (each["n"] == 2) for each in mine), mine


def test_a_missing_mesh_next_to_a_device_mesh_is_an_error(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        dist.init_process_group("gloo", init_method="file://" + __file__ + ".store", rank=rank, world_size=4)
        tell(text=str(levada.Feed([1]).mesh))
        meshes = [init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))]
        try: levada.Feed([1])
        except levada.InvalidArgument as error: tell(text=str(error))
        tell(text=str(levada.Feed([1], mesh=meshes[0]).mesh))
        tell(text=str(levada.Feed([1], group=levada.join()).mesh))
        dist.destroy_process_group()
        """,
    )
    for mine in told:
        assert [each["text"] for each in mine[::2]] == ["dp=4", "dp=2,tp=2"] and mine[3]["text"] == "dp=4"
        assert "DeviceMesh dp=2,tp=2, whose ranks share batches along tp" in mine[1]["text"] and "pass mesh=" in mine[1]["text"]


def test_a_loader_that_an_item_ends_early_is_an_error_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
class Ends(Counted):
    def __getitem__(self, i):
        if i == 21: raise StopIteration
        return {"i": i}
if __name__ == "__main__":
    for workers in (0, 2):
        got = []
        try:
            for batch in levada.Feed(DataLoader(Ends(), batch_size=4, num_workers=workers), mesh=levada.Mesh(tp=2)): got += batch["i"].tolist()
        except levada.SourceError as error:
            tell(got=got, text=str(error))
""",
    )
    for mine in told:
        assert [each["got"] for each in mine] == [list(range(20))] * 2
        assert all("the loader ended at item 5, for which its sampler lists samples" in each["text"] for each in mine)


def test_random_numbers_are_in_step_on_all_ranks_after_a_start_that_failed(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        DATA
        + """
if __name__ == "__main__":
    def plain(): return DataLoader(torch.arange(24), batch_size=2, shuffle=True)
    def persistent(): return DataLoader(torch.arange(24), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)
    for make in plain, persistent:
        drawn = []
        for fails in 0, 1:
            seed(5)
            feed = levada.Feed(make(), levada.Mesh(tp=2))
            if fails:
                feed.max_steps = 3 + rank
                try: iter(feed)
                except levada.InvalidArgument as error: assert "number of steps" in str(error), error
                feed.max_steps = None
            list(feed), list(feed)
            drawn.append(torch.rand(()).item())
        tell(drawn=drawn)
""",
    )
    assert told[0] == told[1]
    for each in told[0]:
        assert len(set(each["drawn"])) == 1, each
