"""The Feed: sends batches from its readers to every rank of a mesh."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from levada._levada import CorpusSource, Layout, Mesh, Pass, Replicate, Shard, Stages, Zigzag, corpus_position
from levada.base.checks import check_choice, check_seconds, epoch_number, flag
from levada.base.epochs import parts_of, set_epoch
from levada.base.errors import Error, InvalidArgument, InvalidType
from levada.base.iterators import Ended, continues
from levada.base.keywords import explain_unknown
from levada.base.threads import OneCaller
from levada.batch.balance import Balance, Cost
from levada.batch.devices import sender
from levada.corpus.corpus import Corpus, PathLike
from levada.feed.arguments import (
    ACCESS,
    CHECK,
    check_balance,
    check_device,
    check_iteration,
    check_prefetch,
    check_readers,
    count,
    count_or_none,
)
from levada.feed.history import write_feed_history
from levada.feed.loaders import check_whole, with_article
from levada.feed.losses import OnPeerLost, check_on_peer_lost
from levada.feed.passes import Beginning, FeedPass, JoinedFeed, begin_corpus, begin_iterable, why_empty
from levada.feed.read_ahead import ReadAhead, Taken
from levada.feed.sources import check_source, ends_short
from levada.feed.states import FeedState, read_state
from levada.feed.torch_loaders import default_iterate
from levada.feed.view import PassView
from levada.job.groups import GroupNumbers, size_of
from levada.job.job import join, world_size
from levada.job.meshes import as_mesh, by_axis, check_feed, check_no_mesh_forgotten, is_device_mesh
from levada.pipeline.pipeline import Pipeline
from levada.pipeline.run import Run

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    Batch = TypeVar("Batch", default=Any)
else:
    from typing import TypeVar

    Batch = TypeVar("Batch")

Placement = str | Shard | Replicate | Zigzag | Stages
Placements = Placement | Sequence[Placement] | Mapping[str, Any]
"""Placements that Layout accepts for one field."""

_numbers = GroupNumbers()


class _Last(NamedTuple):
    """The latest pass."""

    core: Pass
    number: int
    began: FeedState  # the state before the first step
    at: FeedState  # the same, without items that earlier passes took of the iterator
    begin: Beginning


class Feed(PassView, Generic[Batch]):
    """Sends batches from one or several reader ranks to every rank of a mesh: `for batch in feed`.

    All ranks must construct and iterate their feeds in the same way and order. Each iter() starts a new pass over the
    source and is collective.

    - `source`: an iterable of batches, which only the reading ranks iterate (other ranks may pass None), a Corpus, a
      Pipeline, or the Run that Pipeline.run(..., alone=True) returns. A generator can be read once: after a pass that
      reached its end, the next pass raises InvalidArgument.
    - `mesh`: the axes of the ranks, as a Mesh, a string such as "dp=2,tp=2", a dict such as {"dp": 2, "tp": 2}, or a
      DeviceMesh of torch.distributed. Defaults to `group` if that is a DeviceMesh, else to all ranks along dp. A mesh
      of the whole job that contradicts Megatron's process groups, if they are initialized, raises InvalidArgument.
    - `data_axes`: the axes of the mesh along which batches differ, if Mesh does not know their names; a Mesh has its
      own.
    - `group`: the ranks that take part, as a process group or DeviceMesh of torch.distributed, or as the Membership
      that join() returned. Defaults to the ranks of the DeviceMesh, or else to the whole job.
    - `layout`: a Layout, or a dict from field paths to placements; lists of DTensor placements need a DeviceMesh. By
      default each dp rank gets whole batches, and its cp, tp and pp peers get the same ones. The default for a Corpus
      is Layout.gpt().
    - `readers`: the ranks that read: "one" rank; "all" ranks; one per "host"; the first rank at each coordinate along
      the named axes, such as "dp" or "dp,pp"; or "spread", one per data coordinate, spread evenly over the hosts.
      Defaults to "host" for a Pipeline, whose workers then serve all ranks of their host, and otherwise to "one".
    - `iterate`: the thread that iterates an iterable. "inline" iterates on the thread that calls next() and never reads
      ahead, so that random generators are used as in a plain loop. "thread" reads ahead on a separate thread. None
      means "thread" for a Pipeline, for a loader whose num_workers is positive, and with prefetch_to_device=True;
      otherwise "inline".
    - `divide`: "deal" sends item t * dp + d to dp rank d in step t; "split" cuts each item along its rows, also lists.
    - `batch_size`: samples per dp rank per step, for a Corpus and for an iterable whose samples are balanced. With
      divide="split": rows per dp rank of an iterable's global batches, the last of which may have fewer.
    - `balance`: divides the samples of each step (batch_size x dp) among the dp ranks so that their work is about
      equal. A Balance, or its cost, such as "flops". An iterable must then yield samples. A step has the same samples
      as without balance, and the same states resume it.
    - `max_tokens`: splits each rank's samples of a step into micro-batches of at most this many tokens, the same number
      of them on every rank. Each is one item of the iteration; `micro` is its index and `num_micro` their number.
    - `collate_fn`: makes a batch from a list of an iterable's balanced samples. None means levada.collate_packed, with
      the balance's pad_to and length.
    - `tail`: how to handle a last round that the data does not fill. "drop" discards it. "pad" repeats the last sample
      with a loss_mask of 0. "short" leaves the last ranks fewer rows or none; see valid_rows and gather().
    - `prefetch`: maximum number of batches that a rank may be behind its reader; 0 means pp + 2.
    - `skip`: number of steps to skip at the start of the next pass.
    - `max_steps`: maximum number of steps of a pass. None means until the data ends.
    - `timeout`: seconds that one wait may take, including the wait for all ranks to begin a pass. After 30 s, a line on
      standard error names the ranks being waited for.
    - `on_peer_lost`: how to react if, while this rank is in a step, another rank raises, leaves its loop early, or is
      killed. A thread of the feed writes one line to standard error. "report" does nothing else. "abort" aborts torch's
      process groups, so that a collective in which this rank waits raises. A function is called on that thread with the
      PeerLost. That PeerLost becomes the cause of the exception with which this rank then leaves its loop.
    - `access`: "private" lets a rank write to its batch without affecting other ranks, and copies only if that is
      cheaper. "copy" allocates memory for each rank. "read_only" returns read-only numpy arrays and rejects torch
      tensors, which cannot be read-only. None means "private" for torch and "read_only" for numpy.
    - `device`: the device to which torch tensors are moved, through pinned memory if the device supports it. None: CPU.
    - `prefetch_to_device`: copies the next batch, if it has arrived, to `device` on a separate stream while the caller
      works on the current one. The current stream waits for that copy when the batch is taken.
    - `device_buffers`: copies batches into this many sets of tensors on `device` in turn, whose addresses and shapes
      never change, as CUDA graphs require. Raises InvalidArgument if a batch has other shapes or if its set is still
      referenced. None allocates new tensors for each batch.
    - `allow_pickle`: whether objects of any class may be sent, as pickles.
    - `check`: "items" makes a resumed run compare the item after which the state was saved; "none" does not. "digests"
      also compares all tensors of ranks that should receive the same, after the first batch, every 100th and the last,
      and raises SourceError if they differ.
    - `record`: whether to record the activity of each rank, and of each process of a Pipeline, for write_report() and
      write_trace().

    DataLoader(feed, batch_size=None) accepts a feed as an IterableDataset if torch is imported before the feed is made.

    If a reader raises, iterating raises SourceError with that reader's traceback, on every rank at the same step. On
    the reader itself, the original exception is its cause. Iterating raises Timeout, which names the waiting and the
    awaited ranks. It raises PeerLost if another rank was killed, or left its loop by an exception or otherwise, while
    this rank requests more.
    """

    @explain_unknown("levada.Feed")
    def __init__(
        self,
        source: Iterable[Any] | Corpus | Pipeline[Any] | None,
        mesh: Mesh | str | Mapping[str, int] | Any = None,
        *,
        data_axes: Sequence[str] | None = None,
        layout: Layout | Mapping[str, Placements] | None = None,
        readers: str | None = None,
        iterate: str | None = None,
        divide: str = "deal",
        batch_size: int | None = None,
        balance: Balance | Cost | None = None,
        max_tokens: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        tail: str = "drop",
        prefetch: int = 0,
        skip: int = 0,
        max_steps: int | None = None,
        timeout: float = 1800.0,
        on_peer_lost: OnPeerLost = "report",
        access: str | None = None,
        device: Any = None,
        prefetch_to_device: bool = False,
        device_buffers: int | None = None,
        allow_pickle: bool = False,
        check: str = "items",
        group: Any = None,
        record: bool = False,
    ) -> None:
        self._is_corpus = isinstance(source, Corpus)
        if balance is None and max_tokens is not None:
            balance = Balance()
        self.balance = balance if balance is None or isinstance(balance, Balance) else Balance(balance)
        self.max_tokens = max_tokens = count_or_none("max_tokens", max_tokens, smallest=1)
        self.batch_size = count_or_none("batch_size", batch_size, smallest=1)
        self._rank_samples = self.batch_size or 1
        self.prefetch = count("prefetch", prefetch)
        self.skip = count("skip", skip)
        self.max_steps = count_or_none("max_steps", max_steps)
        self.collate_fn = self._balanced_collate = collate_fn
        self._counts_rows = not self._is_corpus and batch_size is not None and self.balance is None
        if access is not None:
            check_choice("access", access, ACCESS)
        if iterate is None:
            own_threads = prefetch_to_device or isinstance(source, (Corpus, Pipeline, Run))
            iterate = "thread" if own_threads else default_iterate(source)
        check_choice("check", check, CHECK)
        self.check = check
        seq_length = source.seq_length if isinstance(source, Corpus) else None
        check_iteration(
            iterate,
            divide,
            tail,
            is_corpus=self._is_corpus,
            counts_rows=self._counts_rows,
            is_balanced=self.balance is not None,
        )
        check_balance(self.balance, max_tokens, collate_fn, divide, tail, seq_length=seq_length)
        record, allow_pickle = flag("record", record), flag("allow_pickle", allow_pickle)
        prefetch_to_device = flag("prefetch_to_device", prefetch_to_device)
        device_buffers = count_or_none("device_buffers", device_buffers, smallest=1)
        check_device(
            device,
            iterate,
            prefetch_to_device=prefetch_to_device,
            device_buffers=device_buffers,
        )
        check_seconds("timeout", timeout)
        check_source(source)
        if any(isinstance(part, Feed) for part in parts_of(source)):
            raise InvalidArgument("the source is a feed already; iterate it, or pass its source")
        if readers is None:
            readers = "host" if isinstance(source, (Pipeline, Run)) else "one"
        # One rank reads for others, so it reads all of the data.
        self.source = source.run(alone=True, record=record) if isinstance(source, Pipeline) else source
        if record and isinstance(source, Run):
            source._record()
        self.record = record
        self.group = group
        if group is None and is_device_mesh(mesh):
            self.group = mesh
        if mesh is None and is_device_mesh(group):
            mesh = group
        ranks = world_size() if self.group is None else size_of(self.group)
        self.mesh = as_mesh(Mesh(dp=ranks) if mesh is None else mesh, data_axes)
        check_prefetch(self.prefetch, self.mesh)
        check_feed(self.mesh, self.group, world_size())
        if mesh is None and group is None and ranks > 1:
            check_no_mesh_forgotten()
        if isinstance(layout, Mapping) and is_device_mesh(mesh):
            layout = {field: by_axis(placements, self.mesh) for field, placements in layout.items()}
        self.layout = self._layout(layout, divide)
        self._cuts_rows = divide == "split" and layout is None
        self.readers = check_readers(readers, self.mesh)
        check_whole(source, self.mesh, world_size())
        self.iterate = iterate
        self.divide = divide
        self.tail = tail
        self.timeout = timeout
        self.on_peer_lost = check_on_peer_lost(on_peer_lost)
        self.access = access
        self.device = device
        self.prefetch_to_device = prefetch_to_device
        self._sender = sender(device, own_stream=prefetch_to_device, buffers=device_buffers)
        self.allow_pickle = allow_pickle
        data = sys.modules.get("torch.utils.data")
        if data is not None:
            data.IterableDataset.register(Feed)  # otherwise DataLoader treats it as a map-style data set
        self._number = _numbers.next(self.group)
        self._passes = 0  # number of passes begun
        self._ended = Ended()
        self._ahead = ReadAhead()
        self._is_epoch_set = True
        self._has_opened_corpus = False
        # Other threads may read these at any time, so values that belong together are replaced as one.
        self._next = FeedState(self._counts, b"", 0, 0)  # state at which the next pass begins
        self._running: weakref.ref[FeedPass] | None = None
        self._last: _Last | None = None
        self._resumed = b""  # the last cursor loaded; the passes after the next one continue from it, too
        self._beginning = OneCaller("a call that begins a pass of this feed, or sets its beginning,")

    def __repr__(self) -> str:
        return f"Feed({type(self.source).__name__}, mesh={self.mesh}, readers={self.readers}, step {self.step})"

    def _layout(self, layout: Layout | Mapping[str, Placements] | None, divide: str) -> Layout:
        if isinstance(layout, Layout):
            return layout
        if isinstance(layout, Mapping):
            return Layout(layout)
        if layout is not None:
            raise InvalidType(
                f"layout must be a levada.Layout or a dict from field paths to placements, got {layout!r}; the layout of the "
                "fields of a GPT step is levada.Layout.gpt()"
            )
        if isinstance(self.source, Corpus):
            return Layout.gpt(attention_mask=self.source.attention_mask)
        return Layout({}, otherwise=["shard(dp,0)"] if divide == "split" else [], name="batches")

    @property
    def _counts(self) -> str:
        """Returns the FeedState.source of this feed's states."""
        if self._is_corpus or self.divide != "split":
            return "corpus" if self._is_corpus else "iterable"
        return "rows" if self._counts_rows else "global batches"

    def _join(self) -> JoinedFeed:
        return JoinedFeed(self, join(self.group, timeout=self.timeout))

    def __iter__(self) -> Iterator[Batch]:
        """Starts a new pass from the start of the source. Closes a running pass: a loop that still iterates it raises
        InvalidArgument."""
        return self._start()

    def _start(self) -> FeedPass:
        with self._beginning:
            running = self._running_pass()
            if running is not None:
                running.supersede()
            if self._last is not None:
                self._last.begin.stop()  # a thread that left a loop may not have stopped it yet
            joined = self._join()
            first = self._next  # it only changes once the pass has begun
            if self._is_corpus and not self._is_epoch_set and self._cause in ("exhausted", "steps"):
                first = first._replace(epoch=first.epoch + self.source.epochs)
            at = first._replace(samples=first.samples + self.skip * self._counted_a_step)
            run = self.source if isinstance(self.source, Run) else None  # it counts its epochs itself
            if run is not None and not at.cursor:
                at = at._replace(epoch=run.next_epoch)
            try:
                begin = self._begin(joined, first)
                begin.first_sample += self.skip * self._samples_per_step
                began = self._began(at, begin)
                self._passes += 1
                name = f"pass {self._passes} of feed {self._number}"
                started = self._open_pass(joined, begin, name, why_empty(self, at, self.skip))
            except BaseException:
                if run is not None:
                    run.set_epoch(at.epoch)
                raise
            if run is not None and not joined.is_reader:  # this rank does not iterate it
                run.set_epoch(at.epoch + 1)
            # The reference is weak: leaving a loop must drop its iterator, which notifies the other ranks.
            self._running = weakref.ref(started)
            self._last = _Last(started.core, self._passes, self._continued(began), began, begin)
            self._rows = started.rows
            self._next, self.skip = FeedState(at.source, b"", 0, at.epoch), 0
            self._is_epoch_set = False
            return started

    def _items_taken(self) -> Taken | None:
        """Returns the items that the last pass took, or None if it has left none."""
        last = self._last
        if last is None or self._cause == "exhausted":
            return None
        first = last.begin.first_sample // self._samples_per_item
        return Taken(last.number, first + last.core.whole_steps * self._items_a_step)

    def _open_pass(self, joined: JoinedFeed, begin: Beginning, name: str, empty: str) -> FeedPass:
        return FeedPass(joined, begin, name, self._sender, is_ahead=self.prefetch_to_device, empty=empty)

    def _running_pass(self) -> FeedPass | None:
        """Returns the running pass, or a closed one that is still referenced."""
        running = self._running
        return None if running is None else running()

    @property
    def _core(self) -> Pass | None:
        last = self._last
        return None if last is None else last.core

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # otherwise the exception in flight explains it
                raise

    def close(self) -> None:
        """Leaves the running pass. All ranks may close at the same step; a rank that requests more raises PeerLost."""
        running = self._running_pass()
        if running is not None:
            running.close()

    def request_stop(self) -> None:
        """Makes all ranks stop at the same step, soon. A call on one rank is enough."""
        core = self._core
        if core is not None:
            core.request_stop()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. Calls set_epoch() on the source and on its dataset, sampler, batch sampler
        and batch sampler's sampler if they have one, or on the data sets that a torch Subset, ConcatDataset,
        StackDataset or ChainDataset reads from. A Corpus starts the pass at this epoch. After load_state_dict(), an
        epoch other than the state's starts at its beginning; iterating a Corpus then raises InvalidArgument unless the
        state is at the beginning of `epoch`."""
        epoch = epoch_number(epoch, 2**62, "2**62")
        with self._beginning:
            if epoch != self.epoch:
                self._next = FeedState(self._next.source, self._next.cursor if self._is_corpus else b"", 0, epoch)
            self._is_epoch_set = True
            set_epoch(self.source, epoch)

    def __len__(self) -> int:
        """Returns the number of steps of a whole pass, including those that the next pass skips. Raises TypeError if
        the source has no length on this rank. A last batch that tail="drop" discards because its rows do not fill it is
        subtracted only for torch's DataLoader; for other sources it is counted."""
        if isinstance(self.source, Corpus):
            if self.source.epochs == 0:
                raise TypeError("a corpus without end has no length")
            items = len(self.source) * self.source.epochs
        else:
            items = len(self.source)
        if self.divide == "split" and not self._is_corpus:
            whole = items - (self.tail == "drop" and self._counts_rows and ends_short(self.source))
        else:
            whole = -(-items // self._samples_per_step) if self.tail != "drop" else items // self._samples_per_step
        return whole if self.max_steps is None else min(whole, self.max_steps)

    @property
    def sampler(self) -> Self:
        """The feed itself, because trainers such as Lightning's call set_epoch() on a loader's sampler."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that set_epoch() or load_state_dict() set; initially 0. Each further pass over a Pipeline begins
        the next epoch automatically, on all ranks that were given the pipeline."""
        return self._next.epoch

    def write_report(self, path: PathLike) -> None:
        """Writes an HTML page on rank 0. It shows how each rank spent its time in the last pass, which ranks it waited
        for, and which stage of a pipeline is the bottleneck. Collective; requires record=True."""
        self._write_history(path, None)

    def write_trace(self, path: PathLike) -> None:
        """Writes a trace of the last pass for Perfetto (ui.perfetto.dev) on rank 0: the activity of each rank, and of
        each process of a pipeline, over time. Collective; requires record=True."""
        self._write_history(None, path)

    def _write_history(
        self, page: PathLike | None, trace: PathLike | None, *, source: str | None = None, error: str = ""
    ) -> None:
        core = self._core
        if core is None or not self.record:
            raise InvalidArgument("nothing was recorded of this feed; make it with record=True and iterate it first")
        sequence = self.source.seq_length if isinstance(self.source, Corpus) else 0
        data = {"source": source or self._source_name, "sequence": sequence, "batch": self.batch_size or 1}
        write_feed_history(
            self._join(), core, self.stats, self._pipeline_story(), data, page=page, trace=trace, error=error
        )

    @property
    def _source_name(self) -> str:
        """Name of the source in a report, which rank 0 writes."""
        if self.source is None:
            return "a source of other ranks"
        return "a Pipeline" if isinstance(self.source, Run) else with_article(type(self.source).__name__)

    def _pipeline_story(self) -> bytes | None:
        return self.source._report() if isinstance(self.source, Run) else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch taken, for load_state_dict() in another run.

        For a Corpus, the state is valid on any mesh. For an iterable that has a state_dict(), each rank returns the
        state of its reader's iterable. A slow state_dict() is called only from time to time, and a resumed run reads
        the items since then again. For any other iterable the position is a number of items: a resumed run iterates
        from the start and drops them, so the iterable must yield the same items again. A generator's items are counted over
        all passes. Raises Unsupported if a loader's state cannot be saved."""
        last = self._last
        return self._next.encode() if last is None else self._reached(last).encode()

    def _reached(self, last: _Last) -> FeedState:
        position = last.core.position()
        return last.began if position[0] == 0 else last.at.after(*position, step=self._counted_a_step, items=self._items_a_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass resume where state_dict() was called, in that epoch. Raises InvalidArgument, naming the
        key, if `state` is not a feed's state. Iterating raises InvalidArgument for a damaged cursor and, on every rank,
        if the data has fewer items than the state counts."""
        position = read_state(state, self._next.source)
        with self._beginning:
            self.close()
            counts_epochs = isinstance(self.source, Run)  # a Run counts its epochs itself and may be in a different one
            if self.epoch != position.epoch or (counts_epochs and not position.cursor):
                self.set_epoch(position.epoch)
            self._next, self._last, self._resumed = position, None, position.cursor
            self._is_epoch_set = True
            self._ahead.clear()

    def _continued(self, at: FeedState) -> FeedState:
        """Returns the state before the first step of a pass: if it continues this rank's iterator, after the previous pass."""
        if self._last is None or self._items_taken() is None or not continues(self.source):
            return at
        reached = self._reached(self._last)
        return reached._replace(samples=reached.samples + at.samples, epoch=at.epoch)

    def _began(self, at: FeedState, begin: Beginning) -> FeedState:
        """Returns the state of a pass before its first step. It identifies a corpus's data, as later states do."""
        if isinstance(begin.source, CorpusSource):
            waiting = corpus_position(begin.cursor)[1] if begin.cursor else 0
            if not begin.cursor or (at.samples > 0 and not waiting):
                return at._replace(cursor=begin.source.cursor(begin.first_sample), samples=0)
        return at._replace(cursor=at.cursor or begin.cursor)

    def _begin(self, joined: JoinedFeed, at: FeedState) -> Beginning:
        """Returns the beginning of a pass at `at`: its source, at the cursor to resume from."""
        if not isinstance(self.source, Corpus):
            return begin_iterable(joined, self.source, at, self._items_taken())
        is_first = not self._has_opened_corpus
        begin = begin_corpus(joined, self.source, at.epoch, at.cursor, self._resumed, is_first=is_first)
        begin.first_sample += at.samples
        self._has_opened_corpus = True
        return begin
