"""levada.dropin.torchdata: torch's datapipes, run by Levada."""

from __future__ import annotations

import functools
import pathlib
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import levada
import pytest
import ranks
import torch
from datapipes import Holding, MULTIPROCESSING, add_one, dispatching, service, sharded
from levada.dropin import torchdata
from levada.dropin.torchdata import (
    SHARDING_PRIORITIES,
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
    WorkerInfo,
    graph,
)
from levada.dropin.torchdata._parts import cut
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper


class Circular(IterDataPipe):
    """Makes a datapipe that refers back to it."""

    def __init__(self, source: Any) -> None:
        self.offset = 1
        self.part = Part(source, [self])

    def __iter__(self) -> Iterator[Any]:
        yield from self.part


class Part(IterDataPipe):
    def __init__(self, source: Any, whole: list[Any]) -> None:
        self.source = source
        self.whole = whole

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item + self.whole[0].offset


def test_datapipes_are_divided_as_levada_places_them() -> None:
    source = IterableWrapper(range(8))
    mark = source.shuffle().sharding_round_robin_dispatch(MULTIPROCESSING)
    mapped = mark.map(add_one)
    end = mapped.batch(2)
    assert cut(end, 2) == (mark, end)

    left, right = IterableWrapper(range(8)).fork(2)
    marked = left.sharding_round_robin_dispatch(MULTIPROCESSING)
    joined = marked.zip(right.map(add_one))
    end = joined.map(str)
    assert cut(end, 2) == (joined, end)  # all branches of a forked datapipe move together

    both = source.sharding_round_robin_dispatch(MULTIPROCESSING).zip(mark)
    assert cut(both, 2) == (both, both)

    beside = IterableWrapper(range(5)).sharding_filter()
    end = mark.zip(beside)
    assert cut(end, 2) == (mark, end)
    with pytest.raises(levada.InvalidArgument, match="IterableWrapper"):
        cut(mark.zip(IterableWrapper(range(5))), 2)

    held = Holding(mapped)
    assert cut(held.map(str), 2) == (mark, mapped)
    circular = Circular(mark)
    end = circular.map(add_one)
    assert cut(end, 2) == (mark, end)
    inside = Circular(source)
    inside.part.source = source.sharding_round_robin_dispatch(MULTIPROCESSING)
    marked_inside = Circular(IterableWrapper(range(3)))
    marked_inside.part = Part(inside.part.source, [marked_inside]).sharding_round_robin_dispatch(MULTIPROCESSING)
    assert cut(marked_inside.map(str), 2)[0] is marked_inside  # a mark inside a cycle moves the whole cycle


def test_a_datapipe_is_replaced_wherever_it_is_referenced() -> None:
    source, other = IterableWrapper(range(3)), IterableWrapper(range(5))
    left, right = source.fork(2)
    end = left.zip(right, source.map(add_one))
    assert graph.replace(end, source, other) is end
    assert all(pipe is not source for pipe in graph.all_of(end)) and any(pipe is other for pipe in graph.all_of(end))
    assert graph.replace(source, source, other) is other


@pytest.mark.parametrize("make", [dispatching, sharded])
@pytest.mark.parametrize("prefetch", [0, 10])
def test_workers_yield_the_items_of_one_process(make: Callable[[], Any], prefetch: int) -> None:
    with DataLoader2(make(), reading_service=InProcessReadingService()) as loader:
        loader.seed(5)
        alone = [list(loader), list(loader)]
    assert alone[0] != alone[1] and sorted(alone[0]) == sorted(alone[1]) == list(range(1, 21))
    options = {"worker_prefetch_cnt": prefetch, "main_prefetch_cnt": prefetch}
    with DataLoader2(make(), reading_service=service(**options)) as loader:
        loader.seed(5)
        first, second = list(loader), list(loader)
        assert sorted(first) == sorted(second) == list(range(1, 21)) and first != second
        loader.seed(5)
        assert list(loader) == first
    with DataLoader2(make(), reading_service=service(3, **options)) as loader:
        loader.seed(5)
        assert list(loader) == first  # the stages are one-to-one, so the number of workers changes nothing


