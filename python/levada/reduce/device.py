"""Sums of tensors on accelerators, in buckets on the device, which torch reduces through the device's backend."""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from levada import _levada
from levada._levada import Membership
from levada.base.errors import EngineError, InvalidArgument, Unsupported
from levada.base.threads import OneCaller
from levada.job.groups import size_of
from levada.job.job import join, rank

Callback = Callable[[Any], object]


class _Ordered:
    """Memory on a device that streams use one after another. On the CPU, there are no streams."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._stream = self._current_stream()

    def use(self) -> Any:
        """Returns the memory for the next work of the current stream."""
        current = self._current_stream()
        if current != self._stream:
            current.wait_stream(self._stream)
            self._memory.record_stream(current)
            self._stream = current
        return self._memory

    def _current_stream(self) -> Any:
        device = self._memory.device
        return None if device.type == "cpu" else _torch().get_device_module(device).current_stream(device)


class _Member:
    """This rank in a group. Counts the flushes that follow an input, and the inputs since the last of these."""

    def __init__(self, number: int, job: Membership) -> None:
        self.number = number
        self.job = job
        """The membership through which the ranks of the group compare what they reduce."""
        self.flushes = self.inputs = 0

    def count_flush(self) -> bool:
        """Counts a flush if there have been inputs since the last one that counted. Returns whether it counts."""
        if self.inputs == 0:
            return False
        self.flushes, self.inputs = self.flushes + 1, 0
        return True


class _Key(NamedTuple):
    """The properties that all inputs of one bucket share."""

    number: int
    group: Any
    """The process group that reduces the inputs."""
    member: _Member
    name: str
    """Name of the DeviceReduce."""
    like: Any
    """An empty tensor of the inputs' dtype, on their device."""
    op: str


class _Described(NamedTuple):
    """Values that must be the same on all ranks of a group, except `rank`."""

    rank: int
    """Rank in the job."""
    bucket: str
    inputs: list[str]
    places: str
    """Positions of the inputs among all inputs of the group."""


class _Bucket:
    """Inputs of one key that are reduced together."""

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.inputs: list[_Ordered] = []
        self.results: list[_Ordered] = []
        self.flushes, self.places = key.member.flushes, list[int]()
        self.callbacks: list[Callback] = []
        self.is_open = True
        self.is_last = False
        """Whether no input of the group follows before the next flush."""
        self.error: Exception | None = None
        self._work: Any = None

    def add(self, pieces: Sequence[Any], callback: Callback | None) -> int:
        """Copies an input and returns its index in the bucket."""
        copy = _torch().cat([piece.reshape(-1) for piece in pieces])
        result = _Ordered(copy.new_empty(pieces[0].shape))
        self.inputs.append(_Ordered(copy))
        self.results.append(result)
        self.places.append(self.key.member.inputs)
        self.key.member.inputs += 1
        self.callbacks.append(callback or _ignore)
        return len(self.results) - 1

    def launch(self, timeout: float) -> None:
        """Starts the reduction, ordered after the current stream's work. Collective."""
        self.is_open = False
        results = [each.use() for each in self.results]
        try:
            _agree(self.key.member.job, self._described(results), timeout)
        except InvalidArgument as error:
            self.error = error
            return
        inputs = [each.use() for each in self.inputs]
        if self.key.op == "average":
            for each in inputs:
                each.div_(self.key.member.job.size)  # before the sum, which could overflow in float16
        reduced = [(result.view(-1), each) for result, each in zip(results, inputs, strict=True) if each.numel() > 0]
        if reduced:
            options = importlib.import_module("torch.distributed").ReduceScatterOptions()
            self._work = self.key.group.reduce_scatter_tensor_coalesced(*map(list, zip(*reduced)), options)

    def _described(self, results: Sequence[Any]) -> _Described:
        key = self.key
        bucket = f"of {key.name}, {key.op} of {_name(key.like.dtype)}"
        places = f"at inputs {self.places} after {self.flushes} flushes" + (", then at a flush" if self.is_last else "")
        return _Described(rank(), bucket, [str(list(each.shape)) for each in results], places)

    def done(self) -> bool:
        return self.error is not None or not (self.is_open or (self._work and not self._work.is_completed()))

    def settle(self) -> None:
        """Orders later work of the current stream after the sums. Raises the reduction's exception."""
        if self.error is not None:
            raise self.error
        if not self.inputs:
            return
        try:
            if self._work is not None:
                self._work.wait()
        except BaseException as error:
            self.error = _lasting(error)
            raise
        for each in [*self.inputs, *self.results]:
            each.use()  # so that the memory of inputs is freed only after this stream has reached this point
        self.inputs, self._work = [], None


