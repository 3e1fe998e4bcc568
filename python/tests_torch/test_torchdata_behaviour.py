"""The torchdata drop-in fails, warns and is extended as torchdata is. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import levada
import pytest
import ranks
import torch
from datapipes import Holding, MULTIPROCESSING, add_one, service, sharded
from levada.dropin.torchdata import (
    DataLoader2,
    InProcessReadingService,
    PauseIteration,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
    WorkerInfo,
    adapter,
    graph,
)
from levada.dropin.torchdata._items import Items
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper


@pytest.mark.parametrize("reading", [InProcessReadingService, service])
def test_epochs_without_a_seed_differ(reading: Callable[[], Any]) -> None:
    with DataLoader2(sharded(), reading_service=reading()) as loader:
        torch.manual_seed(5)
        both = [list(loader), list(loader)]
        assert both[0] != both[1]
        torch.manual_seed(5)
        assert [list(loader), list(loader)] == both


def test_seeds_do_not_touch_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    def initialize(*_: Any) -> None:
        raise AssertionError("a device was asked for the state of its generator")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", initialize)
    SeedGenerator().seed()


def test_an_undivided_graph_is_a_warning() -> None:
    whole = IterableWrapper(range(4))
    with DataLoader2(whole, reading_service=service()) as loader:
        with pytest.warns(UserWarning, match="IterableWrapper.* among the 2 workers"):
            assert sorted(loader) == [0, 0, 1, 1, 2, 2, 3, 3]
    with DataLoader2(whole.sharding_filter().zip(whole), reading_service=service()) as loader:
        with pytest.warns(UserWarning, match="among the 2 workers"):
            iter(loader)

    def divide(pipe: Any, info: WorkerInfo) -> Any:
        return pipe.filter(lambda item: item % info.num_workers == info.worker_id)

    for pipe, options in ((whole, {"worker_init_fn": divide}), (whole.sharding_filter(), {})):
        with DataLoader2(pipe, reading_service=service(**options)) as loader, warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            assert sorted(loader) == [0, 1, 2, 3]


class Custom(Exception):
    """An exception with more than a text."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


def fail_at_three(item: int) -> int:
    if item == 3:
        raise Custom("oops", 7)
    return item


@pytest.mark.parametrize("place", ["worker process 1", "dispatching process"])
def test_an_exception_has_torchdatas_text(place: str) -> None:
    if place == "dispatching process":
        pipe = IterableWrapper(range(6)).map(fail_at_three).sharding_round_robin_dispatch(MULTIPROCESSING)
    else:
        pipe = IterableWrapper(range(6)).sharding_filter().map(fail_at_three)
    loader: DataLoader2[int] = DataLoader2(pipe, reading_service=service())
    with pytest.raises(Custom) as caught:
        list(loader)
    for text in (f"Caught Custom in {place}", "Original Traceback", "fail_at_three", "oops"):
        assert text in str(caught.value)
    assert caught.value.code == 7 and isinstance(caught.value.__cause__, levada.StageFailed)


def test_a_paused_prefetcher_refuses_its_next_item() -> None:
    pipe = IterableWrapper(range(9)).prefetch(2).prefetch(2)
    items = iter(pipe)
    got = [next(items)]
    pipe.pause()
    with pytest.raises(RuntimeError, match="paused"):
        list(items)
    items = iter(pipe)
    got = [next(items), next(items)]
    pipe.pause()
    pipe.resume()
    assert got + list(items) == list(range(9))
    items = iter(pipe)
    next(items)
    pipe.pause()
    assert list(pipe) == list(range(9))


class PausedByAnotherThread:
    """A run that is paused and resumed before or during its first next(), which therefore returns nothing."""

    def __init__(self, *, is_paused_before: bool) -> None:
        self.items = Items(self)  # type: ignore[arg-type]
        self.left = [1, 2]
        self.is_paused_before, self.is_resumed = is_paused_before, False
        if is_paused_before:
            self.items.pause()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.is_resumed:
            self.is_resumed = True
            if not self.is_paused_before:
                self.items.pause()
            self.items.resume()
            raise StopIteration
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


@pytest.mark.parametrize("is_paused_before", [False, True])
def test_the_end_of_a_pause_is_not_the_end_of_the_items(is_paused_before: bool) -> None:
    assert list(PausedByAnotherThread(is_paused_before=is_paused_before).items) == [1, 2]


