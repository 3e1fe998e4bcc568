"""A running pipeline: its processes, its epochs and its position."""

from __future__ import annotations

import dataclasses
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from levada import _levada
from levada._levada import Consumer, Epoch, Membership, Metric
from levada.base.checks import epoch_number
from levada.base.errors import Error, InvalidArgument, PeerLost, SourceError, StageFailed, Timeout
from levada.base.exception_texts import failure_text
from levada.base.exits import handled
from levada.job.groups import GroupNumbers
from levada.job.job import close_at_exit, join, world_size
from levada.pipeline.contents import keys_of, with_contents
from levada.pipeline.lengths import length_of
from levada.pipeline.options import Options
from levada.pipeline.position import Position, Saved, cursor_for, decode_states, expect_same_stages, place_in, position_of_rank
from levada.pipeline.stats import RunStats, StageStats
from levada.pipeline.steps import Stage, build, can_rebatch, parameters_of, steps_of, takes_turns, warn_of_copies
from levada.pipeline.tasks import tasks_of, tokenize_texts
from levada.pipeline.workers import WorkerGroup, startable_again

T = TypeVar("T")

_GRACE = 5.0
"""Seconds within which processes must end on request."""
_SCHEDULED = 0.2
"""Seconds within which a process must exit after it has announced its end."""
_PATIENCE = 30.0
"""Seconds that close() waits for another thread that is starting processes to stop."""
_END_OF_EPOCHS = 2**63
"""Epoch numbers are less than this, as in the C++ core."""
_MAX_DEATHS = 3
"""Number of times that processes may die after the same item."""
_numbers = GroupNumbers()  # numbers runs with fullsync()