def test_branches_and_local_stages_run_in_this_process() -> None:
    pipe = IterableWrapper(range(10)).sharding_round_robin_dispatch(MULTIPROCESSING).map(add_one)
    with DataLoader2(Holding(pipe).batch(4), reading_service=service()) as loader:
        assert list(loader) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]] == list(loader)
    left, right = IterableWrapper(range(6)).fork(2)
    pipe = left.sharding_round_robin_dispatch(MULTIPROCESSING).zip(right.map(add_one)).map(lambda pair: sum(pair))
    with DataLoader2(pipe, reading_service=service()) as loader:
        assert list(loader) == [1, 3, 5, 7, 9, 11]
    mark = IterableWrapper(range(6)).sharding_round_robin_dispatch(MULTIPROCESSING)
    with DataLoader2(mark.zip(IterableWrapper("abcdef").sharding_filter()), reading_service=service()) as loader:
        assert list(loader) == list(zip(range(6), "abcdef"))


class Threaded(IterDataPipe):
    """Requests items on a separate thread."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        with ThreadPoolExecutor(1) as pool:
            yield from pool.submit(list, self.source).result()


def test_workers_receive_on_one_thread() -> None:
    def prefetching(pipe: Any, info: WorkerInfo) -> Any:
        return pipe.prefetch(3)

    mark = IterableWrapper(range(40)).sharding_round_robin_dispatch(MULTIPROCESSING)
    for pipe in (mark.prefetch(2).map(add_one).prefetch(4), mark.map(add_one)):
        with DataLoader2(pipe, reading_service=service(worker_init_fn=prefetching)) as loader:
            assert list(loader) == list(range(1, 41)) == list(loader)
    loader = DataLoader2(Threaded(mark), reading_service=service())
    with pytest.raises(levada.Unsupported, match="worker_prefetch_cnt"):
        list(loader)


def test_tensors_cross_and_are_private_to_the_receiver() -> None:
    pipe = IterableWrapper(range(30)).sharding_round_robin_dispatch(MULTIPROCESSING)
    with DataLoader2(pipe.map(lambda n: torch.full((5000,), n)), reading_service=service()) as loader:
        kept = list(loader)
    for number, tensor in enumerate(kept):
        assert tensor.eq(number).all()
        tensor.zero_()


def test_functions_of_workers_are_called_with_their_places() -> None:
    def init(pipe: Any, info: WorkerInfo) -> Any:
        return pipe.map(lambda item: (item, info.num_workers, info.worker_id))

    def reset(pipe: Any, info: WorkerInfo, seeds: SeedGenerator) -> Any:
        assert 0 <= info.worker_id < info.num_workers and seeds.generate_seed() != seeds.generate_shared_seed()
        return pipe

    options: dict[str, Any] = {"worker_init_fn": init, "worker_reset_fn": reset}
    with DataLoader2(dispatching(6), reading_service=service(**options)) as loader:
        assert sorted((workers, worker) for _, workers, worker in loader) == [(2, 0)] * 3 + [(2, 1)] * 3
    with DataLoader2(sharded(3), reading_service=MultiProcessingReadingService(0, **options)) as loader:
        assert sorted(loader) == [(1, 1, 0), (2, 1, 0), (3, 1, 0)]


@pytest.mark.parametrize("make", [dispatching, sharded])
@pytest.mark.parametrize("reading", [InProcessReadingService, service])
def test_limit_resume_and_pause(make: Callable[[], Any], reading: Callable[[], Any]) -> None:
    with DataLoader2(make(), reading_service=reading()) as loader:
        items: Any = iter(loader)
        items.limit(3)
        got = list(items)
        assert len(got) == 3 and next(items, None) is None
        items.resume()
        got += list(items)
        assert len(got) == 6  # a limit stays in effect
        items.limit(None)
        items.resume()
        got += list(items)
        assert sorted(got) == list(range(1, 21))
        again = iter(loader)
        next(again)
        loader._pause()
        assert list(again) == []
        loader._resume()
        assert len(list(again)) == 19


@pytest.mark.parametrize("make", [dispatching, sharded])
@pytest.mark.parametrize("reading", [InProcessReadingService, service])
def test_a_state_resumes_at_the_next_item(make: Callable[[], Any], reading: Callable[[], Any]) -> None:
    with DataLoader2(make(), reading_service=reading()) as loader:
        loader.seed(7)
        before = loader.state_dict()
        items = iter(loader)
        got = [next(items) for _ in range(7)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        rest = list(items)
        following = list(loader)
    with DataLoader2.from_state(before, reading(), allow_pickle=True) as loader:
        assert list(loader) == got + rest
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        assert list(loader) == rest
        assert list(loader) == following
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        loader._restore_checkpoint_beginning_of_epoch()
        assert list(loader) == got + rest
    with DataLoader2(None, reading_service=reading()) as loader:
        with pytest.raises(RuntimeError, match="no datapipe"):
            iter(loader)
        with pytest.raises(levada.Unsupported, match="allow_pickle=True"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow_pickle=True)
        assert list(loader) == rest


@pytest.mark.parametrize("reading", [InProcessReadingService, functools.partial(service, 0), service])
def test_a_reading_service_unpickles_nothing(reading: Callable[[], Any]) -> None:
    made = reading()
    for forged in (pickle.dumps([3]), b"cos\nsystem\n(S'exit 1'\ntR."):
        with pytest.raises(levada.CorruptMessage):
            made.restore(sharded(4), forged)
    made.finalize()


def test_a_state_of_any_epoch_resumes() -> None:
    with DataLoader2(sharded(8), reading_service=service(1)) as loader:
        loader.seed(3)
        for _ in range(12):
            items = iter(loader)
            next(items)
            state = loader.state_dict()
            rest = list(items)
            with DataLoader2.from_state(state, service(1), allow_pickle=True) as resumed:
                assert list(resumed) == rest


READING = [InProcessReadingService, functools.partial(service, 0), service]


@pytest.mark.parametrize("reading", READING)
def test_a_state_between_iter_and_the_first_item_is_of_the_first_item(reading: Callable[[], Any]) -> None:
    with DataLoader2(sharded(6), reading_service=reading()) as loader:
        loader.seed(3)
        assert len(list(loader)) == 6
        items = iter(loader)
        state = loader.state_dict()
        second = list(items)
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        items = iter(loader)
        assert [next(items) for _ in range(4)] == second[:4]
        state = loader.state_dict()
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        iter(loader)
        state = loader.state_dict()
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        assert list(loader) == second[4:]


@pytest.mark.parametrize("reading", READING)
@pytest.mark.parametrize("first_seed", [None, 1])
def test_an_epoch_that_a_state_resumes_keeps_its_seed(reading: Callable[[], Any], first_seed: int | None) -> None:
    with DataLoader2(sharded(), reading_service=reading()) as loader:
        if first_seed is not None:
            loader.seed(first_seed)
        items = iter(loader)
        next(items)
        loader.seed(4)
        state = loader.state_dict()
        rest, following = list(items), list(loader)
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        items = iter(loader)
        assert next(items) == rest[0]
        again = loader.state_dict()
        assert [list(items), list(loader)] == [rest[1:], following]
    with DataLoader2.from_state(again, reading(), allow_pickle=True) as loader:
        assert [list(loader), list(loader)] == [rest[1:], following]
    with DataLoader2.from_state(again, reading(), allow_pickle=True) as loader:
        loader.seed(5)
        resumed, reseeded = list(loader), list(loader)
        loader.seed(5)
        assert [resumed, reseeded] == [rest[1:], list(loader)]
    with DataLoader2.from_state(state, reading(), allow_pickle=True) as loader:
        loader._restore_checkpoint_beginning_of_epoch()
        assert list(loader)[1:] == rest


class Offset(IterDataPipe):
    """Adds an offset that is set later."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.offset = 0

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            yield item + self.offset