class Pausing(IterDataPipe):
    """Ends loops, but not its epoch, after every third item."""

    def __iter__(self) -> Iterator[int]:
        return self

    def reset(self) -> None:
        self.given = self.turns = 0

    def __next__(self) -> int:
        self.turns += 1
        if self.turns % 4 == 0:
            raise PauseIteration
        if self.given == 7:
            raise StopIteration
        self.given += 1
        return self.given


class Custodian(ReadingServiceInterface):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, *, seed_generator: SeedGenerator, iter_reset_fn: Any = None) -> Any:
        self.calls.append("begin")

    def finalize_iteration(self) -> None:
        self.calls.append("end")

    def _pause(self, function: Any = None) -> Any:
        return lambda pipe: self.calls.append("pause") or pipe

    def _resume(self, function: Any = None) -> Any:
        return lambda pipe: self.calls.append("resume") or pipe

    def _limit(self, batches: Any, function: Any = None) -> Any:
        return lambda pipe, count: self.calls.append(("limit", count)) or pipe


def test_custom_services_and_datapipes_are_called_as_torchdata_calls_them() -> None:
    with DataLoader2(Pausing(), reading_service=SequentialReadingService(Custodian())) as loader:
        custodian = loader.reading_service.reading_services[0]
        items = iter(loader)
        assert [list(items), list(items), list(items), list(items)] == [[1, 2, 3], [4, 5, 6], [7], []]
        assert custodian.calls == ["begin", "end", "end"]
        custodian.calls.clear()
        items = iter(loader)
        items.limit(2)
        assert list(items) == [1, 2]
        items.resume()
        assert custodian.calls == ["begin", ("limit", 2), "pause", "resume"]


def test_a_distributed_service_has_its_own_group(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import os
        os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}}
        import torch.distributed as dist
        from levada.dropin.torchdata import DistributedReadingService, SeedGenerator
        from torch.utils.data.datapipes.iter import IterableWrapper
        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
        service = DistributedReadingService()
        service.initialize(IterableWrapper(range(3)).sharding_filter())

        def refuse(*args, **kwargs):
            assert kwargs.get("group") is not None, "a collective over the default group"
            return broadcast(*args, **kwargs)

        broadcast, dist.broadcast, dist.broadcast_object_list = dist.broadcast, refuse, refuse
        seeds = SeedGenerator(rank)
        service.initialize_iteration(seeds)
        tell(shared=seeds.generate_shared_seed(), own=seeds.generate_seed())
        service.finalize()
        dist.destroy_process_group()
        """,
    )
    assert told[0][0]["shared"] == told[1][0]["shared"] and told[0][0]["own"] != told[1][0]["own"]


def test_graphs_are_changed_as_torchdata_changes_them() -> None:
    source = IterableWrapper(range(4))
    mapped = source.map(add_one)
    end = mapped.batch(2)
    whole = graph.traverse_dps(end)
    assert graph.list_dps(whole) == [end, mapped, source] and graph.list_dps(whole, mapped) == [end]
    assert graph.find_dps(whole, type(mapped)) == [mapped]
    wrapper = Holding(mapped)
    assert graph.list_dps(graph.replace_dp(whole, mapped, wrapper)) == [end, wrapper, mapped, source]
    assert graph.list_dps(graph.remove_dp(graph.traverse_dps(end), mapped)) == [end, wrapper, source]
    with pytest.raises(RuntimeError, match="Cannot remove the source"):
        graph.remove_dp(graph.traverse_dps(end), source)
    with pytest.raises(RuntimeError, match="2 before it"):
        joined = end.zip(IterableWrapper(range(2)))
        graph.remove_dp(graph.traverse_dps(joined), joined)
    assert graph.list_dps(graph.replace_dp(graph.traverse_dps(end), end, source)) == [source]


def test_adapters_of_torchdata() -> None:
    pipe = IterableWrapper(range(50)).shuffle()
    assert list(DataLoader2(pipe, adapter.Shuffle(False))) == list(range(50))
    assert list(DataLoader2(pipe, [adapter.Shuffle(True)])) != list(range(50))
    assert adapter.CacheTimeout(3)(pipe) is pipe
    with pytest.raises(ValueError, match="timeout"):
        adapter.CacheTimeout()


def test_main_prefetch_counts_all_workers_together() -> None:
    pipe = IterableWrapper(range(4)).sharding_filter()
    with DataLoader2(pipe, reading_service=service(3, main_prefetch_cnt=7)) as loader:
        iter(loader)
        assert loader.reading_service._run.options.main_prefetch == 3
