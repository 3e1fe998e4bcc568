"""The reading side of a DataLoader: its worker processes, and the iterator over their batches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import current_process, get_context
from typing import Any, NamedTuple

from levada._levada import Handoff
from levada.base.console import write_line
from levada.base.errors import InvalidArgument, ItemError, PeerLost, StageFailed, Timeout
from levada.base.exception_texts import text_of
from levada.base.exits import starting
from levada.feed.makers import CannotOpen, Maker, Making, Opened, ReportedError
from levada.loader.balanced import StepBalance
from levada.loader.items import Plan, Producer, Sample, WorkerStart
from levada.loader.items import Making as ItemMaking
from levada.loader.orders import own_generators
from levada.pipeline.pipeline import Pipeline
from levada.pipeline.run import Run
from levada.pipeline.workers import one_thread_each

_SHARE = 0.8
"""Share of the feed's timeout after which a worker's item counts as hung, so that the reader reports it before other
ranks time out."""


class PlanFile:
    """Passes the plan of each pass to the worker processes, in a file in memory that they open by its path. The file
    stays open as long as this object exists."""

    def __init__(self) -> None:
        self._file = os.memfd_create("levada-plan")
        self._path = f"/proc/{os.getpid()}/fd/{self._file}"
        weakref.finalize(self, os.close, self._file).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}

    def write(self, plan: Plan) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            os.truncate(self._file, 0)
            os.pwrite(self._file, pickle.dumps(plan), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read(self) -> Plan:
        with open(self._path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return Plan(*pickle.load(file))


class WorkerOptions(NamedTuple):
    """The options of a reading rank's worker processes."""

    processes: int
    context: str
    prefetch: int
    init: Callable[[int], Any] | None
    timeout: float
    record: bool
    max_skipped: int


class Workers:
    """Makes the batches of a reading rank, in worker processes or in the rank's own process."""

    def __init__(self, making: ItemMaking, options: WorkerOptions) -> None:
        self._options = options
        self._file = PlanFile() if options.processes > 0 else None
        self.producer = Producer(making, None if self._file is None else self._file.read)
        self.failed: ItemError | None = None
        """The error that ended the last pass."""
        self.run: Run[Any] | None = None
        self._passes = 0
        if options.processes > 0:
            name = f"making items of {type(making.dataset).__name__}"  # for the bottleneck in a report
            self.run = Pipeline(self.producer, name=name).shard().run(
                options.processes,
                context=options.context,
                worker_prefetch=options.prefetch,
                main_prefetch=options.prefetch,
                worker_init=WorkerStart(self.producer, options.processes, options.init),
                on_worker_death="replace",
                timeout=options.timeout * _SHARE,
                seed=making.order.seed,
                record=options.record,
                alone=True,
            )

    def start(self) -> None:
        """Starts the worker processes. Raises InvalidArgument if the data set cannot be sent to them."""
        if self.run is None or self.run.is_started:
            return
        if self._options.context == "forkserver":
            start_fork_server()
        try:
            self.run.start()
        except StageFailed as error:
            if error.process:
                raise
            raise InvalidArgument(
                f"{type(self.producer.making.dataset).__name__} cannot be sent to worker processes: {error.__cause__}; let the "
                "data set open files and connections in its first __getitem__, pass functions of a module as collate_fn and "
                "worker_init_fn, or use num_workers=0"
            ) from error

    def begin(self, plan: Plan, *, renews: bool) -> Iterator[Any]:
        """Begins a pass and returns its batches, which must be iterated by one thread. With `renews`, ends processes that
        have begun a pass, so that new ones get the data set as it now is."""
        if renews and self._passes > 0:
            self.close()
        self.failed = None
        if self.run is None or self._file is None:
            self.producer.begin(plan)
            return self._counted(self._inline())
        self._file.write(plan)
        self.producer.begin(plan)  # so that messages can name items
        self.start()
        self._passes += 1
        self.run.set_epoch(self._passes)
        return self._counted(self._reported(self.run, iter(self.run)))

    def close(self) -> None:
        if self.run is not None:
            self.run.close()

    def _inline(self) -> Iterator[Any]:
        for at in range(len(self.producer)):
            with own_generators():
                try:
                    made = self.producer[at]
                except ItemError as error:
                    self._fail(error)
            yield made

    def _reported(self, run: Run[Any], batches: Iterator[Any]) -> Iterator[Any]:
        at = 0
        while True:
            try:
                made = next(batches)
            except StopIteration:
                return
            except ItemError as error:
                self._fail(error)
            except (PeerLost, Timeout) as error:
                under_way = range(at, min(at + self._options.processes, len(self.producer)))
                numbers = [number for each in under_way for number in self.producer.numbers(each)]
                shown = ", ".join(map(str, numbers[:32])) + (", ..." if len(numbers) > 32 else "")
                raise ReportedError(f"{text_of(error)}\n\nThe workers were making these items, or the next ones: {shown}") from error
            at += 1
            yield made
            del made  # memory to which only the batch refers is sent without a copy

    def _fail(self, error: ItemError) -> None:
        self.failed = error
        raise ReportedError(f"{text_of(error)}\n\n{error.traceback}".rstrip()) from error

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches without the texts about items left out. Writes these texts to standard error and counts
        them by epoch."""
        left_out, epoch, at = 0, -1, 0
        for made in batches:
            if self.producer.making.skips:
                texts = made.pop("left_out")
                now = self._epoch_of(at)
                left_out, epoch = (left_out if now == epoch else 0) + len(texts), now
                for text in texts:
                    write_line(f"left out: {text}")
                if left_out > self._options.max_skipped:
                    allowed = f"{left_out} items of epoch {epoch} were left out, and max_skipped is {self._options.max_skipped}"
                    self._fail(ItemError(f"{allowed}; the last one: {texts[-1]}"))
            at += 1
            yield made
            del made

    def _epoch_of(self, at: int) -> int:
        plan = self.producer.plan
        draws = self.producer.making.order.draws if plan.listed is None else plan.listed.draws
        first = plan.division.step(at // len(plan.coordinates))[0]
        return plan.epoch + first // draws


def _opened(begin: Callable[[], Iterator[Any]]) -> Opened:
    try:
        # A state is a position here, so the last item needs no mark.
        return Opened(begin(), mark=lambda: 0)
    except InvalidArgument as error:
        raise CannotOpen(text_of(error)) from error


class NumberedMaker(Maker):
    """Makes the items that a feed requests through a Handoff. Skips none, because every item is for this reader."""

    def __init__(self, begin: Callable[[], Iterator[Any]], handoff: Handoff, allow_pickle: bool, ranks: int) -> None:
        """`begin`: begins the workers' pass and returns its batches."""
        super().__init__(lambda: _opened(begin), Making(handoff, allow_pickle, ranks))

    def _skip(self, items: int) -> int:
        return items


