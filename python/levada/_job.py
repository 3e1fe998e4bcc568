"""This process's place in its job."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol

from levada import _levada
from levada._levada import Membership

_membership: Membership | None = None


class Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def join(*, engine: str = "auto", timeout: float = 60.0) -> Membership:
    """This process's membership in the job that torchrun, SLURM, MPI or `levada run` started; a job of one rank outside
    any. Collective at its first call, which waits `timeout` seconds for all ranks; later ones give the same. Feeds call
    it themselves. Raises Timeout, naming who did not arrive, and Unsupported where ranks are on several hosts.
    """
    global _membership
    if _membership is None:
        _membership = _levada.join(engine, timeout)
    return _membership


def rank() -> int:
    """This process's rank, from the environment; 0 outside a job."""
    place = _levada.place()
    return 0 if place is None else place[0]


def world_size() -> int:
    """The job's ranks, from the environment; 1 outside a job."""
    place = _levada.place()
    return 1 if place is None else place[1]


def close_at_exit(what: Closable) -> None:
    """Closes it before the interpreter ends, if it is still there."""
    _open.add(what)


@atexit.register
def _leave() -> None:
    """Ends what is open while threads still run, so that nobody waits for this rank and none is alarmed."""
    for each in list(_open):
        try:
            each.close()
        except Exception:  # the job has ended otherwise, which has been said where it happened
            continue
    if _membership is not None:
        _membership.leave()
