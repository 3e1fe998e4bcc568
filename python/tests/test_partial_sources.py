"""Sources that yield one rank's part of the data, which a feed would divide again."""

from __future__ import annotations

import argparse
import functools
import itertools
import pathlib
import random
import types
from typing import Any

import pytest
import ranks

from levada import Mesh, Pipeline
from levada.feed.loaders import check_whole, why_partial


def _named(name: str, **attributes: Any) -> Any:
    return type(name, (), {"__iter__": lambda self: iter(()), **attributes})()


class Holder:
    """An object with the attribute that marks a part."""

    def __init__(self, name: str, part: Any) -> None:
        setattr(self, name, part)

    def __iter__(self) -> Any:
        return iter(())


def split_by_node(source: Any) -> Any:
    return source


PARTIAL = {
    "DistributedSampler with num_replicas=4": lambda: _named("DistributedSampler", num_replicas=4, rank=1),
    "BatchSamplerShard with num_processes=2": lambda: _named("BatchSamplerShard", num_processes=2, process_index=0),
    "MegatronSampler with data_parallel_size=8": lambda: _named("MegatronSampler", data_parallel_size=8, data_parallel_rank=3),
    "Loader with dp_world_size=2": lambda: _named("Loader", _dp_world_size=2, _dp_rank=0),
    "Reader with num_shards=3": lambda: _named("Reader", num_shards=3, shard_id=2),
    "DataLoaderShard": lambda: _named("DataLoaderShard"),
    "DataLoaderDispatcher": lambda: _named("DataLoaderDispatcher"),
    "StreamingDataset": lambda: type("Mine", (type("StreamingDataset", (), {}),), {})(),
    "SavableDataLoader": lambda: _named("SavableDataLoader", worker_config=types.SimpleNamespace(rank=0, world_size=2)),
    "split_dataset_by_node": lambda: _named("IterableDataset", _distributed=types.SimpleNamespace(rank=0, world_size=2)),
    "DataLoader with shard_count=2": lambda: _named("DataLoader", _shard_options=types.SimpleNamespace(shard_index=0, shard_count=2)),
    "split_by_node": lambda: split_by_node,
}
WHOLE = [
    lambda: _named("DistributedSampler", num_replicas=1, rank=0),
    lambda: _named("SavableDataLoader", worker_config=types.SimpleNamespace(rank=0, world_size=1)),
    lambda: _named("IterableDataset", _distributed=None, num_shards=4),
    lambda: _named("DataLoader", _shard_options=types.SimpleNamespace(shard_index=0, shard_count=1)),
    lambda: _named("Sampler", num_replicas=lambda: 4, rank=0),
    lambda: list(range(10)),
]


def _generator(part: Any) -> Any:
    for each in part:
        yield each


def _reads_a_variable_of_its_module() -> Any:
    yield from loader  # type: ignore[name-defined]


def _of_module(part: Any) -> Any:
    return types.FunctionType(_reads_a_variable_of_its_module.__code__, {"loader": Holder("dataset", part)})()


def _begun(iterator: Any) -> Any:
    """Returns an iterator that has been advanced if it has items."""
    next(iterator, None)
    return iterator


def _delegating(part: Any) -> Any:
    yield None
    yield from _generator(part)


class Steps:
    """An iterator with an attribute of any name."""

    def __init__(self, part: Any) -> None:
        self.it = map(str, _generator(part))

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.it)


class Reader:
    def __init__(self, part: Any) -> None:
        self.loader = part

    def batches(self) -> Any:
        yield from self.loader


HOLDERS = [
    lambda part: itertools.islice(_generator(part), 5),
    lambda part: itertools.chain([1], _generator(part)),
    lambda part: itertools.chain.from_iterable([[1], _generator(part)]),
    lambda part: itertools.cycle(_generator(part)),
    lambda part: itertools.starmap(str, _generator(part)),
    lambda part: itertools.zip_longest([1], _generator(part)),
    lambda part: itertools.tee(_generator(part))[1],
    lambda part: zip([1], _generator(part)),
    lambda part: map(functools.partial(_generator, part), [1]),
    lambda part: filter(None, enumerate(_generator(part))),
    lambda part: iter([1, _generator(part)]),
    lambda part: iter({"a": part}.values()),
    lambda part: iter(_generator(part).__next__, None),
    lambda part: _begun(_delegating(part)),
    lambda part: (each for each in _generator(part)),
    lambda part: lambda own=part: iter(own),
    lambda part: lambda *, own=part: iter(own),
    lambda part: Pipeline(lambda: iter(part)),
    lambda part: _of_module(part),
    lambda part: Steps(part),
    lambda part: Reader(part).batches(),
    lambda part: map(str, {_generator(part)}),
    lambda part: Holder("sampler", part),
    lambda part: Holder("batch_sampler", part),
    lambda part: Holder("_dataset", part),
    lambda part: Holder("datasets", [Holder("base", None), part]),
    lambda part: Holder("base_dataloader", part),
    lambda part: Holder("sources", {"a": part}),
    lambda part: _generator(part),
    lambda part: Pipeline(Holder("dataset", part)),
    lambda part: Pipeline(functools.partial(_generator, part)).map(str),
    lambda part: Holder("stages", (lambda: part,)),
]


