"""What whoever brings an engine of their own tests it with."""

from __future__ import annotations

from collections.abc import Callable

from levada import _levada
from levada._levada import Membership

__all__ = ["conformance"]


def conformance(factory: Callable[[], Membership]) -> list[str]:
    """Runs the cases that are the engine contract's definition; gives the names of those that took part.

    factory: makes this rank's Membership in a group of its own at every call. Collective: to be called on every rank of
    that group at once. Raises AssertionError, which names the case, at the first that does not hold.
    """
    job: Membership | None = None
    passed = []
    for name, min_ranks, ends_group in _levada.conformance_cases():
        job = factory() if job is None else job
        if job.size < min_ranks:
            continue
        try:
            _levada.conform(job, name)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        passed.append(name)
        if ends_group:
            job.leave()
            job = None
    if job is not None:
        job.leave()
    return passed
