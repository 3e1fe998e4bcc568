"""Pipelines: a graph of stages as a value, and where it is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from levada import _levada
from levada.corpus.corpus import Corpus
from levada.pipeline.lines import ByteRanges, Lines, Paths
from levada.pipeline.options import Options
from levada.pipeline.run import Run
from levada.pipeline.sources import NativeSource, check_source, describe
from levada.pipeline.steps import FieldLength, Stage, Step, Transformer, build, length_of_stage, steps_of

T = TypeVar("T")
U = TypeVar("U")


class Pipeline(Generic[T]):
    """Items one after the other, and what is done to them: a value. Each method gives a new pipeline; this one stays as
    it is.

        pipeline = (
            levada.Pipeline(lines)          # any iterable, or a function that makes one; a levada.Corpus
            .shuffle(10_000)
            .dispatch()                     # what stands before this runs once, in a process of its own
            .map(parse)                     # what stands after it, in each worker
            .batch(32)
        )
        for batch in pipeline.run(workers=2):
            ...

    `for item in pipeline` runs all of it in this process.

    A source is iterated anew in each epoch. Where it has state_dict() and load_state_dict() these say where it stands, in
    plain values; otherwise going on passes over what was given before. What has items by number (a list, a range, a map-style data set)
    is divided by a shard() right behind it without being read, and goes on at once.

    Every stage may be given a name, by which failures, show() and stats() call it. on_error="skip" leaves out an item
    whose function raises, and counts it; "raise" raises; without either run() decides.
    """

    def __init__(self, source: Iterable[T] | Callable[[], Iterable[T]] | Corpus, *, name: str | None = None) -> None:
        if not isinstance(source, Corpus):
            check_source(source)
        self._set(Stage("source", name, (), {"source": source}))

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
        """The same as Pipeline(source)."""
        return cls(source, name=name)

    @classmethod
    def from_lines(cls, paths: Paths, *, range_bytes: int = 4 << 20, name: str | None = None) -> Pipeline[str]:
        """The lines of text files, such as a .jsonl, as they stand there. The files are read by ranges of so many bytes:
        a shard() right behind divides those, and nobody reads another's."""
        ranges: Pipeline[Any] = cls(ByteRanges(paths, range_bytes))  # type: ignore[arg-type]
        return ranges._then("flat_map", name, function=Lines, on_error="raise")

    def _then(self, operation: str, name: str | None = None, **arguments: Any) -> Pipeline[Any]:
        return Pipeline._of(Stage(operation, name, (self._stage,), arguments))

    def map(
        self,
        function: Callable[[T], U],
        *,
        threads: int = 0,
        name: str | None = None,
        on_error: str | None = None,
    ) -> Pipeline[U]:
        """What `function` gives for each item. With `threads` so many call it side by side, in the same process: for
        functions that wait, or that release the GIL. Each process keeps the order of its items; the order among workers is
        that of one process only with run(ordered=True), which has the consumer call `function`."""
        return self._then("map", name, function=function, on_error=on_error, threads=threads)

    def filter(
        self, predicate: Callable[[T], Any], *, name: str | None = None, on_error: str | None = None
    ) -> Pipeline[T]:
        """Items for which `predicate` gives something true."""
        return self._then("filter", name, predicate=predicate, on_error=on_error)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, name: str | None = None, on_error: str | None = None
    ) -> Pipeline[U]:
        """The items of what `function` gives for each item."""
        return self._then("flat_map", name, function=function, on_error=on_error)

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        collate: Callable[[list[T]], Any] | None = None,
        name: str | None = None,
    ) -> Pipeline[Any]:
        """Lists of `size` items, the last one of what is left unless `drop_last`; with `collate`, what that makes of
        each, such as torch's default_collate."""
        batches = self._then("batch", name, size=size, drop_last=drop_last)
        return batches if collate is None else batches.map(collate)

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
        """Lists of items of like length, which take little padding.

        - `length`: of an item, a function, or the field of a dict whose len() it is.
        - `boundaries`: growing lengths at which the next bucket begins: [512, 1024] makes buckets of up to 511, of 512 to
          1023, and of 1024 and more.
        - `size`, `max_tokens`: a bucket's items are given once they are `size`, and before the longest of them times their
          number would be more than `max_tokens`. One of the two is needed.
        - `drop_last`: leave out what buckets hold at the end. Else they are given then, shortest bucket first.
        - `collate`: what makes a batch of such a list, such as levada.collate_padded.

        Raises InvalidArgument, naming the item, for an item longer than `max_tokens`."""
        measure = FieldLength(length) if isinstance(length, str) else length
        arguments = {
            "length": measure,
            "boundaries": list(boundaries),
            "size": size,
            "max_tokens": max_tokens,
            "drop_last": drop_last,
        }
        batches = self._then("bucket_batch", name, **arguments)
        return batches if collate is None else batches.map(collate)

    def unbatch(self, *, name: str | None = None) -> Pipeline[Any]:
        """The elements of each item."""
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
        """Packs documents into rows, with the fields of a Corpus's packed samples.

        A document is a one-dimensional array or tensor of token ids, or a dict with one in the field `tokens`. The
        other fields of a dict have one element for each token and are packed with them.

        - `sequence`: positions of a row, S. A position has a token, and the next token as its label.
        - `method`: "cut" lays documents end to end and cuts: row i is tokens i * S to i * S + S of all, the last
          only a label. "best-fit" keeps documents whole and apart: a document of L tokens takes L - 1 positions, and
          one of fewer than two tokens none.
        - `buffer`: how many documents "best-fit" chooses from. Each time it packs them, best fit decreasing, it gives
          the fuller half of the rows and keeps the other documents, at most eight times.
        - `pad_to`: "best-fit" pads each document to a multiple of it, "cut" what is in the last row. Divides S.
        - `partial`: whether "cut" pads the tokens at the end that do not fill a row ("pad") or leaves them out
          ("drop").
        - `too_long`: whether "best-fit" cuts rows off a document of more than S positions and packs the rest ("cut")
          or raises ("error").
        - `max_documents`: the most documents that "best-fit" puts into a row; None: one for 32 positions, at least 64.

        A row is a dict of torch tensors if the documents are torch tensors, and otherwise of numpy arrays. M is
        `max_documents`, and 1 for "cut".

        - `tokens`, `labels`, `position_ids`: `dtype`, "int64" or "int32", [S]. Position ids count from 0 in each segment.
        - `loss_mask`: float32 [S], 1 where there is a label and 0 in padding.
        - `cu_seqlens`: int32 [M + 2], where segments begin; the last entries are S. A segment is a document (for
          "cut" all that the row holds) or the padding at the end.
        - `max_seqlen`: int32 [], the longest segment.
        - the other fields of the documents: [S], 0 in padding. `labels` (integers, -100 where there is no loss) and
          `loss_mask` (numbers) belong to the token at the same place, so a row has them where that token is the label.
          If documents have `labels`, the labels of padding are -100, and `loss_mask` is 0 where a label is negative.

        A state names the documents that are held and does not hold them: a resumed run reads them again. Raises
        InvalidArgument, naming the stage, the item and the field, for token ids that are no integers or negative, for
        more than one dimension, and for fields of other lengths or dtypes or with other names than before."""
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
        """In an order drawn at random, another one each epoch, through a buffer of so many items."""
        return self._then("shuffle", name, buffer=buffer, seed=seed)

    def shard(self, *, name: str | None = None) -> Pipeline[T]:
        """Of all items this copy's part: every n-th. Right behind a source that has items by number nothing else is
        read; right behind from_lines() it divides what is read, and what lies in it is this copy's."""
        stage = self._stage
        if stage.operation == "flat_map" and stage.arguments["function"] is Lines:
            shard = Stage("shard", name, stage.inputs, {})
            return Pipeline._of(Stage(stage.operation, stage.name, (shard,), stage.arguments))
        return self._then("shard", name)

    def take(self, count: int, *, name: str | None = None) -> Pipeline[T]:
        """The first `count` items."""
        return self._then("take", name, count=count)

    def skip(self, count: int, *, name: str | None = None) -> Pipeline[T]:
        """All but the first `count` items."""
        return self._then("skip", name, count=count)

    def repeat(self, times: int | None = None, *, name: str | None = None) -> Pipeline[T]:
        """The same over again, shuffled anew each time; without `times` endlessly."""
        return self._then("repeat", name, times=times)

    def cache(self, folder: str | os.PathLike[str], *, key: str = "", name: str | None = None) -> Pipeline[T]:
        """Keeps the items in a file of `folder` when they have all been taken once; from then on, also in later runs,
        they come from there, and nothing before this runs.

        All epochs have the items of that first one in its order: put shuffle() after this. A function before it that
        draws at random is not called again. Each part that shard() makes has its own file. Items are containers of
        plain values, arrays, tensors and objects of classes that levada.register() knows; nothing is pickled. A file is
        whole or not there: a pass that does not come to its end leaves none.

        The file says which stages made it, and `key`: with others the run raises InvalidArgument. It does not notice
        changed functions and changed data, so put what stands for them into `key`, such as a version."""
        return self._then("cache", name, folder=os.fspath(folder), key=key)

    def zip(self, *others: Pipeline[Any], name: str | None = None) -> Pipeline[tuple[Any, ...]]:
        """Tuples of an item of each; ends with the shortest."""
        return Pipeline._of(Stage("zip", name, (self._stage, *(each._stage for each in others)), {}))

    def concat(self, *others: Pipeline[T], name: str | None = None) -> Pipeline[T]:
        """All items of this, then those of each other one."""
        return Pipeline._of(Stage("concat", name, (self._stage, *(each._stage for each in others)), {}))

    def interleave(
        self,
        *others: Pipeline[T],
        weights: Iterable[float] | None = None,
        stop: str = "first",
        seed: int | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        """One item at a time of this or another one, drawn at random by `weights`, another order each epoch; without
        weights of all in turn. Ends when the first of them ends, or with stop="last" when all have: then those that have
        ended are left out of the draw. One that shall not end may repeat()."""
        inputs = (self._stage, *(each._stage for each in others))
        arguments = {"weights": [float(each) for each in weights or ()], "stop": stop, "seed": seed}
        return Pipeline._of(Stage("interleave", name, inputs, arguments))

    def fork(self, branches: int = 2, *, buffer: int = 1000, name: str | None = None) -> list[Pipeline[T]]:
        """The same items so many times, to be brought together again. A branch may be ahead of another by `buffer`
        items."""
        forked = Stage("fork", name, (self._stage,), {"branches": branches, "buffer": buffer})
        return [Pipeline._of(Stage("branch", None, (forked,), {"index": at})) for at in range(branches)]

    def prefetch(self, depth: int = 10, *, name: str | None = None) -> Pipeline[T]:
        """Made ahead, on a thread."""
        return self._then("prefetch", name, depth=depth)

    def dispatch(self, *, name: str | None = None) -> Pipeline[T]:
        """What stands before this must not be copied: it runs in one process, which deals its items to the workers in
        turn. Nothing where there are no workers."""
        return self._then("dispatch", name)

    def fullsync(self, *, name: str | None = None) -> Pipeline[T]:
        """All ranks stop at the end of the shortest, and fail with the first that fails."""
        return self._then("fullsync", name)

    def transform(
        self, function: Callable[..., Iterable[U]], *others: Pipeline[Any], name: str | None = None
    ) -> Pipeline[U]:
        """What `function` makes of an iterator over the items, and of one over those of each other pipeline: a
        generator function for what no other stage does."""
        inputs = (self._stage, *(each._stage for each in others))
        arguments = {"open": Transformer(function), "what": describe(function)}
        return Pipeline._of(Stage("transform", name, inputs, arguments))

    def __iter__(self) -> Iterator[T]:
        return iter(self.run())

    def __len__(self) -> int:
        """Of one process alone. Raises TypeError where that is not known before."""
        return length_of_stage(self._stage)

    def __reduce__(self) -> Any:
        return _of_steps, (steps_of(self._stage),)

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
        """The pipeline at work; each `for` over what this gives is an epoch.

        - `workers`: processes; 0: all stages run in this one.
        - `context`: how they start, as multiprocessing's: "spawn", "forkserver", or "fork" while this process has no
          threads of Levada's. What stages hold crosses by pickle, lambdas and local functions by cloudpickle.
        - `worker_prefetch`, `main_prefetch`: how many items may wait for a worker, and of each worker for this process.
          Small items that are quickly made count many as one.
        - `prefetch_bytes`: bounds either in bytes.
        - `snapshot_every`: items after which a process saves where it stands, for state_dict(); a run that goes on may
          make so many again. 0: as often as takes 1% of the time. A state is exact at any item either way.
        - `seed`: of all that is drawn at random; drawn itself where none is given, the same on all ranks of `group`.
        - `ordered`: the order of a single process, whatever the stages. What works on one item and gives one keeps it
          anyway.
        - `on_error`: what a stage that says nothing of it does when its function raises: "raise" or "skip".
        - `worker_init`: called in each worker with its number when it has started.
        - `threads`: of torch and OpenMP in each process; 0 leaves them alone.
        - `timeout`, `start_timeout`: seconds for an item, and for the processes to start.
        - `group`: the ranks among which shard() divides and which fullsync() holds together: a process group of
          torch.distributed, or what join() returns. Iterating is then collective. Without a group nothing is; in a job
          of several ranks a pipeline with shard() or fullsync() raises InvalidArgument unless `alone`, which says that
          this rank reads all by itself.
        - `record`: keep what each process does when, for write_trace().
        - `allow_pickle`: whether state_dict() may hold pickles, of what sources' own state_dict() return that is no plain
          value, and load_state_dict() unpickle them. Unpickling runs whatever code a state names.
        - `on_worker_death`: what happens where a process of the pipeline is killed or exits: "raise" raises PeerLost;
          "replace" warns, starts all its processes again and goes on behind the item given last, in the same order, with
          no item lost or given twice. Functions are called again for items that were under way. The third time behind
          the same item it raises PeerLost. Not with fullsync().
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
        """The stages, and which process each runs in, as "text", "json" or "mermaid"."""
        return _levada.show_graph(self._graph, format, workers, ordered, None)

    def __repr__(self) -> str:
        return f"<levada.Pipeline {' > '.join(step.name for step in steps_of(self._stage))}>"


def native(dispatch: NativeSource | None, work: NativeSource) -> Pipeline[Any]:
    """Of what makes streams by itself: `dispatch` in the dispatching process, if there is one, and `work` in each worker,
    on the items that it is dealt."""
    if dispatch is None:
        source = Stage("source", "workers", (), {"source": work})
        return Pipeline._of(Stage("shard", None, (source,), {}))
    source = Stage("source", "dispatching", (), {"source": dispatch})
    dealt = Stage("dispatch", None, (source,), {})
    return Pipeline._of(Stage("transform", "workers", (dealt,), {"open": work, "what": type(work).__name__}))


def _of_steps(steps: list[Step]) -> Pipeline[Any]:
    made: list[Stage] = []
    for step in steps:
        made.append(Stage(step.operation, step.name, tuple(made[at] for at in step.inputs), step.arguments))
    return Pipeline._of(made[-1])
