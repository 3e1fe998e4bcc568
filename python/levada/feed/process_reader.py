"""Iterates a loader in a process of its own: the two processes are the ranks of a private feed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import warnings
from typing import Any

from levada import _levada
from levada._levada import Handoff, Layout, Membership, Mesh, Pass, Source
from levada.base.errors import Error, InvalidArgument, PeerLost, SourceError, Timeout, Unsupported
from levada.base.exception_texts import report_of
from levada.base.exits import begin, end, exit_text, start
from levada.feed.generators import seed_generators, seed_of_generators
from levada.feed.readers import BackgroundReader, Counted, Maker, Making, OtherItem, ReportedError, State, open_maker
from levada.feed.torch_loaders import Order, with_order
from levada.pipeline.workers import dumps

_TIMEOUT = 1e8
"""Seconds of a wait between the two processes once both have started: ranks that wait for the batch have their own timeout."""
_GRACE = 5.0
"""Seconds for the process to end on request, with the loader's workers."""


_IMPORTS = "it imports the main module again, so what that does belongs under if __name__ == \"__main__\":"
_ON_STDERR = f"see its output on standard error; {_IMPORTS}"


class ProcessReader(BackgroundReader):
    """A process that iterates, and a thread of this process that takes its batches."""

    def __init__(self, source: Any, state: Any, making: Making, timeout: float) -> None:
        if source is None:
            raise TypeError("this rank reads for the feed, but its source is None")
        self._child = _Child(source, state, making, timeout)
        counted = making.counted
        order = None
        if making.samples is None and with_order(source, Order(0, 0, -1)) is not None:  # the process passes over these
            order = Order(counted.before, counted.items - counted.before, -1)
            order.passed = order.count
        try:
            super().__init__(
                Maker(self._child, self._child.state, making, order=order, digest=self._child.digest), None
            )
        except BaseException:
            self._child.stop()
            raise
        self.where = self._child.where

    def stop(self) -> None:
        self._child.stop()
        super().stop()


class _Child:
    """The iterator that the process's is here."""

    def __init__(self, source: Any, state: Any, making: Making, timeout: float) -> None:
        """`timeout`: seconds for the process to start, which imports what its parent's main module does."""
        allow_pickle = making.allow_pickle
        self._owner = os.getpid()
        self._name = type(source).__name__
        self._state: State | None = None
        given = dumps((source, state), f"a {self._name}", "an object whose __iter__ makes")
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # No daemon, for that could have no workers; begin() sees to it that it does not outlive this process. No fork, for
        # this process has threads of Levada's, whose locks a fork could find taken for good.
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve,
            args=(there, self._owner, given, allow_pickle, making.ranks, timeout, making.counted, seed_of_generators()),
            name="levada reader",
            daemon=False,
        )
        try:
            with here, there:
                start(self._process)
                there.close()
                self._job = _levada.link(1, 2, [here.detach()], timeout)
            self._pass = _start(self._job, None, None, allow_pickle)
        except PeerLost:
            raise SourceError(f"{self._exit_text()} while it started; {_ON_STDERR}") from None
        except Timeout:
            end(self._process)
            raise Timeout(
                f"process {self._process.pid}, which is to iterate {self._name}, did not start within {timeout:g} s, the "
                f"timeout of the feed; {_IMPORTS}"
            ) from None
        except BaseException:
            end(self._process)
            raise

    def __iter__(self) -> _Child:
        return self

    def __next__(self) -> Any:
        try:
            item = next(self._pass)
        except PeerLost:
            raise ReportedError(self._exit_text()) from None
        except InvalidArgument as error:
            raise OtherItem(self._pass.end["message"] if self._pass.end else str(error)) from None
        except SourceError as error:
            raise ReportedError(self._pass.end["message"] if self._pass.end else str(error)) from None
        if self._pass.state is not None:
            self._state = (*self._pass.state, 0)
        elif self._state is not None:
            self._state = (*self._state[:2], self._state[2] + 1)
        return item

    def state(self) -> State | None:
        """The loader's, where one has come since it was asked for last."""
        state, self._state = self._state, None
        return state

    def digest(self) -> int | None:
        """Returns that of the item that came last, if it came with one."""
        try:
            return self._pass.position()[3]
        except Unsupported:  # a loader's state that cannot be saved
            return None

    def where(self) -> str:
        return f"process {self._process.pid}"

    def stop(self) -> None:
        """Ends the process and waits for its end; kills it after _GRACE seconds, with a warning. Any thread. Does nothing in a
        forked child, which did not start it."""
        if os.getpid() != self._owner:
            return
        try:
            with contextlib.suppress(Error):
                self._pass.request_stop()
        finally:
            has_ended = end(self._process, _GRACE)
        if not has_ended:
            warnings.warn(
                f"process {self._process.pid}, which iterated {self._name}, did not end within {_GRACE:g} s after the pass and "
                "was killed; what its iterator does at its end may be incomplete",
                RuntimeWarning,
                stacklevel=2,
            )

    def _exit_text(self) -> str:
        """Returns how the process ended, after the end was noticed."""
        end(self._process, _GRACE)
        return f"process {self._process.pid}, which iterated {self._name}, {exit_text(self._process)}"


def _serve(
    link: socket.socket,
    parent: int,
    given: bytes,
    allow_pickle: bool,
    ranks: int,
    timeout: float,
    counted: Counted,
    seed: int,
) -> None:
    """The main function of the process. `seed`: of its random generators."""
    begin(parent)
    job = _levada.link(0, 2, [link.detach()], timeout)
    handoff = Handoff(1, 0, "a batch of a loader", False)
    make = None
    try:
        source, state = pickle.loads(given)
        seed_generators(seed)
        make = open_maker(source, state, Making(handoff, allow_pickle, ranks + 1, counted=counted)).make  # and the parent
    except BaseException as error:  # SystemExit, too, is a failure of the loader
        handoff.fail(report_of(error))
    with contextlib.suppress(Error):  # the parent is notified, or has ended
        passing = _start(job, handoff, make, allow_pickle)
        while passing.drop_next():
            pass
    job.leave()


def _start(job: Membership, source: Source | None, make: Any, allow_pickle: bool) -> Pass:
    """The pass from the process to its parent, as far ahead as two batches."""
    return _levada.start(
        job,
        Mesh(pp=2),
        Layout({}, otherwise="stages(pp,last)"),
        source,
        depth=2,
        timeout=_TIMEOUT,
        make=make,
        allow_pickle=allow_pickle,
        remind=False,
    )
