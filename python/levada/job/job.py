"""This process's place in its job."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.process
import sys
import time
import weakref
from typing import Any, Protocol

from levada import _levada
from levada._levada import Membership
from levada.base.abandoned import await_at_exit
from levada.base.checks import check_seconds
from levada.base.errors import InvalidArgument, Unsupported
from levada.base.exits import note_uncaught  # its exit handler, which kills processes, must run after this module's
from levada.job.groups import ENGINES, MAX_DEGREE, Options, finish, join_group, lock_of
from levada.job.meshes import is_device_mesh, ranks_of

_FAREWELL = 10.0
"""Seconds that an exiting rank waits, after a failure, until the others have been notified of its end. The exception that
ends a process counts as a failure after these seconds."""
_LOADERS = 30.0
"""Seconds that an exiting rank waits for loaders that are still producing an item."""

_membership: Membership | None = None  # in the whole job
_joined_place: tuple[int, int] | None = None  # its rank and size, which it has no longer after leave() or in a forked child
_seen_place: tuple[int, int] | None = None  # last rank and size in a torch.distributed world of several ranks
_joined: weakref.WeakSet[Membership] = weakref.WeakSet()
_parts: weakref.WeakKeyDictionary[Membership, dict[tuple[int, ...], Membership]] = weakref.WeakKeyDictionary()


class _WholeJob:
    """Represents the environment's job among the groups that threads join one at a time."""


class Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def join(
    group: Any = None, *, engine: str = "auto", timeout: float = 1800.0, degree: int = 16, leave_timeout: float = 1800.0
) -> Membership:
    """Returns this process's membership in a group of ranks. The first call for a group is collective and waits up to
    `timeout` seconds for all its ranks; later calls return the same object. Feeds call join() automatically.

    group: a process group or a DeviceMesh of torch.distributed, in which only the members take part, with their ranks
    in it; or a Membership, which is returned. A DeviceMesh of several axes over some ranks of the job joins the whole
    job first, so all ranks of the job must call this. None means torch.distributed's world if it is initialized;
    otherwise the job that torchrun, SLURM, MPI or `levada run` started; otherwise a job of one rank.
    engine: "shm" for ranks of one host; "c10d" over a process group; "shm+c10d" for shm within each host and c10d
    between hosts. "auto" chooses shm if all ranks are on one host, c10d if each is on a different host and there are at
    most `degree` others, and otherwise shm+c10d.
    degree: maximum number of other hosts to which a rank sends a message over shm+c10d; these hosts forward it to more.
    leave_timeout: seconds that a leaving rank waits for the ends of the channels that it forwards to other ranks of its
    host, whose sender may be in the program's own code. After that, it ends their groups.

    A waiting rank writes a line to standard error that names the ranks that have not arrived; over a process group, it
    does so after 30 s.

    Raises InvalidArgument for an unknown engine or group, for a time that is not positive or exceeds 1e8 seconds, if
    ranks request different engines or degrees, and, without `group`, if torch.distributed's world of several ranks has
    been destroyed and no launcher's variables name the other ranks. Raises Timeout, naming the ranks that did not
    arrive. Raises EngineError on all ranks if one cannot connect to another. Raises Unsupported immediately if the
    launcher's variables show that ranks are on several hosts but torch.distributed is not initialized."""
    if engine not in ENGINES:
        remedy = ", and C++ programs join over MPI by levada::mpi::join()" if "mpi" in str(engine) else ""
        raise InvalidArgument(f'engine is "{engine}"; it must be one of {", ".join(ENGINES)}{remedy}')
    if not 1 <= degree <= MAX_DEGREE:
        raise InvalidArgument(f"degree must be from 1 to {MAX_DEGREE}, got {degree}")
    check_seconds("timeout", timeout)
    check_seconds("leave_timeout", leave_timeout)
    options = Options(engine, timeout, degree, leave_timeout)
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise Unsupported(
            "this process is being started by another one and imports the main module for that; put code that joins a job, "
            'such as a feed, under if __name__ == "__main__"'
        )
    if group is not None and is_device_mesh(group):
        joined = _join_devices(group, options)
    else:
        joined = _join_job(options) if group is None else join_group(group, options)
    _joined.add(joined)
    return joined


def _join_devices(device_mesh: Any, options: Options) -> Membership:
    ranks = ranks_of(device_mesh)
    if len(ranks) == world_size():
        return _join_job(options)
    if device_mesh.ndim == 1:
        return join_group(device_mesh.get_group(), options)
    return join_part(join(None, **options._asdict()), ranks)


