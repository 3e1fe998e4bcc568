"""The C++ core of levada; use the package levada."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, overload


def throw_no_thread(what: str) -> NoReturn:
    """Raises EngineError: the system refused a thread for `what`."""

class Metric:
    """The current value of one number of a run."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Names and values."""

    @property
    def value(self) -> float: ...

    @property
    def id(self) -> str:
        """The name with the labels."""

    def __repr__(self) -> str: ...

def to_prometheus(metrics: Sequence[Metric]) -> str:
    """Prometheus's text format, version 0.0.4."""

def pack(batch: object, *, allow_pickle: bool = False) -> bytes:
    """
    Returns a batch as the bytes of the message that crosses between ranks, for files and tests.
    """

def unpack(message: bytes, *, allow_pickle: bool = False) -> Any:
    """
    Returns the batch that pack() encoded. Its numpy arrays are read-only views of one copy of the message. Raises CorruptMessage for invalid bytes, and Unsupported for a class that is not imported or that bytes may not name.
    """

def copied_bytes() -> int:
    """Returns the bytes of payload that this process has copied so far."""

class Digests:
    """A running digest of each tensor field of the added batches."""

    def __init__(self) -> None: ...

    def add(self, batch: object, *, allow_pickle: bool = False) -> None:
        """
        Adds every tensor of a batch. Objects that cross as pickles add nothing.
        """

    def describe(self) -> dict[str, dict[str, Any]]:
        """
        Returns the digests with dtype and first shape of each field, as in the report of `levada feed --json`.
        """

    def fields(self) -> dict[str, str]:
        """
        Returns the digests by path, 32 hexadecimal digits each, as `levada feed --json` prints them for the same batches.
        """

def pack_field(field: str, values: list[Any], lengths: Sequence[int], begins: Sequence[int], size: int, convert: Callable[[Any], Any], make: Callable[[list[int], str], tuple[Any, Any]]) -> Any:
    """
    Returns one field of a packed row of `size` positions, with each value at its begin; None unless every value is a tensor, array or list of numbers as long as its sample. convert: converts a value of any other type to a tensor or an array, or returns None. make: returns the row, of a shape and dtype, and a tensor with the one element to pad with, or None for 0. Raises InvalidArgument, naming the field, if values differ in dtype or further dimensions; TypeError for elements that no tensor can hold.
    """

