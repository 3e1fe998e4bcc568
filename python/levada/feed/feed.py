"""The feed: batches from a reader to every rank of a mesh."""

from __future__ import annotations

import itertools
import json
import numbers
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from levada._levada import Layout, Mesh, Metric, Pass, Replicate, Shard, Stages, Zigzag
from levada.base.errors import Error, InvalidArgument, Unsupported
from levada.batch.balance import Balance, Cost
from levada.batch.devices import sender
from levada.corpus.corpus import Corpus, PathLike
from levada.feed.history import write_feed_history
from levada.feed.passes import Beginning, FeedPass, PassOptions, begin_corpus, begin_iterable
from levada.feed.readers import ITERATE
from levada.feed.states import FeedState, read_state
from levada.job.groups import size_of
from levada.job.job import join, world_size
from levada.job.meshes import as_mesh, check_whole_job, is_device_mesh
from levada.pipeline.pipeline import Pipeline
from levada.pipeline.run import Run

Placement = str | Shard | Replicate | Zigzag | Stages
Placements = Placement | Sequence[Placement] | Mapping[str, Any]
"""What Layout takes for a field."""

_made = itertools.count(1)  # feeds of the whole job
_made_in: weakref.WeakKeyDictionary[Any, itertools.count[int]] = weakref.WeakKeyDictionary()


def _number_in(group: Any) -> int:
    """Counts the feeds made for a group; the same on all its ranks, which make them alike."""
    return next(_made if group is None else _made_in.setdefault(group, itertools.count(1)))


def _parts_of(source: Any) -> Iterator[Any]:
    """What of a source may want to know the epoch: itself, and a DataLoader's dataset and samplers."""
    yield source
    for name in ("dataset", "sampler", "batch_sampler"):
        yield getattr(source, name, None)
    yield getattr(getattr(source, "batch_sampler", None), "sampler", None)


def tell_epoch(source: Any, epoch: int) -> None:
    """Tells a source and a DataLoader's parts, each once, whichever has a set_epoch()."""
    for part in {id(part): part for part in _parts_of(source)}.values():
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def _check_whole(name: str, number: Any) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise InvalidArgument(f"{name} must be a whole number, got {number!r}")
    if not -(2**31) <= number < 2**31:
        raise InvalidArgument(f"{name} must be less than {2**31:,}, got {number:,}")


