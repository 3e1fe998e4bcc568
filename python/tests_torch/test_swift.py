"""levada.dropin.swift: ms-swift's DataLoaderDispatcher. Run by `script/check python-torch`."""

from __future__ import annotations

import collections
import pathlib
from typing import Any, NamedTuple

import levada
import process_groups
import pytest
import torch
from levada.dropin.swift import DataLoaderDispatcher, install

LOADERS = """
    import collections
    from levada.dropin.swift import DataLoaderDispatcher
    from swift_batches import Encoding, Pair

    def batches(count):
        # of other shapes, and other structures, within a round
        for i in range(count):
            yield {"x": torch.full((i % 3 + 1,), i), "i": i} if i % 2 else Pair(torch.tensor(i), {"name": str(i)})

    def number(batch):
        return batch["i"] if isinstance(batch, dict) else int(batch.first)

    class Loader:
        def __init__(self, count):
            self.count, self.begun = count, 0
        def __iter__(self):
            self.begun += 1
            return batches(self.count)
"""

MODULE = """
import collections
from typing import Any, NamedTuple
class Pair(NamedTuple):
    first: Any
    second: Any
class Encoding(collections.UserDict):
    # as transformers' BatchEncoding
    def __getattr__(self, name):
        if name.startswith("_") or name == "data":
            raise AttributeError(name)
        return self.data[name]
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "swift_batches.py").write_text(MODULE)
    return tmp_path


def run(folder: pathlib.Path, size: int, body: str) -> list[list[dict[str, Any]]]:
    return process_groups.succeed(folder, size, LOADERS + body)


def test_rank_r_gets_batch_k_times_w_plus_r_in_round_k(folder: pathlib.Path) -> None:
    told = run(
        folder,
        4,
        """
    loader = Loader(10)
    dispatcher = DataLoaderDispatcher(loader)
    tell(got=[[number(batch) for batch in dispatcher] for _ in range(2)], begun=loader.begun)
    kept = list(DataLoaderDispatcher(Loader(14)))
    tell(kinds=[type(batch).__name__ for batch in kept], x=[batch["x"].tolist() for batch in kept if rank % 2])
    for skip, count in ((1, 10), (2, 10), (2, 8), (3, 10), (50, 10)):
        dispatcher = DataLoaderDispatcher(Loader(count), skip_batches=skip)
        tell(skip=skip, got=[[number(batch) for batch in dispatcher] for _ in range(2)])
    """,
    )
    for rank, mine in enumerate(told):
        # 10 batches are two rounds of four; the last two batches are dropped. Only rank 0 iterates.
        assert mine[0] == {"got": [[rank, 4 + rank]] * 2, "begun": 2 if rank == 0 else 0}
        assert mine[1]["kinds"] == ["dict" if rank % 2 else "Pair"] * 3
        numbers = [rank, 4 + rank, 8 + rank] if rank % 2 else []
        assert mine[1]["x"] == [[i] * (i % 3 + 1) for i in numbers]
        assert [each["got"] for each in mine[2:]] == [[[4 + rank]] * 2, [[]] * 2, [[]] * 2, [[]] * 2, [[]] * 2]


def test_a_group_has_its_own_batches_ranks_and_loops(folder: pathlib.Path) -> None:
    told = run(
        folder,
        4,
        """
    class OfTwo(DataLoaderDispatcher):
        members = dist.new_group([1, 3])
        @property
        def rank(self): return dist.get_rank(self.group)
        @property
        def world_size(self): return 2
        @property
        def group(self): return self.members
    if rank in (1, 3):
        tell(got=[number(batch) for batch in OfTwo(Loader(5) if rank == 1 else None)])
    tell(got=[number(batch) for batch in DataLoaderDispatcher(Loader(4) if rank == 0 else None)])

    class Wrong(DataLoaderDispatcher):
        rank = 7
    try:
        list(Wrong(Loader(4)))
    except levada.InvalidArgument as error:
        tell(text=str(error))
    try:
        list(DataLoaderDispatcher(None))
    except levada.SourceError as error:
        tell(text=str(error))
    """,
    )
    for rank, mine in enumerate(told):
        if rank in (1, 3):
            assert mine.pop(0) == {"got": [rank // 2, 2 + rank // 2]}
        assert mine[0] == {"got": [rank]}
        assert mine[1]["text"] == f"rank and world_size are (7, 4), but the group has ({rank}, 4)"
        assert "its source is None" in mine[2]["text"]


def test_containers_survive_and_nothing_is_shared(folder: pathlib.Path) -> None:
    told = run(
        folder,
        2,
        """
    buffer = torch.zeros(40000)
    class Reused:
        # every batch is the same memory
        def __iter__(self):
            for i in range(4):
                buffer.fill_(i)
                yield Encoding(ids=buffer, pair=Pair(buffer[:3], collections.OrderedDict(z=1, a=[buffer, {1, 2}])))
    got = []
    for step, batch in enumerate(DataLoaderDispatcher(Reused())):
        ok = batch.ids is batch.pair.second["a"][0] and bool((batch.ids == 2 * step + rank).all())
        batch.ids += 100 * (rank + 1)
        batch.pair.first.zero_()
        got.append(batch)
        tell(ok=ok, order=list(batch.pair.second), rest=sorted(batch.pair.second["a"][1]))
    dist.barrier()
    tell(values=[batch.ids[5].item() for batch in got], own=bool((buffer == 3).all()))
    for batch in DataLoaderDispatcher(Reused(), device="meta"):
        tell(kinds=[type(batch).__name__, type(batch.pair).__name__, type(batch.pair.second).__name__],
             devices=[batch["ids"].device.type, batch.pair.first.device.type, batch.pair.second["a"][0].device.type],
             same=batch.ids is batch.pair.second["a"][0])
        break
    """,
    )
    for rank, mine in enumerate(told):
        assert mine[:2] == [{"ok": True, "order": ["z", "a"], "rest": [1, 2]}] * 2
        assert mine[2]["values"] == [step * 2 + rank + 100 * (rank + 1) for step in range(2)]
        assert mine[2]["own"] is True or rank > 0
        kinds = ["Encoding", "Pair", "OrderedDict"]
        assert mine[3] == {"kinds": kinds, "devices": ["meta"] * 3, "same": True}


def test_arrays_of_numpy_can_be_written(folder: pathlib.Path) -> None:
    told = run(
        folder,
        2,
        """
    data = [{"x": np.full(size, i)} for i in range(4) for size in (3, 40000)]
    for batch in DataLoaderDispatcher(data):
        before = batch["x"][:2].tolist()
        batch["x"][0] -= 1 + rank
        dist.barrier()
        tell(before=before, after=batch["x"][:2].tolist(), size=batch["x"].size)
    tell(own=all((item["x"] == i // 2).all() for i, item in enumerate(data)))
    """,
    )
    for rank, mine in enumerate(told):
        for i, each in enumerate(mine[:-1]):
            assert each == {"before": [i, i], "after": [i - 1 - rank, i], "size": (3, 40000)[rank]}
        assert len(mine) == 5 and mine[-1] == {"own": True}


def test_a_rank_that_leaves_or_a_loader_that_fails_is_an_error_on_all_ranks(folder: pathlib.Path) -> None:
    told = run(
        folder,
        3,
        """
    class Failing:
        def __iter__(self):
            yield from batches(4)
            raise KeyError("part-7")
    got = []
    try:
        for batch in DataLoaderDispatcher(Failing()):
            got.append(number(batch))
    except levada.SourceError as error:
        tell(got=got, text=str(error))
    try:
        for step, batch in enumerate(DataLoaderDispatcher(Loader(3000))):
            if rank == 2 and step == 2:
                break
        tell(left=step)
    except levada.PeerLost as error:
        tell(lost=error.rank)
    for step, batch in enumerate(DataLoaderDispatcher(Loader(3000))):
        if step == 2:
            break    # all of them
    tell(got=[number(batch) for batch in DataLoaderDispatcher(Loader(3))])
    """,
    )
    for rank, mine in enumerate(told):
        assert mine[0]["got"] == [rank] and "KeyError: 'part-7'" in mine[0]["text"] and "rank 0" in mine[0]["text"]
        assert mine[1:] == [{"left": 2} if rank == 2 else {"lost": 2}, {"got": [rank]}]


def test_a_trainer_trains_as_on_batches_dealt_by_hand(folder: pathlib.Path) -> None:
    told = run(
        folder,
        2,
        """
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(self.layers(x)[:, 0], labels)}

    def rows(seed):
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    data = [{"x": rows(i), "labels": rows(100 + i)[:, 0]} for i in range(35)]

    def trained(loader):
        class Own(Trainer):
            def get_train_dataloader(self):
                return loader
        arguments = TrainingArguments(output_dir=sys.path[0], max_steps=3, gradient_accumulation_steps=8,
                                      report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=1)
        trainer = Own(model=Model(), args=arguments, train_dataset=[None])
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return losses, [p.detach().clone() for p in trainer.model.parameters()], trainer.state.global_step

    class Dealt:
        # the expected batches of the dispatcher: two rounds of one epoch are 16 batches of this rank
        def __iter__(self): return iter(data[rank:34:2])
    losses, parameters, steps = trained(DataLoaderDispatcher(data, device="cpu"))
    by_hand, expected, _ = trained(Dealt())
    tell(steps=steps, losses=losses, by_hand=by_hand, same=all(map(torch.equal, parameters, expected)))
    """,
    )
    assert told[0] == told[1]  # data-parallel ranks report the same, and end with the same parameters
    for (mine,) in told:
        assert mine["steps"] == 3 and mine["losses"] == mine["by_hand"] and len(mine["losses"]) == 3
        assert mine["same"] is True


class Row(NamedTuple):
    x: Any
    names: list[str]


class WithEpoch(list[Any]):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_single_rank_iterates_its_own_data() -> None:
    data = [{"x": torch.full((2,), i)} for i in range(5)]
    dispatcher = DataLoaderDispatcher(data, skip_batches=2)
    assert (dispatcher.rank, dispatcher.world_size) == (0, 1)
    assert [batch is each for batch, each in zip(dispatcher, data[2:], strict=True)] == [True] * 3
    assert list(DataLoaderDispatcher(data, skip_batches=6)) == []

    row = Row(torch.ones(2), ["a"])
    counts = collections.Counter(a=1)
    (moved,) = DataLoaderDispatcher([[row, collections.defaultdict(list, y=row.x), counts, 5]], device="meta")
    assert type(moved[0]) is Row and moved[0].x.device.type == "meta" and moved[0].names == ["a"]
    assert type(moved[1]) is collections.defaultdict and moved[1].default_factory is list and moved[1]["y"] is moved[0].x
    assert moved[2:] == [counts, 5] and type(moved[2]) is collections.Counter
    assert row.x.device.type == "cpu"


def test_an_epoch_reaches_dataset_and_sampler() -> None:
    loader: Any = torch.utils.data.DataLoader(WithEpoch(range(4)), sampler=WithEpoch(range(4)))
    DataLoaderDispatcher(loader).set_epoch(3)
    assert loader.dataset.epoch == 3 and loader.sampler.epoch == 3
    batched: Any = torch.utils.data.DataLoader(range(4), batch_sampler=WithEpoch([[0], [1]]))
    DataLoaderDispatcher(batched).set_epoch(4)
    assert batched.batch_sampler.epoch == 4
    itself = WithEpoch([1])
    DataLoaderDispatcher(itself).set_epoch(5)
    assert itself.epoch == 5
    DataLoaderDispatcher([1, 2]).set_epoch(3)  # a list has no set_epoch()


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(levada.InvalidArgument, match="base_dataloader is None"):
        list(DataLoaderDispatcher(None))

    class Scattering(DataLoaderDispatcher):
        def _scatter_object_list(self, inputs: Any) -> Any:
            return inputs

    with pytest.raises(levada.Unsupported, match="Scattering has _scatter_object_list"):
        list(Scattering([1]))


def test_a_negative_skip_skips_nothing_and_the_default_group_is_1() -> None:
    dispatcher = DataLoaderDispatcher([1, 2], skip_batches=-1)
    assert list(dispatcher) == [1, 2] and dispatcher.group == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a stand-in for the accelerator of a machine that has none")
def test_batches_move_to_the_accelerator_of_the_group(folder: pathlib.Path) -> None:
    told = run(
        folder,
        2,
        """
    from levada.dropin import swift
    swift.accelerator = lambda: torch.device("meta")
    data = [{"x": torch.ones(2)} for _ in range(2)]
    kinds = [batch["x"].device.type for batch in DataLoaderDispatcher(data)]
    dist.get_backend = lambda group=None: "nccl"
    kinds += [batch["x"].device.type for batch in DataLoaderDispatcher(data)]
    kinds += [batch["x"].device.type for batch in DataLoaderDispatcher(data, device="cpu")]
    tell(kinds=kinds)
    """,
    )
    assert told == [[{"kinds": ["cpu", "meta", "cpu"]}]] * 2


def test_the_timeout_is_the_groups(folder: pathlib.Path) -> None:
    told = run(
        folder,
        2,
        """
    import datetime
    from levada.dropin import swift
    class Short(DataLoaderDispatcher):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
    class Long(DataLoaderDispatcher):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=18_000_000))   # ms-swift's default
    tell(long=swift._timeout_of(Long.group), got=[number(batch) for batch in Long(Loader(4))])
    seen = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seen")
    class Hanging:
        def __iter__(self):
            yield 1
            for _ in range(3000):    # until the other rank has given up
                if os.path.exists(seen): break
                time.sleep(0.02)
    try:
        list(Short(Hanging()))
    except levada.Timeout as error:
        tell(text=str(error))
    except levada.Error:    # the outcome of the rank that hung
        pass
    open(seen, "w").close()
    if rank == 0:
        tell(group=swift._timeout_of(Short.group), default=swift._timeout_of(dist.group.WORLD))
    """,
    )
    assert [mine[0] for mine in told] == [{"long": 18e6, "got": [rank, 2 + rank]} for rank in range(2)]
    assert told[0][-1] == {"group": 3.0, "default": 1800.0}
    assert "rank 0" in told[1][1]["text"]


SWIFT = {
    "swift/__init__.py": "",
    "swift/dataloader/__init__.py": "from .dispatcher import DataLoaderDispatcher",
    "swift/dataloader/dispatcher.py": """