class Mesh:
    """The ranks of a job as named axes, row-major: the last varies fastest."""

    def __init__(self, *, data_axes: Sequence[str] | None = None, **axes: int) -> None:
        """
        Mesh(dp=2, tp=2) has four ranks; Mesh() has one. `data_axes`: the axes along which batches differ; by default those named dp, dp_replicate, dp_shard, fsdp, data or ddp. Raises InvalidArgument for a size below one and for a data axis that is not among the axes.
        """

    @staticmethod
    def parse(text: str, *, data_axes: Sequence[str] | None = None) -> Mesh:
        """Returns the mesh that a text such as 'dp=2,tp=2' describes."""

    @staticmethod
    def from_env(*, order: str | None = None, data_axes: Sequence[str] | None = None, **axes: int) -> Mesh:
        """
        Returns the mesh of this process's job of world_size() ranks. Unless a data axis is passed, dp gets the ranks that the other axes leave. `order` names the axes from the fastest to the slowest, whatever the order of the arguments: by default 'tp-sp-cp-ep-dp-pp', as in Megatron-LM. There, dp means all data axes that `order` does not name. Raises InvalidArgument if the axes do not multiply to the job's size, and if Megatron's process groups are initialized with other ranks.
        """

    @staticmethod
    def from_device_mesh(device_mesh: object, *, data_axes: Sequence[str] | None = None) -> Mesh:
        """
        Returns a mesh with the axes of a torch.distributed DeviceMesh. For a DeviceMesh over some of the job's ranks, it is a mesh of their group. Raises InvalidArgument without mesh_dim_names, and unless the ranks ascend in row-major order.
        """

    @property
    def size(self) -> int:
        """Total number of ranks."""

    @property
    def axes(self) -> list[tuple[str, int]]:
        """Names and sizes, in order."""

    @property
    def data_axes(self) -> list[str]:
        """The axes along which batches differ, in order."""

    @property
    def data_size(self) -> int:
        """Number of ranks along all data axes together."""

    def data_coordinate(self, rank: int) -> int:
        """
        Returns the position of a rank along all data axes together, row-major.
        """

    def axis_size(self, name: str) -> int:
        """
        Returns the number of ranks along an axis; 1 for an absent axis that shares data, such as tp, cp and pp. Raises InvalidArgument for any other absent axis.
        """

    @overload
    def coordinate(self, rank: int, axis: str) -> int:
        """Returns the position of a rank along an axis that axis_size() accepts."""

    @overload
    def coordinate(self, axis: str) -> int:
        """
        Returns the position of this process along an axis of a mesh of the whole job, of a DeviceMesh, or of some axes of either. Raises InvalidArgument for any other mesh, and on ranks outside the DeviceMesh.
        """

    @overload
    def group(self, rank: int, axes: Sequence[str]) -> list[int]:
        """
        Returns the ranks that differ from `rank` only along these axes, ascending. axis_size() must accept the axes.
        """

    @overload
    def group(self, axes: Sequence[str]) -> list[int]:
        """
        Returns the ranks of the mesh that differ from this process only along these axes, for the meshes that coordinate(axis) accepts.
        """

    def __getitem__(self, axes: str | tuple[str, ...], /) -> Mesh:
        """
        Returns the mesh of only these axes, in this mesh's order, whose ranks are the positions along them. Raises KeyError for an absent axis.
        """

    def describe(self, rank: int) -> str:
        """Returns a rank's coordinates as text, such as 'dp0 tp1'."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __getstate__(self) -> tuple[str, list[str]]: ...

    def __setstate__(self, arg: tuple[str, Sequence[str]], /) -> None: ...

    def __str__(self) -> str: ...

    def check_groups(self, **groups: object) -> None:
        """
        Compares process groups of this process, by axis ('dp' for all data axes together), with the mesh of the whole job. Raises InvalidArgument if a group has other ranks than the mesh.
        """

    def __repr__(self) -> str: ...

def readers_of(readers: str, mesh: Mesh, host_of: Sequence[int]) -> list[int]:
    """
    Returns the rank that reads for each rank of the mesh. `host_of`: the host of each rank.
    """

class Shard:
    """Cuts dimension `dim` into as many equal parts as the axis has ranks."""

    def __init__(self, axis: str, dim: int = 0) -> None: ...

    def __getstate__(self) -> tuple[str, int]: ...

    def __setstate__(self, arg: tuple[str, int], /) -> None: ...

    @property
    def axis(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def __repr__(self) -> str: ...

class Replicate:
    """Sends the whole field to every rank along the axis."""

    def __init__(self, axis: str) -> None: ...

    def __getstate__(self) -> tuple[str]: ...

    def __setstate__(self, arg: tuple[str], /) -> None: ...

    @property
    def axis(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class Zigzag:
    """
    The balanced order of context parallelism: cuts dimension `dim` into 2n equal chunks along an axis of n ranks; coordinate c gets chunks c and 2n-1-c.
    """

    def __init__(self, axis: str, dim: int = 1) -> None: ...

    def __getstate__(self) -> tuple[str, int]: ...

    def __setstate__(self, arg: tuple[str, int], /) -> None: ...

    @property
    def axis(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def __repr__(self) -> str: ...

class Stages:
    """
    Sends the field only to the named stages along a pipeline axis: "first", "last", and names that the layout defines.
    """

    def __init__(self, axis: str, *names: str) -> None: ...

    def __getstate__(self) -> tuple[str, list[str]]: ...

    def __setstate__(self, arg: tuple[str, Sequence[str]], /) -> None: ...

    @property
    def axis(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __str__(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def __repr__(self) -> str: ...

class Layout:
    """The placements on a mesh of each field of a batch."""

    def __init__(self, fields: Mapping[str, str | Shard | Replicate | Zigzag | Stages | Sequence[str | Shard | Replicate | Zigzag | Stages] | Mapping[str, Any]], *, otherwise: str | Shard | Replicate | Zigzag | Stages | Sequence[str | Shard | Replicate | Zigzag | Stages] | Mapping[str, Any] = (), optional: Sequence[str] = (), stages: Mapping[str, Sequence[int]] | None = None, name: str = 'custom') -> None:
        """
        Field paths or patterns with '*', each with its placements: a Shard, Replicate, Zigzag or Stages, its text such as "shard(dp,0)", several of these in a list, or a dict from axes to Shard(dim) and Replicate() of torch.distributed.tensor. `otherwise`: placements of all other fields; `optional`: fields that a batch may lack; `stages`: coordinates along pp by name. Raises InvalidArgument.
        """

    @staticmethod
    def from_json(text: str) -> Layout:
        """
        Returns the layout that a JSON text describes; see docs/data-loading.md. Raises InvalidArgument.
        """

    @staticmethod
    def gpt(*, attention_mask: bool = False) -> Layout:
        """
        Returns the layout of a GPT step's fields and the pipeline stages that need them.
        """

    def to_json(self) -> str:
        """Returns the text that from_json() accepts."""

    @property
    def name(self) -> str: ...

    def __getstate__(self) -> str: ...

    def __setstate__(self, arg: str, /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Tokenizer:
    """Encodes text as tokens."""

    def __init__(self, name: str, digest: str, vocabulary_size: int, end_of_document: int | None, id_of: Callable[[str], int | None], encode: Callable[[list[str]], list[list[int]]], is_chat: bool = False, unknown_end: str = '') -> None:
        """
        encode: encodes texts. For chats, a text is a JSON list of messages, and an id below zero is ~id of a token without loss. unknown_end: the token that should end documents, but is not in the vocabulary.
        """

    @property
    def name(self) -> str: ...

    @property
    def vocabulary_size(self) -> int: ...

    def choose_end_of_document(self, token: str = '') -> int:
        """
        Returns the id of the token that ends documents. Raises InvalidArgument.
        """

def digest(bytes: bytes) -> str:
    """Returns the XXH3-128 of the bytes as 32 hexadecimal digits."""

def byte_tokenizer() -> Tokenizer:
    """Returns a tokenizer for which each byte of UTF-8 is a token."""

class File:
    """An open file."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, count: int) -> bytes:
        """Returns this number of bytes; fewer only at the end."""

    def will_read(self, offset: int, count: int) -> None:
        """Announces a later read(), so that the file may read ahead."""

def open_file(path: str) -> File: ...

class TextFormat:
    """A format of documents, for files with a common extension."""

    def __init__(self, extension: str, open: Callable[[File, str, bool, bool], Any]) -> None:
        """
        open: called with a file, the field of the text, whether to skip unusable documents, and whether the field is a chat, whose JSON is the text. Returns an object with read(), which returns the next documents as a list of str, or None at the end; stored_bytes, the bytes of the file read so far; bad_lines, the number of skipped documents; first_bad_lines, the numbers of the first ten of these; and first_row, the row at which the documents of the last read() begin.
        """

class RemoteFiles:
    """Opens and lists files with URLs."""

    def __init__(self, open: Callable[[str], Any], list: Callable[[str], list[str]]) -> None:
        """
        open: returns a file with size, modified_ns, tag and read(start, end), which returns bytes and raises SourceError once the file has changed. list: returns the names that match a pattern, folders with a slash at the end; for a URL without a pattern, all files below it. Both raise OSError with errno and strerror.
        """