def offset_by(amount: int, datapipe: Any) -> Any:
    for pipe in graph.all_of(datapipe):
        if isinstance(pipe, Offset):
            pipe.offset = amount
    return datapipe


class Before(ReadingServiceInterface):
    """Requests a change in each epoch that only the services after it can make."""

    def __init__(self, amounts: list[int]) -> None:
        self.amounts = amounts

    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, seed_generator: SeedGenerator, iter_reset_fn: Any = None) -> Any:
        return functools.partial(offset_by, self.amounts.pop(0))


@pytest.mark.parametrize("last", [service, InProcessReadingService])
def test_worker_functions_of_an_earlier_service_run_in_all_processes(last: Callable[[], Any]) -> None:
    dealt = Offset(IterableWrapper(range(6))).sharding_round_robin_dispatch(MULTIPROCESSING)
    both = SequentialReadingService(Before([5, 5, 7]), last())
    with DataLoader2(Offset(dealt), reading_service=both) as loader:
        for amount in (5, 5, 7):
            assert list(loader) == [item + 2 * amount for item in range(6)]


def test_a_second_iterator_ends_the_first_and_shutdown_ends_the_loader() -> None:
    loader: DataLoader2[int] = DataLoader2(dispatching(), reading_service=service())
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 20
    with pytest.raises(RuntimeError, match="iterator has been invalidated"):
        next(first)
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        iter(loader)


