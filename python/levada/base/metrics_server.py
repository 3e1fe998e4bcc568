"""The HTTP server that answers requests for metrics."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable

from levada.base.errors import InvalidArgument

_MAX_CLIENTS = 8
_CLIENT_TIME = 5.0
"""Seconds that a client has from the connection to the last byte of the response. Progress does not extend them."""

_RETRY_INTERVAL = 0.1
"""Seconds between two attempts to accept a client if no descriptor is free."""

_MAX_REQUEST_BYTES = 8192
_MAX_PORT = 65535


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.deadline = connection, time.monotonic() + _CLIENT_TIME
        self.request, self.response = b"", b""
        """The response is empty until the request is complete."""


class MetricsServer:
    """Answers HTTP requests for a text. Because a client may try to exhaust the process, at most eight clients are
    connected at once, each for at most five seconds, and further ones are disconnected. A slow client does not delay
    the others.

    Raises OSError if the server cannot listen on the port.
    """

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        if not 0 <= port <= _MAX_PORT:
            raise InvalidArgument(f"a port is from 0 to {_MAX_PORT}, got {port}")
        self._text = text
        self._clients: list[_Client] = []
        self._listener = _listen_at(host, port)
        self._stop, self._stopped = socket.socketpair()
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serves clients on the calling thread until stop() is called."""
        while not self._step():
            pass

    def stop(self) -> None:
        """Makes run() return soon. May be called by any thread."""
        self._stop.send(b"x")

    def close(self) -> None:
        """Closes the server. run() must have returned, or never be called."""
        for each in (self._listener, self._stop, self._stopped, *(client.socket for client in self._clients)):
            each.close()

    def _step(self) -> bool:
        """Waits for events and handles them. Returns whether run() should return."""
        with selectors.PollSelector() as waiting:
            waiting.register(self._stopped, selectors.EVENT_READ)
            waiting.register(self._listener, selectors.EVENT_READ)
            for client in self._clients:
                waiting.register(client.socket, selectors.EVENT_WRITE if client.response else selectors.EVENT_READ)
            # The first client in the list was accepted first, so its deadline is the earliest.
            left = max(self._clients[0].deadline - time.monotonic(), 0) if self._clients else None
            ready = {key.fileobj for key, _ in waiting.select(left)}
        if self._stopped in ready:
            return True
        now = time.monotonic()
        for client in list(self._clients):
            if now >= client.deadline or (client.socket in ready and not self._advance(client)):
                self._clients.remove(client)
                client.socket.close()
        return self._listener in ready and not self._accept() and self._is_stopped_within(_RETRY_INTERVAL)

    def _is_stopped_within(self, seconds: float) -> bool:
        with selectors.PollSelector() as waiting:
            waiting.register(self._stopped, selectors.EVENT_READ)
            return bool(waiting.select(seconds))

    def _accept(self) -> bool:
        """Accepts a client, or disconnects it if there are too many. Returns False if no client can be accepted."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.ECONNABORTED)
        if len(self._clients) == _MAX_CLIENTS:
            connection.close()
        else:
            connection.setblocking(False)
            self._clients.append(_Client(connection))
        return True

    def _advance(self, client: _Client) -> bool:
        """Reads the data that has arrived, or sends as much as the socket accepts. Returns whether the client stays
        connected."""
        try:
            if not client.response:
                piece = client.socket.recv(1024)
                client.request += piece
                if b"\r\n\r\n" not in client.request:
                    return bool(piece) and len(client.request) < _MAX_REQUEST_BYTES
                client.response = self._response_to(client.request)
            client.response = client.response[client.socket.send(client.response) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(client.response)

    def _response_to(self, request: bytes) -> bytes:
        method, path = (*request.split(b" ", 2), b"")[:2]
        if method != b"GET":
            return _response("405 Method Not Allowed", b"ask with GET\n")
        if path.partition(b"?")[0] not in (b"/", b"/metrics"):
            return _response("404 Not Found", b"the numbers are at /metrics\n")
        try:
            return _response("200 OK", self._text())
        except Exception:  # an error in the source must not end the server
            return _response("500 Internal Server Error", b"the numbers cannot be collected\n")


def _response(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _listen_at(host: str, port: int) -> socket.socket:
    listener = None
    try:
        name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        family, kind, protocol, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICSERV)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(16)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise type(error)(error.errno, error.strerror, f"{host}:{port}") from None
    return listener