def test_every_sharded_part_is_found_however_it_is_nested() -> None:
    chance = random.Random(7)
    for _ in range(800):
        name = chance.choice(list(PARTIAL))
        source = PARTIAL[name]()
        for _ in range(chance.randint(0, 3)):
            source = chance.choice(HOLDERS)(source)
        why = why_partial(source)
        assert why is not None and name in why, (name, why)


def test_sources_of_all_data_are_accepted_however_they_are_nested() -> None:
    chance = random.Random(8)
    for _ in range(800):
        source = chance.choice(WHOLE)()
        for _ in range(chance.randint(0, 3)):
            source = chance.choice(HOLDERS)(source)
        assert why_partial(source) is None


def _with_options(items: Any, options: Any) -> Any:
    for item in items:
        yield item, options


def test_variables_with_the_number_of_ranks_are_no_division() -> None:
    ranks_and_size = {"world_size": 4, "rank": 1}
    options = argparse.Namespace(**ranks_and_size)
    accelerator = types.SimpleNamespace(num_processes=4, process_index=1)
    mapping = type("Options", (dict,), {"world_size": 4, "rank": 1})(dist=type("Options", (dict,), ranks_and_size)())
    config = types.SimpleNamespace(loader=options)
    for each in (options, accelerator, mapping, config, [options], {"a": options}):
        for holder in (_generator, lambda items: map(str, items), lambda items: itertools.chain([1], items)):
            assert why_partial(holder(_with_options(range(4), each))) is None
            assert why_partial(_begun(holder(_with_options(range(4), each)))) is None
            assert why_partial(functools.partial(_with_options, range(4), each)) is None


def test_the_search_for_parts_calls_no_user_function_and_takes_no_items() -> None:
    class Mine(map):  # type: ignore[type-arg]
        def __reduce__(self) -> Any:
            raise AssertionError

        def __iter__(self) -> Any:
            raise AssertionError

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        num_replicas = property(lambda self: taken.append(0))

    taken: list[int] = []
    numbers = _generator(iter(range(9)))
    sources = [Mine(taken.append, numbers), itertools.islice(numbers, 9), itertools.tee(numbers)[0], itertools.cycle(numbers)]
    assert [why_partial(each) for each in sources] == [None] * 4
    assert taken == [] and list(numbers) == list(range(9))


def test_the_search_survives_cycles_and_attributes_that_raise() -> None:
    circle = Holder("dataset", None)
    circle.dataset = [circle, type("Raises", (), {"num_replicas": property(lambda self: 1 / 0)})()]  # type: ignore[attr-defined]
    assert why_partial(circle) is None


def test_a_part_is_refused_unless_other_feeds_may_have_the_rest() -> None:
    part = PARTIAL["DistributedSampler with num_replicas=4"]()
    check_whole(part, Mesh(dp=1), 4)  # each rank runs a separate feed
    check_whole(part, Mesh(tp=2), 8)  # each pair of ranks shares a part
    for mesh, job in ((Mesh(dp=4), 4), (Mesh(tp=4), 4), (Mesh(dp=2, tp=2), 8)):
        with pytest.raises(ValueError, match="make it with num_replicas=1, rank=0"):
            check_whole(part, mesh, job)


def test_a_feed_of_several_ranks_refuses_a_sharded_loader_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        class DistributedSampler:
            num_replicas, rank = 2, rank
        class Loader:
            sampler = None
            def __init__(self): self.sampler = DistributedSampler()
            def __iter__(self): return iter(range(8))
        for readers in ("one", "all"):
            try: levada.Feed(Loader(), readers=readers)
            except levada.InvalidArgument as error: tell(text=str(error))
        tell(text=str(list(levada.Feed(levada.Pipeline(range(4))))))
        """,
    )
    for rank, mine in enumerate(told):
        assert all("the Loader reads from a DistributedSampler with num_replicas=2" in each["text"] for each in mine[:2])
        assert mine[2]["text"] == str([rank, rank + 2])