class Membership:
    """This process's membership in a group of ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def engine(self) -> str:
        """"shm", "c10d", "shm+c10d" or "inproc"."""

    @property
    def engine_choice(self) -> str:
        """
        The engine and why it joins these ranks: "shm+c10d: 4 ranks on 2 hosts, 2 on each".
        """

    @property
    def host_of(self) -> list[int]:
        """The host of each rank, numbered from 0."""

    def empty(self, shape: Sequence[int], dtype: str, torch: bool) -> Any:
        """
        Returns an uninitialized tensor in the memory of the batch that this thread is making.
        """

    def begin_batch(self, bytes: int) -> None:
        """
        Begins a batch whose tensors have `bytes` bytes in total, each rounded up to a multiple of 64.
        """

    def subgroup(self, ranks: Sequence[int], name: str) -> Membership:
        """
        Returns this process's membership among some of the ranks: ranks[i] becomes rank i. Collective over these ranks, which pass the same name.
        """

    def note_exception(self, text: str, step: int) -> None:
        """
        Posts that an exception ends this rank, for ranks that wait for it. step: the step at which the rank left a feed because of the exception, or -1.
        """

    def keep_pages(self, address: int, bytes: int) -> bool:
        """
        Returns whether these bytes of a received batch are in an engine's memory. If so, their pages stay the same until this rank leaves the job.
        """

    def skip_exchange(self) -> None:
        """
        Counts a call of this group's exchanges that only this rank refused, so that it stays in step with the other ranks.
        """

    def leave(self) -> None:
        """
        Leaves the job without an error on other ranks. Received batches stay valid.
        """

def join(engine: str, timeout: float) -> Membership:
    """Joins the job that the environment describes."""

def meet(rank: int, size: int, rendezvous: str, secret: bytes, timeout: float, *, memory_bytes: int = 0) -> Membership:
    """
    Joins the ranks of this host that pass the same name for their rendezvous and the same 32 bytes, which only they know, over shared memory: a rank's batches take at most `memory_bytes`, or as much as the machine allows.
    """

def group_greeting(host: str) -> bytes:
    """
    Returns the bytes that each rank of a process group sends the others first.
    """

def reserve_open_files(count: int, who: str) -> None:
    """
    Raises this process's limit so that it can open `count` more files. Raises InvalidArgument, with the number that is needed, if the hard limit is too low. `who` names this process.
    """

def note_process_exception(text: str, patience: float) -> None:
    """
    Notes that an exception of this text ends the process. After `patience` seconds, the process waits only a few more for ranks that it leaves.
    """

def check_greetings(greetings: Sequence[bytes]) -> None:
    """
    Raises EngineError unless all greetings of a group's ranks come from the same release of Levada.
    """

def join_hosts(near: Membership, far: Membership, degree: int, leave_timeout: float) -> Membership:
    """
    Joins `near`, the ranks of this host, and `far`, all ranks: messages within a host use `near`, and a message crosses once to each other host over `far`. A rank sends a message to at most `degree` other hosts. A leaving rank waits `leave_timeout` seconds for the ends of the channels that it forwards.
    """

def choose_engine(host_of: Sequence[int], between: str, degree: int) -> str:
    """
    Returns the engine for ranks on these hosts: shm on one host; `between` if each rank is on a separate host and sends to at most `degree` others; otherwise both.
    """

def log_engine(job: Membership) -> None:
    """
    Writes the choice of the engine to standard error on rank 0 if LEVADA_LOG is info.
    """

def link(rank: int, size: int, sockets: Sequence[int], timeout: float) -> Membership:
    """
    Joins processes that are connected by sockets, from rank 0 to each other rank in order, and closes the sockets.
    """

def die_with(process: int) -> None:
    """
    Kills this process when that process ends. If it leads a process group, also kills the others in it.
    """

def unforkable() -> str | None:
    """
    Returns the reason why a fork of this process could not use Levada, or None if it could.
    """

def place() -> tuple[int, int] | None:
    """Returns rank and size from the environment; None outside a job."""

def agree(job: Membership, mine: bytes, timeout: float, what: str) -> list[bytes]:
    """
    Returns the bytes of each rank, in the order of ranks. Collective. `what` names the operation in the text of a Timeout.
    """

def run_local(size: int, command: Sequence[str]) -> tuple[int, str]:
    """
    Starts `size` ranks with a command line and waits for them. Returns the exit status and the error message.
    """

PERMUTATION_VERSION: int = 1

MIX_VERSION: int = 3

def derived_seed(seed: int, stream: int) -> int:
    """Returns a seed derived for the use numbered `stream`."""

def item_seed(seed: int, epoch: int, position: int) -> int:
    """
    Returns the seed of all random numbers for the draw at a position of an epoch.
    """

class SampleOrder:
    """Maps each draw from some data sets to an item. One thread at a time."""

    def __init__(self, parts: Sequence[tuple[str, int, float]], seed: int, *, shuffle: bool = False, mix: bool = False, weights: bytes = ..., draws: int = 0) -> None:
        """
        `parts`: name, number of items and share of each data set. `weights`: the bytes of one float64 per item, to draw with replacement. `draws`: the number of draws in an epoch; 0 means the number of items. Raises InvalidArgument.
        """

    @property
    def items(self) -> int: ...

    @property
    def draws(self) -> int: ...

    def numbers(self, epoch: int, first: int, count: int) -> list[int]:
        """Returns the items of `count` positions of an epoch, from `first` on."""

class Source:
    """A source of batches."""

class CorpusSource(Source):
    """The documents of files as numbered samples."""

    @property
    def sequences(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def documents(self) -> int: ...

    @property
    def stored_documents(self) -> int: ...

    @property
    def files(self) -> int: ...

    @property
    def skipped(self) -> dict[str, int]: ...

    @property
    def bad_lines(self) -> int: ...

    @property
    def bad_places(self) -> list[str]: ...

    @property
    def digest(self) -> str: ...

    def resume(self, cursor: bytes) -> int: ...

    def cursor(self, next: int) -> bytes:
        """Returns the state before that sample, or at the end of the data."""

    def of_epochs(self, epochs: int) -> CorpusSource:
        """
        Returns the same samples for this number of epochs; 0 means endlessly many. Shares the open files.
        """

def open_corpus(**options: Any) -> CorpusSource: ...

class Handoff(Source):
    """Batches that one thread makes when a feed requests them."""

    def __init__(self, samples: int, position: int, activity: str, counts_rows: bool, cuts_rows: bool = False, is_by_number: bool = False) -> None: ...

    def wanted(self) -> tuple[int, int, list[int], bool] | None:
        """
        Blocks until something is requested. Returns the number of items to skip; the number to take then, for report_sizes(), or 0; the indexes of the last taken items to make one item of; and whether to prepare the last item again. If the latter three are empty, the next item is requested. Returns None if there are no further requests.
        """

    def report_sizes(self, sizes: Sequence[tuple[int, int, int, int, int]], state: tuple[bytes, str, int] | None, digest: int) -> None:
        """
        Reports the sizes of the taken items, of which there are fewer than requested only at the end: positions in a row, their square, two weights, and the number of positions that are padding. state: as for prepare().
        """

    def prepare(self, batch: object, state: tuple[bytes, str, int] | None, digest: int | None, *, allow_pickle: bool = False) -> None:
        """
        Sets the item that give() delivers. Its memory is used until the next wanted(). state: the loader's state as packed by pack_state(), or b"" and the reason why it could not be packed; and the number of items since. None if the loader has not been asked for a state since the last one. digest: represents the item in states; None means digest_of() the item. Raises TypeError for an item that cannot cross.
        """

    def report_progress(self, number: int, all: int) -> None:
        """
        Posts that item `number` of `all` is being read again, so that no rank's wait times out.
        """

    def give(self) -> None:
        """
        Delivers the prepared item. Tensors from empty() without other references are sent without a copy.
        """

    def end(self, more: int) -> None:
        """Reports the end: only `more` items follow the delivered ones."""

    def stop(self) -> None:
        """Stops all requests for items."""

    def fail(self, text: str, *, is_argument: bool = False) -> None:
        """
        Reports that the iterator raised. is_argument: the item was an invalid argument.
        """

def digest_of(item: object, *, allow_pickle: bool = False) -> int:
    """
    Returns an even number below 2**62 that differs between items with different values. Reads a part of long tensors. Raises TypeError for an item that cannot cross.
    """

def unopened(kind: str, message: str) -> Source: ...

def pack_state(state: object, *, allow_pickle: bool = False) -> bytes:
    """
    Returns a state as bytes: plain values, arrays, tensors and objects of registered classes. Raises TypeError, naming its place, for anything else.
    """

def unpack_state(state: bytes) -> Any:
    """
    Returns what pack_state() was given. Raises CorruptMessage for other bytes, Unsupported for a class that is not registered.
    """

def read_cursor(cursor: bytes, *, allow_pickle: bool = False) -> tuple[int, int, Any]: ...

def corpus_position(cursor: bytes) -> tuple[int, int]:
    """
    Returns the next sample, and the number of earlier samples that wait for a later step.
    """

class BalancedBy:
    """Options for dividing the samples of a step over ranks."""

    def __init__(self, cost: str, counts: str, order: str, max_tokens: int, wait: str = 'step', max_delay: int = 0, max_cp: int = 1, label: str = '') -> None: ...

class BalanceReport:
    """The work of the planned steps of a pass."""

    def to_json(self) -> str: ...

def plan_step(sizes: Sequence[Sequence[int]], ranks: int, balance: BalancedBy) -> list[list[list[int]]]:
    """
    Divides the samples of a step. Returns their indexes by rank and micro-batch, ascending. sizes: the tokens of each sample, the sum of the squares of its segments' tokens, and two weights. The result is the same on any machine. Raises InvalidArgument.
    """

class Pass:
    """One pass of a feed."""

    def __iter__(self) -> Pass: ...

    def __next__(self) -> Any: ...

    def drop_next(self) -> bool:
        """Drops the next batch. Returns False after the last one."""

    def receive_ahead(self) -> tuple[Any] | None:
        """
        Returns the next batch if it has arrived, without consuming it; drop_next() does that. Never blocks.
        """

    def close(self, reason: str = '') -> None:
        """
        Leaves the feed. `reason`: the exception that makes this rank leave, for the errors of the others.
        """

    def await_loss(self) -> tuple[int, str, str] | None:
        """
        Blocks until the end of another rank prevents this one from finishing the pass, while this rank has no call in progress. Returns that rank or -1, its exception or how it ended, and a line that reports it; None once the pass has ended on this rank.
        """

    def post_place(self) -> None:
        """
        Posts the position of the stalled thread on the board, for ranks that wait.
        """

    def request_stop(self) -> None: ...

    @property
    def step(self) -> int: ...

    @property
    def taken_step(self) -> int:
        """`step`, even while the last taken batch is not delivered."""

    @property
    def delivered(self) -> bool:
        """
        Whether the loop has the last taken batch. Until then, `step`, `whole_steps` and `position` leave it out. The next call sets it.
        """

    @delivered.setter
    def delivered(self, arg: bool, /) -> None: ...

    @property
    def micro(self) -> int: ...

    @property
    def num_micro(self) -> int: ...

    @property
    def samples(self) -> int:
        """
        Number of samples, or items of an iterable, in the last taken batch, without padding.
        """

    @property
    def cp_size(self) -> int:
        """Number of ranks that share the last taken batch, by Balance::max_cp."""

    @property
    def cp_rank(self) -> int:
        """This rank's index among these ranks."""

    @property
    def totals(self) -> tuple[int, int | None, int | None] | None:
        """
        Samples, tokens and labels of the step up to the last taken batch, over all data ranks.
        """

    @property
    def whole_steps(self) -> int: ...

    @property
    def balance(self) -> BalanceReport | None:
        """The work of the steps that this rank planned, if any."""

    def position(self) -> tuple[int, bytes, int, int]:
        """
        Returns the number of complete steps, the cursor after them, and for an iterable the number and the digest of their last item, or -1 and 0. Raises Unsupported.
        """

    @property
    def end(self) -> dict[str, Any] | None: ...

    @property
    def trace(self) -> bytes:
        """The recorded trace, encoded."""

    @property
    def stats(self) -> dict[str, Any]: ...

    def metrics(self, labels: Sequence[tuple[str, str]]) -> list[Metric]:
        """Returns the metrics, each with these labels."""

