"""Sums of tensors on accelerators: buckets on the device, reduced by the collectives of its own backend."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from levada import _levada
from levada.base.errors import EngineError, InvalidArgument, Unsupported
from levada.base.threads import OneCaller
from levada.job.groups import size_of
from levada.job.job import join

Callback = Callable[[Any], object]


@dataclasses.dataclass(eq=False)
class _Entry:
    """An input, from when it is enqueued until its callback has run."""

    shape: tuple[int, ...]
    begin: int
    callback: Callback | None
    result: Any = None


class _Bucket:
    """Inputs of one key side by side, a row for each rank; after the launch, their sums."""

    def __init__(self, key: _Key, elements: int) -> None:
        self.key = key
        self.rows = key.like.new_empty(key.size, elements)
        self.used = 0
        self.entries: list[_Entry] = []
        self.sums: Any = None
        self.work: Any = None
        self.error: Exception | None = None
        self.called = 0

    def add(self, pieces: Sequence[Any], shape: tuple[int, ...], callback: Callback | None) -> _Entry:
        entry = _Entry(shape, self.used, callback)
        count = pieces[0].numel()
        for row, piece in zip(self.rows, pieces, strict=True):
            row[self.used : self.used + count].view(piece.shape).copy_(piece)
        self.used += count
        self.entries.append(entry)
        return entry

    def is_open(self) -> bool:
        return self.sums is None and self.error is None

    def done(self) -> bool:
        return self.error is not None or (self.sums is not None and (self.work is None or bool(self.work.is_completed())))

    def settle(self) -> None:
        """Orders what the current stream does from now on behind the sums. Raises the reduction's exception."""
        if self.error is None and self.work is not None:
            try:
                self._wait()
            except BaseException as error:
                self.error = _lasting(error)
                raise
        if self.error is not None:
            raise self.error

    def _wait(self) -> None:
        self.work.wait()
        self.work = None
        for entry in self.entries:
            part = self.sums[entry.begin : entry.begin + math.prod(entry.shape)]
            # A small result must not hold the whole bucket.
            entry.result = (part.clone() if len(self.entries) > 1 else part).view(entry.shape)


class DeviceHandle:
    """A future result on a device."""

    def __init__(self, reduce: DeviceReduce, bucket: _Bucket, entry: _Entry) -> None:
        self._reduce, self._bucket, self._entry = reduce, bucket, entry

    def done(self) -> bool:
        """Returns whether it has been reduced."""
        return self._bucket.done()

    def wait(self) -> Any:
        """The result, for what the current stream does next. Where the input's bucket is still open it is closed, and with
        it those that were opened before: all ranks have to do so alike."""
        self._reduce.finish(self._bucket)
        return self.get()

    def get(self) -> Any:
        """The same for an input that has been launched. Raises InvalidArgument where its bucket is open."""
        if self._bucket.is_open():
            raise InvalidArgument("the input's bucket is still open; call flush() or wait()")
        self._bucket.settle()
        return self._entry.result


class _Key:
    """What inputs of one bucket have in common: ranks, device, dtype and operation."""

    def __init__(self, number: int, own: Any, host: Any, like: Any, op: str) -> None:
        self.number, self.own, self.like, self.op = number, own, like, op
        self.size = int(own.size())
        self.job = join(host)  # over which ranks agree on what they reduce


