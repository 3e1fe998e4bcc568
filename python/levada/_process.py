"""A loader in a process of its own: the two processes are the ranks of a private feed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import traceback
from typing import Any

from levada import _levada
from levada._errors import Error, PeerLost, SourceError
from levada._exits import exit_text
from levada._layouts import make_layout
from levada._levada import Handoff, Membership, Mesh, Pass, Source
from levada._readers import BackgroundReader, Maker, ReportedError, open_maker

_START = 60.0
"""Seconds for the process to start, which may have to import what its parent has."""
_TIMEOUT = 1e8
"""Seconds of a wait between the two: those who wait for the batch have a timeout of their own."""
_GRACE = 1.0
"""Seconds to end in order, with workers of the loader's own."""


class ProcessReader(BackgroundReader):
    """A process that iterates, and a thread here that takes its batches."""

    def __init__(self, source: Any, state: Any, handoff: Handoff, allow_pickle: bool) -> None:
        if source is None:
            raise TypeError("this rank reads for the feed, but its source is None")
        self._child = _Child(source, state, allow_pickle)
        state_dict = self._child.state_dict if hasattr(source, "state_dict") else None
        super().__init__(Maker(self._child, state_dict, handoff, allow_pickle))
        self.where = self._child.where

    def stop(self) -> None:
        self._child.stop()
        super().stop()


class _Child:
    """The iterator that the process's is here."""

    def __init__(self, source: Any, state: Any, allow_pickle: bool) -> None:
        self._owner = os.getpid()
        self._name = type(source).__name__
        self._allow_pickle = allow_pickle
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # No daemon, for that could have no workers; _serve() sees to it that it does not outlive this process.
        self._process = multiprocessing.Process(
            target=_serve, args=(there, self._owner, source, state, allow_pickle), name="levada reader", daemon=False
        )
        with here, there:
            self._process.start()
            there.close()
            try:
                self._job = _levada.link(1, 2, [here.detach()], _START)
                self._pass = _start(self._job, None, None, allow_pickle)
            except PeerLost:
                raise SourceError(self._exit_text()) from None
            except BaseException:
                self._end()
                raise

    def __iter__(self) -> _Child:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._pass)
        except PeerLost:
            raise ReportedError(self._exit_text()) from None
        except SourceError as error:
            raise ReportedError(self._pass.end["message"] if self._pass.end else str(error)) from None

    def state_dict(self) -> Any:
        """The loader's, after the batch taken last."""
        return _levada.read_cursor(self._pass.cursor, allow_pickle=self._allow_pickle)[2]

    def where(self) -> str:
        return f"process {self._process.pid}"

    def stop(self) -> None:
        """Ends the process, and waits for that. Any thread. Does nothing in a forked child, whose it is not."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(Error):
            self._pass.request_stop()
        self._end(_GRACE)

    def _end(self, grace: float = 0.0) -> None:
        self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def _exit_text(self) -> str:
        """How the process ended, which its going has told already."""
        self._end(_GRACE)
        return f"process {self._process.pid}, which iterated {self._name}, {exit_text(self._process)}"


def _serve(link: socket.socket, parent: int, source: Any, state: Any, allow_pickle: bool) -> None:
    """The process."""
    _levada.die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    job = _levada.link(0, 2, [link.detach()], _START)
    handoff = Handoff(1, 0, f"a batch of {type(source).__name__}", False)
    make = None
    try:
        make = open_maker(source, state, handoff, allow_pickle).make
    except Exception:
        handoff.fail(traceback.format_exc())
    with contextlib.suppress(Error):  # the parent hears of it, or is gone
        passing = _start(job, handoff, make, allow_pickle)
        while passing.drop_next():
            pass
    job.leave()


def _start(job: Membership, source: Source | None, make: Any, allow_pickle: bool) -> Pass:
    """The pass from the process to its parent, as far ahead as two batches."""
    return _levada.start(
        job,
        Mesh(pp=2),
        make_layout({}, otherwise="stages(pp,last)"),
        source,
        depth=2,
        timeout=_TIMEOUT,
        make=make,
        allow_pickle=allow_pickle,
    )