def start(job: Membership, mesh: Mesh, layout: Layout, source: Source | None, *, batch: int = 1, divide: str = 'deal', tail: str = 'drop', first_sample: int = 0, steps: int | None = None, readers: str = 'one', depth: int = 0, timeout: float = 1800.0, access: str = '', make: object | None = None, where: object | None = None, tensors: str = 'numpy', allow_pickle: bool = False, record: bool = False, name: str = '', balance: BalancedBy | None = None, cursor: bytes = ...) -> Pass:
    """
    Starts a pass. Collective. `cursor`: the cursor of a Corpus at which the pass begins. `name`: the name of the pass, the same on all ranks.
    """

class WhenDropped:
    """
    Calls a function when it is destroyed, with the exception in flight or None.
    """

    def __init__(self, call: object) -> None: ...

class Link:
    """
    The engine as a transport sees it. One thread at a time calls room_for_body() and deliver(); any thread may call the others.
    """

    def room_for_body(self, sender: int, header: Any) -> Any:
        """
        Returns an array for the body that follows the header; None if no body follows, or if is_closed().
        """

    def deliver(self, sender: int, header: Any) -> None:
        """
        Delivers a received frame. Its body is in the array that room_for_body() returned.
        """

    def lost(self, peers: Sequence[int], why: str) -> None:
        """Reports that these peers ended without their last frames, all at once."""

    def flush_deferred(self) -> None:
        """Sends the frames that were deferred for batching."""

    def is_closed(self, peer: int) -> bool:
        """Returns whether a peer's last frame has arrived, or it is lost."""

    def all_closed(self) -> bool:
        """Returns whether nothing is left to receive."""

    def has_failed(self) -> bool:
        """
        Returns whether a rank is lost, or a group has ended for a cause and no group has been created since.
        """