class DeviceHandle:
    """A future result on a device."""

    def __init__(self, reduce: DeviceReduce, bucket: _Bucket, number: int) -> None:
        self._reduce, self._bucket, self._number = reduce, bucket, number

    def done(self) -> bool:
        """Returns whether the reduction has completed."""
        return self._bucket.done()

    def wait(self) -> Any:
        """Returns the result, for later work of the current stream. If the input's bucket is still open, first launches
        it and all buckets of its group that were opened earlier; all ranks of the group must then do the same."""
        self._reduce.finish(self._bucket)
        return self.get()

    def get(self) -> Any:
        """Returns the result of an input that has been launched. Raises InvalidArgument if its bucket is still open."""
        if self._bucket.is_open and self._bucket.error is None:
            raise InvalidArgument("the input's bucket is still open; call flush() or wait()")
        self._bucket.settle()
        return self._bucket.results[self._number].use()


class DeviceReduce:
    """Buckets of tensors on devices. Torch reduces them over the user's process group through its backend for the
    device (nccl for cuda), ordered after the current stream's work. Waiting orders the current stream after the
    reductions. The order of summation, and the precision of half-precision sums, are the backend's. Callbacks run at
    the same points as those of a Bucketer, and so at the same point on every rank. After any exception of a reduction
    except InvalidArgument, later calls raise the same exception."""

    def __init__(self, capacity: int, in_flight: int, timeout: float, name: str = "a reduce-scatter") -> None:
        self._in_flight, self._timeout, self._name = in_flight, timeout, name
        self._bucketing = _levada.Bucketing(capacity)
        self._keys: dict[tuple[Any, ...], _Key] = {}
        self._members: dict[Membership, _Member] = {}
        self._open: dict[int, _Bucket] = {}
        self._launched: collections.deque[_Bucket] = collections.deque()
        self._due: collections.deque[tuple[Callback, Any]] = collections.deque()  # due callbacks with their results
        self._error: Exception | None = None  # first exception of a callback, or a disagreement of ranks
        self._broken: Exception | None = None
        self._running = False
        self._caller = OneCaller("a call of this bucketer")  # calls within callbacks nest

    def reduce_scatter(self, group: Any, inputs: Any, op: str, callback: Callback | None) -> DeviceHandle:
        """Enqueues inputs, as ReduceScatter does. If memory for an input cannot be allocated, the input has not been
        enqueued, so a rank that retries it stays in step with the others."""
        pieces = _pieces(inputs, size_of(group))
        with self._caller:
            self._raise_broken()
            key = self._key(group, pieces[0], op)
            bytes_of_all = pieces[0].numel() * pieces[0].element_size() * key.member.job.size
            close, alone = self._bucketing.apply(key.member.number, key.number, bytes_of_all)
            if alone:
                bucket = _Bucket(key)
                number = bucket.add(pieces, callback)
                with self._breaking():
                    bucket.launch(self._timeout)
                self._settle(bucket)
                for call, result in self._calls(bucket):
                    self._call(call, result)
            else:
                try:
                    bucket, number = self._add(key, pieces, callback, close)
                except BaseException:
                    self._bucketing.undo(key.number, bytes_of_all)
                    raise
            self._run_due()
        return DeviceHandle(self, bucket, number)

    def _add(
        self, key: _Key, pieces: Sequence[Any], callback: Callback | None, close: int | None
    ) -> tuple[_Bucket, int]:
        """Adds an input to its key's bucket, after launching the bucket that it closes."""
        if close is not None:
            self._launch(close)
        bucket = self._open.get(key.number) or _Bucket(key)
        number = bucket.add(pieces, callback)
        self._open[key.number] = bucket  # only now, because an open bucket has inputs
        return bucket, number

    def finish(self, bucket: _Bucket) -> None:
        """Launches a bucket and all earlier buckets of its group. Runs the group's callbacks up to its own."""
        with self._caller:
            if bucket.is_open and bucket.error is None:
                self._launch_all(self._bucketing.flush_through, bucket.key.number)
            while bucket in self._launched:
                self._retire(next(each for each in self._launched if each.key.member is bucket.key.member))
            self._run_due()

    def flush(self) -> None:
        """Launches all open buckets and runs all callbacks. Raises the first exception of a callback."""
        with self._caller:
            self._raise_broken()
            while self._open or self._launched or (self._due and not self._running) or self._have_inputs():
                self._say_flush()
                self._launch_all(self._bucketing.flush)
                while self._launched:
                    self._retire(self._launched[0])
                self._run_due()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def pending(self) -> int:
        """Returns the number of inputs whose callbacks have not run."""
        return sum(len(bucket.results) for bucket in [*self._open.values(), *self._launched]) + len(self._due)

    def _key(self, group: Any, like: Any, op: str) -> _Key:
        if op not in ("sum", "average"):
            raise InvalidArgument(f'op is "{op:.40}"; it must be one of sum, average')
        if like.dtype == _torch().bool or (op == "average" and not like.is_floating_point()):
            raise Unsupported(f"{op} does not support {_name(like.dtype)}")
        names = (_ranks_of(group), like.dtype, like.device, op)
        if names not in self._keys:
            try:
                group._get_backend(like.device)
            except RuntimeError:
                raise Unsupported(f"this process group has no backend for tensors on {like.device}") from None
            job = join(group)
            member = self._members.setdefault(job, _Member(len(self._members), job))
            self._keys[names] = _Key(len(self._keys), group, member, self._name, like.new_empty(0), op)
        return self._keys[names]

    def _have_inputs(self) -> bool:
        return any(member.inputs for member in self._members.values())

    def _say_flush(self) -> None:
        """Makes the ranks of each group verify that they flush after the same inputs. For a group with open buckets,
        the last of these includes the check."""
        last = {bucket.key.member: bucket for bucket in self._open.values()}  # in the order in which they were opened
        for bucket in last.values():
            bucket.is_last = True
        for member in self._members.values():
            if member.count_flush() and member not in last:
                with self._breaking():
                    try:
                        here = _Described(rank(), f"of {self._name}", [], f"at a flush after {member.flushes} others")
                        _agree(member.job, here, self._timeout)
                    except InvalidArgument as error:
                        self._error = self._error or error

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """Guards a step of a reduction. If the step raises, ranks may be out of step, so no later reduction is tried,
        and the inputs of open buckets get the same exception."""
        try:
            yield
        except BaseException as error:
            self._broken = self._broken or _lasting(error)
            for bucket in self._open.values():
                bucket.error = self._broken
            for pending in (self._open, self._launched, self._due):
                pending.clear()
            raise

    def _launch_all(self, flush: Callable[..., list[int]], *through: int) -> None:
        with self._breaking():  # closes all buckets even if an interrupt arrives between two launches
            for number in flush(*through):
                self._launch(number)

    def _launch(self, number: int) -> None:
        bucket = self._open[number]
        # Only the enqueued inputs decide which callbacks become due, not which reductions have completed by now.
        of_group = [each for each in self._launched if each.key.member is bucket.key.member]
        for first in of_group[: max(len(of_group) - self._in_flight + 1, 0)]:
            self._retire(first)
        with self._breaking():
            bucket.launch(self._timeout)
        self._launched.append(self._open.pop(number))

    def _retire(self, bucket: _Bucket) -> None:
        """Waits for a launched bucket, whose callbacks then become due."""
        self._settle(bucket)
        self._launched.remove(bucket)
        self._due.extend(self._calls(bucket))

    def _settle(self, bucket: _Bucket) -> None:
        with self._breaking(), contextlib.suppress(InvalidArgument):  # flush() raises it
            bucket.settle()

    def _calls(self, bucket: _Bucket) -> list[tuple[Callback, Any]]:
        """Returns the callbacks of a settled bucket with their results; none if ranks disagree."""
        if bucket.error is not None:
            self._error = self._error or bucket.error
            return []
        return [(call, result.use()) for call, result in zip(bucket.callbacks, bucket.results, strict=True)]

    def _call(self, callback: Callback, result: Any) -> None:
        """Runs a callback. Calls that it makes run no other due callback."""
        within_another, self._running = self._running, True
        try:
            callback(result)
        except Exception as error:
            self._error = self._error or error
        finally:
            self._running = within_another

    def _run_due(self) -> None:
        while self._due and not self._running:
            self._call(*self._due.popleft())


