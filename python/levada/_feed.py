"""The feed: batches from a reader to every rank of a mesh."""

from __future__ import annotations

import json
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from levada import _levada
from levada._corpus import Corpus
from levada._errors import Error, InvalidArgument, Unsupported
from levada._groups import size_of
from levada._job import close_at_exit, join
from levada._levada import Handoff, Layout, Membership, Mesh, Pass, Source

Placements = str | Sequence[str]
Fields = Mapping[str, Placements]


def make_layout(
    fields: Fields,
    *,
    otherwise: Placements = (),
    optional: Sequence[str] = (),
    stages: Mapping[str, Sequence[int]] | None = None,
    name: str = "custom",
) -> Layout:
    """A layout of field paths or patterns with '*', each with its placements: "shard(dp,0)", or several in a list.

    Raises InvalidArgument for what is no placement.
    """

    def listed(placements: Placements) -> list[str]:
        return [placements] if isinstance(placements, str) else list(placements)

    return Layout.from_json(
        json.dumps(
            {
                "name": name,
                "fields": {field: listed(placements) for field, placements in fields.items()},
                "optional": list(optional),
                "otherwise": listed(otherwise),
                "stages": {stage: list(ranks) for stage, ranks in (stages or {}).items()},
            }
        )
    )


class Feed:
    """Batches of one reader, or some, on every rank of a mesh: `for batch in feed`.

    `source`: an iterable of batches, iterated on the ranks that read alone (others may pass None), or a Corpus. Made and
    iterated on every rank alike; each iter() is a pass over the source and is collective.

    mesh: the ranks' axes; by default all ranks are dp. group: whose ranks they are: a process group of
    torch.distributed, or what join() gave; by default the whole job. layout: a Layout, or a dict of field paths and
    patterns. By default each dp rank gets whole batches, and its cp, tp and pp peers the same; of a Corpus layout "gpt".
    readers: "one" rank, "all", one a "host", or one at each coordinate along axes: "dp", "dp,pp".
    divide: "deal" gives item t * dp + d to dp rank d in step t; "split" cuts each item along dim 0.
    batch: samples a dp rank and step, of a Corpus alone; an iterable's items are batches.
    tail: of a last round that the data does not fill: "drop"; of a Corpus also "pad" and "short".
    depth: batches a rank may be behind its reader; 0: two more than pp. skip: steps to leave out of the first pass.
    timeout: seconds of one wait. access: "read_only" gives numpy arrays that cannot be written and refuses torch,
    "copy" gives every rank memory of its own; None: as "read_only", but torch tensors are copies.

    Raises, from its iteration: SourceError on every rank at the step at which a reader raised, with its traceback;
    Timeout, which says who waits for whom; PeerLost.
    """

    def __init__(
        self,
        source: Iterable[Any] | Corpus | None,
        mesh: Mesh | None = None,
        *,
        layout: Layout | Fields | None = None,
        readers: str = "one",
        divide: str = "deal",
        batch: int | None = None,
        tail: str = "drop",
        depth: int = 0,
        skip: int = 0,
        steps: int | None = None,
        timeout: float = 30.0,
        access: str | None = None,
        allow_pickle: bool = False,
        group: Any = None,
    ) -> None:
        self._is_corpus = isinstance(source, Corpus)
        if not self._is_corpus and tail != "drop":
            raise InvalidArgument(f'tail is "{tail}"; batches of an iterable are whole, so it must be "drop"')
        if not self._is_corpus and batch is not None:
            raise InvalidArgument("batch is for a Corpus; each item of an iterable is a batch")
        if skip < 0:
            raise InvalidArgument(f"skip is {skip}; it counts steps from 0")
        self.source = source
        self.group = group
        if mesh is None:
            mesh = Mesh.from_env() if group is None else Mesh(dp=size_of(group))
        self.mesh = mesh
        self.layout = self._layout(layout, divide)
        self.readers = readers
        self.divide = divide
        self.batch = 1 if batch is None else batch
        self.tail = tail
        self.depth = depth
        self.skip = skip
        self.steps = steps
        self.timeout = timeout
        self.access = access
        self.allow_pickle = allow_pickle
        self._epoch = 0
        self._cursor = b""
        self._own: _FeedPass | None = None  # of next()
        self._running: weakref.ref[_FeedPass] | None = None
        self._last: Pass | None = None

    def _layout(self, layout: Layout | Fields | None, divide: str) -> Layout:
        if isinstance(layout, Layout):
            return layout
        if layout is not None:
            return make_layout(layout)
        if isinstance(self.source, Corpus):
            return Layout.gpt(attention_mask=self.source.attention_mask)
        others = [f"replicate({name})" for name, _ in self.mesh.axes if name != "dp"]
        return make_layout({}, otherwise=[*(["shard(dp,0)"] if divide == "split" else []), *others], name="batches")

    @property
    def _samples_a_step(self) -> int:
        return self.batch * self.mesh.axis_size("dp")

    def __iter__(self) -> Iterator[Any]:
        """A new pass, from the start of the source; one that is under way is closed."""
        return self._start()

    def _start(self) -> _FeedPass:
        self.close()
        started = _FeedPass(self)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the pass under way: the other ranks get what was sent and then see the end. Waits for that."""
        running = self._running() if self._running is not None else None
        self._own = self._running = None
        if running is not None:
            running.close()

    def request_stop(self) -> None:
        """Asks all ranks to stop soon, at one step; one rank is enough."""
        if self._last is not None:
            self._last.request_stop()

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next pass is: tells the source (and its sampler), or begins there in a Corpus."""
        if epoch < 0:
            raise InvalidArgument(f"epoch is {epoch}")
        self._epoch = epoch
        for told in (self.source, getattr(self.source, "sampler", None)):
            tell = getattr(told, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def __len__(self) -> int:
        """Steps of a pass, where the source knows its length on this rank. Raises TypeError where it does not."""
        if isinstance(self.source, Corpus):
            if self.source.epochs == 0:
                raise TypeError("a corpus without end has no length")
            samples = len(self.source) * self.source.epochs
            whole = -(-samples // self._samples_a_step) if self.tail != "drop" else samples // self._samples_a_step
        else:
            items = len(self.source)  # type: ignore[arg-type]
            whole = items if self.divide == "split" else items // self._samples_a_step
        left = max(whole - self.skip, 0)
        return left if self.steps is None else min(left, self.steps)

    @property
    def step(self) -> int:
        """Batches taken of the pass."""
        return 0 if self._last is None else self._last.step

    @property
    def end(self) -> dict[str, Any] | None:
        """Why the pass ended, the same on every rank: cause ("exhausted", "steps", "left", "failed"), step, rank,
        message. None before."""
        return None if self._last is None else self._last.end

    @property
    def stats(self) -> dict[str, Any]:
        """Of the pass: batches, samples, bytes, waited_seconds, copied_batches, bytes_read."""
        return {} if self._last is None else self._last.stats

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch taken, for load_state_dict() of another run: of a Corpus on any mesh, of an
        iterable that has a state_dict() of its own on each rank its own. Raises Unsupported for other iterables."""
        if not self._is_corpus and self.step > 0 and not (self._last and self._last.cursor):
            raise Unsupported("the source has no state_dict(); count steps, and go on with skip=")
        taken = self._last.cursor if self._last is not None and self._last.step > 0 else self._cursor
        return {"source": "corpus" if self._is_corpus else "iterable", "cursor": taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next pass begin where state_dict() was taken."""
        kind = "corpus" if self._is_corpus else "iterable"
        if state["source"] != kind:
            raise InvalidArgument(f"the state is of a feed of a {state['source']}, not of a {kind}")
        self.close()
        self._last = None
        self._cursor = state["cursor"]

    def _reads(self) -> bool:
        job = join(self.group)
        return _levada.reads(self.readers, self.mesh, job.host_of, job.rank)

    def _begin(self) -> _Beginning:
        """The source of the next pass, and where it begins; skip and a loaded state are used up."""
        cursor, self._cursor = self._cursor, b""
        skipped, self.skip = self.skip * self._samples_a_step, 0
        begin = _corpus_beginning(self, cursor) if self._is_corpus else _iterable_beginning(self, cursor)
        begin.first_sample += skipped
        return begin


class _Beginning:
    """What a pass starts with."""

    def __init__(self, source: Source | None, first_sample: int, pump: threading.Thread | None = None) -> None:
        self.source = source
        self.first_sample = first_sample
        self.pump = pump

    def stop(self) -> None:
        """Ends the thread that makes batches; one that hangs is left to itself."""
        if isinstance(self.source, Handoff):
            self.source.stop()
        if self.pump is not None:
            self.pump.join(timeout=1.0)
            self.pump = None


def _corpus_beginning(feed: Feed, cursor: bytes) -> _Beginning:
    corpus = feed.source
    assert isinstance(corpus, Corpus)
    epoch = feed._epoch
    first = _levada.corpus_position(cursor) if cursor else 0
    try:
        if not feed._reads() and not epoch:
            return _Beginning(None, first)
        opened = corpus.open(epoch + corpus.epochs if epoch and corpus.epochs else corpus.epochs)
        if cursor:
            first = opened.resume(cursor)
        elif epoch:
            first = epoch * opened.sequences
        return _Beginning(opened, first)
    except Error as error:
        # Whether all ranks see it or one, they agree on nothing yet: told in the stream, every rank raises it.
        return _Beginning(_levada.unopened(type(error).__name__, str(error)), first)


def _iterable_beginning(feed: Feed, cursor: bytes) -> _Beginning:
    first, position, state = _levada.read_cursor(cursor, allow_pickle=feed.allow_pickle) if cursor else (0, 0, None)
    if not feed._reads():
        return _Beginning(None, first)
    name = type(feed.source).__name__
    samples = feed.mesh.axis_size("dp") if feed.divide == "split" else 1
    handoff = Handoff(samples, position, f"a batch of {name}")
    try:
        if feed.source is None:
            raise TypeError("this rank reads for the feed, but its source is None")
        assert not isinstance(feed.source, Corpus)
        if state is not None:
            loader: Any = feed.source
            loader.load_state_dict(state)
        iterator = iter(feed.source)
    except Exception:
        handoff.fail(traceback.format_exc())
        return _Beginning(handoff, first)
    pump = threading.Thread(
        target=_pump, args=(iterator, feed.source, handoff, feed.allow_pickle), name="levada reader", daemon=True
    )
    pump.start()
    return _Beginning(handoff, first, pump)


def _pump(iterator: Iterator[Any], source: object, handoff: Handoff, allow_pickle: bool) -> None:
    """Makes a batch whenever the feed wants one, on a thread that the feed can leave behind."""
    while items := handoff.wanted():
        done = 0
        try:
            for done in range(items):
                batch = next(iterator)
            state = source.state_dict() if hasattr(source, "state_dict") else None
            handoff.give(batch, state, allow_pickle=allow_pickle)
            del batch, state
        except StopIteration:
            return handoff.end(done)
        except BaseException:
            return handoff.fail(traceback.format_exc())


class _FeedPass:
    """The iterator of one pass; leaves the feed when it goes, as at a `break`."""

    def __init__(self, feed: Feed) -> None:
        job = join(feed.group)
        self._begin = feed._begin()
        try:
            self.core = self._start(job, feed)
        except BaseException:
            self._begin.stop()
            raise
        close_at_exit(self)

    def _start(self, job: Membership, feed: Feed) -> Pass:
        return _levada.start(
            job,
            feed.mesh,
            feed.layout,
            self._begin.source,
            batch=feed.batch,
            divide=feed.divide,
            tail=feed.tail,
            first_sample=self._begin.first_sample,
            steps=feed.steps,
            readers=feed.readers,
            depth=feed.depth,
            timeout=feed.timeout,
            access=feed.access or "",
            allow_pickle=feed.allow_pickle,
        )

    def __iter__(self) -> _FeedPass:
        return self

    def __next__(self) -> Any:
        return next(self.core)

    def __del__(self) -> None:
        if hasattr(self, "core"):
            try:
                self.close()
            except Error:
                return  # the job has ended otherwise, which the next call says

    def close(self) -> None:
        try:
            self.core.close()
        finally:
            self._begin.stop()