class DeviceReduce:
    """Buckets of tensors on devices. Sums go over a process group of their own, made of the user's ranks, of the device's
    backend (nccl for cuda): it orders them behind what the current stream has been given, and waiting orders the current
    stream behind them; nothing else waits. The order of summation, and the precision of halves, are the backend's.
    Nothing crosses the user's own group. Callbacks run when those of a Bucketer do, so at the same place on every rank.
    After any exception of a reduction but InvalidArgument, later calls raise the same one."""

    def __init__(self, capacity: int, in_flight: int, timeout: float) -> None:
        self._capacity, self._in_flight, self._timeout = capacity, in_flight, timeout
        self._bucketing = _levada.Bucketing(capacity)
        self._keys: dict[tuple[Any, ...], _Key] = {}
        self._by_number: list[_Key] = []
        self._own: dict[tuple[tuple[int, ...], str], Any] = {}
        self._open: dict[int, _Bucket] = {}
        self._launched: collections.deque[_Bucket] = collections.deque()
        self._due: collections.deque[_Bucket] = collections.deque()  # whose callbacks are to be run
        self._error: Exception | None = None  # the first of a callback, or that ranks disagree
        self._broken: Exception | None = None
        self._running = False
        self._caller = OneCaller("a call of this bucketer")  # those of callbacks nest

    def reduce_scatter(self, group: Any, inputs: Any, op: str, callback: Callback | None) -> DeviceHandle:
        """Enqueues inputs, as ReduceScatter does. An input that finds no memory has not been enqueued, so that ranks which try
        it again stay in step with the others."""
        torch = importlib.import_module("torch")
        whole = isinstance(inputs, torch.Tensor)
        tensors = [inputs.detach()] if whole else [each.detach() for each in inputs]
        size = size_of(group)
        pieces = _parts(torch, tensors[0], size) if whole else tensors
        _check_alike(pieces, size)
        with self._caller:
            self._raise_broken()
            key = self._key(torch, group, pieces[0], op)
            bytes_of_all = pieces[0].numel() * pieces[0].element_size() * size
            close, alone = self._bucketing.apply(key.number, bytes_of_all)
            if alone:
                bucket = _Bucket(key, pieces[0].numel())
                entry = bucket.add(pieces, tuple(pieces[0].shape), callback)
                self._reduce(bucket)
                self._settle(bucket)
                self._run_callbacks_of(bucket)
            else:
                try:
                    bucket, entry = self._add(key, pieces, callback, close)
                except BaseException:
                    self._bucketing.take_back(key.number, bytes_of_all)
                    raise
            self._run_due_callbacks()
        return DeviceHandle(self, bucket, entry)

    def _add(
        self, key: _Key, pieces: Sequence[Any], callback: Callback | None, close: int | None
    ) -> tuple[_Bucket, _Entry]:
        """Adds an input to its key's bucket, after launching the bucket that closes for it."""
        if close is not None:
            self._launch(close)
        bucket = self._open.get(key.number)
        if bucket is None:
            bucket = _Bucket(key, self._capacity // key.size // pieces[0].element_size())
        entry = bucket.add(pieces, tuple(pieces[0].shape), callback)
        self._open[key.number] = bucket  # an open bucket has inputs
        return bucket, entry

    def average(self, group: Any, tensor: Any) -> Any:
        """Returns a torch.futures.Future of a tensor's average over all ranks, in its own memory. Divides before the
        all-reduce, as torch's allreduce_hook() does, so that no sum overflows. All ranks of a group call this in the same
        order."""
        size = size_of(group)
        ranks = _ranks_of(group)
        own = self._own_group(ranks, tensor.device.type)
        return own.allreduce([tensor.div_(size)]).get_future().then(lambda sums: sums.value()[0])

    def finish(self, bucket: _Bucket) -> None:
        """Launches a bucket, and those that were opened before, and runs its group's callbacks up to its own."""
        with self._caller:
            if bucket.is_open():
                with self._breaking():  # also where an interrupt comes between two launches: all are closed
                    for number in self._bucketing.flush_through(bucket.key.number):
                        self._launch(number)
            while bucket in self._launched:
                self._retire(next(each for each in self._launched if each.key.own is bucket.key.own))
            self._run_due_callbacks()

    def flush(self) -> None:
        """Launches what is open and runs all callbacks. Raises the first exception of one."""
        with self._caller:
            self._raise_broken()
            while self._open or self._launched or (self._due and not self._running):
                with self._breaking():
                    for number in self._bucketing.flush():
                        self._launch(number)
                while self._launched:
                    self._retire(self._launched[0])
                self._run_due_callbacks()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def pending(self) -> int:
        """Returns the number of inputs whose callbacks have not run."""
        buckets = [*self._open.values(), *self._launched, *self._due]
        return sum(len(bucket.entries) - bucket.called for bucket in buckets)

    def _key(self, torch: Any, group: Any, like: Any, op: str) -> _Key:
        if op not in ("sum", "average"):
            raise InvalidArgument(f'op is "{op:.40}"; it must be one of sum, average')
        if like.dtype == torch.bool or (op == "average" and not like.is_floating_point()):
            raise Unsupported(f"there is no {op} of {str(like.dtype).removeprefix('torch.')}")
        ranks = _ranks_of(group)
        names = (ranks, like.dtype, like.device, op)
        if names not in self._keys:
            own, host = self._own_group(ranks, like.device.type), self._own_group(ranks, "cpu")
            self._keys[names] = _Key(len(self._by_number), own, host, like.new_empty(0), op)
            self._by_number.append(self._keys[names])
        return self._keys[names]

    def _own_group(self, ranks: tuple[int, ...], device: str) -> Any:
        """Returns a process group of these ranks for tensors on a device. The first call is collective over them."""
        distributed = importlib.import_module("torch.distributed")
        if (ranks, device) not in self._own:
            try:
                backend = distributed.get_default_backend_for_device(device)
            except ValueError:
                raise Unsupported(f"torch has no backend that reduces tensors on {device}") from None
            self._own[ranks, device] = distributed.new_group(
                list(ranks),
                backend=backend,
                timeout=datetime.timedelta(seconds=self._timeout),
                use_local_synchronization=True,
            )
        return self._own[ranks, device]

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """Around a step of a reduction. Where it raises, ranks may be out of step: no later reduction is tried, and inputs of
        open buckets have the same exception."""
        try:
            yield
        except BaseException as error:
            if self._broken is None:
                self._broken = _lasting(error)
            for bucket in self._open.values():
                bucket.error = self._broken
            for pending in (self._open, self._launched, self._due):
                pending.clear()
            raise

    def _launch(self, number: int) -> None:
        bucket = self._open[number]
        # Which callbacks become due follows from what has been enqueued, not from what has been reduced by now.
        of_group = [each for each in self._launched if each.key.own is bucket.key.own]
        for first in of_group[: max(len(of_group) - self._in_flight + 1, 0)]:
            self._retire(first)
        self._reduce(bucket)
        self._launched.append(self._open.pop(number))

    def _reduce(self, bucket: _Bucket) -> None:
        with self._breaking():
            self._begin(bucket)

    def _begin(self, bucket: _Bucket) -> None:
        distributed = importlib.import_module("torch.distributed")
        bucket.sums = bucket.rows.new_empty(bucket.used)
        given = bucket.rows[:, : bucket.used].reshape(-1)
        del bucket.rows
        try:
            _agree(bucket, self._timeout)
        except InvalidArgument as error:
            bucket.error = error
            return
        if bucket.key.op == "average":
            given.div_(bucket.key.size)  # before the sum, which would overflow in float16
        if bucket.used > 0:
            options = distributed.ReduceScatterOptions()
            bucket.work = bucket.key.own._reduce_scatter_base(bucket.sums, given, options)
        for entry in bucket.entries if bucket.used == 0 else ():
            entry.result = bucket.sums.view(entry.shape)

    def _retire(self, bucket: _Bucket) -> None:
        """Waits for a launched bucket, whose callbacks are due then."""
        self._settle(bucket)
        self._launched.remove(bucket)
        self._due.append(bucket)

    def _settle(self, bucket: _Bucket) -> None:
        with self._breaking(), contextlib.suppress(InvalidArgument):  # which flush() raises
            bucket.settle()

    def _run_callbacks_of(self, bucket: _Bucket) -> None:
        """Runs the callbacks of a settled bucket. What they call runs none of the others."""
        if bucket.error is not None:
            self._error = self._error or bucket.error
            bucket.called = len(bucket.entries)
        within_another, self._running = self._running, True
        try:
            while bucket.called < len(bucket.entries):
                entry = bucket.entries[bucket.called]
                bucket.called += 1
                self._run_callback(entry)
        finally:
            self._running = within_another

    def _run_callback(self, entry: _Entry) -> None:
        try:
            if entry.callback is not None:
                entry.callback(entry.result)
        except Exception as error:
            self._error = self._error or error

    def _run_due_callbacks(self) -> None:
        while self._due and not self._running:
            bucket = self._due.popleft()
            try:
                self._run_callbacks_of(bucket)
            except BaseException:  # an interrupt in one: those after it are still due
                if self._broken is None:
                    self._due.appendleft(bucket)
                raise


def _lasting(error: BaseException) -> Exception:
    """Returns what later calls raise after `error`: an interrupt or an exit is of one call."""
    if isinstance(error, Exception):
        return error
    return EngineError(f"{type(error).__name__} interrupted a reduction of tensors on a device; ranks are out of step")


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Returns the world ranks of a process group, by their ranks in it."""
    ranks = tuple(importlib.import_module("torch.distributed").get_process_group_ranks(group))
    if list(ranks) != sorted(ranks):
        raise Unsupported(f"tensors on a device are reduced over groups in ascending order of ranks, not {list(ranks)}")
    return ranks


def _parts(torch: Any, whole: Any, size: int) -> list[Any]:
    """Each rank's part along dim 0, ceil(extent / size) long; zeros stand for what is missing at the end."""
    if whole.dim() == 0:
        raise InvalidArgument("a tensor without dimensions cannot be divided among ranks; pass a list of one tensor for each rank")
    part = -(-whole.shape[0] // size)
    missing = part * size - whole.shape[0]
    padded = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole
    return [padded[rank * part : (rank + 1) * part] for rank in range(size)]


def _check_alike(pieces: Sequence[Any], size: int) -> None:
    if len(pieces) != size:
        raise InvalidArgument(
            f"a reduce-scatter takes one tensor for each of the {size} ranks of the group, got {len(pieces)}"
        )
    first = pieces[0]
    for at, piece in enumerate(pieces):
        if (piece.dtype, piece.shape, piece.device) != (first.dtype, first.shape, first.device):
            raise InvalidArgument(
                f"all ranks' tensors must have one shape, dtype and device; tensor {at} is {piece.dtype} "
                f"{list(piece.shape)} on {piece.device}, tensor 0 is {first.dtype} {list(first.shape)} on {first.device}"
            )


def _agree(bucket: _Bucket, timeout: float) -> None:
    """Raises InvalidArgument, naming ranks, position and shapes, unless all ranks mean the same. Collective."""
    key = bucket.key
    mine = [[str(key.like.dtype).removeprefix("torch."), key.op], *(list(entry.shape) for entry in bucket.entries)]
    sent = _levada.agree(key.job, json.dumps(mine).encode(), timeout, "reduce-scatter")
    first = json.loads(sent[0])
    for rank, theirs in enumerate(json.loads(each) for each in sent):
        for at in range(max(len(first), len(theirs))):
            here, there = (str(each[at]) if at < len(each) else "not there" for each in (first, theirs))
            if here != there:
                what = "the bucket" if at == 0 else f"input {at - 1}"
                raise InvalidArgument(f"ranks disagree: {what} is {here} on rank 0, {there} on rank {rank}")