def _torch() -> Any:
    return importlib.import_module("torch")


def _ignore(_: Any) -> None:
    """The callback of an input that has none."""


def _lasting(error: BaseException) -> Exception:
    """Returns the exception that later calls raise after `error`. An interrupt or an exit ends only one call."""
    if isinstance(error, Exception):
        return error
    return EngineError(f"{type(error).__name__} interrupted a reduction of tensors on a device; ranks are out of step")


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Returns the world ranks of a process group, in the order of their ranks in it."""
    ranks = tuple(importlib.import_module("torch.distributed").get_process_group_ranks(group))
    if list(ranks) != sorted(ranks):
        raise Unsupported(f"tensors on a device are reduced over groups in ascending order of ranks, not {list(ranks)}")
    return ranks


def _pieces(inputs: Any, size: int) -> list[Any]:
    """Returns one tensor for each rank, all of the same shape, dtype and device. Divides a single tensor along dim 0
    into parts of ceil(extent / size), padded with zeros at the end."""
    if isinstance(inputs, _torch().Tensor):
        whole = inputs.detach()
        if whole.dim() == 0:
            raise InvalidArgument(
                "a tensor without dimensions cannot be divided among ranks; pass a list of one tensor for each rank"
            )
        part = -(-whole.shape[0] // size)
        if missing := part * size - whole.shape[0]:
            whole = _torch().cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
        return [whole[rank * part : (rank + 1) * part] for rank in range(size)]
    pieces = [each.detach() for each in inputs]
    if len(pieces) != size:
        raise InvalidArgument(
            f"a reduce-scatter takes one tensor for each of the {size} ranks of the group, got {len(pieces)}"
        )
    kinds = [f"{each.dtype} {list(each.shape)} on {each.device}" for each in pieces]
    for at, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InvalidArgument(
                f"all ranks' tensors must have one shape, dtype and device; tensor {at} is {kind}, tensor 0 is {kinds[0]}"
            )
    return pieces


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _agree(job: Membership, mine: _Described, timeout: float) -> None:
    """Raises InvalidArgument, naming ranks, position and shapes, unless all ranks describe the same. Collective."""
    said = _levada.agree(job, json.dumps(mine).encode(), timeout, "reduce-scatter")
    first, *others = (_Described(*json.loads(each)) for each in said)
    here = _rank_text(0, first.rank)
    for number, theirs in enumerate(others, 1):
        there = _rank_text(number, theirs.rank)
        if first.bucket != theirs.bucket:
            raise InvalidArgument(f"ranks disagree: the bucket is {first.bucket} on {here}, {theirs.bucket} on {there}")
        for at, (one, other) in enumerate(itertools.zip_longest(first.inputs, theirs.inputs, fillvalue="not there")):
            if one != other:
                raise InvalidArgument(f"ranks disagree: input {at} is {one} on {here}, {other} on {there}")
        if first.places != theirs.places:
            raise InvalidArgument(
                f"ranks disagree: {here} is {first.places}, {there} {theirs.places}; enqueue the same inputs between two "
                "flushes on all ranks, zeros for one that a rank lacks"
            )


def _rank_text(number: int, of_job: int) -> str:
    return f"rank {number}" if number == of_job else f"rank {number} of the group (rank {of_job} of the job)"
