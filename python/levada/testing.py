"""Tests for engines that are not part of Levada."""

from __future__ import annotations

from collections.abc import Callable

from levada import _levada
from levada._levada import Membership

__all__ = ["conformance"]


def conformance(factory: Callable[[], Membership]) -> list[str]:
    """Runs the cases that define the engine contract, and returns the names of those that ran.

    factory: returns this rank's Membership in a new group at every call. Collective: all ranks of the group call this
    at the same time. Raises AssertionError, naming the case, at the first case that fails.
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
