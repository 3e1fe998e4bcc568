"""Moves batches to devices."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from levada._levada import Membership
from levada.base.errors import InvalidArgument, InvalidType, Unsupported
from levada.base.exception_texts import text_of
from levada.batch.classes import find_registration, is_named_tuple
from levada.batch.host_memory import RegisteredMemory, driver_of

_ALIGNMENT = 512  # of a copied tensor, in bytes


def accelerator() -> Any:
    """Returns the process's current accelerator as a torch.device. Returns None if torch has none, or was built for an
    accelerator that is absent."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if hasattr(torch, "accelerator"):
        return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


Arrive = Callable[[], Any]
"""Returns a batch that is being moved. Work that is then submitted to the current stream finds it on the device."""


class Sender:
    """Moves the batches of a feed's passes, one pass after another."""

    reads_shared = False
    """Whether tensors may be views of memory that must not be written, because no other code sees them."""

    def __init__(self, move: Callable[[Any], Any]) -> None:
        self._move = move

    def send(self, batch: Any) -> Arrive:
        """Starts moving a batch. The caller may drop the batch once send() has returned."""
        return _there(self._move(batch))

    def begin(self, job: Membership) -> Callable[[], None]:
        """Begins a pass over the batches of a job. Returns a function that ends the pass and waits for its copies. It
        must be called before this rank leaves the job, and may be called twice."""
        return lambda: None


def sender(device: Any, *, own_stream: bool = False, buffers: int | None = None) -> Sender | None:
    """Returns a Sender that moves a feed's batches to `device`, or None if there is nothing to do.

    `own_stream`: copies on a separate stream and thread. `buffers`: copies into this many sets of tensors in turn. A
    device without an index means the device that is current when the first batch is moved. Raises Unsupported without
    torch, and InvalidArgument for a device that torch does not know."""
    if device is None:
        return None
    target = _target(device)
    if target.type == "cpu":
        return None
    if target.type == "meta":
        return Sender(lambda batch: to_device(batch, target))
    torch: Any = sys.modules["torch"]
    if not hasattr(torch, "accelerator"):
        raise Unsupported(f"device is {device}, which requires PyTorch 2.6 or later; this is {torch.__version__}")
    return _DeviceCopies(target, own_stream=own_stream, buffers=buffers)


def mover(device: Any) -> Callable[[Any], Any] | None:
    """Returns a function that moves a batch to `device` immediately, as sender() does on the current stream, or None if
    there is nothing to do."""
    made = sender(device)
    return None if made is None else lambda batch: made.send(batch)()


def _torch(wanted: str) -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise Unsupported(f"{wanted}, but torch, whose tensors would be moved, is not installed") from None


def _target(device: Any) -> Any:
    """Returns the torch.device that `device` names."""
    torch = _torch(f"device is {device}")
    try:
        return torch.device(device)
    except TypeError:
        raise InvalidType(f'device must be a name such as "cuda" or "cuda:1", or a torch.device, got {device!r}') from None
    except RuntimeError as error:
        raise InvalidArgument(
            f'device is {device!r}, which torch refuses ({text_of(error)}); it must be a name such as "cuda" or "cuda:1"'
        ) from None


def _there(batch: Any) -> Arrive:
    return lambda: batch


def to_device(batch: Any, device: Any) -> Any:
    """Returns the batch with its torch tensors on `device`, in new containers of the same classes. Moves a tensor that
    occurs twice only once. Does not change the original batch."""
    return _map_tensors(batch, lambda tensor: _as(tensor, _detached(tensor).to(device=device)))


def _detached(tensor: Any) -> Any:
    return tensor.detach() if tensor.requires_grad else tensor


def _as(like: Any, tensor: Any) -> Any:
    """Returns the tensor as a parameter if `like` is one, or requiring gradients if `like` requires them."""
    torch: Any = sys.modules["torch"]
    if type(like) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, like.requires_grad)
    return tensor.requires_grad_() if like.requires_grad else tensor