class BalancedMaker(NumberedMaker):
    """Reports the lengths of a step's items to the core, and delivers the micro-batches that the core then requests."""

    def __init__(
        self,
        producer: Producer,
        plan: Plan,
        balance: StepBalance,
        begin: Callable[[], Iterator[Any]],
        handoff: Handoff,
        allow_pickle: bool,
        *,
        has_workers: bool,
    ) -> None:
        """`begin`: begins the pass and returns its batches. With workers, each batch holds the micro-batches of one of
        the rank's coordinates, step by step; otherwise the micro-batches are made here."""
        super().__init__(begin, handoff, allow_pickle, 1)
        self._producer, self._balance, self._has_workers = producer, balance, has_workers
        self._division = plan.division
        self._at = self._division.begin
        self._step: list[Sample] = []
        self._num_taken = 0
        """Number of steps whose micro-batches have been taken from the workers."""
        self._made: dict[tuple[int, ...], Any] = {}
        """Micro-batches of the last step taken, by the positions of their samples in the step."""

    def _serve(self, skipped: int, taken: int, gathered: list[int], repeats: bool) -> bool:
        if gathered:
            self._prepare(self._take(self._iterator, gathered) if self._has_workers else self._make(gathered), None)
            self._handoff.give()
            return True
        self._at += skipped
        end = self._division.end
        self._step = self._producer.samples(self._at, min(taken, end - self._at)) if self._at < end else []
        self._at += len(self._step)
        self._handoff.report_sizes(self._balance.sizes([sample.number for sample in self._step]), None, 0)
        return True

    def _make(self, places: list[int]) -> Any:
        try:
            with own_generators():
                return self._producer.packed([self._step[place] for place in places])
        except ItemError as error:
            raise ReportedError(f"{text_of(error)}\n\n{error.traceback}".rstrip()) from error

    def _take(self, batches: Iterator[Any], places: list[int]) -> Any:
        number = self._division.number_of(self._at - len(self._step))
        while self._num_taken <= number:
            self._made = {}
            for _ in self._producer.plan.coordinates:
                self._made |= {tuple(each): batch for each, batch in next(batches)}
            self._num_taken += 1
        if tuple(places) not in self._made:
            raise ReportedError(f"a worker divided step {number} in another way: lengths must be the same for an item in every process")
        return self._made.pop(tuple(places))


def start_fork_server() -> None:
    """Starts multiprocessing's fork server, which imports the workers' modules in the background. Does nothing if the
    server already runs or if the program has configured it, and in a worker, which imports a main module that makes a
    loader outside of `if __name__ == "__main__":`."""
    if getattr(current_process(), "_inheriting", False):
        return
    context: Any = get_context("forkserver")
    server: Any = import_module("multiprocessing.forkserver")
    if getattr(server._forkserver, "_preload_modules", None) == ["__main__"]:
        context.set_forkserver_preload(["__main__", "levada", *(["torch"] if "torch" in sys.modules else [])])
    # If the server cannot start, starting a worker reports the reason.
    with contextlib.suppress(OSError), one_thread_each(1), starting():
        server.ensure_running()