def _check_seconds(name: str, seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 < float(seconds) <= _MOST_SECONDS:
        raise InvalidArgument(f"{name} must be a number of seconds, positive and at most {_MOST_SECONDS:.0e}, got {seconds!r}")


_MOST_SECONDS = 1e8


class Feed:
    """Batches of one reader, or some, on every rank of a mesh: `for batch in feed`.

    Made and iterated on every rank alike, several feeds in the same order; each iter() is a pass over the source and is
    collective.

    - `source`: an iterable of batches, iterated on the ranks that read alone (others may pass None), a Corpus, a Pipeline,
      or what Pipeline.run(..., alone=True) gives.
    - `mesh`: the ranks' axes, as a Mesh or a DeviceMesh of torch.distributed; by default all ranks are dp. A Mesh of the
      whole job that contradicts Megatron's process groups, where they are initialized, is InvalidArgument.
    - `data_axes`: of a DeviceMesh, the axes along which batches differ, where their names are not those that Mesh knows.
    - `group`: whose ranks they are: a process group of torch.distributed, or what join() gave; by default those of a
      DeviceMesh, or the whole job.
    - `layout`: a Layout, or a dict of field paths and patterns. By default each dp rank gets whole batches, and its cp, tp
      and pp peers the same; of a Corpus layout "gpt".
    - `readers`: "one" rank, "all", one a "host", or one at each coordinate along axes: "dp", "dp,pp". By default one; of a
      Pipeline one a host, whose processes then serve all ranks there.
    - `iterate`: who iterates an iterable: a "thread" of its own, ahead of the steps; "inline" the caller's own
      thread, inside next() and never ahead, which draws from random generators as a plain loop does; a "process" of its
      own, which imports the main module again.
    - `divide`: "deal" gives item t * dp + d to dp rank d in step t; "split" cuts each item along dim 0.
    - `batch`: samples a dp rank and step, of a Corpus and of an iterable whose samples are balanced; of an iterable's global
      batches, to be split, the rows of a dp rank, so that the last batch may have fewer.
    - `balance`: the samples of each step (batch x dp) are divided over dp ranks so that each has about the same work: a
      Balance, or its cost, such as "flops". Of an iterable, which then yields samples. A step has the same samples as
      without, and goes on from the same states.
    - `max_tokens`: each rank gets its samples of a step as micro-batches of at most so many tokens, the same number of them
      on every rank: each is an item of the iteration, and `micro` and `num_micro` say which.
    - `collate`: makes a batch of a list of samples of an iterable; None: levada.collate_packed.
    - `tail`: of a last round that the data does not fill: "drop"; where `batch` says how full it is, also "pad", which
      repeats the last sample with a loss_mask of 0, and "short", which leaves the last ranks fewer rows, perhaps none.
    - `depth`: batches a rank may be behind its reader; 0: two more than pp.
    - `skip`: steps to leave out of the next pass.
    - `timeout`: seconds of one wait, also for all ranks to begin a pass. After 30 s a line on standard error says who is
      waited for.
    - `access`: "private" lets a rank write to its batch, unseen by the others, and copies only where that is cheaper;
      "copy" gives every rank memory of its own; "read_only" gives numpy arrays that cannot be written and refuses torch,
      which has no such tensors; None: "private" for torch, "read_only" for numpy.
    - `device`: where torch tensors go, through pinned memory where there is a device to pin it for; None: they stay.
    - `prefetch_to_device`: copies the next batch to `device`, if it has arrived, on a stream of its own, while the caller
      works on this one. The current stream waits for the copy when that batch is taken.
    - `pin_memory`: puts torch tensors into pinned memory, for a caller who copies them to a device. No `device` then.
    - `allow_pickle`: whether objects of any class may cross, as pickles.
    - `record`: keep what each rank does when, and the processes of a Pipeline, for write_report() and write_trace().

    DataLoader(feed, batch_size=None) takes it for the torch IterableDataset that it stands in for, if torch is imported
    when the feed is made.

    Raises, from its iteration: SourceError on every rank at the step at which a reader raised, with its traceback;
    Timeout, which says who waits for whom; PeerLost where a rank was killed, or left its loop, by an exception or
    otherwise, while this one asks for more.
    """

    def __init__(
        self,
        source: Iterable[Any] | Corpus | Pipeline[Any] | None,
        mesh: Mesh | Any = None,
        *,
        data_axes: Sequence[str] | None = None,
        layout: Layout | Mapping[str, Placements] | None = None,
        readers: str | None = None,
        iterate: str = "thread",
        divide: str = "deal",
        batch: int | None = None,
        balance: Balance | Cost | None = None,
        max_tokens: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        tail: str = "drop",
        depth: int = 0,
        skip: int = 0,
        steps: int | None = None,
        timeout: float = 1800.0,
        access: str | None = None,
        device: Any = None,
        prefetch_to_device: bool = False,
        pin_memory: bool = False,
        allow_pickle: bool = False,
        group: Any = None,
        record: bool = False,
    ) -> None:
        self._is_corpus = isinstance(source, Corpus)
        if balance is None and max_tokens is not None:
            balance = Balance()
        self.balance = balance if balance is None or isinstance(balance, Balance) else Balance(balance)
        self.max_tokens = max_tokens
        self.collate = collate
        self._counts_rows = not self._is_corpus and batch is not None and self.balance is None
        self._check(iterate, divide, tail, skip)
        for name, number in {"batch": batch, "max_tokens": max_tokens, "depth": depth, "skip": skip, "steps": steps}.items():
            _check_whole(name, number)
        _check_seconds("timeout", timeout)
        if any(isinstance(part, Feed) for part in _parts_of(source)):
            raise InvalidArgument("the source is a feed already; iterate it, or give its own source")
        if readers is None:
            readers = "host" if isinstance(source, (Pipeline, Run)) else "one"
        # One rank reads for others, and so reads all there is.
        self.source = source.run(alone=True, record=record) if isinstance(source, Pipeline) else source
        if record and isinstance(source, Run):
            source._record()
        self.record = record
        self.group = group
        if mesh is None:
            mesh = Mesh(dp=world_size() if group is None else size_of(group))
        elif group is None and is_device_mesh(mesh):
            self.group = mesh
        self.mesh = as_mesh(mesh, data_axes)
        if self.group is None:
            check_whole_job(self.mesh, world_size())
        self.layout = self._layout(layout, divide)
        self.readers = readers
        self.iterate = iterate
        self.divide = divide
        self.batch = 1 if batch is None else batch
        self.tail = tail
        self.depth = depth
        self.skip = skip
        self.steps = steps
        self.timeout = timeout
        self.access = access
        self.device = device
        self.prefetch_to_device = prefetch_to_device
        self.pin_memory = pin_memory
        self._check_device()
        self._send = sender(device, pin_memory=pin_memory, own_stream=prefetch_to_device)
        self.allow_pickle = allow_pickle
        data = sys.modules.get("torch.utils.data")
        if data is not None:
            data.IterableDataset.register(Feed)  # otherwise a DataLoader takes it for a map
        self._number = _number_in(self.group)
        self._passes = 0  # begun
        self._has_opened_corpus = False
        self._epoch = 0
        self._cursor = b""
        self._samples = 0  # to pass over behind the cursor
        self._began_at = b"", 0  # cursor and samples of the pass under way
        self._began_epoch = 0
        self._own: FeedPass | None = None  # of next()
        self._running: weakref.ref[FeedPass] | None = None
        self._last: Pass | None = None

    def _check(self, iterate: str, divide: str, tail: str, skip: int) -> None:
        """Refuses what does not fit together."""
        if self.balance is not None:
            self._check_balance(divide, tail)
        elif self.collate is not None:
            raise InvalidArgument("collate= makes batches of samples that are balanced; give balance= or max_tokens=, too")
        if self._counts_rows and divide != "split":
            raise InvalidArgument('batch is for a Corpus and for divide="split"; otherwise an item is a whole batch')
        if not self._is_corpus and tail != "drop" and not self._counts_rows and self.balance is None:
            raise InvalidArgument(
                f'tail is "{tail}"; whole batches are dealt, and a rank for which none is left would have nothing to run, '
                'so it must be "drop": divide="split" with batch=, the rows of a rank, can pad or shorten'
            )
        if iterate not in ITERATE:
            raise InvalidArgument(f"iterate is {iterate}; it must be one of {', '.join(ITERATE)}")
        if self._is_corpus and iterate != "thread":
            raise InvalidArgument(f"iterate is {iterate}; a Corpus is read by the C++ core, on threads of its own")
        if skip < 0:
            raise InvalidArgument(f"skip is {skip}; it counts steps from 0")

    def _check_device(self) -> None:
        if self.pin_memory and self.device is not None:
            raise InvalidArgument(
                f"pin_memory=True is for batches that the caller moves, and device is {self.device}, where they go through "
                "pinned memory anyway: give one of the two"
            )
        if self.prefetch_to_device and self.device is None:
            raise InvalidArgument("prefetch_to_device=True copies batches to a device, and device is None: name it, too")
        if self.prefetch_to_device and self.iterate == "inline":
            raise InvalidArgument(
                'iterate is inline, which reads no batch ahead that prefetch_to_device=True could copy: iterate by "thread", '
                "or do without prefetching"
            )

    def _check_balance(self, divide: str, tail: str) -> None:
        assert self.balance is not None
        if divide != "deal":
            raise InvalidArgument(f'divide is "{divide}"; balanced steps are dealt, each dp rank its own samples')
        if tail == "pad":
            raise InvalidArgument('tail is "pad"; the last step of balanced ones can be dropped or short')
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidArgument(f"max_tokens is {self.max_tokens}; a micro-batch has at least one token")
        by = self.balance
        if self.max_tokens is not None and self.max_tokens < by.pad_to:
            raise InvalidArgument(f"max_tokens is {self.max_tokens}; with pad_to={by.pad_to} no sample fits a micro-batch")
        of_samples = [not isinstance(by.cost, str), by.length, by.pad_to > 1, by.too_long != "error", self.collate]
        if not self._is_corpus and by.max_delay > 0:
            raise InvalidArgument("the samples of an iterable come one behind the other; max_delay is for a Corpus")
        if self._is_corpus and any(of_samples):
            raise InvalidArgument(
                "cost as a function, length, pad_to and too_long of a Balance and collate are for samples of an iterable: a Corpus knows "
                "the lengths of its own, and cuts and pads by options of its own"
            )

    def _layout(self, layout: Layout | Mapping[str, Placements] | None, divide: str) -> Layout:
        if isinstance(layout, Layout):
            return layout
        if layout is not None:
            return Layout(layout)
        if isinstance(self.source, Corpus):
            return Layout.gpt(attention_mask=self.source.attention_mask)
        return Layout({}, otherwise=["shard(dp,0)"] if divide == "split" else [], name="batches")

    @property
    def _samples_a_step(self) -> int:
        return self.batch * self.mesh.data_size

    def _options(self) -> PassOptions:
        return PassOptions(
            job=join(self.group, timeout=self.timeout),
            mesh=self.mesh,
            layout=self.layout,
            readers=self.readers,
            iterate=self.iterate,
            divide=self.divide,
            batch=self.batch,
            balance=self.balance,
            max_tokens=self.max_tokens,
            collate=self.collate,
            tail=self.tail,
            depth=self.depth,
            steps=self.steps,
            timeout=self.timeout,
            access=self.access,
            tensors=self.source.tensors if isinstance(self.source, Corpus) else "numpy",
            allow_pickle=self.allow_pickle,
            record=self.record,
            counts_rows=self._counts_rows,
        )

    def __iter__(self) -> Iterator[Any]:
        """A new pass, from the start of the source; one that is under way is closed, and raises InvalidArgument where its
        loop goes on."""
        return self._start()

    def _start(self) -> FeedPass:
        running = self._running() if self._running is not None else None
        self._own = self._running = None
        if running is not None:
            running.supersede()
        options = self._options()
        begin = self._begin(options)
        self._passes += 1
        name = f"pass {self._passes} of feed {self._number}"
        started = FeedPass(options, begin, name, self._send, is_ahead=self.prefetch_to_device)
        # Weakly: a loop that is left drops its iterator, and that is how the other ranks hear of it.
        self._running = weakref.ref(started)
        self._last = started.core
        return started

    def __next__(self) -> Any:
        """The next batch of a pass that the first next() begins and close() or iter() ends."""
        if self._own is None:
            self._own = self._start()
        return next(self._own)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # otherwise that says why
                raise

    def close(self) -> None:
        """Leaves the pass under way. All ranks may do so at the same step; on one that asks for more it is an error."""
        running = self._running() if self._running is not None else None
        self._own = self._running = None
        if running is not None:
            running.close()

    def request_stop(self) -> None:
        """Asks all ranks to stop soon, at one step; one rank is enough."""
        if self._last is not None:
            self._last.request_stop()

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next pass is: tells the source, its dataset, sampler and batch sampler and that one's sampler,
        whichever has a set_epoch(), or begins there in a Corpus. After load_state_dict(), another epoch than the state's
        begins at its start; a Corpus refuses one that the state does not stand at the start of."""
        if not 0 <= epoch < 2**62:
            raise InvalidArgument(f"epoch must be from 0 to 2**62 - 1, got {epoch}")
        if epoch != self._epoch and not self._is_corpus:
            self._cursor, self._samples = b"", 0
        self._epoch = epoch
        tell_epoch(self.source, epoch)

    def __len__(self) -> int:
        """Steps of a whole pass, whether or not the next one skips some, where the source knows its length on this rank.
        Raises TypeError where it does not."""
        if isinstance(self.source, Corpus):
            if self.source.epochs == 0:
                raise TypeError("a corpus without end has no length")
            samples = len(self.source) * self.source.epochs
            whole = -(-samples // self._samples_a_step) if self.tail != "drop" else samples // self._samples_a_step
        else:
            items = len(self.source)  # type: ignore[arg-type]
            whole = items if self.divide == "split" else items // self._samples_a_step
        return whole if self.steps is None else min(whole, self.steps)

    @property
    def sampler(self) -> Feed:
        """The feed: trainers such as Lightning's tell a loader's sampler which epoch begins."""
        return self

    @property
    def epoch(self) -> int:
        """What set_epoch() or load_state_dict() has set; 0 at first."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps taken of the pass; of one with micro-batches, as soon as the first of them is."""
        return 0 if self._last is None else self._last.step

    @property
    def micro(self) -> int:
        """Which micro-batch of its step the batch taken last is, from 0."""
        return 0 if self._last is None else self._last.micro

    @property
    def num_micro(self) -> int:
        """How many micro-batches that step has."""
        return 1 if self._last is None else self._last.num_micro

    @property
    def end(self) -> dict[str, Any] | None:
        """Why the pass ended: cause, step, rank, message. None before. "exhausted", "steps", "stopped" (request_stop()) and
        "failed" are the same on every rank; this one "left" its loop, or was "abandoned" by a rank that left before."""
        return None if self._last is None else self._last.end

    @property
    def stats(self) -> dict[str, Any]:
        """Of the pass: batches, samples, bytes, copied_batches, bytes_read; seconds, and of those in next() waited_seconds
        and, with them, taken_seconds until the engine had given the batches."""
        return {} if self._last is None else self._last.stats

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[Metric]:
        """The same as `levada_feed_..._total`, for a MetricsExporter; each with `labels`. Of a pass under way they are of now,
        also for another thread, while this one waits for a batch."""
        return [] if self._last is None else self._last.metrics(list((labels or {}).items()))

    @property
    def balance_report(self) -> dict[str, Any] | None:
        """What the steps come to that this rank has planned as a reader of balanced steps, else None: `steps`, `samples`,
        `tokens`, `padding` among them, `micro_batches` (of each rank), and in the units of the cost, summed over the steps, the work of the
        `busiest` rank, of the `busiest_unbalanced` if ranks took the samples in their order, the `bound` below which no
        busiest rank can be, and the `mean`; of samples that `max_delay` let wait how many were `delayed`, and for how many `waited_steps` in all and
        `longest_wait` at most; `unused_share` of max_tokens; and a `series` of the same over time."""
        report = None if self._last is None else self._last.balance
        return None if report is None else json.loads(report.to_json())

    def write_report(self, path: PathLike) -> None:
        """Writes a page for a browser, on rank 0: where each rank's time went in the last pass and what it waited for, and
        which stage of a pipeline is the bottleneck. Collective; takes record=True."""
        self._write_history(path, None)

    def write_trace(self, path: PathLike) -> None:
        """Writes what each rank, and each process of a pipeline, did when in the last pass, for Perfetto
        (ui.perfetto.dev), on rank 0. Collective; takes record=True."""
        self._write_history(None, path)

    def _write_history(
        self, page: PathLike | None, trace: PathLike | None, *, source: str | None = None, error: str = ""
    ) -> None:
        if self._last is None or not self.record:
            raise InvalidArgument("nothing was recorded of this feed; make it with record=True and iterate it first")
        sequence = self.source.sequence if isinstance(self.source, Corpus) else 0
        data = {"source": source or f"a {type(self.source).__name__}", "sequence": sequence}
        write_feed_history(
            self._options(), self._last, self._pipeline_story(), data, page=page, trace=trace, error=error
        )

    def _pipeline_story(self) -> bytes | None:
        return self.source._story() if isinstance(self.source, Run) else None

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch taken, for load_state_dict() of another run: of a Corpus on any mesh, of an
        iterable that has a state_dict() of its own on each rank its own. A loader whose state is large is asked for it
        now and then; the items since then are read again. Of an iterable without state_dict() the position is a number
        of items: it is iterated from its start, where it has to yield the same, and they are read again. Raises
        Unsupported for a loader's state that cannot be saved."""
        last = self._last
        if last is None:
            (cursor, samples), epoch = (self._cursor, self._samples), self._epoch
        else:
            epoch = self._began_epoch
            whole = last.step - (last.micro + 1 < last.num_micro)  # A step is resumed before it or behind it.
            if whole > 0 and last.cursor:
                cursor, samples = last.cursor, 0
            else:
                cursor, samples = self._began_at
                samples += whole * self._samples_a_step
        kind = "corpus" if self._is_corpus else "iterable"
        return FeedState(kind, cursor, samples, epoch).encode()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next pass begin where state_dict() was taken, in that epoch. Raises InvalidArgument for what is no such
        state, naming the key. The iteration raises it for a damaged cursor, and on every rank where the data have fewer
        items than the state counts."""
        kind = "corpus" if self._is_corpus else "iterable"
        position = read_state(state, kind)
        self.close()
        self._last = None
        if self._epoch != position.epoch:
            self.set_epoch(position.epoch)
        self._cursor, self._samples = position.cursor, position.samples

    def _begin(self, options: PassOptions) -> Beginning:
        """The source of the next pass, and where it begins; skip and a loaded state are used up."""
        cursor, counted = self._cursor, self._samples
        skipped = counted + self.skip * self._samples_a_step
        self._began_at, self._began_epoch = (cursor, skipped), self._epoch
        self._cursor, self._samples, self.skip = b"", 0, 0
        if isinstance(self.source, Corpus):
            begin = begin_corpus(options, self.source, self._epoch, cursor, is_first=not self._has_opened_corpus)
            self._has_opened_corpus = True
        else:
            begin = begin_iterable(options, self.source, cursor, counted)
        begin.first_sample += skipped
        return begin