class _DeviceCopies(Sender):
    """Copies batches to a device, directly from the memory that ranks share if the device's driver can register it,
    otherwise through pinned memory. By default the current stream copies. With its own stream, a thread starts the
    copies: the caller spends no time on them, and the device copies while it computes."""

    reads_shared = True

    def __init__(self, device: Any, *, own_stream: bool, buffers: int | None) -> None:
        self._device = device
        self._own_stream = own_stream
        self._stream: Any = None  # the same for all passes: memory freed on a stream is only reused on that stream
        self._stages: list[_Stage] = []  # one is filled while the device copies from the other
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "levada device copies") if own_stream else None
        self._buffers = None if buffers is None else _DeviceBuffers(buffers)
        self._registered: RegisteredMemory | None = None  # registered for the current pass

    def begin(self, job: Membership) -> Callable[[], None]:
        driver = driver_of(self._device.type)
        self._registered = None if driver is None else RegisteredMemory(job, driver)
        return functools.partial(self._end, self._registered)

    def _end(self, registered: RegisteredMemory | None) -> None:
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # during interpreter exit; the thread has completed its work
                self._thread.submit(self._wait).result()
        self._wait()
        if registered is not None:
            registered.close()
        if self._registered is registered:
            self._registered = None

    def _wait(self) -> None:
        for stage in self._stages:
            stage.wait()

    def send(self, batch: Any) -> Arrive:
        if not self._stages:
            self._start()
        buffer = None if self._buffers is None else self._buffers.next(_current_stream(self._device))
        if self._thread is not None:
            return functools.partial(self._arrive, self._thread.submit(self._copy, batch, buffer))
        for stage in self._stages:
            stage.release()
        return _there(self._copy(batch, buffer)[0])

    def _start(self) -> None:
        torch: Any = sys.modules["torch"]
        if not torch.accelerator.is_available():
            raise Unsupported(
                f'device is {self._device}, and torch {torch.__version__} finds no accelerator on this machine; pass device="cpu"'
            )
        self._device = _with_index(self._device)
        self._stream = torch.Stream(self._device) if self._own_stream else None
        self._stages = [_Stage(self._device), _Stage(self._device)]

    def _copy(self, batch: Any, buffer: _Buffer | None) -> tuple[Any, list[Any], _Stage]:
        """Returns the batch on the device, its tensors, and the stage whose event marks the end of the copies."""
        stage = self._stages[0]
        self._stages.reverse()
        tensors: list[Any] = []

        def move(tensor: Any) -> Any:
            own = _detached(tensor)
            held = stage.hold(own) if own.is_cpu else own
            there = held.to(self._device, non_blocking=True) if buffer is None else buffer.fill(held, self._device)
            tensors.append(_as(tensor, there))
            return tensors[-1]

        with contextlib.nullcontext() if self._stream is None else _current(self._stream):
            stage.begin([tensor for tensor in _tensors_of(batch) if tensor.is_cpu], self._registered, self._wait)
            if buffer is not None:
                buffer.begin(batch, _current_stream(self._device))
            moved = _map_tensors(batch, move)
            stage.sent()
        if self._thread is not None:
            stage.wait()  # the sender can reuse the batch's memory as soon as the device has read it
        return moved, tensors, stage

    def _arrive(self, copied: concurrent.futures.Future[tuple[Any, list[Any], _Stage]]) -> Any:
        batch, tensors, stage = copied.result()
        current = _current_stream(self._device)
        current.wait_event(stage.copied)
        for tensor in tensors:
            tensor.record_stream(current)  # the stream may still read it after the caller has dropped it
        return batch


class _DeviceBuffers:
    """Sets of device tensors that batches reuse in turn, because programs that captured a CUDA graph replay it on the
    tensors' addresses."""

    def __init__(self, count: int) -> None:
        self._buffers = [_Buffer(count) for _ in range(count)]
        self._taken = 0

    def next(self, stream: Any) -> _Buffer:
        """Returns the buffer of the next batch. Called on the caller's thread before each batch is copied, when
        `stream`, the caller's current stream, already contains all work on earlier batches."""
        buffer = self._buffers[self._taken % len(self._buffers)]
        buffer.release(stream, self._taken)
        self._taken += 1
        return buffer


class _Buffer:
    def __init__(self, count: int) -> None:
        self._count = count
        self._batch = -1  # index of the batch in the buffer
        self._tensors: list[Any] = []
        self._references: list[int] = []  # number of references to each tensor's memory while no batch is in it
        self._filled = 0
        self._released: Any = None  # event on the stream that worked on the batch

    def release(self, stream: Any, batch: int) -> None:
        """Takes the buffer back from its last batch. Raises InvalidArgument if a tensor of that batch is still
        referenced."""
        if any(map(int.__gt__, map(_references, self._tensors), self._references)):
            raise InvalidArgument(
                f"a tensor of batch {self._batch} is still referenced, and with device_buffers={self._count} batch {batch} "
                "would overwrite it: drop it, clone() it, or raise device_buffers"
            )
        if self._tensors:
            torch: Any = sys.modules["torch"]
            self._released = torch.Event(stream.device)
            self._released.record(stream)
        self._batch = batch

    def begin(self, batch: Any, stream: Any) -> None:
        """Makes `stream`, which fills the buffer, wait for the stream that worked on it."""
        tensors = _tensors_of(batch)
        if self._tensors and len(tensors) != len(self._tensors):
            raise InvalidArgument(
                f"batch {self._batch} has {len(tensors)} tensors, and device_buffers={self._count} made buffers for "
                f"{len(self._tensors)}: batches must all have the same fields"
            )
        if self._released is not None:
            stream.wait_event(self._released)
        self._filled = 0

    def fill(self, source: Any, device: Any) -> Any:
        """Copies the batch's next tensor into its place and returns the tensor in the buffer."""
        if self._filled == len(self._tensors):
            torch: Any = sys.modules["torch"]
            self._tensors.append(torch.empty_like(source, device=device))
            self._references.append(_references(self._tensors[-1]))
        place = self._tensors[self._filled]
        if (place.shape, place.dtype) != (source.shape, source.dtype):
            raise InvalidArgument(
                f"tensor {self._filled} of batch {self._batch} is {_described(source)} and its buffer {_described(place)}: "
                "with device_buffers all batches must have the same shapes; pad them, as collate_packed(row_length=, max_segments=) does"
            )
        self._filled += 1
        return place.copy_(source, non_blocking=True).detach()


