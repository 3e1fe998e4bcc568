"""Makes items and batches by index, in worker processes or in the reading rank."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import derived_seed
from levada.base.epochs import set_epoch_of
from levada.base.errors import InvalidArgument, ItemError
from levada.base.exception_texts import failure_text, report_of
from levada.batch.memory import note_levada_worker
from levada.loader.balanced import StepBalance
from levada.loader.division import Division
from levada.loader.counted import counted
from levada.loader.orders import Listed, Order, Parts, generators, own_generators, seed_all

_COLLATE = 1
"""Stream of a batch's first key that seeds collate_fn. Stream 2 is used for drawing by weights."""
_IN_LIST = 1 << 32
"""First of the streams of a draw's key that seed the items of a batch sampler's list."""

_key: int | None = None  # key of the item being made
_is_batch = False  # whether __getitems__() is making it, without a key
_entered: object = None  # identifies the producer that last set the epoch of a data set in this process
_worker = -1  # index of this worker process


class _AskedInBatch(Exception):
    """item_seed() was called inside __getitems__()."""


def item_seed() -> int:
    """Returns the seed of the item that a levada.DataLoader is making, for a data set's own random generators. It
    depends only on the loader's seed, the epoch and the position, not on the mesh or the worker. Raises InvalidArgument
    outside of `__getitem__` and `collate_fn`."""
    if _is_batch:
        raise _AskedInBatch
    if _key is None:
        raise InvalidArgument("item_seed() is for the __getitem__ of a data set and the collate_fn of a levada.DataLoader")
    return _key


class Plan(NamedTuple):
    """The pass of a reading rank."""

    epoch: int
    """Epoch with which the pass began."""
    division: Division
    coordinates: tuple[int, ...]
    """The data coordinates for which this rank reads."""
    listed: Listed | None
    """The sampler's list; None without a sampler."""


class Sample(NamedTuple):
    """One item to make."""

    number: int
    epoch: int
    position: int
    key: int


class Making(NamedTuple):
    """How to make batches."""

    dataset: Any
    order: Order
    collate: Callable[[Any], Any] | None
    """Makes a batch from a list of items, or from an item that is a whole batch. None means torch's default_convert()
    if torch is imported."""
    is_whole: bool
    """Whether an item is a whole batch."""
    skips: bool
    """Whether to leave out items that raise."""
    counts: bool
    """Whether batches include the number of their samples that count, because not every rank can compute it."""
    balanced: StepBalance | None = None
    """Divides balanced steps; None without balance."""