def join_over(transport: Any, name: str, rank: int, host_of: Sequence[int], max_header_bytes: int, degree: int = 16) -> Membership:
    """
    Joins the ranks of a transport: an object with start(link), from_numpy(array), send(tensors, peer, tag), settle(sent), close(peer) and schedule_flush(at), as ProcessGroupTransport describes them. `degree` is the one that choose_engine() was called with.
    """

def conformance_cases() -> list[tuple[str, int, bool]]:
    """
    Returns, for each case, its name, its minimum number of ranks, and whether the engine is unusable afterwards.
    """

def conform(job: Membership, name: str) -> None:
    """Runs a case on this rank. Collective."""

class ReduceHandle:
    """A future result."""

    def done(self) -> bool:
        """
        Returns whether the reduction has ended, with a result or with an exception.
        """

    def wait(self) -> Any:
        """
        Waits for the result. If the input's bucket is open, launches it and all buckets of its group that were opened earlier; all ranks of the group must do so at the same point. Raises the reduction's exception.
        """

    def get(self) -> Any:
        """
        Returns the result of a launched input, on any thread. Runs no callback. Raises InvalidArgument if the bucket is open.
        """

class Bucketing:
    """Decides when buckets are launched: the same on all ranks."""

    def __init__(self, capacity: int) -> None: ...

    def apply(self, group: int, key: int, bytes: int) -> tuple[int | None, bool]:
        """
        Places an input. Returns the key of the bucket to launch first, and whether to launch the input separately.
        """

    def undo(self, key: int, bytes: int) -> None:
        """
        Removes the last input, which must not be one to launch separately. A bucket that it closed stays closed.
        """

    def flush(self) -> list[int]:
        """
        Closes all buckets. Returns their keys in the order in which they were opened.
        """

    def flush_through(self, key: int) -> list[int]:
        """
        Closes the bucket of `key` and all buckets of its group that were opened earlier. Returns their keys in this order.
        """

class Bucketer:
    """Reduces tensors of groups of ranks in buckets."""

    def __init__(self, *, capacity_mb: float, in_flight: int, timeout: float, name: str, job_rank: int) -> None: ...

    def reduce_scatter(self, job: Membership, inputs: object, op: str, callback: object | None) -> ReduceHandle: ...

    def all_reduce(self, job: Membership, input: object, op: str, callback: object | None) -> ReduceHandle: ...

    def all_gather(self, job: Membership, input: object, callback: object | None) -> ReduceHandle: ...

    def empty(self, job: Membership, shape: Sequence[int], dtype: str, torch: bool) -> Any: ...

    def flush(self) -> None: ...

    def teardown(self) -> None: ...

    def close(self) -> None:
        """Cancels pending reductions. Must be the last call."""

    @property
    def stats(self) -> dict[str, Any]: ...