def test_an_exception_of_a_datapipe_is_raised_in_the_consumer() -> None:
    def fail(item: int) -> int:
        raise KeyError(f"no {item}")

    pipe = IterableWrapper(range(5)).sharding_round_robin_dispatch(MULTIPROCESSING).map(fail)
    loader: DataLoader2[int] = DataLoader2(pipe, reading_service=PrototypeMultiProcessingReadingService(1, "forkserver"))
    with pytest.raises(KeyError, match="no 0") as caught:
        list(loader)
    assert "worker 0" in str(caught.value.__cause__)


def test_adapters_and_map_datapipes() -> None:
    from torch.utils.data.datapipes.map import SequenceWrapper

    loader: DataLoader2[int] = DataLoader2(SequenceWrapper([3, 4, 5]), lambda pipe: pipe.map(add_one))
    assert list(loader) == [4, 5, 6]
    both: DataLoader2[int] = DataLoader2(
        IterableWrapper(range(3)), [lambda pipe: pipe.map(add_one), lambda pipe: pipe.batch(2)], InProcessReadingService(3)
    )
    assert list(both) == [[1, 2], [3]] == list(both)


def test_datapipes_that_torch_lacks_work() -> None:
    numbers = IterableWrapper(range(7))
    assert list(numbers.prefetch(3)) == list(range(7)) and len(numbers.prefetch(3)) == 7
    parts = IterableWrapper(range(7)).round_robin_demux(3)
    assert [list(part) for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    assert IterableWrapper(range(7)).round_robin_demux(1) != []
    for name, refused in (("round_robin_demux", 0), ("prefetch", 0)):
        with pytest.raises(ValueError, match="0"):
            getattr(numbers, name)(refused)
    with pytest.raises(NotImplementedError, match="MULTIPROCESSING"):
        numbers.sharding_round_robin_dispatch(SHARDING_PRIORITIES.DISTRIBUTED)
    with pytest.raises(RuntimeError, match="CUDA"):
        numbers.pin_memory()
    with pytest.raises(RuntimeError, match="torch.distributed"):
        list(numbers.fullsync())


def test_seeds_are_repeatable_and_separate() -> None:
    one, other = SeedGenerator(3), SeedGenerator(3)
    assert [one.generate_seed() for _ in range(3)] == [other.generate_seed() for _ in range(3)]
    children = [SeedGenerator(3).spawn(number) for number in range(4)]
    assert len({child.generate_seed() for child in children}) == 4
    assert len({child.generate_shared_seed() for child in children}) == 1
    again: SeedGenerator = pickle.loads(pickle.dumps(one))
    assert again.generate_shared_seed() == one.generate_shared_seed()
    rank = SeedGenerator(3).spawn(1)
    first = rank.generate_seed()
    rank.spawn(2, inplace=True)
    rank.seed(3)
    assert rank.spawn(1, inplace=True).generate_seed() == first == SeedGenerator(3).spawn(1).generate_seed()
    with pytest.raises(ValueError, match="2\\*\\*64"):
        SeedGenerator(2**64)


def test_ranks_divide_the_items_and_end_together(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        def main():
            import os
            os.environ |= {{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}}
            import torch.distributed as dist
            from levada.dropin.torchdata import DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
            from torch.utils.data.datapipes.iter import IterableWrapper
            dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
            pipe = IterableWrapper(range(11)).shuffle().sharding_filter()
            for service in (
                DistributedReadingService(),
                SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(2, "spawn")),
            ):
                with DataLoader2(pipe, reading_service=service) as loader:
                    loader.seed(3)
                    tell(first=list(loader), second=list(loader))
            def fail(item):
                if rank == 1 and item > 5:
                    raise KeyError("of rank 1")
                return item
            try:
                tell(got=list(IterableWrapper(range(10)).map(fail).fullsync()))
            except Exception as error:
                tell(error=repr(error))
            dist.destroy_process_group()
        if __name__ == "__main__":
            main()
        """,
    )
    for at in (0, 1):
        for epoch in ("first", "second"):
            both = told[0][at][epoch] + told[1][at][epoch]
            assert len(told[0][at][epoch]) == len(told[1][at][epoch]) == 5 and len(set(both)) == 10
        assert told[0][at]["first"] != told[0][at]["second"]
    assert "of rank 1" in told[0][2]["error"] and "KeyError" in told[1][2]["error"]


def test_all_names_of_torchdata_exist() -> None:
    for name in torchdata.__all__:
        assert getattr(torchdata, name) is not None
    assert SequentialReadingService(InProcessReadingService()).reading_services
