"""The Pipeline: an immutable graph of stages, which run() executes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from levada import _levada
from levada.base.checks import check_function, whole_number
from levada.base.errors import InvalidArgument, InvalidType
from levada.base.iterators import Ended
from levada.base.keywords import explain_unknown
from levada.corpus.corpus import Corpus
from levada.pipeline.lengths import length_of
from levada.pipeline.lines import ByteRanges, Lines, Paths
from levada.pipeline.options import Options
from levada.pipeline.run import Run
from levada.pipeline.sources import NativeSource, check_source, describe
from levada.pipeline.steps import FieldLength, Stage, Step, Transformer, build, checked_arguments, steps_of

T = TypeVar("T")
U = TypeVar("U")


class Pipeline(Generic[T]):
    """A source of items and the stages that they pass through. Immutable: each method returns a new pipeline.

        pipeline = (
            levada.Pipeline(lines)          # any iterable, or a function that returns one; a levada.Corpus
            .shuffle(10_000)
            .dispatch()                     # the stages before this run once, in a separate process
            .map(parse)                     # the stages after it run in each worker
            .batch(32)
        )
        for batch in pipeline.run(workers=2):
            ...

    `for item in pipeline` runs all stages in this process.

    Each epoch iterates the source again. An epoch over a generator that an earlier epoch has read to its end raises
    InvalidArgument. If the source has state_dict() and load_state_dict(), these save and restore its position, as plain
    values; otherwise, a resumed run reads the earlier items again and drops them. An indexable source resumes
    immediately, and a shard() directly after it divides it without reading other items. Indexable are a list, a range,
    a numpy array, a data set of Hugging Face, and a map-style data set: one of torch, or any class with __getitem__ and
    __len__ but without __iter__.

    Every stage takes a `name`, which failures, show() and stats() use. map, filter and flat_map also take `on_error`:
    "skip" leaves out an item for which the function raises, and counts it; "raise" raises. It defaults to the on_error
    of run().
    """

    def __init__(self, source: Iterable[T] | Callable[[], Iterable[T]] | Corpus, *, name: str | None = None) -> None:
        if not isinstance(source, Corpus):
            check_source(source)
        self._set(Stage("source", name, (), {"source": source, "ended": Ended()}))

    def _set(self, stage: Stage) -> None:
        self._stage = stage
        if stage.operation != "fork":
            self._graph = build(steps_of(stage))

    @classmethod
    def _of(cls, stage: Stage) -> Pipeline[Any]:
        made: Pipeline[Any] = cls.__new__(cls)
        made._set(stage)
        return made

    @classmethod
    def from_iterable(
        cls, source: Iterable[T] | Callable[[], Iterable[T]], *, name: str | None = None
    ) -> Pipeline[T]:
        """Returns Pipeline(source)."""
        return cls(source, name=name)

    @classmethod
    def from_lines(cls, paths: Paths, *, range_bytes: int = 4 << 20, name: str | None = None) -> Pipeline[str]:
        """Returns a pipeline that yields the lines of text files, such as a .jsonl, unchanged. Reads the files in
        ranges of `range_bytes`. A shard() directly after this divides the ranges, so that each copy reads only its
        own."""
        ranges: Pipeline[Any] = cls(ByteRanges(paths, range_bytes))  # type: ignore[arg-type]
        return ranges._then("flat_map", name, function=Lines, on_error="raise")

    def _then(self, operation: str, name: str | None = None, **arguments: Any) -> Pipeline[Any]:
        return Pipeline._of(Stage(operation, name, (self._stage,), checked_arguments(operation, arguments)))

    def _inputs(self, operation: str, others: tuple[Pipeline[Any], ...]) -> tuple[Stage, ...]:
        """Returns the stages of this pipeline and of the others."""
        for each in others:
            if not isinstance(each, Pipeline):
                raise InvalidArgument(f"{operation}() takes pipelines, got {each!r}; make one by levada.Pipeline(source)")
        return (self._stage, *(each._stage for each in others))

    def map(
        self,
        function: Callable[[T], U],
        *,
        threads: int = 0,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Pipeline[U]:
        """Calls `function` on each item and yields the results.

        With `threads`, that many threads of each process call it in parallel, which helps functions that wait or
        release the GIL. Each process keeps the order of its items. Across workers, the order is that of a single
        process if all stages in the workers make one item from each item. Otherwise this requires run(ordered=True),
        and the consumer calls `function`."""
        return self._then("map", name, function=function, on_error=on_error, threads=threads)

    def filter(
        self, predicate: Callable[[T], Any], *, name: str | None = None, on_error: str | None = None
    ) -> Pipeline[T]:
        """Keeps the items for which `predicate` returns a true value."""
        return self._then("filter", name, predicate=predicate, on_error=on_error)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, name: str | None = None, on_error: str | None = None
    ) -> Pipeline[U]:
        """Calls `function` on each item and yields the items of the iterable that it returns."""
        return self._then("flat_map", name, function=function, on_error=on_error)

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        collate: Callable[[list[T]], Any] | None = None,
        name: str | None = None,
    ) -> Pipeline[Any]:
        """Groups items into lists of `size`. The last list (in workers, each worker's last) has the remaining items;
        `drop_last` discards it. `collate`, such as torch's default_collate, is called on each list."""
        return self._then("batch", name, size=size, drop_last=drop_last)._collated("batch", collate)

    def bucket_batch(
        self,
        length: Callable[[T], int] | str,
        *,
        boundaries: Iterable[int] = (),
        size: int | None = None,
        max_tokens: int | None = None,
        drop_last: bool = False,
        collate: Callable[[list[T]], Any] | None = None,
        name: str | None = None,
    ) -> Pipeline[Any]:
        """Groups items of similar length into lists, which need little padding.

        - `length`: a function that returns the length of an item, or the field of a dict whose len() is the length.
        - `boundaries`: increasing lengths at which a new bucket begins: [512, 1024] makes buckets of lengths up to 511,
          512 to 1023, and 1024 or more.
        - `size`, `max_tokens`: emit a bucket when it has `size` items, and before its longest length times its number
          of items would exceed `max_tokens`. An item counts as at least one token. At least one of the two is required.
        - `drop_last`: discards the items left in buckets at the end. Otherwise they are emitted, shortest bucket first.
        - `collate`: makes a batch from each list, such as levada.collate_padded.

        Raises InvalidArgument, naming the item, for an item longer than `max_tokens`."""
        measure = FieldLength(length) if isinstance(length, str) else length
        if not isinstance(boundaries, Iterable):
            raise InvalidType(f"boundaries of bucket_batch() must be lengths, such as [128, 512], got {boundaries!r}")
        arguments = {
            "length": measure,
            "boundaries": [whole_number("a boundary of bucket_batch()", each) for each in boundaries],
            "size": size,
            "max_tokens": max_tokens,
            "drop_last": drop_last,
        }
        return self._then("bucket_batch", name, **arguments)._collated("bucket_batch", collate)

    def _collated(self, operation: str, collate: Any) -> Pipeline[Any]:
        if collate is None:
            return self
        check_function(f"collate of {operation}()", collate)
        return self.map(collate)

    def unbatch(self, *, name: str | None = None) -> Pipeline[Any]:
        """Yields the elements of each item."""
        return self._then("unbatch", name)

    def pack(
        self,
        sequence: int = 4096,
        *,
        method: str = "cut",
        buffer: int = 1000,
        pad_to: int = 1,
        partial: str = "pad",
        too_long: str = "cut",
        max_documents: int | None = None,
        tokens: str = "tokens",
        dtype: str = "int64",
        name: str | None = None,
    ) -> Pipeline[dict[str, Any]]:
        """Packs documents into rows with the fields of a Corpus's packed samples.

        A document is a one-dimensional array or tensor of token ids, or a dict that has one in the field `tokens`. The
        other fields of such a dict have one element for each token and are packed with the tokens.

        - `sequence`: number of positions per row, S. A position has a token, and the next token as its label.
        - `method`: "cut" concatenates documents and cuts them: row i has tokens i * S to i * S + S of all, the last one
          only as a label. "best-fit" keeps documents whole and separate: a document of L tokens takes L - 1 positions,
          and a document of fewer than two tokens takes none.
        - `buffer`: number of documents that "best-fit" chooses from. Each time it packs them, by best fit decreasing,
          it emits the fuller half of the rows and keeps the other documents, at most eight times.
        - `pad_to`: "best-fit" pads each document to a multiple of this, "cut" the content of the last row. Must divide
          S.
        - `partial`: whether "cut" pads the tokens at the end that do not fill a row ("pad") or discards them ("drop").
        - `too_long`: whether "best-fit" cuts rows off a document of more than S positions and packs the rest ("cut"),
          or raises ("error").
        - `max_documents`: maximum number of documents that "best-fit" puts into a row. None means one per 32 positions,
          but at least 64.

        A row is a dict of torch tensors if the documents are torch tensors, and otherwise of numpy arrays. M is
        `max_documents`, and 1 for "cut".

        - `tokens`, `labels`, `position_ids`: `dtype`, "int64" or "int32", [S]. Position ids count from 0 in each
          segment.
        - `loss_mask`: float32 [S], 1 if there is a label and 0 in padding.
        - `cu_seqlens`: int32 [M + 2], the starts of segments; the last entries are S. A segment is a document (for
          "cut", the entire content of the row) or the padding at the end.
        - `max_seqlen`: int32 [], the length of the longest segment.
        - the other fields of the documents: [S], 0 in padding. `labels` (integers, -100 for no loss) and `loss_mask`
          (numbers) belong to the token at the same position, so a row has them at the position whose label is that
          token. If documents have `labels`, the labels of padding are -100, and `loss_mask` is 0 for negative labels.

        A state names the pending documents but does not contain them; a resumed run reads them again. Raises
        InvalidArgument, naming the stage, the item and the field, for token ids that are not integers or are negative,
        for documents of more than one dimension, and for fields whose lengths, dtypes or names differ from the earlier
        ones."""
        arguments = {
            "sequence": sequence,
            "method": method,
            "buffer": buffer,
            "pad_to": pad_to,
            "partial": partial,
            "too_long": too_long,
            "max_documents": max_documents,
            "tokens": tokens,
            "dtype": dtype,
        }
        return self._then("pack", name, **arguments)

    def shuffle(self, buffer: int = 1000, *, seed: int | None = None, name: str | None = None) -> Pipeline[T]:
        """Yields the items in random order, different in each epoch, through a buffer of `buffer` items."""
        return self._then("shuffle", name, buffer=buffer, seed=seed)

    def shard(self, *, name: str | None = None) -> Pipeline[T]:
        """Keeps this copy's items: every n-th for n copies. Directly after an indexable source, reads only this copy's
        items. Directly after from_lines(), each copy reads its own byte ranges and keeps all lines in them."""
        stage = self._stage
        if stage.operation == "flat_map" and stage.arguments["function"] is Lines:
            shard = Stage("shard", name, stage.inputs, {})
            return Pipeline._of(Stage(stage.operation, stage.name, (shard,), stage.arguments))
        return self._then("shard", name)

    def take(self, count: int, *, name: str | None = None) -> Pipeline[T]:
        """Yields the first `count` items. In workers, these are the first items of each worker; for the first items
        overall, place it before dispatch(), or pass ordered=True to run()."""
        return self._then("take", name, count=count)

    def skip(self, count: int, *, name: str | None = None) -> Pipeline[T]:
        """Yields all but the first `count` items; in workers, all but the first of each worker, as take() does."""
        return self._then("skip", name, count=count)

    def repeat(self, times: int | None = None, *, name: str | None = None) -> Pipeline[T]:
        """Repeats the items `times` times, by default endlessly, and reshuffles them each time."""
        return self._then("repeat", name, times=times)

    def cache(self, folder: str | os.PathLike[str], *, key: str = "", name: str | None = None) -> Pipeline[T]:
        """Writes the items to a file in `folder` during the first complete pass. Later passes, also in later runs, read
        them from that file, and the stages before cache() do not run again.

        All epochs have the items of the first one, in its order, so place shuffle() after cache(). A function before it
        that draws random numbers is not called again. Each part of a shard() has its own file. Items are containers of
        plain values, arrays, tensors, and objects of classes registered with levada.register(). Nothing is pickled, and
        a modified file cannot run code. A file is complete or absent: a pass that does not reach its end leaves none.

        The file records `key`, the stages that made it with their parameters, and the content of sources whose content
        is known: the options and digest of a Corpus, the files of from_lines(), the file of a numpy.memmap, and the
        length of a list, tuple, range or array. If any of these differ, the run raises InvalidArgument. If files change
        while a run has its processes, its next epoch raises SourceError. Changed functions and other changed data are
        not detected, so include something that identifies them in `key`, such as a version."""
        return self._then("cache", name, folder=os.fspath(folder), key=key)

    def zip(self, *others: Pipeline[Any], name: str | None = None) -> Pipeline[tuple[Any, ...]]:
        """Yields tuples of one item from each pipeline. Ends with the shortest pipeline."""
        return Pipeline._of(Stage("zip", name, self._inputs("zip", others), {}))

    def concat(self, *others: Pipeline[T], name: str | None = None) -> Pipeline[T]:
        """Yields all items of this pipeline, then all items of each other pipeline."""
        return Pipeline._of(Stage("concat", name, self._inputs("concat", others), {}))

    def interleave(
        self,
        *others: Pipeline[T],
        weights: Iterable[float] | None = None,
        stop: str = "first",
        seed: int | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        """Yields one item at a time from one of the pipelines, chosen at random by `weights`, in a different order each
        epoch. Without weights, takes turns. A pipeline that must not end can repeat().

        stop: "first" ends when a pipeline ends; "last" ends when all have ended, and until then chooses among the
        others. With "cycle", a pipeline that ends restarts, with the seeds of a further epoch, until each has ended
        once. Every item is then yielded at least once, and the weights hold to the end."""
        inputs = self._inputs("interleave", others)
        if stop == "cycle":
            inputs = tuple(Pipeline._of(each).repeat()._stage for each in inputs)
        try:
            shares = [] if weights is None else [float(each) for each in weights]
        except (TypeError, ValueError):
            raise InvalidType(f"weights of interleave() must be one number for each pipeline, got {weights!r}") from None
        arguments = {"weights": shares, "stop": stop, "seed": seed}
        return Pipeline._of(Stage("interleave", name, inputs, checked_arguments("interleave", arguments)))

    def fork(self, branches: int = 2, *, buffer: int = 1000, name: str | None = None) -> list[Pipeline[T]]:
        """Returns `branches` pipelines with the same items, to be joined again later. One branch may be up to `buffer`
        items ahead of another."""
        arguments = checked_arguments("fork", {"branches": branches, "buffer": buffer})
        forked = Stage("fork", name, (self._stage,), arguments)
        return [Pipeline._of(Stage("branch", None, (forked,), {"index": at})) for at in range(arguments["branches"])]

    def prefetch(self, depth: int = 10, *, name: str | None = None) -> Pipeline[T]:
        """Makes up to `depth` items ahead, on a separate thread."""
        return self._then("prefetch", name, depth=depth)

    def dispatch(self, *, name: str | None = None) -> Pipeline[T]:
        """Runs the stages before this once, in one process that deals its items to the workers in turn, for stages that
        must not be copied. Does nothing without workers."""
        return self._then("dispatch", name)

    def fullsync(self, *, name: str | None = None) -> Pipeline[T]:
        """Makes all ranks stop when the shortest one ends, and fail when the first one fails. All ranks must call run()
        for such pipelines in the same order; they may begin to iterate them in any order, on different threads."""
        return self._then("fullsync", name)

    def transform(
        self, function: Callable[..., Iterable[U]], *others: Pipeline[Any], name: str | None = None
    ) -> Pipeline[U]:
        """Calls `function` with an iterator over the items and an iterator over the items of each other pipeline.
        Yields the items of the iterable that it returns. A generator function can express what no other stage does.
        Only the thread that calls it may request items of the iterators; another thread gets Unsupported."""
        check_function("function of transform()", function)
        inputs = self._inputs("transform", others)
        arguments = {"open": Transformer(function), "what": describe(function)}
        return Pipeline._of(Stage("transform", name, inputs, arguments))

    def __iter__(self) -> Iterator[T]:
        return iter(self.run())

    def __len__(self) -> int:
        """Returns the number of items in one process without workers. Raises TypeError if it is not known in
        advance."""
        return length_of(steps_of(self._stage), self._graph)

    def __reduce__(self) -> Any:
        return _of_steps, (steps_of(self._stage),)

    @explain_unknown("levada.Pipeline.run")
    def run(
        self,
        workers: int = 0,
        *,
        context: str = "spawn",
        worker_prefetch: int = 10,
        main_prefetch: int = 10,
        prefetch_bytes: int = 64 << 20,
        snapshot_every: int = 0,
        seed: int | None = None,
        ordered: bool = False,
        on_error: str = "raise",
        worker_init: Callable[[int], Any] | None = None,
        threads: int = 1,
        timeout: float = 1800.0,
        start_timeout: float = 1800.0,
        group: Any = None,
        alone: bool = False,
        record: bool = False,
        allow_pickle: bool = False,
        on_worker_death: str = "raise",
    ) -> Run[T]:
        """Returns a Run of the pipeline. Each `for` over it is an epoch.

        - `workers`: number of worker processes. 0 runs all stages in this process.
        - `context`: multiprocessing's start method: "spawn", "forkserver", or "fork", if this process has no threads of
          Levada. The arguments of stages are pickled; cloudpickle pickles lambdas and local functions.
        - `worker_prefetch`, `main_prefetch`: maximum number of items that wait for each worker, and from each worker
          for this process. Many small items that are made quickly count as one.
        - `prefetch_bytes`: limits each of these queues in bytes.
        - `snapshot_every`: number of items after which a process saves its position for state_dict(); a resumed run may
          make that many items again. 0 saves as often as 1% of the time allows. A state is exact at any item either
          way.
        - `seed`: seeds all random draws. By default it is drawn, and is the same on all ranks of `group`.
        - `ordered`: keeps the order of a single process for all stages. Stages that make one item from each item always
          keep it.
        - `on_error`: "raise" or "skip", for stages without their own on_error when their function raises.
        - `worker_init`: called in each worker with its index, once the worker has started.
        - `threads`: number of threads of torch and OpenMP in each process. 0 leaves it unchanged.
        - `timeout`, `start_timeout`: seconds to wait for an item, and for the processes to start.
        - `group`: the ranks among which shard() divides items and which fullsync() keeps together: a process group of
          torch.distributed, or the Membership that join() returns. Iterating is then collective, otherwise local. In a
          job of several ranks, a pipeline with shard() or fullsync() raises InvalidArgument without either `group` or
          alone=True.
        - `alone`: lets this rank read everything, independently of other ranks.
        - `record`: records the activity of each process over time, for write_trace().
        - `allow_pickle`: lets state_dict() pickle values that are not plain in the states of sources, and
          load_state_dict() unpickle them. Unpickling runs any code that a state names.
        - `on_worker_death`: how to react when a process of the pipeline is killed or exits. "raise" raises PeerLost.
          "replace" warns, restarts all of the pipeline's processes and resumes after the last item taken, in the same
          order; no item is lost or repeated, but functions are called again for items in flight. The third death after
          the same item raises PeerLost. Not available with fullsync().
        """
        options = Options(
            workers=workers,
            context=context,
            worker_prefetch=worker_prefetch,
            main_prefetch=main_prefetch,
            prefetch_bytes=prefetch_bytes,
            snapshot_every=snapshot_every,
            seed=seed,
            ordered=ordered,
            on_error=on_error,
            worker_init=worker_init,
            threads=threads,
            timeout=timeout,
            start_timeout=start_timeout,
            group=group,
            alone=alone,
            record=record,
            allow_pickle=allow_pickle,
            on_worker_death=on_worker_death,
        )
        return Run(self._stage, options)

    def show(self, format: str = "text", *, workers: int = 2, ordered: bool = False) -> str:
        """Returns the stages, and the process that runs each of them, as "text", "json" or "mermaid"."""
        return _levada.show_graph(self._graph, format, workers, ordered, None)

    def __repr__(self) -> str:
        return f"<levada.Pipeline {' > '.join(step.name for step in steps_of(self._stage))}>"


def native(dispatch: NativeSource | None, work: NativeSource) -> Pipeline[Any]:
    """Returns a pipeline of native sources: `dispatch`, if there is one, runs in the dispatching process, and `work` in
    each worker, on the items that are dispatched to it."""
    if dispatch is None:
        source = Stage("source", "workers", (), {"source": work})
        return Pipeline._of(Stage("shard", None, (source,), {}))
    source = Stage("source", "dispatching", (), {"source": dispatch})
    dispatched = Stage("dispatch", None, (source,), {})
    return Pipeline._of(Stage("transform", "workers", (dispatched,), {"open": work, "what": type(work).__name__}))


def _of_steps(steps: list[Step]) -> Pipeline[Any]:
    made: list[Stage] = []
    for step in steps:
        made.append(Stage(step.operation, step.name, tuple(made[at] for at in step.inputs), step.arguments))
    return Pipeline._of(made[-1])
