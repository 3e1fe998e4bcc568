"""One pass of a feed: where it begins, what it reads, how it ends."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from levada import _levada
from levada._balance import Samples
from levada._corpus import Corpus
from levada._errors import Error, InvalidArgument
from levada._exits import failure_text, handled, note_left
from levada._job import close_at_exit
from levada._levada import Handoff, Membership, Pass, Source, WhenDropped
from levada._process import ProcessReader
from levada._memory import make_batches_for
from levada._runs import Run
from levada._readers import BackgroundReader, InlineReader, Reader, open_maker

if TYPE_CHECKING:
    from levada._feed import Feed


class Beginning:
    """What a pass starts with: a source on ranks that read, and who makes its items where an iterable does."""

    def __init__(self, source: Source | None, first_sample: int, reader: Reader | None = None, *, cursor: bytes = b"") -> None:
        self.source = source
        self.first_sample = first_sample
        self.cursor = cursor
        self._reader = reader
        self.make = None if reader is None else reader.make
        self.where = None if reader is None else reader.where

    def watch(self, tell_where: Callable[[], None]) -> None:
        if self._reader is not None:
            self._reader.watch(tell_where)

    def stop(self) -> None:
        """Ends who makes items; what hangs is left to itself."""
        if isinstance(self.source, Handoff):
            self.source.stop()
        if self._reader is not None:
            self._reader.stop()
        self._reader = self.make = self.where = None


_UNTIL_OPENED = 1e8
"""Seconds. Readers may tokenize for hours; one that dies meanwhile is lost, which ends the wait."""


def begin_corpus(feed: Feed, corpus: Corpus, epoch: int, cursor: bytes) -> Beginning:
    """At a state of an earlier run, or at an epoch. The first time, all ranks wait until the readers have tokenized."""
    begin = _open_corpus(feed, corpus, epoch, cursor)
    job = feed._join()
    if job.size > 1 and not feed._has_opened:
        _levada.agree(job, b"", _UNTIL_OPENED, "opening the corpus")
    feed._has_opened = True
    return begin


def _open_corpus(feed: Feed, corpus: Corpus, epoch: int, cursor: bytes) -> Beginning:
    first = _levada.corpus_position(cursor) if cursor else 0
    try:
        if not _reads(feed) and not epoch:
            return Beginning(None, first, cursor=cursor)
        opened = corpus.open()
        source = opened.of_epochs(epoch + corpus.epochs if corpus.epochs else 0)
        begin = epoch * opened.sequences
        first = source.resume(cursor) if cursor else begin
        if first < begin:
            # At the end of the epoch before, but for samples that fill no step.
            if feed.tail != "drop" or begin - first >= feed._samples_a_step:
                raise InvalidArgument(
                    f"the state is at sample {first}, in epoch {first // opened.sequences}, and set_epoch() says {epoch}: "
                    "set the state's epoch, or load no state to begin another one"
                )
            first = begin
        return Beginning(source, first, cursor=cursor)
    except Error as error:
        # Whether all ranks see it or one, they agree on nothing yet: told in the stream, every rank raises it.
        return Beginning(_levada.unopened(type(error).__name__, str(error)), first)


def begin_iterable(feed: Feed, source: Any, cursor: bytes) -> Beginning:
    """At a state of an earlier run, or where iter() of `source` begins."""
    first, position, state = _levada.read_cursor(cursor, allow_pickle=feed.allow_pickle) if cursor else (0, 0, None)
    if isinstance(source, Run) and feed.readers != "one" and len(set(feed._join().host_of)) > 1:
        source.agree_on_seed(feed._join())
    if not _reads(feed):
        return Beginning(None, first)
    samples = feed._samples_a_step if feed.divide == "split" else 1
    handoff = Handoff(samples, position, f"a batch of {type(source).__name__}", feed._counts_rows)
    try:
        return Beginning(handoff, first, _reader_of(feed, source, state, handoff))
    except Exception:
        handoff.fail(traceback.format_exc())
        return Beginning(handoff, first)


def _reader_of(feed: Feed, source: Any, state: Any, handoff: Handoff) -> Reader:
    samples = None if feed.balance is None else Samples(feed.balance, feed.max_tokens, feed.collate)
    if feed.reader == "process":
        return ProcessReader(source, state, handoff, feed.allow_pickle, samples)
    maker = open_maker(source, state, handoff, feed.allow_pickle, samples)
    return InlineReader(maker) if feed.reader == "inline" else BackgroundReader(maker)


def _reads(feed: Feed) -> bool:
    job = feed._join()
    return _levada.reads(feed.readers, feed.mesh, job.host_of, job.rank)


class FeedPass:
    """The iterator of one pass. Leaves the feed when it goes, as at a `break` or when its loop raises."""

    def __init__(self, feed: Feed, begin: Beginning, name: str) -> None:
        self._begin = begin
        self._move = feed._move
        self._before = handled()  # which is not why the pass will be left
        self._is_superseded = False
        try:
            self.core = self._start(feed._join(), feed, name)
            begin.watch(self.core.tell_where)
        except BaseException:
            self._begin.stop()
            raise
        self._dropped = WhenDropped(functools.partial(_leave_dropped, self.core, begin, self._before))
        close_at_exit(self)

    def _start(self, job: Membership, feed: Feed, name: str) -> Pass:
        if isinstance(self._begin.source, Handoff):
            make_batches_for(job)
        return _levada.start(
            job,
            feed.mesh,
            feed.layout,
            self._begin.source,
            batch=feed.batch,
            divide=feed.divide,
            tail=feed.tail,
            first_sample=self._begin.first_sample,
            cursor=self._begin.cursor,
            steps=feed.steps,
            readers=feed.readers,
            depth=feed.depth,
            timeout=feed.timeout,
            access=feed.access or "",
            make=self._begin.make,
            where=self._begin.where,
            tensors=feed.source.tensors if isinstance(feed.source, Corpus) else "numpy",
            allow_pickle=feed.allow_pickle,
            record=feed.record,
            name=name,
            balance=None if feed.balance is None else feed.balance.resolved(feed.max_tokens or 0),
        )

    def __iter__(self) -> FeedPass:
        return self

    def __next__(self) -> Any:
        if self._is_superseded:
            raise InvalidArgument("a newer pass of this feed has ended this one; a feed has one pass at a time")
        batch = next(self.core)
        return batch if self._move is None else self._move(batch)

    def supersede(self) -> None:
        """close(); where batches were left, next() then says so instead of ending a loop early."""
        self._is_superseded = self.core.end is None
        self.close()

    def close(self) -> None:
        _leave(self.core, self._begin, self._before, handled())


def _leave(core: Pass, begin: Beginning, before: BaseException | None, error: BaseException | None) -> None:
    """Leaves the feed because of an exception, unless that was there `before` the pass."""
    if error is not before:
        note_left(error, core.step)
    try:
        core.close("" if error is before else failure_text(error))
    finally:
        begin.stop()


def _leave_dropped(core: Pass, begin: Beginning, before: BaseException | None, error: BaseException | None) -> None:
    with contextlib.suppress(Error):  # the job has ended otherwise, which the next call says
        _leave(core, begin, before, error or handled())
