"""Exports metrics of running feeds and pipelines to Prometheus, W&B, TensorBoard and the like."""

from __future__ import annotations

import contextlib
import operator
import os
import pathlib
import re
import secrets
import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from levada import _levada
from levada.base.errors import InvalidArgument
from levada.base.metrics_server import MetricsServer
from levada.base.threads import start_thread

__all__ = ["MetricsExporter"]

_LABEL = re.compile("(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_LOOPBACK = "127.0.0.1"
_GRACE = 30.0
"""Seconds that close() waits until the last values have been exported."""


class _Source(Protocol):
    def metrics(self, labels: Mapping[str, str] | None = None) -> list[_levada.Metric]: ...


class MetricsExporter:
    """Exports the metrics of feeds and pipeline runs on a separate thread until it is closed. A context manager.

    to: a port or "HOST:PORT", at which HTTP requests are answered in Prometheus's text format. A port without a host
    listens at 127.0.0.1, for programs on this machine only; "0.0.0.0:9100" listens for every machine that can reach it;
    0 chooses any free port, see `port`. Or a path, whose file is replaced every `every` seconds and at the end. Or a
    function, such as wandb.log, which is called equally often and at the end with {name: value}; if it raises, a
    warning is issued.
    labels: added to all metrics, such as {"rank": "3"}.

    Each rank exports its own metrics, to a separate port or file. A feed's counters start at 0 with each pass. Raises
    OSError if the port cannot be opened or the file cannot be written.
    """

    def __init__(
        self,
        to: int | str | os.PathLike[str] | Callable[[dict[str, float]], object],
        *sources: _Source,
        every: float = 10.0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if not every > 0:
            raise InvalidArgument(f"every must be more than 0 seconds, got {every}")
        if not sources:
            raise InvalidArgument("there is nothing to export: pass feeds or pipeline runs")
        for source in sources:
            if not callable(getattr(source, "metrics", None)):
                raise InvalidArgument(f"only feeds and pipeline runs have metrics, got {source!r}")
        for name, value in (labels or {}).items():
            is_name = isinstance(name, str) and _LABEL.fullmatch(name) and name != "stage"
            if not is_name or not isinstance(value, str):
                raise InvalidArgument(
                    "labels must be strings by name, of letters, digits and _; pipelines themselves have the label stage: "
                    f"got {name!r}: {value!r}"
                )
        self._sources, self._labels, self._every = sources, dict(labels or {}), every
        self._closed = threading.Event()
        self._owner = os.getpid()
        self._server: MetricsServer | None = None
        address = address_of(to)
        if address is not None:
            self._server = MetricsServer(*address, self._text)
            work: Callable[[], None] = self._server.run
        elif callable(to):
            work = self._repeat(lambda: to({each.id: each.value for each in self._collect()}))
        else:
            path = pathlib.Path(to)  # type: ignore[arg-type]
            self._write(path)
            work = self._repeat(lambda: self._write(path))
        try:
            self._thread = start_thread("exporting metrics", "levada metrics", work)
        except BaseException:
            if self._server is not None:
                self._server.close()
            raise

    @property
    def port(self) -> int | None:
        """The port that answers requests; None for a file or a function."""
        return None if self._server is None else self._server.port

    def close(self) -> None:
        """Exports the last values to the file or function, and stops. If that takes more than 30 s, issues a warning
        and abandons the thread. Does nothing in a forked child, which does not have the thread."""
        if self._closed.is_set() or os.getpid() != self._owner:
            return
        self._closed.set()
        if self._server is not None:
            self._server.stop()
        self._thread.join(_GRACE)
        if self._thread.is_alive():
            warnings.warn(
                f"the last metrics have not been exported within {_GRACE:g} s, and the exporter is closed without them",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._server is not None:
            self._server.close()

    def __enter__(self) -> MetricsExporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _collect(self) -> list[_levada.Metric]:
        return [metric for source in self._sources for metric in source.metrics(self._labels)]

    def _text(self) -> bytes:
        return _levada.to_prometheus(self._collect()).encode()

    def _write(self, path: pathlib.Path) -> None:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
        try:
            with open(file, "wb") as stream:
                stream.write(self._text())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _repeat(self, export: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            is_last = False
            while not is_last:
                is_last = self._closed.wait(self._every)
                try:
                    export()
                except Exception as error:  # must not end the run
                    warnings.warn(f"numbers could not be exported: {error!r}", RuntimeWarning, stacklevel=2)

        return work


def address_of(to: object, name: str = "to") -> tuple[str, int] | None:
    """Returns the host (by default 127.0.0.1) and the port of a port or a "HOST:PORT"; None for a path or a function.
    Raises InvalidArgument for anything else."""
    if isinstance(to, str) and "/" not in to:
        host, colon, port = to.rpartition(":")
        if port.isdecimal() and (host or not colon):
            return host or _LOOPBACK, int(port)
        if not colon:
            return None
    elif isinstance(to, (str, os.PathLike)) or callable(to):
        return None
    elif hasattr(to, "__index__") and not isinstance(to, bool):
        return _LOOPBACK, operator.index(to)
    raise InvalidArgument(
        f'{name} must be a port, "HOST:PORT", a path (with a slash if its name has a colon: "./a:b") or a function, got {to!r}'
    )
