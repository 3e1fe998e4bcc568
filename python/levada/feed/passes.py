"""One pass of a feed, from its start to its end."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from levada import _levada
from levada._levada import CorpusSource, Handoff, Layout, Membership, Mesh, Pass, Source, WhenDropped
from levada.base.errors import CorruptMessage, Error, InvalidArgument, SourceError
from levada.base.exception_texts import failure_text
from levada.base.exits import handled, note_left
from levada.batch.balance import Samples
from levada.batch.devices import Arrive, Sender
from levada.batch.memory import make_batches_for
from levada.corpus.corpus import Corpus
from levada.feed.arguments import FeedArguments
from levada.feed.losses import LossWatch
from levada.feed.makers import Counted, Making, maker_of
from levada.feed.peers import PeerDigests
from levada.feed.read_ahead import Taken
from levada.feed.readers import BackgroundReader, InlineReader, Reader, await_earlier_passes
from levada.feed.rows import num_rows
from levada.feed.states import MAX_SAMPLES, FeedState
from levada.feed.torch_loaders import draw_as_reader
from levada.job.job import close_at_exit
from levada.job.meshes import with_cp_as_data
from levada.pipeline.run import Run


class JoinedFeed(NamedTuple):
    """A feed and the ranks that take part in it."""

    feed: FeedArguments
    job: Membership

    @property
    def is_reader(self) -> bool:
        return self.job.rank in self._readers

    @property
    def ranks_per_reader(self) -> int:
        """Number of ranks that receive batches from each reader."""
        return self.job.size // len(self._readers)

    @property
    def _readers(self) -> set[int]:
        mesh, ranks = self.feed.mesh, self.job.size
        if mesh.size != ranks and (ranks == 1 or self.feed.readers in ("host", "spread")):  # otherwise the ranks compare their meshes
            raise InvalidArgument(
                f"mesh '{mesh}' has {mesh.size} ranks, the job has {ranks}; make the axes multiply to {ranks}, or start {mesh.size} "
                f"ranks: levada run -n {mesh.size}"
            )
        return set(_levada.readers_of(self.feed.readers, mesh, self.job.host_of))


class Beginning:
    """The start of a pass: on reading ranks, its source and, for an iterable, the Reader that makes its items."""

    def __init__(
        self,
        source: Source | None,
        first_sample: int,
        reader: Reader | None = None,
        *,
        cursor: bytes = b"",
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`prepare`: called by open() before the iterable is opened. It makes the changes that only a pass that has begun
        on all ranks may leave behind."""
        self.source = source
        self.first_sample = first_sample
        self.cursor = cursor
        self._reader = reader
        self._prepare = prepare
        self.make = None if reader is None else reader.make
        self.where = None if reader is None else reader.where

    def watch(self, post_place: Callable[[], None]) -> None:
        if self._reader is not None:
            self._reader.watch(post_place)

    def open(self) -> None:
        """Opens an iterable on a reading rank, and does what other ranks must do then. Called once all ranks have begun the
        pass. A failure of the iterable is reported to all ranks; KeyboardInterrupt is raised here, too."""
        prepare, self._prepare = self._prepare, None
        if prepare is not None:
            prepare()
        if self._reader is not None:
            self._reader.open()

    def raised(self) -> BaseException | None:
        """Returns the exception that the source raised on this rank, but only once; None if it did not raise."""
        reader = self._reader
        return None if reader is None else reader.raised()

    def stop(self) -> None:
        """Stops the reader, or abandons it if it hangs. May be called by several threads."""
        source, reader = self.source, self._reader
        if isinstance(source, Handoff):
            source.stop()
        if reader is not None:
            reader.stop()
        self.source = self._reader = self._prepare = self.make = self.where = None


_UNTIL_OPENED = 1e8
"""Timeout in seconds of opening a corpus, since readers may tokenize for hours. If a reader dies, PeerLost ends the
wait."""