class Run(Generic[T]):
    """A running pipeline, which Pipeline.run() returns. Each `for item in run` is an epoch. The processes start with
    the first epoch and run until close(), the end of a `with` block, or until this object is dropped.

    One thread takes items. Other threads may concurrently call pause(), resume(), stats(), show(), write_report(),
    write_trace() and close(), which ends the loop, and set_epoch() and load_state_dict(), which are for the next pass.
    Their other calls raise InvalidArgument while an item is being taken, and change nothing."""

    def __init__(self, end: Stage, options: Options) -> None:
        self._end_stage = end
        self.options = options
        self._steps = steps_of(end)
        self._keyed_steps = self._steps  # their cache keys include the content of the sources
        self._graph = build(self._steps, options.on_error, options.allow_pickle)
        self._roles, dispatch_boundary, _, one_to_one = self._graph.place(options.workers, options.ordered)
        self._keeps_order = options.workers == 0 or options.ordered or one_to_one
        self._dispatches = dispatch_boundary is not None
        warn_of_copies(self._steps, self._roles, options.workers)
        self._expect_to_be_replaceable()
        self._seed = options.seed
        self._name_among_ranks = ""
        if options.group is not None and any(step.operation == "fullsync" for step in self._steps):
            self._name_among_ranks = f"{_numbers.next(options.group)} of a {type(options.group).__name__}"
        self._epoch = 0
        self._loaded: list[Position] = []  # for the next pass: of this rank, or of all ranks of an earlier run
        self._worker_group: WorkerGroup | None = None
        self._consumer: Consumer | None = None
        self._last_report: bytes | None = None
        self._begun: int | None = None
        self._is_over = self._is_stuck = False
        self._deaths, self._died_at = 0, (-1, -1)  # number of deaths after one item; epoch and index of that item
        self._starting = threading.RLock()
        self._is_closing = False  # whether close() waits for a thread that is starting processes
        self._owner = os.getpid()
        self._ranks: Membership | None = None  # the ranks that wait in fullsync()
        self._before: BaseException | None = None  # exception in flight when the epoch began, not why it ends
        close_at_exit(self)

    def _expect_to_be_replaceable(self) -> None:
        at = [step.name for step in self._steps if step.operation == "fullsync"]
        if at and self.options.on_worker_death == "replace":
            raise InvalidArgument(
                f'on_worker_death="replace" cannot be combined with {at[0]}(): the other ranks rely on items that it announced'
            )

    def __iter__(self) -> Epoch:
        """Starts the next epoch, or resumes the epoch of a loaded state. Ends a running epoch."""
        with self._starting:
            self._check_contents()
            consumer = self._start()
            with self._closed_if_asked(consumer):
                try:
                    self._begin_epoch(consumer)
                except PeerLost as error:
                    if isinstance(error.__cause__, StageFailed):  # raised by a stage's function
                        raise
                    self._note_death(self._lost(error) or error, consumer.num_taken)
                    consumer = self._start_again()
                    self._begin_epoch(consumer)
            self._begun, self._is_over, self._is_stuck = self._epoch, False, False
            self._before = handled()
            self._epoch += 1
            return Epoch(self, consumer)

    def _check_contents(self) -> None:
        """Raises SourceError if a source before a cache has changed since the processes started: the cache then still
        has the items of the earlier content."""
        if self._consumer is None:
            return
        if keys_of(with_contents(self._steps)) != keys_of(self._keyed_steps):
            raise SourceError(
                "the files whose items this run caches have changed since it started; close() the run, and choose another folder "
                "for the cache or remove its files"
            )

    def _begin_epoch(self, consumer: Consumer) -> None:
        """Begins the epoch, at the loaded state if there is one."""
        begun, self._begun = self._begun, None
        try:
            if (position := self._position()) is None:
                consumer.reset(self._epoch, 0, 0, None)
            else:
                cursor = cursor_for(position, self.options.workers, keeps_order=self._keeps_order)
                consumer.reset(self._epoch, position.items, position.at, cursor)
        except BaseException:
            if consumer.has_begun:  # refused, so that a running epoch continues
                self._begun = begun
            raise
        self._loaded = []

    def _position(self) -> Position | None:
        """Returns the position to resume from, None if none is loaded. Raises InvalidArgument if this rank cannot."""
        if not self._loaded:
            return None
        rebatches = [self.options.workers == 0 and can_rebatch(self._steps, at) for at in range(len(self._steps))]
        stages, place = self._stage_names(), place_in(self._job())
        expect_same_stages(self._loaded, place, stages, parameters_of(self._steps), can_rebatch=rebatches)
        turns = self._keeps_order and takes_turns(self._end_stage, self.options.on_error)
        return position_of_rank(self._loaded, *place, takes_turns=turns)

    def _stage_names(self) -> list[str]:
        return [step.name if step.name == step.operation else f"{step.operation} {step.name}" for step in self._steps]

    @contextmanager
    def _closed_if_asked(self, consumer: Consumer) -> Iterator[None]:
        """Closes the run on exit if a signal handler has called close() in the meantime."""
        try:
            yield
        finally:
            if consumer.close_requested():
                self.close()

    def __len__(self) -> int:
        """Returns the number of items in an epoch. Raises TypeError if it is not known in advance."""
        options = self.options
        return length_of(
            self._steps, self._graph, workers=options.workers, ordered=options.ordered, on_error=options.on_error
        )

    @property
    def seed(self) -> int:
        """The seed of all random draws. Drawn if none was passed to run(), and then the same on all ranks."""
        if self._seed is None:
            self.agree_on_seed(self._job())
        assert self._seed is not None
        return self._seed

    def agree_on_seed(self, job: Membership | None) -> None:
        """Draws the seed if none was passed to run(). Collective over the ranks of `job`, which get the same seed."""
        if self._seed is not None:
            return
        drawn = secrets.token_bytes(8)
        if job is not None and job.size > 1:
            drawn = _levada.agree(job, drawn, self.options.timeout, "agreeing on the seed of a pipeline")[0]
        self._seed = int.from_bytes(drawn, "little") >> 1

    def __repr__(self) -> str:
        stages = " > ".join(step.name for step in self._steps)
        return f"<levada.Run {stages}, workers={self.options.workers}, epoch {self.epoch}>"

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one if none is running."""
        return self._epoch if self._begun is None or self._is_over else self._begun

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        return self._epoch

    @property
    def is_started(self) -> bool:
        """Whether the processes have started."""
        return self._consumer is not None

    def start(self) -> None:
        """Starts the processes. Without this call, the first epoch starts them."""
        self._start()

    @property
    def is_restored(self) -> bool:
        """Whether the next pass resumes in the middle of an epoch."""
        return len(self._loaded) > 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass."""
        self._epoch = epoch_number(epoch, _END_OF_EPOCHS, "2**63")
        self._loaded, self._begun = [], None

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last item taken, also after an exception. The state is small. A run with
        another number of workers can resume from it if every stage makes one item from each item. Raises
        InvalidArgument after close() in the middle of an epoch.

        After Ctrl-C, or an exception of a stage in this process, a resumed run makes the items since the previous
        state, or since the beginning of the epoch, again and drops them, because stages may have lost items that they
        pulled."""
        epoch, position = self._epoch, self._position()
        if position is None and self._begun is not None and not self._is_over:
            epoch, position = self._begun, self._save()
        return Saved(self.seed, epoch, position).encode()

    def _save(self) -> Position:
        consumer = self._consumer
        if consumer is None:
            raise InvalidArgument(
                f"this run has been closed in the middle of epoch {self._begun}, and has no position; call "
                "state_dict() before close()"
            )
        with self._closed_if_asked(consumer):
            items, at, cursor = consumer.save()
        rank, ranks = place_in(self._ranks)
        names, parameters = self._stage_names(), parameters_of(self._steps)
        return Position(names, parameters, self.options.workers, self._keeps_order, rank, ranks, items, at, cursor)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Makes the next pass resume where state_dict() was called, on a pipeline with the same stages. A state belongs
        to one rank of `group`. A list with the states of all ranks can be loaded on each rank, which resumes from its
        own. If the stages after the shard() all make one item from each item, the list can also be loaded on any other
        number of ranks, which resume after the items that all ranks had taken. Raises InvalidArgument if `state` is not
        a state, and CorruptMessage if it has been changed. The next pass raises InvalidArgument if the state has other
        stages, parameters that would change the items before it, or other ranks."""
        saved, loaded = decode_states(state)
        if self._seed is not None and self._consumer is not None and self._seed != saved.seed:
            self.close()
        self._seed, self._epoch, self._loaded = saved.seed, saved.epoch, loaded
        self._begun = None

    def limit(self, items: int) -> None:
        """Ends the loop after `items` more items. It can continue after resume()."""
        consumer = self._start()
        with self._closed_if_asked(consumer):
            consumer.limit(items)

    def pause(self) -> None:
        """Stops making items ahead and ends the loop, until resume()."""
        self._order(self._start().pause)

    def resume(self) -> None:
        """Ends a pause, or a limit that was reached: next() of the same iterator, or a `for` over it, continues."""
        self._order(self._start().resume)

    def _order(self, order: Callable[[], None]) -> None:
        """Sends a command to the processes. If one of them has died and is to be replaced, next() does so."""
        try:
            order()
        except PeerLost as error:
            lost = self._lost(error)
            if lost is None or self.options.on_worker_death != "replace":
                raise lost or error from None

    def stats(self) -> RunStats:
        """Returns the counts of the run so far, for each stage over all processes."""
        if (consumer := self._consumer) is None:
            return RunStats()
        counts = consumer.stats(self._graph)
        stages = {name: StageStats(**of_stage) for name, of_stage in counts.pop("stages").items()}
        return RunStats(stages, **counts)

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[Metric]:
        """Returns the stats as counters `levada_pipeline_..._total`, each with `labels`, for a MetricsExporter."""
        if self._consumer is None:
            return []
        return self._consumer.metrics(self._graph, list((labels or {}).items()))

    def show(self, format: str = "text") -> str:
        """Returns the stages, and the process that runs each of them, as "text", "json" or "mermaid". For a started
        run, also names the bottleneck stage."""
        return _levada.show_graph(self._graph, format, self.options.workers, self.options.ordered, self._consumer)

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page, while the pipeline runs or afterwards. It shows the graph with its processes, the time
        that each stage worked and waited in each process, and the bottleneck stage."""
        self._write_history(page=os.fspath(path), trace="")

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace of the processes' activity for Perfetto (ui.perfetto.dev), with one track per stage. Requires
        run(record=True)."""
        if not self.options.record:
            raise InvalidArgument("this pipeline was not recorded; start it with run(record=True)")
        self._write_history(page="", trace=os.fspath(path))

    def _write_history(self, *, page: str, trace: str) -> None:
        report = self._report()
        if report is None:
            raise InvalidArgument("this pipeline has yielded no items yet; iterate it first")
        _levada.write_pipeline_history(report, page=page, trace_file=trace)

    def _report(self) -> bytes | None:
        """Returns the activity of each process, over time if that is recorded; None before the first epoch."""
        if self._consumer is not None:
            self._last_report = self._consumer.report(self._graph, self.options.workers, self.options.ordered)
        return self._last_report

    def _record(self) -> None:
        """Enables recording as run(record=True) does. No process may have been started before."""
        if self._consumer is not None and not self.options.record:
            raise InvalidArgument("this run has started without recording; start it with run(record=True)")
        self.options = dataclasses.replace(self.options, record=True)

    def close(self, grace: float = _GRACE) -> None:
        """Ends the processes and waits until they have ended. Kills those that still run after `grace` seconds, with a
        warning that names the functions they were in. The next pass starts new ones. A running loop ends, also on
        another thread, and a thread that waits for the processes to start raises InvalidArgument. If such a thread does
        not return from a stage in this process, raises Timeout after ending the other processes."""
        if os.getpid() != self._owner:
            return
        self._note_exception()
        consumer = self._consumer
        if consumer is not None and not consumer.begin_close():
            return  # called by a signal handler within a call on this thread, which closes the run
        self._is_closing = True
        try:
            if not self._starting.acquire(timeout=_PATIENCE):
                raise Timeout("another thread starts the processes of this pipeline, which therefore cannot be closed yet")
        finally:
            self._is_closing = False
        try:
            consumer = self._consumer  # may have been created in the meantime
            if consumer is not None:
                consumer.begin_close()
                consumer.await_others()
            self._end(_SCHEDULED if self._is_stuck else grace, is_idle=True)
        except Timeout:
            self._end(0.0, is_idle=False)
            raise
        finally:
            self._starting.release()

    def _note_exception(self) -> None:
        """Notifies the ranks that wait in fullsync() of the exception that ends the current epoch on this rank. close()
        tells them only that this rank has left, and does so before the exception would be known."""
        error = handled()
        text = failure_text(error)
        if self._ranks is None or self._begun is None or self._is_over or not text or error is self._before:
            return
        with suppress(Error):  # the job has already ended
            self._ranks.note_exception(text, -1)

    def _end(self, grace: float, is_idle: bool) -> None:
        """Ends the processes, in an orderly way unless a thread is in a call."""
        consumer, self._consumer = self._consumer, None
        workers, self._worker_group = self._worker_group, None
        deadline = time.monotonic() + grace
        is_whole = is_idle and consumer is not None and not self._is_stuck
        self._is_stuck = False
        try:
            if consumer is not None and is_idle:
                try:
                    consumer.shutdown(grace)
                except Error:
                    is_whole = False  # a process has already been lost and reported
                self._last_report = consumer.report(self._graph, self.options.workers, self.options.ordered)
        finally:
            if workers is not None:
                workers.end(max(deadline - time.monotonic(), _SCHEDULED) if is_whole else 0.0)

    def __enter__(self) -> Run[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_owner") and os is not None:  # unless the interpreter ends and has taken the modules away
            self.close()

    def _job(self) -> Membership | None:
        """Returns the ranks that run this pipeline together; None if this rank runs it alone."""
        if self.options.alone or world_size() == 1:
            return None
        if self.options.group is None:
            among_ranks = [step.name for step in self._steps if step.operation in ("shard", "fullsync")]
            if among_ranks:
                raise InvalidArgument(
                    f"this pipeline has {among_ranks[0]}(), and this process is one of {world_size()} ranks: pass "
                    "group=levada.join() to run(), so that all ranks take part, or alone=True for this rank only"
                )
            return None
        job = join(self.options.group)
        return job if job.size > 1 else None

    def _start(self) -> Consumer:
        with self._starting:
            return self._started()

    def _started(self) -> Consumer:
        if self._consumer is None:
            self._look_at_contents()
            if self.options.workers > 0 and self._worker_group is None:
                if self._last_report is not None:  # from processes that have ended
                    self.options = startable_again(self.options)
                tokenize_texts(self._steps, self._roles)
                options, place = self._process_options(), place_in(self._job())
                tasks = tasks_of(self._keyed_steps, self._roles, options, place, dispatches=self._dispatches)
                self._worker_group = WorkerGroup(self.options, tasks, lambda: self._is_closing)
            job = self._job()
            name = f"the consumer (process {os.getpid()})"
            own = None if self._worker_group is None else self._worker_group.job
            try:
                self._consumer = _levada.consume(
                    own, self._graph, self._process_options(), place_in(job), name, job, self._name_among_ranks
                )
                self._ranks = job
            except BaseException:
                self.close()
                raise
        return self._consumer

    def _look_at_contents(self) -> None:
        """Makes the caches reject files with items of other content. Otherwise keeps the graph, whose sources know
        where the passes before a close() began."""
        before, self._keyed_steps = self._keyed_steps, with_contents(self._steps)
        if keys_of(self._keyed_steps) != keys_of(before):
            self._graph = build(self._keyed_steps, self.options.on_error, self.options.allow_pickle)

    def _process_options(self) -> Options:
        """Returns the options that every process gets: with the drawn seed, without the group."""
        return dataclasses.replace(self.options, seed=self.seed, group=None)

    def _on_engine_error(self, kind: str, text: str, rank: int) -> Consumer | None:
        """Raises an error of the engine, with what this process knows about the others. If processes are replaced,
        returns the consumer that continues instead."""
        workers = self._worker_group
        if workers is None:
            return None
        if kind == "Timeout":
            self._is_stuck = True
            raise Timeout(f"{text}\n\n{workers.describe()}")
        lost = workers.loss_of(text, rank)
        return None if lost is None else self._replace(lost)

    def _lost(self, error: PeerLost) -> PeerLost | None:
        return None if self._worker_group is None else self._worker_group.loss_of(str(error), error.rank)

    def _replace(self, lost: PeerLost) -> Consumer:
        """Starts new processes and returns their consumer, which resumes after the last item taken."""
        with self._starting:
            before = self._consumer
            assert before is not None
            while True:
                self._note_death(lost, before.num_taken)
                consumer = self._start_again()
                try:
                    consumer.resume_from(before)
                    return consumer
                except PeerLost as error:
                    if isinstance(error.__cause__, StageFailed):
                        raise
                    lost = self._lost(error) or error

    def _note_death(self, lost: PeerLost, given: int) -> None:
        """Raises `lost` unless processes are replaced, or if they have died too often after the same item."""
        at = (self.epoch, given)
        self._deaths = self._deaths + 1 if at == self._died_at else 1
        self._died_at = at
        if self.options.on_worker_death != "replace":
            raise lost
        if self._deaths == _MAX_DEATHS:
            lost.args = (f"{lost}, after item {given}, as {_MAX_DEATHS - 1} times before: another restart would end there too",)
            raise lost
        warnings.warn(f"{lost}; the processes of the pipeline are started again and resume after item {given}", stacklevel=5)

    def _start_again(self) -> Consumer:
        self._end(0.0, is_idle=True)
        return self._started()

    def _end_epoch(self) -> None:
        self._is_over = True
