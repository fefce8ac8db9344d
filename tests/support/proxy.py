"""An HTTP/1.1 reverse proxy on 127.0.0.1 that records every request and injects scripted faults.

It stands between a client and a real server. Request target and headers, `Host` included, pass unchanged, so that S3
signatures stay valid; bodies are streamed. Every connection has a thread, and `close()` joins them all. A request is in
`exchanges` before the first byte of its answer leaves, and its bytes are counted before they do: what a client has seen
is always on record. The fault hook runs on the connection's thread.
"""

import http.client
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

_CHUNK_BYTES = 256 * 1024
_SIGNER = re.compile(r"Credential=([^/,]+)/")
_UPSTREAM_SECONDS = 60.0
_DRIPS_PER_SECOND = 20
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request, in this order: a delay, then a hang or a dropped connection, an answer of our
    own, or something with the server's answer."""

    delay_seconds: float = 0.0
    hang: bool = False
    """Never answer; the connection stays open until the proxy closes."""
    drop: bool = False
    """Break the connection without an answer."""
    applied: bool = False
    """Before that, or before an answer of our own, the server does what was asked; its answer is thrown away."""
    status: int | None = None
    """Answer with this status, `headers` and `body`, and leave the server unasked."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    announced_bytes: int | None = None
    """Announce another length than that of `body`, and break the connection after it."""
    cut_after_bytes: int | None = None
    """Break the connection after so many bytes of the server's body, with its full length announced."""
    hang_after_bytes: int | None = None
    """Send so many bytes of the server's body and then nothing, until the proxy closes."""
    corrupt_request_at: int | None = None
    """Flip the bits of this byte of the client's body."""
    corrupt_at: int | None = None
    """Flip the bits of this byte of the server's body."""
    bytes_per_second: float | None = None
    """Send the server's body slowly, in small portions."""


@dataclass(frozen=True)
class Request:
    """A request as the client sent it: the path still encoded, the query without its question mark."""

    method: str
    path: str
    query: str
    range: str | None
    """The Range header, such as `bytes=0-99`."""
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    """By their names in lower case."""

    @property
    def access_key(self) -> str:
        """The access key that signed it; empty where nobody did."""
        signer = _SIGNER.search(self.headers.get("authorization", ""))
        return signer[1] if signer else ""

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
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, query, headers.get("range"), headers)
        exchange = self.server.proxy.record(request)
        fault = self.server.proxy.fault(request) or Fault()
        self.server.proxy.closing.wait(fault.delay_seconds)
        if fault.applied:
            self._apply(fault)
        if fault.hang:
            self._hang()
        elif fault.drop:
            self._leave()
        elif self.headers.get("Transfer-Encoding"):
            self._answer(exchange, Fault(status=411, body=b"this proxy takes bodies of a known length"))
        elif fault.status is not None:
            if not fault.applied:
                self._discard_body()
            self._answer(exchange, fault)
        else:
            self._forward(exchange, fault)

    def _hang(self) -> None:
        self.server.proxy.closing.wait()
        self.close_connection = True

    def _leave(self) -> None:
        self.close_connection = True
        _break(self.connection)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _apply(self, fault: Fault) -> None:
        upstream = self._ask(fault)
        try:
            upstream.getresponse().read()
        finally:
            upstream.close()

    def _body_chunks(self, corrupt_at: int | None = None) -> Iterator[bytes]:
        whole = left = int(self.headers.get("Content-Length") or 0)
        while left:
            chunk = self.rfile.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ConnectionResetError("the client left in the middle of its body")
            yield _corrupted(chunk, whole - left, corrupt_at)
            left -= len(chunk)

    def _discard_body(self) -> None:
        for _ in self._body_chunks():
            continue

    def _answer(self, exchange: Exchange, fault: Fault) -> None:
        exchange.status, exchange.body_bytes = fault.status or 0, len(fault.body)
        self.send_response_only(exchange.status)
        announced = len(fault.body) if fault.announced_bytes is None else fault.announced_bytes
        for name, value in {"Content-Length": str(announced), **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(fault.body)
        if announced != len(fault.body):
            self._leave()

    def _forward(self, exchange: Exchange, fault: Fault) -> None:
        upstream = self._ask(fault)
        try:
            self._relay(upstream.getresponse(), exchange, fault)
        finally:
            upstream.close()

    def _ask(self, fault: Fault) -> http.client.HTTPConnection:
        """A connection to the server, which has got the request."""
        with ExitStack() as undo:
            upstream = http.client.HTTPConnection(self.server.proxy.upstream, timeout=_UPSTREAM_SECONDS)
            undo.callback(upstream.close)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders()
            for chunk in self._body_chunks(fault.corrupt_request_at):
                upstream.send(chunk)
            undo.pop_all()
        return upstream

    def _relay(self, response: http.client.HTTPResponse, exchange: Exchange, fault: Fault) -> None:
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
        for chunk in () if bodiless else self._portions(response, fault):
            exchange.body_bytes += len(chunk)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
        if not bodiless and fault.hang_after_bytes is not None:
            self._hang()
        elif not bodiless and fault.cut_after_bytes is not None:
            self._leave()
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _portions(self, response: http.client.HTTPResponse, fault: Fault) -> Iterator[bytes]:
        """The server's body as far as it is to be sent, as it is to be sent."""
        stops = [stop for stop in (fault.cut_after_bytes, fault.hang_after_bytes) if stop is not None]
        portion, pause, sent = _CHUNK_BYTES, 0.0, 0
        if fault.bytes_per_second is not None:
            portion, pause = max(1, int(fault.bytes_per_second / _DRIPS_PER_SECOND)), 1 / _DRIPS_PER_SECOND
        while chunk := response.read(min([portion, *(stop - sent for stop in stops)])):
            self.server.proxy.closing.wait(pause)
            yield _corrupted(chunk, sent, fault.corrupt_at)
            sent += len(chunk)


def _corrupted(chunk: bytes, start: int, at: int | None) -> bytes:
    if at is None or not start <= at < start + len(chunk):
        return chunk
    spoilt = bytearray(chunk)
    spoilt[at - start] ^= 0xFF
    return bytes(spoilt)