def begin_corpus(
    joined: JoinedFeed, corpus: Corpus, epoch: int, cursor: bytes, before: bytes, *, is_first: bool
) -> Beginning:
    """Returns the beginning of a pass over a corpus: at `cursor`, saved by an earlier run, or else at the start of
    `epoch`. `before` is the cursor of an earlier pass, whose history of weights a later epoch continues. With
    `is_first`, waits until the readers of all ranks have tokenized; the call is then collective."""
    begin = _open_corpus(joined, corpus, epoch, cursor)
    if before and epoch > 0 and not cursor:
        _keep_weights(begin, before)
    if joined.job.size > 1 and is_first:
        _levada.agree(joined.job, b"", _UNTIL_OPENED, "opening the corpus")
    return begin


def _keep_weights(begin: Beginning, before: bytes) -> None:
    source = begin.source
    if not isinstance(source, CorpusSource):
        return
    try:
        if source.of_epochs(0).resume(before) <= begin.first_sample:
            source.resume(before)
            begin.cursor = source.cursor(begin.first_sample)
    except Error as error:
        begin.source = _levada.unopened(type(error).__name__, str(error))


def _open_corpus(joined: JoinedFeed, corpus: Corpus, epoch: int, cursor: bytes) -> Beginning:
    feed = joined.feed
    first, waiting = _levada.corpus_position(cursor) if cursor else (0, 0)
    try:
        if not joined.is_reader and not epoch:
            return Beginning(None, first, cursor=cursor)
        opened = corpus.open()
        samples = opened.sequences * corpus.epochs
        if corpus.epochs and feed.tail == "drop" and samples < feed._samples_per_step:
            raise InvalidArgument(
                f"one step takes {feed._samples_per_step:,} samples, but the corpus has only {samples:,}; lower batch_size or "
                'seq_length, raise epochs, add data, or choose tail="short"'
            )
        source = opened.of_epochs(epoch + corpus.epochs if corpus.epochs else 0)
        begin = epoch * opened.sequences
        first = source.resume(cursor) if cursor else begin
        if first <= begin:
            # A state near the end of the previous epoch is valid if fewer samples than one step are left.
            left = begin - first + waiting
            if left >= (feed._samples_per_step if feed.tail == "drop" else 1):
                at = begin - left
                raise InvalidArgument(
                    f"the state is at sample {at}, in epoch {at // opened.sequences}, and set_epoch() says {epoch}: "
                    "set the state's epoch, or load no state to begin another one"
                )
            first, cursor = begin, b""
        return Beginning(source, first, cursor=cursor)
    except Error as error:
        # The error may be on all ranks or on only one. An error in the stream is raised on every rank.
        return Beginning(_levada.unopened(type(error).__name__, str(error)), first)


def begin_iterable(joined: JoinedFeed, source: Any, at: FeedState, taken: Taken | None) -> Beginning:
    """Returns the beginning of a pass over an iterable, at the state `at` of an earlier run. `taken`: the items that the
    previous pass took; None if that pass left none."""
    feed, job = joined
    items, position, state = _read_items(feed, at)
    first = items * feed._samples_per_item
    if isinstance(source, Run) and feed.readers != "one" and len(set(job.host_of)) > 1:
        source.agree_on_seed(job)
    if not joined.is_reader:
        return Beginning(None, first, prepare=functools.partial(draw_as_reader, source))
    name = type(source).__name__
    handoff = Handoff(feed._samples_per_item, position, f"a batch of {name}", feed._counts_rows, feed._cuts_rows)
    may_lack = (at.step - 1) // feed._samples_per_item
    if feed.tail == "drop":  # the run that saved the state may have kept an incomplete last step
        may_lack = min(may_lack, items - at.item - 1) if at.item >= 0 else 0
    counted = Counted(position, items, may_lack, name=f"this {name}", skipped=feed.skip * feed._items_a_step)
    if feed.check != "none" and state is None:
        if not feed._counts_rows or at.step == feed._counted_a_step:
            counted = counted._replace(item=at.item, mark=at.digest)
        elif (at.item + 1) * at.step == first:  # items of another size, the last of which ends with the same row
            counted = counted._replace(item=items - 1, mark=at.digest, of_row=True)
    prepare = functools.partial(_prepare_reading, joined, source, taken)
    return Beginning(handoff, first, _reader_of(joined, source, state, handoff, counted), prepare=prepare)


