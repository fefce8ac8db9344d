"""The daemon process: claims the socket and the disk, serves until it is told to end, and leaves nothing behind.

`serve` is the whole life of a daemon on one event loop in the main thread.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping

import grpc.aio

from forebay_server.cache.disk import CacheDisk
from forebay_server.config import ServerConfig
from forebay_server.node import Node
from forebay_server.service import add_to
from forebay_server.socket import SocketPlace

_log = logging.getLogger(__name__)
_STOP_SECONDS = 1.0


async def serve(config: ServerConfig, environment: Mapping[str, str], on_ready: Callable[[Node], None]) -> None:
    """Serves until SIGTERM, SIGINT, or an embedded daemon's idle end. `on_ready` is called once calls are answered.

    Raises `AlreadyRunning` where another daemon holds the socket or the cache directory, `ConfigurationError` where
    they cannot be used.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    with contextlib.ExitStack() as claimed:
        place = SocketPlace.claim(config.socket, config.group)
        claimed.callback(place.release)
        disk = CacheDisk.claim(config.disks[0].path, config.group)
        claimed.callback(disk.close)
        node = Node(config, disk, environment, clock=time.monotonic)
        await _serve_on(place, node, ending, on_ready)


async def _serve_on(place: SocketPlace, node: Node, ending: asyncio.Event, on_ready: Callable[[Node], None]) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    stop_serving = add_to(server, node)
    place.bind(server)
    await server.start()
    node.start()
    _log.info("serving on %s, cache in %s, pid %d", place.path, node.cache.disk.root, node.process_id)
    on_ready(node)
    try:
        await _until_the_end(node, ending)
    finally:
        _log.info("ending")
        await stop_serving()
        await node.drain()
        await server.stop(_STOP_SECONDS)
        await node.close()


async def _until_the_end(node: Node, ending: asyncio.Event) -> None:
    if not node.config.embedded:
        await ending.wait()
        return
    look_every = max(0.05, min(5.0, node.config.idle_seconds / 4))
    while not ending.is_set() and node.idle_seconds() < node.config.idle_seconds:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), look_every)