class Producer(Sequence[Any]):
    """The batches that a reading rank makes in a pass, by index: step by step and, within a step, for each of the
    rank's coordinates."""

    def __init__(self, making: Making, read_plan: Callable[[], Plan] | None) -> None:
        self.making = making
        self._read_plan = read_plan
        self._plan: Plan | None = None
        self._at_epoch: int | None = None
        self._identity = object()
        self._asks_singly = False

    def set_epoch(self, number: int) -> None:
        """Begins the pass that the reading rank has planned. `number` only distinguishes passes."""
        assert self._read_plan is not None
        self.begin(self._read_plan())

    def begin(self, plan: Plan) -> None:
        self._plan, self._at_epoch = plan, None
        dataset, order = self.making.dataset, self.making.order
        if len(dataset) != order.items:
            raise ItemError(
                f"{type(dataset).__name__} has {len(dataset):,} items {_where()}, and had {order.items:,} when the loader was "
                "made; the length of a data set must not change"
            )

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def __len__(self) -> int:
        return self.plan.division.steps * len(self.plan.coordinates)

    def __getitem__(self, at: Any) -> Any:
        """Makes a batch. With Making.counts, returns a dict that adds the counts and the items left out. For a balanced
        step, returns a list of micro-batches with the positions of their samples in the step. Raises ItemError."""
        if not 0 <= at < len(self):
            raise IndexError(at)
        plan = self.plan
        step, place = divmod(at, len(plan.coordinates))
        if self.making.balanced is not None:
            samples = self.samples(*plan.division.step(step))
            numbers = [sample.number for sample in samples]
            micros = self.making.balanced.micro_batches(numbers, plan.division.ranks, plan.coordinates[place])
            return [[places, self._detached(self.packed([samples[each] for each in places]))] for places in micros]
        part = plan.division.part(step, plan.coordinates[place])
        left_out: dict[int, str] = {}
        if part.draws:
            samples = self.samples(part.first, part.draws)
            made = self._make(samples, left_out)
        else:
            samples, made = self._last_good(min(part.first, plan.division.end - 1))
        if not made:
            last = "".join(f", the last one: {text}" for text in list(left_out.values())[-1:])
            raise _error(samples[0], f"all {len(samples)} items of a batch failed{last}")
        rows = len(samples) if plan.listed is not None and plan.listed.ends is not None else part.rows
        batch = self.collate(made + [made[-1]] * (rows - len(made)), samples)
        if not self.making.counts:
            return batch
        valid = len(made) if part.draws else 0
        places = " ".join(map(str, left_out))
        return counted(batch, [valid, places, self._samples_of_step(step)]) | {"left_out": list(left_out.values())}

    def numbers(self, at: int) -> list[int]:
        """Returns the indexes of the items in the batch with index `at`."""
        step, place = divmod(at, len(self.plan.coordinates))
        if self.making.balanced is not None:
            return [sample.number for sample in self.samples(*self.plan.division.step(step))]
        part = self.plan.division.part(step, self.plan.coordinates[place])
        return [sample.number for sample in self.samples(part.first, part.draws)]

    def samples(self, first: int, count: int) -> list[Sample]:
        """Returns the samples of `count` draws, starting at position `first` of the pass."""
        plan, order = self.plan, self.making.order
        draws = order.draws if plan.listed is None else plan.listed.draws
        lists = order.numbers(plan.epoch, first, count) if plan.listed is None else plan.listed.numbers(first, count)
        is_list = plan.listed is not None and plan.listed.ends is not None
        samples = []
        for at, numbers in enumerate(lists, first):
            more, position = divmod(at, draws)
            key = _levada.item_seed(order.seed, plan.epoch + more, position)
            for place, number in enumerate(numbers):
                own = derived_seed(key, _IN_LIST + place) if is_list else key
                samples.append(Sample(number, plan.epoch + more, position, own))
        return samples

    def packed(self, samples: list[Sample]) -> Any:
        """Makes a micro-batch of a balanced step. Raises ItemError."""
        items, balanced = self._make(samples, {}), self.making.balanced
        if balanced is None or not balanced.packing.is_packed:
            return self.collate(items, samples)
        said = balanced.lengths([sample.number for sample in samples])
        for sample, item, tokens in zip(samples, items, said, strict=True):
            if (found := balanced.packing.length(item)) != tokens:
                name, number = describe(self.making.dataset, sample.number)
                text = f"item {number} of {name} (epoch {sample.epoch}, position {sample.position}) has {found} tokens, but lengths "
                raise _error(sample, f"{text}has {tokens}; set lengths to the number of tokens of each item as it is made", name=name)
        try:
            return balanced.packing.collate(items)
        except InvalidArgument as error:
            raise _error(samples[0], f"{error}, for the items {self._items_text(samples)}") from None

    def _detached(self, batch: Any) -> Any:
        """Returns a micro-batch that collate_fn cannot change when it makes the next one."""
        return None if batch is None else _levada.ItemTraits().detached(batch)[0]

    def _samples_of_step(self, step: int) -> int:
        first, draws = self.plan.division.step(step)
        listed = self.plan.listed
        return draws if listed is None else sum(map(len, listed.numbers(first, draws)))

    def _last_good(self, position: int) -> tuple[list[Sample], list[Any]]:
        """Returns the last sample at or before a position that can be made, for a coordinate that has no draws."""
        for at in range(position, max(self.plan.division.begin - 1, -1), -1):
            samples = self.samples(at, 1)
            if made := self._make(samples, {}):
                return samples, made
        return samples, []

    def _make(self, samples: list[Sample], left_out: dict[int, str]) -> list[Any]:
        """Makes the items. If items that raise are skipped, leaves them out and adds their texts to `left_out`, by their
        places in `samples`."""
        if samples[0].epoch == samples[-1].epoch:
            self._enter(samples[0].epoch)
            made = self._at_once(samples)
            if made is not None:
                return made
        made = []
        for place, sample in enumerate(samples):
            self._enter(sample.epoch)
            try:
                made.append(self._item(sample))
            except ItemError as error:
                if not self.making.skips:
                    raise
                left_out[place] = str(error)
        return made

    def _enter(self, epoch: int) -> None:
        """Sets the data set's epoch, unless it is set. Another producer of this process may have the same data set."""
        global _entered
        if epoch != self._at_epoch or _entered is not self._identity:
            set_epoch_of([self.making.dataset], epoch)
            self._at_epoch, _entered = epoch, self._identity

    def _at_once(self, samples: list[Sample]) -> list[Any] | None:
        """Returns the items that __getitems__() makes. Returns None if it is absent, fails or draws random numbers,
        because random numbers and failures must belong to single items. Returns None, too, if it returns anything but a
        list of the items, such as their columns, and for an item that is a whole batch, as torch does."""
        global _is_batch
        get = None if self._asks_singly or self.making.is_whole else getattr(self.making.dataset, "__getitems__", None)
        if get is None:
            return None
        before = _drawn()
        try:
            _is_batch = True
            made = get([sample.number for sample in samples])
        except _AskedInBatch:
            self._asks_singly = True
            return None
        except Exception:
            return None
        finally:
            _is_batch = False
        if isinstance(made, list) and len(made) == len(samples) and before == _drawn():
            return made
        self._asks_singly = True
        return None

    def _item(self, sample: Sample) -> Any:
        global _key
        had_torch = "torch" in sys.modules
        try:
            _key = sample.key
            seed_all(sample.key)
            item = self.making.dataset[sample.number]
            if had_torch or "torch" not in sys.modules:
                return item
            seed_all(sample.key)  # the item that imports torch drew from an unseeded generator: make it again
            return self.making.dataset[sample.number]
        except Exception as error:
            dataset = self.making.dataset
            name, number = describe(dataset, sample.number)
            text = f"item {number} of {name} (epoch {sample.epoch}, position {sample.position}) raised {failure_text(error)}"
            if isinstance(error, (IndexError, StopIteration)):
                text += f", although len() is {len(dataset):,}"
            raise _error(sample, f"{text}, {_where()}", error, name) from error
        finally:
            _key = None

    def collate(self, items: list[Any], samples: list[Sample]) -> Any:
        """Makes a batch from items. `samples`: the samples that these items were made from."""
        global _key
        first, collate = samples[0], self.making.collate
        given = items[0] if self.making.is_whole else items
        if collate is None:
            torch_data = sys.modules.get("torch.utils.data")
            return given if torch_data is None else torch_data.default_convert(given)
        try:
            _key = derived_seed(first.key, _COLLATE)
            seed_all(_key)
            return collate(given)
        except Exception as error:
            name = getattr(collate, "__name__", type(collate).__name__)
            text = f"collate_fn {name} raised {failure_text(error)} for the items {self._items_text(samples)}"
            raise _error(first, text, error) from error
        finally:
            _key = None

    def _items_text(self, samples: list[Sample]) -> str:
        numbers, first = _shown([sample.number for sample in samples]), samples[0]
        return f"{numbers} of {type(self.making.dataset).__name__} (epoch {first.epoch}, position {first.position}), {_where()}"

    def one(self, plan: Plan, position: int) -> Any:
        """Makes one item in this process without changing the process's random generators."""
        with own_generators():
            self.begin(plan)
            samples = self.samples(position, 1)
            self._enter(samples[0].epoch)
            made = [self._item(sample) for sample in samples]
        return made[0] if len(made) == 1 else made


