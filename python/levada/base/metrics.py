"""Metrics of running feeds and pipelines, for Prometheus, W&B, TensorBoard and the like."""

from __future__ import annotations

import contextlib
import operator
import os
import pathlib
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from levada import _levada
from levada.base.errors import InvalidArgument
from levada.base.threads import start_thread

if TYPE_CHECKING:
    import http.server

__all__ = ["MetricsExporter"]

_LABEL = re.compile("(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_GRACE = 30.0
"""Seconds that close() waits for the last values to be exported."""


class _Source(Protocol):
    def metrics(self, labels: Mapping[str, str] | None = None) -> list[_levada.Metric]: ...


class MetricsExporter:
    """Exports the metrics of feeds and pipeline runs on a thread of its own, until it is closed; a context manager.

    to: a port or "HOST:PORT", which answers HTTP requests in Prometheus's text format (a port alone: on all addresses of this
        machine; 0: any free port, see `port`); a path, whose file is replaced every `every` seconds and at the end; or a
        function, such as wandb.log, which is called as often and at the end with {name: value}. If it raises, a warning is
        issued.
    labels: added to all metrics, such as {"rank": "3"}.

    Each rank exports its own metrics, to a port or file of its own. A feed's counters start at 0 with each pass. Raises OSError
    for a port that cannot be opened or a file that cannot be written.
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
            raise InvalidArgument("there is nothing to export: give feeds or pipeline runs")
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
        self._server: http.server.ThreadingHTTPServer | None = None
        address = address_of(to)
        if address is not None:
            self._server = _serve(address, self._text)
            work: Callable[[], None] = self._server.serve_forever
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
                self._server.server_close()
            raise

    @property
    def port(self) -> int | None:
        """The port that answers requests; None for a file or a function."""
        return None if self._server is None else int(self._server.server_address[1])

    def close(self) -> None:
        """Exports the last values to the file or function, and stops. If that takes over 30 s, a warning is issued and the thread
        is left to itself. Does nothing in a forked child, which does not have the thread."""
        if self._closed.is_set() or os.getpid() != self._owner:
            return
        self._closed.set()
        if self._server is not None:
            self._server.shutdown()
        self._thread.join(_GRACE)
        if self._thread.is_alive():
            warnings.warn(
                f"the last metrics have not been exported within {_GRACE:g} s, and the exporter is closed without them",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._server is not None:
            self._server.server_close()

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
        try:
            file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
        try:
            with open(file, "wb") as stream:
                stream.write(self._text())
            os.chmod(name, 0o644)
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
    """Returns host ("" for all addresses of this machine) and port of a port or a "HOST:PORT"; None for a path and a function.
    Raises InvalidArgument for anything else."""
    if isinstance(to, str) and "/" not in to:
        host, colon, port = to.rpartition(":")
        if port.isdecimal() and (host or not colon):
            return host, int(port)
        if not colon:
            return None
    elif isinstance(to, (str, os.PathLike)) or callable(to):
        return None
    elif hasattr(to, "__index__") and not isinstance(to, bool):
        return "", operator.index(to)
    raise InvalidArgument(
        f'{name} must be a port, "HOST:PORT", a path (with a slash if its name has a colon: "./a:b") or a function, got {to!r}'
    )


def _serve(address: tuple[str, int], text: Callable[[], bytes]) -> http.server.ThreadingHTTPServer:
    import http.server  # here, because it takes long

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                return self.send_error(404)
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    if not 0 <= address[1] <= 65535:
        raise InvalidArgument(f"a port is from 0 to 65535, got {address[1]}")
    try:
        return http.server.ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, f"{address[0]}:{address[1]}") from None