def _prepare_reading(joined: JoinedFeed, source: Any, taken: Taken | None) -> None:
    feed, job = joined
    await_earlier_passes(source, job.rank, feed.timeout)
    if taken is None:
        feed._ahead.clear()
    else:
        feed._ahead.end(taken)
    rounds = (feed.prefetch or dict(feed.mesh.axes).get("pp", 1) + 2) + _ROUNDS_AT_READER
    feed._ahead.begin(rounds * feed._items_a_step, allow_pickle=feed.allow_pickle)


def _read_items(feed: FeedArguments, at: FeedState) -> tuple[int, int, Any]:
    """Returns the number of items before a state, the number before its loader's state, and the loader's state. Raises
    InvalidArgument for a damaged cursor, and for a state that is inside an item."""
    first, position, state = _read_cursor(feed, at.cursor) if at.cursor else (0, 0, None)
    if feed._counts_rows:
        ends_short = first % at.step != 0  # only the last item may have fewer rows; no data is left then
        rows = first + -first % at.step + at.samples
        items = _items_of(feed, rows, ends_short=ends_short)
        position = _items_of(feed, position * at.step, ends_short=ends_short)
    else:
        items = first + at.samples
    largest = max(items, position) * feed._samples_per_item
    if largest > MAX_SAMPLES:
        raise InvalidArgument(f"this state of a feed counts {largest:,} samples, which no run has; it is damaged")
    return items, position, state