class WorkerStart:
    """Prepares a worker process."""

    def __init__(self, producer: Producer, workers: int, function: Callable[[int], Any] | None) -> None:
        self._producer, self._workers, self._function = producer, workers, function
        self._has_torch = "torch" in sys.modules

    def __call__(self, number: int) -> None:
        global _worker
        _worker = number
        note_levada_worker()
        if self._has_torch:
            importlib.import_module("torch.utils.data")
            module = importlib.import_module("torch.utils.data._utils.worker")
            making = self._producer.making
            seed = derived_seed(making.order.seed, number) >> 1
            module._worker_info = module.WorkerInfo(  # type: ignore[attr-defined, unused-ignore]
                id=number, num_workers=self._workers, seed=seed, dataset=making.dataset
            )
        if self._function is not None:
            self._function(number)


def describe(dataset: Any, number: int) -> tuple[str, int]:
    """Returns the name of the data set that contains an item, and the item's index in it."""
    if not isinstance(dataset, Parts):
        return type(dataset).__name__, number
    at, own = dataset.place(number)
    return dataset.names[at], own


def _error(sample: Sample, text: str, error: BaseException | None = None, name: str = "") -> ItemError:
    made = ItemError(text)
    made.number, made.epoch, made.position, made.worker = sample.number, sample.epoch, sample.position, _worker
    made.dataset = name
    made.traceback = "" if error is None else report_of(error)
    return made


def _where() -> str:
    return "in the training process" if _worker < 0 else f"in worker {_worker} (process {os.getpid()})"


def _shown(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:16])) + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")


def _drawn() -> Any:
    """Returns a value that changes whenever a global random generator is drawn from."""
    python, numpy, torch = generators()
    of_numpy = numpy["state"]["pos"], numpy["state"]["key"].tobytes(), numpy["has_gauss"], numpy["gauss"]
    return python, of_numpy, torch is not None and torch.numpy().tobytes()