import torch.distributed as dist
class DataLoaderDispatcher:
    def __init__(self, base_dataloader, device=None, skip_batches=0):
        raise AssertionError("ms-swift's own")
    @property
    def group(self): return dist.group.WORLD
    def _scatter_object_list(self, inputs): raise AssertionError("ms-swift's own")
    def _skip_batches(self, base_iter): raise AssertionError("ms-swift's own")
    def __iter__(self): raise AssertionError("ms-swift's own")
""",
    "swift/trainers.py": """
from swift.dataloader import DataLoaderDispatcher
class Own(DataLoaderDispatcher):
    def __init__(self, loader, instance, device=None, skip_batches=0):
        super().__init__(loader)
        self.instance, self.device, self.skip_batches = instance, device, skip_batches
def skip_first_batches(loader, count):
    return type(loader)(loader.base_dataloader, skip_batches=count) if isinstance(loader, DataLoaderDispatcher) else None
def make(loader): return DataLoaderDispatcher(loader, None)
""",
}


@pytest.mark.parametrize(
    ("first", "place"),
    [("install", "dataloader/dispatcher"), ("trainers", "dataloader/dispatcher"), ("trainers", "llm/data_loader")],
)
def test_ms_swifts_own_class_is_replaced_in_place(folder: pathlib.Path, first: str, place: str) -> None:
    package, _, module = place.partition("/")
    for name, text in SWIFT.items():
        path = folder / name.replace("dataloader", package).replace("dispatcher", module)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text.replace("swift.dataloader", f"swift.{package}").replace(".dispatcher", f".{module}"))
    imports = ["import levada.dropin.swift; levada.dropin.swift.install()", "from swift import trainers"]
    told = run(
        folder,
        2,
        "\n".join(f"    {each}" for each in (imports if first == "install" else imports[::-1]))
        + """
    loader = trainers.make(Loader(6))
    tell(got=[number(batch) for batch in loader])
    tell(got=[number(batch) for batch in trainers.skip_first_batches(loader, 2)])
    own = trainers.Own(Loader(6), "sp", skip_batches=1)
    tell(got=[number(batch) for batch in own], same=isinstance(own, trainers.DataLoaderDispatcher), instance=own.instance)
    levada.dropin.swift.install()    # again
    tell(got=[number(batch) for batch in loader])
    """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == mine[3] == {"got": [rank, 2 + rank, 4 + rank]} and mine[1] == {"got": [4 + rank]}
        assert mine[2] == {"got": [2 + rank, 4 + rank], "same": True, "instance": "sp"}


def test_nothing_is_replaced_without_ms_swift() -> None:
    with pytest.raises(levada.Unsupported, match="ms-swift is not installed"):
        install()
