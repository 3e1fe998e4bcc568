"""Reports the loss of a rank immediately, even on ranks that are in a collective of torch or in a step."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from levada._levada import Pass
from levada.base.console import write_line
from levada.base.errors import Error, InvalidArgument, PeerLost
from levada.base.exception_texts import text_of
from levada.base.threads import join_thread, start_thread
from levada.job.aborting import abort_collectives

REACTIONS = ("report", "abort")
OnPeerLost = str | Callable[[PeerLost], object]

_GRACE = 1.0
"""Seconds that stop() waits for the thread, which may be running the caller's function."""
_UNTIL_KNOWN = 0.75
"""Seconds that explain() waits to learn which loss made a collective of torch raise."""


def check_on_peer_lost(value: Any) -> OnPeerLost:
    if callable(value) or value in REACTIONS:
        return value  # type: ignore[no-any-return]
    raise InvalidArgument(
        f"on_peer_lost is {value!r}; it must be one of {', '.join(REACTIONS)}, or a function that takes a PeerLost"
    )


class _Reported(NamedTuple):
    """A loss that this process has reported."""

    rank: int
    reason: str
    reaction: object
    at: float


_reported: list[_Reported] = []
_guard = threading.Lock()
_MAX_REPORTED = 64


def _is_first(loss: _Reported, begun: float) -> bool:
    """Records a loss. Returns False if, during the pass that began at `begun`, another feed of the process has already
    reported it or has reported a loss that caused it."""
    with _guard:
        for each in _reported:
            is_same = each.rank == loss.rank and each.reason == loss.reason
            if each.at > begun and each.reaction == loss.reaction and (is_same or loss.reason.startswith("PeerLost")):
                return False
        del _reported[: len(_reported) - _MAX_REPORTED + 1]
        _reported.append(loss)
        return True


class LossWatch:
    """A thread that waits for a loss during a pass, reports it and reacts to it. The thread ends with the pass."""

    def __init__(self, core: Pass, reaction: OnPeerLost) -> None:
        self._found: list[PeerLost] = []
        self._thread = start_thread("watching other ranks", "levada losses", _watch, core, reaction, self._found)

    def explain(self, error: BaseException | None) -> None:
        """Makes the loss, if one is known, the cause of the exception with which this rank leaves its loop. If the
        exception was raised by a collective, first waits for the loss to become known."""
        if error is None or isinstance(error, Error) or error.__cause__ is not None:
            return
        if not self._found and _is_of_collective(error):
            join_thread(self._thread, _UNTIL_KNOWN)
        if self._found:
            error.__cause__ = self._found[0]

    def stop(self) -> None:
        """Waits for the thread. The pass must have been closed."""
        join_thread(self._thread, _GRACE)


def _watch(core: Pass, reaction: OnPeerLost, found: list[PeerLost]) -> None:
    begun = time.monotonic()
    with contextlib.suppress(Error):  # the pass's own calls raise it
        loss = core.await_loss()
        if loss is not None:
            _report(*loss, reaction, found, begun)


def _report(rank: int, reason: str, text: str, reaction: OnPeerLost, found: list[PeerLost], begun: float) -> None:
    cause = PeerLost(text)
    cause.rank = rank
    found.append(cause)
    if _is_first(_Reported(rank, reason, "report", time.monotonic()), begun):
        write_line(str(cause), logging.ERROR)
    if reaction == "report" or not _is_first(_Reported(rank, reason, reaction, time.monotonic()), begun):
        return
    if callable(reaction):
        reaction(cause)
    else:
        abort_collectives()


def _is_of_collective(error: BaseException) -> bool:
    """Returns whether a collective of torch raised `error`, perhaps within a backward pass."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_below = trace is not None and "/torch/distributed/" in trace.tb_frame.f_code.co_filename
    return isinstance(error, RuntimeError) and (is_below or re.search("gloo|NCCL", text_of(error)) is not None)