class SampleBatch:
    """
    Samples by id. Each key has for every id one or several sequences of tokens, each token a tensor of the key's dtype and trailing shape, or is absent for that id. Each id may also have plain values. A batch without data, a meta, has the same structure. Tensors are returned as torch tensors if a torch tensor was put in, otherwise as numpy arrays. Divisions, selections and joined batches share memory.
    """

    def __init__(self, ids: Sequence[str], fields: Mapping[str, Any] | None = None, seqlens: Mapping[str, Sequence[int | Sequence[int] | None]] | None = None, *, values: Sequence[Mapping[str, Any]] | None = None) -> None:
        """
        fields and seqlens: by key, as for set(); values: one mapping for each id. Raises InvalidArgument for an empty id or one that appears twice.
        """

    def set(self, key: str, data: Any, seqlens: Sequence[int | Sequence[int] | None] | None = None) -> None:
        """
        Adds a key, or replaces it. data: one tensor, [sum of lengths, trailing...]; or a list with a tensor, [length, trailing...], for each id, or None if it is absent. seqlens: for each id its length in tokens, the lengths of its sequences, or None; by default one token for each id, and for a list one sequence each. Contiguous tensors are viewed, not copied. Raises InvalidArgument if lengths and tensors do not fit, TypeError for anything but a tensor on the CPU.
        """

    def set_meta(self, key: str, dtype: Any, seqlens: Sequence[int | Sequence[int] | None], trailing: Sequence[int] = ()) -> None:
        """Adds a key without data. dtype: torch's or numpy's, or a name."""

    def __getitem__(self, key: str) -> Any:
        """
        Returns all tokens of a key, [sum of lengths, trailing...]: a view if they are contiguous, as those of a tensor passed to set() and of its divisions are; otherwise a copy. A view of an array is read-only; a torch tensor cannot be, and must not be written. Raises InvalidArgument for an unknown key and for a meta.
        """

    def item(self, key: str, position: int) -> Any:
        """Returns the tokens of one id, as a view; None if the key is absent."""

    def sequence(self, key: str, position: int, sequence: int) -> Any:
        """Returns one sequence of one id, as a view."""

    def seqlens(self, key: str) -> list[list[int] | None]:
        """
        Returns for each id the lengths of its sequences in tokens; None if the key is absent.
        """

    def dtype(self, key: str) -> str:
        """"int64", "bfloat16", ..."""

    def trailing(self, key: str) -> list[int]:
        """Returns the shape of one token: [] for scalars."""

    def values(self, position: int) -> dict[str, Any]:
        """Returns the values of one id."""

    def set_values(self, position: int, values: Mapping[str, Any]) -> None:
        """
        Replaces the values of one id: anything that a batch may hold, except tensors with dimensions.
        """

    def __len__(self) -> int: ...

    @property
    def ids(self) -> list[str]:
        """The ids, in the batch's order."""

    @property
    def keys(self) -> list[str]:
        """The keys, ascending."""

    def __contains__(self, key: str) -> bool:
        """Returns whether it has the key."""

    @property
    def has_data(self) -> bool:
        """Whether all keys have data; False for a meta."""

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors, whether they have data or not."""

    def meta(self) -> SampleBatch:
        """Returns the structure without the data."""

    def to_json(self) -> str:
        """
        Returns the meta as one JSON object: {"ids": [...], "keys": {"tokens": {"dtype": "int64", "trailing": [], "seqlens": [[12], [3, 4], null]}}, "values": [{"reward": 1.5}, ...]}.
        """

    @staticmethod
    def from_json(text: str) -> SampleBatch:
        """
        Returns the meta that to_json() wrote. Raises InvalidArgument, naming the mistake and its place, for other text.
        """

    def __eq__(self, other: object, /) -> bool:
        """
        Whether ids, keys, lengths, values and bits are the same; for metas, all but the bits.
        """

    def __repr__(self) -> str: ...

    @staticmethod
    def gather(batches: Sequence[SampleBatch]) -> SampleBatch:
        """
        Joins batches, one after the other; a key that one of them lacks is absent for its ids. Reverses split() and unpack(). Raises InvalidArgument for an id that appears twice, and if dtype or trailing shape of a key differ.
        """

    def split(self, parts: Sequence[int] | Sequence[Sequence[int]]) -> list[SampleBatch]:
        """
        Divides the batch into consecutive parts of these sizes, or into a part for each list of positions, such as balanced() returns. All keys stay together, and nothing is copied. Raises InvalidArgument unless every position is in exactly one part.
        """

    def balanced(self, parts: int, key: str = '', *, equal: bool = False, cost: str = 'tokens') -> list[list[int]]:
        """
        Returns positions by part, such that the parts cost about the same, by the sequences of `key` or of all keys. equal: the numbers of ids differ by at most one. cost: "tokens" or "flops", as in levada.Balance. Raises InvalidArgument for no parts, another cost, and for fewer ids than parts.
        """

    def unpack(self) -> list[SampleBatch]:
        """Divides the batch into batches of one id each."""

    def reorder(self, order: Sequence[int]) -> SampleBatch:
        """
        Returns the ids at these positions, each of them once. select() with the ids of this batch reverses it.
        """

    def select(self, *, ids: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> SampleBatch:
        """
        Returns these ids, in this order, with these keys; all if None. Raises InvalidArgument for an unknown id or key.
        """

    def rename(self, names: Mapping[str, str]) -> SampleBatch:
        """
        Renames keys; others keep their names. Raises InvalidArgument for an unknown key, and if two keys would have one name.
        """

    def update(self, other: SampleBatch) -> None:
        """
        Adds the keys and values of a batch of the same ids, in any order, replacing existing ones. Raises InvalidArgument if the ids differ.
        """

class Store:
    """
    The samples of this rank, by id, in the store's memory. Any thread. Raises InvalidArgument, naming id and key.
    """

    def __init__(self, *, max_bytes: int = 18446744073709551615, tensors: str = 'numpy', name: str | None = None) -> None:
        """
        max_bytes: the limit on the tensors' bytes; a call that would exceed it raises and stores nothing. tensors: what get() returns, arrays of "numpy" or tensors of "torch". name: ranks exchange only between stores of the same name; by default "store 1", "store 2", ... in the order in which this process makes them.
        """

    @property
    def name(self) -> str:
        """The name, as passed or by default."""

    def store(self, samples: SampleBatch, *, copy: bool = True) -> None:
        """
        Stores new samples. copy=False refers to the batch's memory, which must then stay unchanged. Raises InvalidArgument for an id that is already stored, for a meta, and beyond max_bytes; nothing is stored then.
        """

    def update(self, samples: SampleBatch) -> None:
        """
        Adds keys and values to stored samples, replacing existing ones. Raises InvalidArgument for an id that is not stored, for a meta, and beyond max_bytes; nothing changes then.
        """

    def get(self, ids: Sequence[str], keys: Sequence[str] | None = None, *, allow_absent: bool = False) -> SampleBatch:
        """
        Returns these samples, in this order, with these keys (all if None); a key that a sample lacks is absent for it. They do not change when the store changes. Torch tensors have memory of their own, which may be written; numpy arrays share the store's memory and are read-only. Raises InvalidArgument for an id that is not stored, and for a key that none of the samples has; with allow_absent such a key is absent for all, as on the other ranks of an exchange that allows it.
        """

    def has(self, id: str, key: str | None = None) -> bool:
        """Returns whether a sample, or a key of it, is stored."""

    def remove(self, ids: Sequence[str]) -> None:
        """Removes samples. Ids that are not stored are ignored."""

    def clear(self) -> None:
        """Removes all samples, and releases cached memory to the system."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""

    @property
    def ids(self) -> list[str]:
        """The ids, ascending."""

    def directory(self, rank: int, ids: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> SampleDirectory:
        """
        Returns the holdings that `rank`, the store's rank, sends to others: all samples, or the stored ones of these ids, and all or these keys.
        """

class SampleDirectory:
    """
    Which ranks hold which keys of which samples, and the lengths of their sequences: all that planning needs. It holds no payload. One controller maintains it, or all_gather() makes it.
    """

    def __init__(self) -> None:
        """Creates an empty directory."""

    def add(self, rank: int, samples: SampleBatch) -> None:
        """
        Records that `rank` holds everything in a batch, or its meta. Raises InvalidArgument, naming id, key and ranks, if dtype, trailing shape, lengths or values differ from those of other ranks; nothing changes then.
        """

    def remove(self, rank: int, ids: Sequence[str]) -> None:
        """
        Records that `rank` no longer holds these ids. Unknown ids are ignored.
        """

    def clear(self, rank: int) -> None:
        """Records that `rank` holds nothing."""

    def merge(self, other: SampleDirectory) -> None:
        """Adds everything in another directory. Raises as add() does."""

    def holders(self, id: str, key: str) -> list[int]:
        """Returns the ranks that hold a key of a sample, ascending."""

    def meta(self) -> SampleBatch:
        """Returns a meta of all samples that any rank holds."""

    def __len__(self) -> int: ...

    def __contains__(self, id: str) -> bool:
        """Returns whether any rank holds the sample."""

    def encode(self) -> bytes:
        """Returns bytes to send; pickling makes the same."""

    @staticmethod
    def decode(bytes: bytes) -> SampleDirectory:
        """
        Returns the directory that encode() wrote. Raises CorruptMessage for other bytes.
        """

    def __getstate__(self) -> bytes: ...

    def __setstate__(self, arg: bytes, /) -> None: ...

class Destination:
    """Ranks and samples: each of the ranks receives each of the samples."""

    def __init__(self, ranks: Sequence[int], ids: Sequence[str], *, part: int = 0, parts: int = 1, zigzag: bool = False) -> None:
        """
        part, parts, zigzag: the part of each sequence of the cut keys; other keys are sent whole. A zigzag part is chunks part and 2*parts-1-part of 2*parts.
        """

    @property
    def ranks(self) -> list[int]: ...

    @property
    def ids(self) -> list[str]: ...

    @property
    def part(self) -> int: ...

    @property
    def parts(self) -> int: ...

    @property
    def zigzag(self) -> bool: ...

    def __repr__(self) -> str: ...

class Multicast:
    """The items that one rank sends to a set of ranks."""

    @property
    def source(self) -> int:
        """The rank that sends."""

    @property
    def to(self) -> list[int]:
        """The ranks that receive, ascending."""

    @property
    def items(self) -> list[tuple[str, str]]:
        """(id, key), ascending."""

    @property
    def bytes(self) -> int: ...

class ExchangePlan:
    """
    The moves of an exchange: at most one multicast for each sender and set of receivers. A value; printing it shows a table.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Multicast:
        """Returns a multicast; they are ordered by sender, then by receivers."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that leave their senders, each multicast counted once."""

    @property
    def lower_bound_bytes(self) -> int:
        """The minimum of any plan that sends an item to no host that has it."""

    @property
    def delivered_bytes(self) -> int:
        """Bytes that arrive, counted at each rank."""

    @property
    def busiest(self) -> tuple[int, int]:
        """
        (rank, bytes) of the rank that sends the most; rank -1 if nothing moves.
        """

    @property
    def edges(self) -> list[tuple[int, int, int]]:
        """(from, to, bytes) of each pair of ranks, ascending."""

    @property
    def ranks(self) -> list[int]:
        """Ranks that send or receive, ascending."""

    def to_table(self) -> str:
        """Returns a table to read: a row for each multicast, then the sums."""

    def to_json(self, with_ids: bool = False) -> str:
        """
        Returns one JSON object: multicasts, moved_bytes, lower_bound_bytes, delivered_bytes, busiest, edges.
        """

    def __str__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool:
        """Whether both have the same moves."""

    def __repr__(self) -> str: ...

class ExchangeResult:
    """The work of one exchange."""

    @property
    def multicasts(self) -> int:
        """
        The number of multicasts: at most one for each sender and set of receivers.
        """

    @property
    def moved_bytes(self) -> int:
        """The bytes that all ranks sent, each multicast counted once."""

    @property
    def lower_bound_bytes(self) -> int:
        """The minimum of any plan that sends an item to no host that has it."""

    @property
    def delivered_bytes(self) -> int:
        """The bytes that all ranks received, counted at each rank."""

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank sent, each message counted once."""

    @property
    def sent_messages(self) -> int: ...

    @property
    def received_bytes(self) -> int:
        """The bytes that this rank received."""

    @property
    def agreed_bytes(self) -> int:
        """The bytes that this rank sent to rank 0 before anything moved."""

    @property
    def agree_seconds(self) -> float: ...

    @property
    def plan_seconds(self) -> float:
        """
        The seconds spent planning on rank 0, which plans for all; 0 on other ranks.
        """

    @property
    def move_seconds(self) -> float: ...

class ExchangeRequest:
    """The request of an exchange."""

    def __init__(self, destinations: Sequence[Destination], keys: Sequence[str], cut_keys: Sequence[str], allow_absent: bool) -> None: ...

def plan_exchange(directory: SampleDirectory, request: ExchangeRequest, host_of: Sequence[int]) -> ExchangePlan: ...

def redistribute(job: Membership, store: Store, request: ExchangeRequest, chunk_bytes: int | None, in_flight_bytes: int, timeout: float) -> ExchangeResult: ...

def all_gather(job: Membership, store: Store, timeout: float) -> SampleDirectory: ...

def destinations_of(mesh: Mesh, ids: Sequence[Sequence[str]], ranks: Sequence[int] | None, cut: str) -> list[Destination]: ...

def data_heads(mesh: Mesh, ranks: Sequence[int] | None) -> list[int]: ...

def partition_by_tokens(tokens: Sequence[int], parts: int, equal: bool, in_order: bool) -> list[list[int]]: ...

class Memory:
    """Memory owned by Levada."""

class PickledItem:
    pass

class PickleSink:
    def write(self, data: object) -> None: ...

    def keep(self, buffer: object) -> bool: ...

def memory_at(address: int, size: int, owner: object) -> Memory:
    """Returns the `size` bytes at `address`, which `owner` keeps alive."""

class ItemTraits:
    """Copies items between the processes of a pipeline."""

    def __init__(self) -> None: ...

    def copy(self, items: list[Any]) -> tuple[list[Any], int]:
        """
        Returns items as another process receives them, and the number of their bytes outside the pickle.
        """

    def detached(self, item: Any) -> tuple[Any, bool]:
        """
        Returns a copy of an item, and True. Returns the item itself and False if it has a part of a class that cannot be copied.
        """

class OpenContext:
    """The parameters with which a process opens its copy of a stage."""

    @property
    def epoch(self) -> int: ...

    @property
    def pass_number(self) -> list[int]:
        """
        The epoch of the pipeline, and the number of the pass of each enclosing repeat(), the outermost first.
        """

    @property
    def shared_seed(self) -> int:
        """The seed of the epoch, the same in all processes of all ranks."""

    @property
    def own_seed(self) -> int:
        """The seed of the epoch, the rank and the worker."""

    @property
    def among_ranks(self) -> tuple[int, int]: ...

    @property
    def among_all(self) -> tuple[int, int]: ...

class StageIterator:
    """The items of a stage."""

    def __iter__(self) -> StageIterator: ...

    def __next__(self) -> Any: ...

class Graph:
    """The stages of a pipeline up to an end stage."""

    @staticmethod
    def stage(operation: str, inputs: Sequence[Graph], arguments: dict[str, Any], name: str) -> Graph:
        """
        Returns the graph that ends in this stage. operation: a method of levada.Pipeline other than fork(), "source" or "corpus".
        """

    def fork(self, *, branches: int, buffer: int, name: str) -> list[Graph]: ...

    def colocate(self, first: str, last: str) -> Graph:
        """Makes one process run both stages and all stages between them."""

    def stages(self) -> list[tuple[str, str, list[int]]]:
        """Name, operation and inputs of each stage."""

    def place(self, workers: int, ordered: bool) -> tuple[dict[str, str], str | None, str | None, bool]:
        """
        Returns the kind of process that runs each stage, the last stage of the dispatching process, the last stage of the workers, and whether each input item becomes one item.
        """

class Consumer:
    """The end of a pipeline that returns its items."""

    def reset(self, epoch: int, items: int, at: int, cursor: Any) -> None:
        """
        Begins an epoch after its first `items` items. A cursor is after the first `at` of these.
        """

    def resume_from(self, lost: Consumer) -> None:
        """
        Resumes after the last item of another consumer, whose processes are lost.
        """

    @property
    def num_taken(self) -> int:
        """Number of items returned in this epoch."""

    @property
    def has_begun(self) -> bool:
        """Whether an epoch has begun that no reset() has ended."""

    def limit(self, items: int) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    @property
    def paused(self) -> bool: ...

    def save(self) -> tuple[int, int, Any]:
        """
        Returns the number of items returned so far, the number at the latest exact cursor, and that cursor; None means the first item.
        """

    def begin_close(self) -> bool:
        """
        Ends another thread's call and prevents further ones. Returns False if a call of this thread is in progress, which must then close the run.
        """

    def await_others(self) -> None:
        """Waits until no other thread is in a call."""

    def close_requested(self) -> bool:
        """
        Returns True once after each begin_close() that left the closing to this thread.
        """

    def shutdown(self, grace: float) -> bool: ...

    def stats(self, graph: Graph) -> dict[str, Any]: ...

    def metrics(self, graph: Graph, labels: Sequence[tuple[str, str]]) -> list[Metric]:
        """Returns the metrics, each with these labels."""

    def report(self, graph: Graph, workers: int, ordered: bool) -> bytes:
        """Returns the recorded activity of each process, encoded."""

def show_graph(graph: Graph, format: str, workers: int, ordered: bool, at_work: Consumer | None) -> str:
    """
    Returns the stages and their processes; for a running pipeline, also its bottleneck.
    """

class Epoch:
    """The items of one epoch."""

    def __init__(self, run: object, consumer: Consumer) -> None: ...

    def __iter__(self) -> Epoch: ...

    def __next__(self) -> Any: ...

def consume(job: Membership | None, graph: Graph, options: object, place: tuple[int, int], name: str, all_ranks: Membership | None, name_among_ranks: str) -> Consumer:
    """
    Returns the consumer of a pipeline, whose other processes are `job`. place: the rank and the number of ranks that run the pipeline. name_among_ranks: distinguishes it from other pipelines of the same ranks.
    """

def serve(job: Membership, graph: Graph, options: object, place: tuple[int, int], name: str, begin_epoch: object | None) -> None:
    """Runs the dispatching process or a worker."""

def write_feed_history(job: Membership, mesh: Mesh, feed: dict[str, Any], rank: dict[str, Any], trace: bytes, pipeline: bytes | None, *, page: str, trace_file: str, timeout: float) -> None:
    """
    Writes a page and a trace of all ranks' activity, if their files are named. Collective.
    """

def write_pipeline_history(pipeline: bytes, *, page: str, trace_file: str) -> None:
    """
    Writes a page and a trace of a pipeline without a feed, if their files are named.
    """

def check_history_files(page: str, trace_file: str) -> None:
    """Raises InvalidArgument if a file cannot be written."""

def report_error(kind: str, message: str, lost: int) -> None:
    """
    Reports an error such that all ranks together print one sentence. `lost`: a rank that has been lost, or -1.
    """

def report_failed_start(kind: str, message: str) -> None:
    """
    Reports the error of a rank that has not begun to join its job. The ranks that wait for it receive the error and end.
    """

def printable(text: str) -> str:
    """
    Returns `text` for one line of a terminal, with control characters escaped and URLs without user, password and query.
    """

def printable_lines(text: str) -> str:
    """Like printable(), but keeps newlines and tabs."""

def parse_duration(text: str) -> float:
    """
    Returns the seconds of "500ms", "30s", "2m" or "1h". Raises InvalidArgument.
    """

def command(arguments: Sequence[str], self: Sequence[str], open_tokenizer: Callable[[str, str, bool], Tokenizer], formats: Sequence[TextFormat], remote: RemoteFiles) -> int:
    """Runs the `levada` command and returns its exit status."""
