"""The HTTP server: metrics, health and the status page, on the daemon's own event loop.

    /metrics       Prometheus
    /healthz       200 as long as the daemon lives
    /readyz        200 while it takes sessions, 503 while it is ending
    /status.json   what the page shows; `?after=SECONDS` leaves out the history up to then
    /              the page, with page.css, page.js and icon.svg

It must never slow calls: lists are bounded, text is made in a thread, what was made a moment ago is given again, and
there are not more than so many connections. It reads and changes nothing, gives no other origin access, and on a
loopback address answers only requests that name one.
"""

import asyncio
import functools
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from forebay_core.errors import ConfigurationError
from forebay_server.concurrency import OneForAll, end_all, repeat
from forebay_server.node import Node
from forebay_server.web.address import HttpAddress
from forebay_server.web.history import INTERVAL_SECONDS, History
from forebay_server.web.metrics import families, render
from forebay_server.web.status import after, document, totals

_log = logging.getLogger(__name__)
#: What is no HTTP is answered with 400 and not worth a traceback: else whoever reaches the address fills the disk.
_requests_log = logging.getLogger(f"{__name__}.requests")
_requests_log.setLevel(logging.CRITICAL)
_CONNECTIONS = 64
_BACKLOG = 64
_REUSE_SECONDS = 0.25
_KEEP_ALIVE_SECONDS = 20.0
_STOP_SECONDS = 1.0
_PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "forebay",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


def listen(address: HttpAddress) -> socket.socket:
    """Takes the address. Raises `ConfigurationError` where that cannot be."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"HTTP cannot be served on {address.host or '*'}:{address.port}: {error.strerror or error};"
            " give another address, with port 0 for any that is free (--http, FOREBAY_HTTP)"
        ) from error
    listener.setblocking(False)
    return listener


class StatusServer:
    """Serves one node from `start` to `close`. Methods are for the event loop."""

    def __init__(self, node: Node, listener: socket.socket) -> None:
        self._node = node
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.address = HttpAddress(host, port)
        self._history = History(node.uptime_seconds(), totals(node))
        self._rendered: OneForAll[str, tuple[bytes, str]] = OneForAll()
        self._latest: dict[str, tuple[float, tuple[bytes, str]]] = {}
        self._document: dict[str, Any] = {}
        self._documented_at = float("-inf")
        self._routes: dict[str, Handler] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status.json": self._status,
            **_pages(),
        }
        self._answering: web.Server | None = None
        self._listening: asyncio.Server | None = None
        self._recording: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answers from now on."""
        loop = asyncio.get_running_loop()
        self._answering = web.Server(
            self._answer,
            access_log=None,
            logger=_requests_log,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            handler_cancellation=True,
        )
        factory = functools.partial(_connection, self._answering)
        self._listening = await loop.create_server(factory, sock=self._listener)
        self._recording = asyncio.create_task(repeat(self._record, "recording what the node does"))

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        if self._recording is not None:
            await end_all([self._recording])
        if self._listening is not None:
            self._listening.close()
        if self._answering is not None:
            self._answering.pre_shutdown()
            await self._answering.shutdown(_STOP_SECONDS)
        await self._rendered.close()
        self._listener.close()

    async def _record(self) -> None:
        await asyncio.sleep(INTERVAL_SECONDS)
        self._history.add(self._node.uptime_seconds(), totals(self._node))

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        response = await self._found(request)
        response.headers.update(_HEADERS)
        return response

    async def _found(self, request: web.BaseRequest) -> web.Response:
        if not self.address.is_called(request.headers.get("Host")):
            return _said(421, "this address is served to this machine alone: call it by 127.0.0.1 or localhost")
        if request.method not in ("GET", "HEAD"):
            response = _said(405, "this is to be read, not written")
            response.headers["Allow"] = "GET, HEAD"
            return response
        handler = self._routes.get(request.path)
        if handler is None:
            return _said(404, f"there is nothing here; there is {', '.join(sorted(self._routes))}")
        try:
            return await handler(request)
        except Exception:
            _log.exception("%s cannot be answered", request.path)
            return _said(500, "this failed; the daemon's log says why")

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        accept = request.headers.get("Accept", "")
        kind = "openmetrics" if "openmetrics" in accept else accept if "text/plain" in accept else ""
        body, content_type = await self._reused(kind[:200], lambda: self._exposition(accept))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _exposition(self, accept: str) -> tuple[bytes, str]:
        return await asyncio.to_thread(render, families(self._node), accept)

    async def _reused(self, name: str, work: Callable[[], Awaitable[tuple[bytes, str]]]) -> tuple[bytes, str]:
        """What `work` gives, or gave a moment ago: however many ask, it is done a few times a second."""
        made_at, latest = self._latest.get(name, (0.0, (b"", "")))
        if latest[0] and time.monotonic() - made_at < _REUSE_SECONDS:
            return latest
        made = await self._rendered.result(name, lambda: _run(work))
        self._latest = {name: (time.monotonic(), made)}
        return made

    async def _healthz(self, _request: web.BaseRequest) -> web.Response:
        return _said(200, "alive")

    async def _readyz(self, _request: web.BaseRequest) -> web.Response:
        return _said(503, "ending") if self._node.is_draining else _said(200, "ready")

    async def _status(self, request: web.BaseRequest) -> web.Response:
        try:
            after_seconds = float(request.query.get("after", "-1"))
        except ValueError:
            return _said(400, "after= is a number of seconds")
        if time.monotonic() - self._documented_at >= _REUSE_SECONDS:
            self._document = document(self._node, self._history)
            self._documented_at = time.monotonic()
        found = after(self._document, after_seconds)
        text = await asyncio.to_thread(json.dumps, found, separators=(",", ":"))
        return web.Response(text=text, content_type="application/json")


async def _run(work: Callable[[], Awaitable[tuple[bytes, str]]]) -> tuple[bytes, str]:
    return await work()


class _Refusal(asyncio.Protocol):
    """There are too many connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _connection(answering: web.Server) -> asyncio.Protocol:
    return answering() if len(answering.connections) < _CONNECTIONS else _Refusal()


def _pages() -> dict[str, Handler]:
    """The files of the page, read once."""
    pages = {f"/{path.name}": _page(path) for path in _PAGE.iterdir() if path.suffix in _TYPES}
    return {"/": pages.pop("/index.html"), **pages}


def _page(path: Path) -> Handler:
    body, content_type = path.read_bytes(), _TYPES[path.suffix]

    async def handler(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handler


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
