"""The C++ core of levada; use the package levada."""

from collections.abc import Sequence
from typing import Any


def pack(batch: object, *, allow_pickle: bool = False) -> bytes:
    """
    A batch as one message of bytes: what crosses between ranks, for files and tests.
    """

def unpack(message: bytes, *, allow_pickle: bool = False) -> Any:
    """
    The batch that pack() made bytes of. Its numpy arrays are read-only views of one copy of the message. Raises CorruptMessage for other bytes, Unsupported where a class of the batch is not imported.
    """

def copied_bytes() -> int:
    """Bytes of payload that this process has copied so far."""

class Digests:
    """A running digest of each tensor field of the batches added."""

    def __init__(self) -> None: ...

    def add(self, batch: object) -> None:
        """Adds every tensor of a batch."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """
        The same with dtype and first shape of each field, as the report of `levada feed --json` has them.
        """

    def fields(self) -> dict[str, str]:
        """
        The digests by path, 32 hexadecimal digits each: those of `levada feed --json` for the same batches.
        """

class Mesh:
    """The ranks of a job as named axes, row-major: the last varies fastest."""

    def __init__(self, **axes: int) -> None:
        """
        Mesh(dp=2, tp=2) has four ranks; Mesh() has one. Raises InvalidArgument for a size below one.
        """

    @staticmethod
    def parse(text: str) -> Mesh:
        """The mesh of a text such as 'dp=2,tp=2'."""

    @staticmethod
    def from_env(**axes: int) -> Mesh:
        """
        The mesh of this process's job: dp, unless it is given, takes the ranks that the other axes leave. Raises InvalidArgument where the axes do not multiply to the job's size.
        """

    @staticmethod
    def from_device_mesh(device_mesh: object) -> Mesh:
        """
        The axes of a torch.distributed DeviceMesh; of one over some of the job's ranks, a mesh of their group. Raises InvalidArgument for one without mesh_dim_names, or whose ranks do not rise row after row.
        """

    @property
    def size(self) -> int:
        """Ranks in all."""

    @property
    def axes(self) -> list[tuple[str, int]]:
        """Names and sizes, in order."""

    def axis_size(self, name: str) -> int:
        """Ranks along an axis; 1 for one that the mesh has not."""

    def coordinate(self, rank: int, axis: str) -> int:
        """Position of a rank along an axis."""

    def group(self, rank: int, axes: Sequence[str]) -> list[int]:
        """The ranks that differ from `rank` at most along these axes, ascending."""

    def describe(self, rank: int) -> str:
        """A rank's coordinates for people: 'dp0 tp1'."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Layout:
    """For each field of a batch, its placements on a mesh."""

    @staticmethod
    def from_json(text: str) -> Layout:
        """
        The layout of a JSON text, as docs/data-loading.md tells. Raises InvalidArgument.
        """

    @staticmethod
    def gpt(*, attention_mask: bool = False) -> Layout:
        """The fields of a GPT step and the pipeline stages that need them."""

    def to_json(self) -> str:
        """The layout as from_json() takes it."""

    @property
    def name(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def reads(readers: str, mesh: Mesh, host_of: Sequence[int], rank: int) -> bool:
    """Whether a rank is a reader."""

class Membership:
    """This process's place in its job."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def engine(self) -> str:
        """"shm", "c10d" or "inproc"."""

    @property
    def host_of(self) -> list[int]:
        """Each rank's host, numbered from 0."""

    def empty(self, shape: Sequence[int], dtype: str, torch: bool) -> Any:
        """
        A tensor, content unset, in the memory of the batch that this thread is making.
        """

    def begin_batch(self, bytes: int) -> None:
        """
        Begins a batch whose tensors have so many bytes in all, each rounded up to 64.
        """

    def leave(self) -> None:
        """
        Leaves the job: the other ranks are not alarmed. What has been received stays.
        """

def join(engine: str, timeout: float) -> Membership:
    """Joins the job that the environment tells of."""

def meet(rank: int, size: int, meeting: str, timeout: float) -> Membership:
    """
    Joins the ranks of this host that give the same name for their meeting, over shared memory.
    """

def link(rank: int, socket: int, timeout: float) -> Membership:
    """A job of two processes that share a connected socket, which it closes."""

def die_with(process: int) -> None:
    """From now on this process is killed when that one ends."""

def place() -> tuple[int, int] | None:
    """Rank and size as the environment tells them; None outside a job."""

def agree(job: Membership, mine: bytes, timeout: float, what: str) -> list[bytes]:
    """
    What each rank says, in their order. Collective. `what` is being done, for who waits.
    """

def tell_failure(kind: str, message: str, lost: int) -> None:
    """
    Tells of a failure so that the user gets one sentence of all ranks' together; `lost`: a rank that is gone, or -1.
    """

def run_local(size: int, command: Sequence[str]) -> tuple[int, str]:
    """
    Starts `size` ranks with a command line and waits for them: exit status and what went wrong.
    """

def command(arguments: Sequence[str], self: Sequence[str]) -> int:
    """Runs the `levada` command and gives its exit status."""

class Source:
    """Where batches come from."""

class Handoff(Source):
    """Batches that one thread makes when a feed asks for them."""

    def __init__(self, samples: int, position: int, activity: str, counts_rows: bool) -> None: ...

    def wanted(self) -> int:
        """
        Blocks until an item is wanted: how many to go on; 0 when there is no more to do.
        """

    def prepare(self, batch: object, state: object | None, *, allow_pickle: bool = False) -> None:
        """
        The item for give(). Raises TypeError for what cannot cross. Its memory is used until the next wanted().
        """

    def give(self) -> None:
        """
        Gives what was prepared. Tensors of empty() that nobody else holds by now are sent as they lie.
        """

    def end(self, more: int) -> None:
        """There are but `more` items after those given."""

    def stop(self) -> None:
        """Nothing is wanted any more."""

    def fail(self, text: str) -> None:
        """The iterator raised."""

class CorpusSource(Source):
    """The documents of some files as numbered samples."""

    @property
    def sequences(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def documents(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def resume(self, cursor: bytes) -> int: ...

def open_corpus(paths: Sequence[str], *, sequence: int, shuffle_seed: int | None, epochs: int, packing: str, pad_to: int, text_field: str, skip_bad: bool, attention_mask: bool, cache: bool, cache_dir: str, io_threads: int) -> CorpusSource: ...

def unopened(kind: str, message: str) -> Source: ...

def read_cursor(cursor: bytes, *, allow_pickle: bool = False) -> tuple[int, int, Any]: ...

def corpus_position(cursor: bytes) -> int: ...

class Pass:
    """One pass of a feed."""

    def __iter__(self) -> Pass: ...

    def __next__(self) -> Any: ...

    def drop_next(self) -> bool:
        """Takes a batch and makes nothing of it; False after the last."""

    def close(self) -> None: ...

    def request_stop(self) -> None: ...

    @property
    def step(self) -> int: ...

    @property
    def cursor(self) -> bytes: ...

    @property
    def end(self) -> dict[str, Any] | None: ...

    @property
    def stats(self) -> dict[str, Any]: ...

def start(job: Membership, mesh: Mesh, layout: Layout, source: Source | None, *, batch: int = 1, divide: str = 'deal', tail: str = 'drop', first_sample: int = 0, steps: int | None = None, readers: str = 'one', depth: int = 0, timeout: float = 30.0, access: str = '', make: object | None = None, where: object | None = None, tensors: str = 'numpy', allow_pickle: bool = False) -> Pass:
    """Starts a pass. Collective."""

class Link:
    """
    What a wire hands over to: one thread receives, others may tell of losses.
    """

    def room_for_body(self, sender: int, head: Any) -> Any:
        """An array for the body that follows the head; None where none does."""

    def deliver(self, sender: int, head: Any) -> None:
        """A frame has come; its body lies where room_for_body() said."""

    def lost(self, peer: int, why: str) -> None:
        """A peer has ended without its last frame."""

    def is_out(self, peer: int) -> bool:
        """Whether a peer's last frame has come, or it is lost."""

    def all_are_out(self) -> bool:
        """Whether nothing is left to receive."""

MOST_HEAD: int = 65536

def join_over(wire: Any, name: str, rank: int, host_of: Sequence[int]) -> Membership:
    """
    Joins the ranks of a wire: an object with start(link) and send(peer, head, body, last).
    """

def conformance_cases() -> list[tuple[str, int, bool]]:
    """
    Of each case its name, the fewest ranks that it takes, and whether the engine is of no use afterwards.
    """

def conform(job: Membership, name: str) -> None:
    """Runs a case on this rank. Collective."""

class ReduceHandle:
    """A result to come."""

    def done(self) -> bool:
        """Whether it has been reduced, well or badly."""

    def wait(self) -> Any:
        """
        The result. Where the input's bucket is still open it is closed, and with it those that were opened before: all ranks have to do so alike. Raises what the reduction raised.
        """

    def get(self) -> Any:
        """
        The same on any thread, for an input that has been launched; runs no callback. Raises InvalidArgument where its bucket is open.
        """

class Bucketer:
    """Reduces tensors of groups of ranks in buckets."""

    def __init__(self, *, capacity_mb: float, in_flight: int, timeout: float) -> None: ...

    def reduce_scatter(self, job: Membership, inputs: object, op: str, callback: object | None) -> ReduceHandle: ...

    def all_reduce(self, job: Membership, input: object, op: str, callback: object | None) -> ReduceHandle: ...

    def all_gather(self, job: Membership, input: object, callback: object | None) -> ReduceHandle: ...

    def empty(self, job: Membership, shape: Sequence[int], dtype: str, torch: bool) -> Any: ...

    def flush(self) -> None: ...

    def teardown(self) -> None: ...

    @property
    def stats(self) -> dict[str, Any]: ...