def _references(tensor: Any) -> int:
    """Returns how many tensors refer to this tensor's memory, including views and those kept by an autograd graph."""
    torch: Any = sys.modules["torch"]
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _current_stream(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.accelerator.current_stream(device)


def _tensors_of(batch: Any) -> list[Any]:
    """Returns the tensors of a batch, each once."""
    tensors: list[Any] = []

    def add(tensor: Any) -> Any:
        tensors.append(tensor)
        return tensor

    _map_tensors(batch, add)
    return tensors


@contextlib.contextmanager
def _current(stream: Any) -> Iterator[None]:
    """Makes a stream the current one of its device. On exit, restores the stream and the current device."""
    torch: Any = sys.modules["torch"]
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)  # also makes its device the current one
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def _with_index(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return device if device.index is not None else torch.device(device.type, torch.accelerator.current_device_index())


class _Stage:
    """Host memory of one batch, from which the device copies: registered memory, and pinned memory, which is
    reallocated only for a larger batch."""

    def __init__(self, device: Any) -> None:
        torch: Any = sys.modules["torch"]
        self._device = device
        self.copied = torch.Event(device)  # recorded when the device no longer needs the memory
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._registered: RegisteredMemory | None = None
        self._held: list[Any] = []  # tensors in registered memory
        self._is_sent = False

    def begin(self, tensors: Sequence[Any], registered: RegisteredMemory | None, wait: Callable[[], object]) -> None:
        """Begins a batch with these tensors. `wait`: waits for the copies of all stages."""
        self.wait()
        if registered is not None:
            registered.add(tensors, wait)
        self._registered = registered
        size = sum(_aligned(tensor.nbytes) for tensor in tensors if not self._is_registered(tensor))
        if size > self._memory.numel():
            self._memory = self._memory.new_empty(size, pin_memory=True)
        self._used = 0

    def sent(self) -> None:
        """Records that all copies from this stage have been submitted to the device's current stream. The process's
        current device may be another one."""
        self.copied.record(_current_stream(self._device))
        self._is_sent = True

    def wait(self) -> None:
        if self._is_sent:
            self.copied.synchronize()
        self._held.clear()

    def release(self) -> None:
        """Drops the tensors that the device has copied."""
        if self._held and self.copied.query():
            self._held.clear()

    def hold(self, tensor: Any) -> Any:
        """Returns the tensor in memory that the device copies from: the tensor itself, or a copy."""
        if self._is_registered(tensor):
            self._held.append(tensor)
            return tensor
        here = self._memory[self._used : self._used + tensor.nbytes].view(tensor.dtype)
        here = here.as_strided(tensor.shape, tensor.stride()) if is_dense(tensor) else here.view(tensor.shape)
        self._used += _aligned(tensor.nbytes)
        return here.copy_(tensor)

    def _is_registered(self, tensor: Any) -> bool:
        return self._registered is not None and tensor.is_contiguous() and self._registered.covers(tensor)


def is_dense(tensor: Any) -> bool:
    """Returns whether the tensor's elements fill their memory without gaps, in any order of dimensions."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    torch = sys.modules.get("torch")
    return batch if torch is None else _TensorMap(torch.Tensor, change)(batch)


class _TensorMap:
    """Applies a function to all tensors of a batch. A nested function would refer to itself, and so keep the tensors
    until garbage collection."""

    def __init__(self, cls: type, change: Callable[[Any], Any]) -> None:
        self._cls = cls
        self._change = change
        # By id. The entry holds the tensor, because the id of a destroyed tensor could be reused.
        self._changed: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, self._cls):
            return _map_children(value, self)
        if id(value) not in self._changed:
            self._changed[id(value)] = value, self._change(value)
        return self._changed[id(value)][1]


def _map_children(value: Any, function: Any) -> Any:
    cls: Any = type(value)
    if is_named_tuple(cls):
        return cls._make(map(function, value))
    if isinstance(value, (list, tuple)):
        return cls(map(function, value))
    registration = find_registration(cls)
    if registration is not None:
        parts = registration.flatten(value)
        return registration.unflatten(parts[1], [function(child) for child in parts[0]])
    if isinstance(value, MutableMapping):
        made: Any = copy.copy(value)
        for key, child in value.items():
            made[key] = function(child)
        return made
    if isinstance(value, Mapping):
        return cls({key: function(child) for key, child in value.items()})
    if cls is types.SimpleNamespace:
        return cls(**{name: function(child) for name, child in vars(value).items()})
    if dataclasses.is_dataclass(cls):
        made = copy.copy(value)
        for field in dataclasses.fields(cls):
            object.__setattr__(made, field.name, function(getattr(value, field.name)))
        return made
    return value
