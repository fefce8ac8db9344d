"""An HTTP/1.1 reverse proxy on 127.0.0.1 that records every request and injects scripted faults.

It stands between a client and a real server. Request target and headers, `Host` included, pass unchanged, so that S3
signatures stay valid; bodies are streamed. Every connection has a thread, and `close()` joins them all. A request is in
`exchanges` before the first byte of its answer leaves, and its bytes are counted before they do: what a client has seen
is always on record. The fault hook runs on the connection's thread.
"""

import http.client
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

_CHUNK_BYTES = 256 * 1024
_UPSTREAM_SECONDS = 60.0
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request, in this order: a delay, then a hang, an answer of our own, or a cut answer."""

    delay_seconds: float = 0.0
    status: int | None = None
    """Answer with this status and `body` and leave the server unasked."""
    body: bytes = b""
    cut_after_bytes: int | None = None
    """Break the connection after so many bytes of the server's body, with its full length announced."""
    hang: bool = False
    """Never answer; the connection stays open until the proxy closes."""


@dataclass(frozen=True)
class Request:
    """A request as the client sent it: the path still encoded, the query without its question mark."""

    method: str
    path: str
    query: str
    range: str | None
    """The Range header, such as `bytes=0-99`."""

    @property
    def bucket(self) -> str:
        """The first segment of the path."""
        return unquote(self.path.lstrip("/").partition("/")[0])

    @property
    def key(self) -> str:
        """What follows the bucket, decoded; empty for requests to the bucket itself, listings for one."""
        return unquote(self.path.lstrip("/").partition("/")[2])


@dataclass
class Exchange:
    """A request and what has been answered so far; `status` is 0 until something is."""

    request: Request
    status: int = 0
    body_bytes: int = 0


FaultHook = Callable[[Request], Fault | None]


def _no_fault(_: Request) -> Fault | None:
    return None


class CountingProxy:
    """The running proxy, as a context manager; `fault` may be replaced at any time."""

    def __init__(self, upstream: str, *, fault: FaultHook = _no_fault) -> None:
        self.fault = fault
        self.upstream = urlsplit(upstream).netloc
        self.closing = threading.Event()
        self._exchanges: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="counting-proxy")
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The URL to give to clients in place of the server's."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def record(self, request: Request) -> Exchange:
        """Note that a request has arrived."""
        exchange = Exchange(request)
        with self._lock:
            self._exchanges.append(exchange)
        return exchange

    def clear(self) -> None:
        """Forget what has been recorded."""
        with self._lock:
            self._exchanges.clear()

    @property
    def exchanges(self) -> list[Exchange]:
        """All that was recorded, in order of arrival."""
        with self._lock:
            return list(self._exchanges)

    def gets(self, key: str | None = None) -> list[Exchange]:
        """The GET requests for one object, or for any object."""
        return [
            exchange
            for exchange in self.exchanges
            if exchange.request.method == "GET" and exchange.request.key and key in (None, exchange.request.key)
        ]

    def bytes_sent(self, key: str | None = None) -> int:
        """The bytes of objects that were sent to clients, for one key or for all."""
        return sum(exchange.body_bytes for exchange in self.gets(key))

    def close(self) -> None:
        """Break all connections and end all threads; raises the first error that a handler met, if any did."""
        self.closing.set()
        self._server.shutdown()
        self._server.break_connections()
        self._server.server_close()
        self._thread.join()
        if self._server.errors:
            raise self._server.errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, proxy: CountingProxy) -> None:
        self.proxy = proxy
        self.errors: list[BaseException] = []
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        with self._connections_lock:
            for connection in self._connections:
                _break(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.errors.append(error)


def _break(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        request = Request(self.command, path, query, self.headers.get("Range"))
        exchange = self.server.proxy.record(request)
        fault = self.server.proxy.fault(request) or Fault()
        self.server.proxy.closing.wait(fault.delay_seconds)
        if fault.hang:
            self.server.proxy.closing.wait()
            self.close_connection = True
        elif self.headers.get("Transfer-Encoding"):
            self._answer(exchange, 411, b"this proxy takes bodies of a known length")
        elif fault.status is not None:
            self._discard_body()
            self._answer(exchange, fault.status, fault.body)
        else:
            self._forward(exchange, fault.cut_after_bytes)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _body_chunks(self) -> Iterator[bytes]:
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            chunk = self.rfile.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ConnectionResetError("the client left in the middle of its body")
            left -= len(chunk)
            yield chunk

    def _discard_body(self) -> None:
        for _ in self._body_chunks():
            continue

    def _answer(self, exchange: Exchange, status: int, body: bytes) -> None:
        exchange.status, exchange.body_bytes = status, len(body)
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, exchange: Exchange, cut_after_bytes: int | None) -> None:
        upstream = http.client.HTTPConnection(self.server.proxy.upstream, timeout=_UPSTREAM_SECONDS)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for chunk in self._body_chunks():
                upstream.send(chunk)
            self._relay(upstream.getresponse(), exchange, cut_after_bytes)
        finally:
            upstream.close()

    def _relay(self, response: http.client.HTTPResponse, exchange: Exchange, cut_after_bytes: int | None) -> None:
        exchange.status = response.status
        self.send_response_only(response.status, response.reason)
        for name, value in response.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        bodiless = self.command == "HEAD" or response.status in (204, 304)
        chunked = not bodiless and "Content-Length" not in response.headers
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = cut_after_bytes
        while not bodiless and (left is None or left > 0):
            chunk = response.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not chunk:
                break
            left = None if left is None else left - len(chunk)
            exchange.body_bytes += len(chunk)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
        if left == 0:
            self.close_connection = True
            _break(self.connection)
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")