def _items_of(feed: FeedArguments, rows: int, *, ends_short: bool) -> int:
    an_item = feed._samples_per_item
    if rows % an_item != 0 and not ends_short:
        raise InvalidArgument(
            f"the state counts {rows} rows, and an item has {an_item} (batch x dp), which do not divide them: resume with a "
            "batch and dp whose product does"
        )
    return -(-rows // an_item)


def _read_cursor(feed: FeedArguments, cursor: bytes) -> tuple[int, int, Any]:
    """Decodes an IterableCursor. Returns the index of the next item or row, the number of items before the loader's
    state, and that state. Raises InvalidArgument for a damaged cursor."""
    try:
        return _levada.read_cursor(cursor, allow_pickle=feed.allow_pickle)
    except CorruptMessage as error:
        raise InvalidArgument(f"this state of a feed has been damaged since it was saved: {error}") from error


def _reader_of(joined: JoinedFeed, source: Any, state: Any, handoff: Handoff, counted: Counted) -> Reader:
    feed = joined.feed
    samples = None if feed.balance is None else Samples(feed.balance, feed.max_tokens, feed._balanced_collate)
    making = Making(
        handoff,
        feed.allow_pickle,
        joined.ranks_per_reader,
        samples,
        counted,
        feed._ended,
        feed._ahead,
        feed._cuts_rows,
        feed._counts_rows,
        feed.tail if feed.divide == "deal" and samples is None else "drop",
    )
    maker = maker_of(source, state, making)
    return InlineReader(maker) if feed.iterate == "inline" else BackgroundReader(maker, source)


def why_empty(feed: FeedArguments, at: FeedState, skip: int) -> str:
    """Returns why a pass that begins at this state may have no steps, to be reported if it has none."""
    if skip:
        return f"skip={skip} leaves out all there are"
    if at.samples or at.cursor:
        return (
            f"the state that it resumes is at the end of epoch {at.epoch}; begin the next epoch by another pass, after "
            f"set_epoch({at.epoch + 1}) if the source shuffles by epoch"
        )
    if feed.tail == "drop" and feed._items_a_step > 1:
        return (
            f"the source has fewer than the {feed._items_a_step:,} items of one step; add items, or keep a last step that is "
            'not full (tail="pad" or "short")'
        )
    return "the source has no items"


_ROUNDS_AT_READER = 4
"""Exceeds the number of rounds that a reader has read but not sent."""


_SUPERSEDED = "a newer pass of this feed has ended this one; a feed has one pass at a time"


class BatchRows:
    """The number of rows of a pass's last taken batch; None if it has none. Outlives the pass's iterator."""

    def __init__(self, counts_batches: bool) -> None:
        """`counts_batches`: whether the core counts whole batches and not their rows."""
        self.counts_batches = counts_batches
        self.number: int | None = None


class FeedPass:
    """The iterator of one pass. Dropping it leaves the feed, for example after a `break` or an exception in the
    loop."""

    def __init__(
        self, joined: JoinedFeed, begin: Beginning, name: str, sender: Sender | None, *, is_ahead: bool, empty: str
    ) -> None:
        """`sender`: moves batches to the device; with `is_ahead`, it also starts moving the next batch, if that has
        arrived, before next() returns. `empty`: the reason to report if the pass has no steps."""
        self._begin = begin
        self._empty = empty
        feed = joined.feed
        self.rows = BatchRows(not isinstance(feed.source, Corpus) and feed.balance is None and feed._rank_samples == 1)
        self.is_balanced = feed.balance is not None
        self._counts_rows = not self.is_balanced
        proves = feed.check == "digests" and joined.job.size > 1
        self._peers: PeerDigests | None = None
        if proves:
            mesh = with_cp_as_data(feed.mesh) if feed.balance is not None and feed.balance.max_cp > 1 else feed.mesh
            self._peers = PeerDigests(joined.job, mesh, feed.layout, feed.timeout, allow_pickle=feed.allow_pickle)
        self._sender = sender
        self._is_ahead = is_ahead and sender is not None
        self._ahead: Arrive | None = None
        self._is_superseded = False
        before = handled()
        try:
            self.core = self._start(joined, name)
        except BaseException:
            self._begin.stop()
            raise
        self._running = _Running(self.core, begin, before)
        try:
            if sender is not None:
                self._running = self._running._replace(end_sending=sender.begin(joined.job))
            begin.watch(self.core.post_place)
            if joined.job.size > 1:
                self._running = self._running._replace(losses=LossWatch(self.core, joined.feed.on_peer_lost))
            begin.open()
        except BaseException as error:
            _leave_dropped(self._running, error)
            raise
        self._dropped = WhenDropped(functools.partial(_leave_dropped, self._running))
        close_at_exit(self)

    def _start(self, joined: JoinedFeed, name: str) -> Pass:
        if isinstance(self._begin.source, Handoff):
            make_batches_for(joined.job)
        feed = joined.feed
        return _levada.start(
            joined.job,
            feed.mesh,
            feed.layout,
            self._begin.source,
            batch=feed._rank_samples,
            divide=feed.divide,
            tail=feed.tail,
            first_sample=self._begin.first_sample,
            cursor=self._begin.cursor,
            steps=feed.max_steps,
            readers=feed.readers,
            depth=feed.prefetch,
            timeout=feed.timeout,
            access=feed.access or ("shared" if self._sender is not None and self._sender.reads_shared else ""),
            make=self._begin.make,
            where=self._begin.where,
            tensors=feed.source.tensors if isinstance(feed.source, Corpus) else "numpy",
            allow_pickle=feed.allow_pickle,
            record=feed.record,
            name=name,
            balance=None if feed.balance is None else feed.balance.resolved(feed.max_tokens or 0, feed._balanced_collate),
        )

    def __iter__(self) -> FeedPass:
        return self

    def __next__(self) -> Any:
        batch = self.take()
        self.core.delivered = True
        return batch

    def take(self) -> Any:
        """Returns the next batch. The caller must return it and set `core.delivered` just before, by a plain
        assignment: a signal handler may raise at any call until then, and a state must not count a batch that the loop
        never gets."""
        if self._is_superseded:
            raise InvalidArgument(_SUPERSEDED)
        try:
            return self._next()
        except SourceError as error:
            if (raised := self._begin.raised()) is not None:
                raise error from raised
            raise
        except StopIteration:
            self._end_comparing()
            # Another thread may have begun a new pass while this one waited. That is not the end of the data.
            if self._is_superseded and (self.core.end or {}).get("cause") in ("left", "abandoned"):
                raise InvalidArgument(_SUPERSEDED) from None
            if self.core.step == 0 and (self.core.end or {}).get("cause") == "exhausted" and self._empty:
                warnings.warn(f"this pass of a feed has no steps: {self._empty}", RuntimeWarning, stacklevel=3)
                self._empty = ""
            raise

    def _next(self) -> Any:
        batch = self._batch()
        if self._peers is not None:
            self._peers.take(self.core.taken_step)
        if self._counts_rows:
            self.rows.number = num_rows(batch)
        return batch

    def _batch(self) -> Any:
        if self._sender is None:
            return self._received(next(self.core))
        batch = self._take(self._sender)()
        if self._is_ahead:
            self._ahead = _raise_interrupted  # replaced below unless the call is interrupted
            self._ahead = _send_ahead(self.core, self._sender, self._received)
        return batch

    def _received(self, batch: Any) -> Any:
        if self._peers is not None:
            self._peers.receive(batch)
        return batch

    def _take(self, sender: Sender) -> Arrive:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return sender.send(self._received(next(self.core)))
        if not self.core.drop_next():  # the pass was closed in the meantime
            raise StopIteration
        return ahead

    def _end_comparing(self) -> None:
        peers, self._peers = self._peers, None
        if peers is not None and (self.core.end or {}).get("cause") in ("exhausted", "steps", "stopped"):
            peers.end(self.core.step)

    def supersede(self) -> None:
        """Closes the pass. If batches were left, next() then raises instead of silently ending its loop."""
        self._is_superseded = self.core.end is None
        self.close()

    def close(self) -> None:
        self._ahead = None
        _leave(self._running, handled())


def _send_ahead(core: Pass, sender: Sender, received: Callable[[Any], Any]) -> Arrive | None:
    """Passes the next batch, if it has arrived, to `received` and starts moving it. The batch is not taken yet: an
    error is only raised at its step."""
    try:
        batch = core.receive_ahead()
        return None if batch is None else sender.send(received(*batch))
    except Exception as error:
        return functools.partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_interrupted() -> NoReturn:
    raise InvalidArgument("next() was interrupted while it fetched this batch ahead; begin a new pass, from a saved state")


class _Running(NamedTuple):
    """The objects that live as long as a pass."""

    core: Pass
    begin: Beginning
    before: BaseException | None
    """An exception that was being handled before the pass, and so is not the reason for leaving it."""
    losses: LossWatch | None = None
    end_sending: Callable[[], None] = lambda: None


def _leave(running: _Running, error: BaseException | None) -> None:
    """Leaves the feed because of `error`. Takes every step even if an earlier one raises, for example a copy to a device
    that has failed: the other ranks wait for this rank to leave."""
    core, losses = running.core, running.losses
    error = None if error is running.before else error
    with contextlib.ExitStack() as leaving:  # the last callback is called first
        leaving.callback(running.begin.stop)
        if losses is not None:
            leaving.callback(losses.stop)
        leaving.callback(core.close, failure_text(error))
        leaving.callback(running.end_sending)
        if losses is not None and core.end is None:
            losses.explain(error)
        if error is not None:
            note_left(error, core.whole_steps)


def _leave_dropped(running: _Running, error: BaseException | None) -> None:
    """Leaves the feed because of `error`, or else of the exception in flight."""
    with contextlib.suppress(Error):  # the job has ended for another reason, which the next call raises
        _leave(running, error or handled())