def _join_job(options: Options) -> Membership:
    """Joins the whole job. If torch.distributed is initialized, its ranks are the job's, regardless of the environment,
    because launchers have their own rank numbers and not all report which ranks are on this host. A job that was joined
    before remains the job."""
    global _membership, _joined_place
    if not _has_joined():
        if (world := _world_of_torch()) is not None:
            return join_group(world, options)
        _check_not_destroyed()
    if _membership is None:
        if "c10d" in options.engine:
            raise Unsupported(
                f"the engine {options.engine} needs a process group; initialise torch.distributed, or pass a group"
            )
        with lock_of(_WholeJob):
            if _membership is None:
                joined = _levada.join(options.engine, options.timeout)
                _joined_place = joined.rank, joined.size
                _membership = joined
    _ = _membership.size  # raises Unsupported after leave() and in a forked child
    return _membership


def _check_not_destroyed() -> None:
    """Raises InvalidArgument if this process would be a job of one rank only because its group was destroyed."""
    if _seen_place is not None and _launched_place()[1] == 1:
        rank, size = _seen_place
        raise InvalidArgument(
            f"this process was rank {rank} of {size} in torch.distributed, whose process group has been destroyed, and cannot find "
            "the other ranks without it: destroy the group after the last feed, call init_process_group() again, or pass "
            "group=, the Membership that levada.join() returned before"
        )


def _has_joined() -> bool:
    return _joined_place is not None and _joined_place[1] > 1


def _world_of_torch() -> Any:
    """Returns torch.distributed's group of all ranks, or None if it is not initialized or has one rank."""
    global _seen_place
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    world = distributed.group.WORLD
    if world.size() == 1:
        _seen_place = None
        return None
    _seen_place = int(world.rank()), int(world.size())
    return world


def group_key(group: Any) -> Any:
    """Returns an object that identifies a group before it is joined. A group of torch.distributed's whole world and
    None have the same one if join() treats both as the same group."""
    if group is not None and is_device_mesh(group):
        if group.ndim == 1:
            return group_key(group.get_group())
        group = None if len(ranks_of(group)) == world_size() else group
    if group is not None:
        return group
    world = None if _has_joined() else _world_of_torch()
    return _WholeJob if world is None else world


def _place() -> tuple[int, int]:
    """Returns rank and size in the whole job, even if it has not been joined; (0, 1) outside a job. A process whose
    process group has been destroyed keeps its place, so that it does not read all data itself."""
    if _joined_place is not None and _has_joined():
        return _joined_place
    if (world := _world_of_torch()) is not None:
        return int(world.rank()), int(world.size())
    launched = _launched_place()
    return launched if launched[1] > 1 or _seen_place is None else _seen_place


def _launched_place() -> tuple[int, int]:
    """Returns rank and size from the launcher's variables; (0, 1) without them."""
    return _levada.place() or (0, 1)


def join_part(job: Membership, ranks: tuple[int, ...]) -> Membership:
    """Returns this process's membership among some ranks of a job, numbered by their positions in `ranks`. Returns the
    job itself if these are all its ranks. The first call for these ranks is collective over them; later calls return
    the same object."""
    if ranks == tuple(range(job.size)):
        return job
    known = _parts.setdefault(job, {})
    with lock_of(job, ranks):
        if ranks not in known:
            known[ranks] = job.subgroup(ranks, "part")
            _joined.add(known[ranks])
    return known[ranks]


def rank() -> int:
    """Returns this process's rank in the whole job, even if it has not been joined; 0 outside a job."""
    return _place()[0]


def world_size() -> int:
    """Returns the number of ranks in the whole job, even if it has not been joined; 1 outside a job."""
    return _place()[1]


def close_at_exit(what: Closable) -> None:
    """Registers `what` to be closed before the interpreter exits, unless it is dropped earlier."""
    _open.add(what)


@atexit.register
def _leave() -> None:
    """Closes everything while threads can still run, so that no rank waits for this one."""
    until = time.monotonic() + _FAREWELL
    failure, step = note_uncaught()
    if failure:  # a rank that does not answer may hang, and have caused it
        _levada.note_process_exception(failure, _FAREWELL)
    for joined in list(_joined) if failure else ():
        with contextlib.suppress(Exception):  # the job has ended; the calls below close the object anyway
            joined.note_exception(failure, step)
    for each in list(_open):
        try:
            each.close()
        except Exception:  # the job has ended for another reason, which was reported at its origin
            continue
    for joined in list(_joined):
        joined.leave()
    finish(until)
    await_at_exit(_LOADERS)
