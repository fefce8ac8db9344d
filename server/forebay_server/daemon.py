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

from forebay_core.errors import AlreadyRunning, ForebayError, one_line
from forebay_server.checkpoints.area import StagingArea
from forebay_server.config import ServerConfig
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.claims import Claims
from forebay_server.node import Node
from forebay_server.process.socket import SocketPlace
from forebay_server.process.supervision import Supervisor
from forebay_server.rpc.limits import CALLS_AT_ONCE, SERVER_OPTIONS
from forebay_server.rpc.service import add_to
from forebay_server.web.serving import listener, status_page

_log = logging.getLogger(__name__)
_STOP_SECONDS = 1.0


async def serve(config: ServerConfig, environment: Mapping[str, str], on_ready: Callable[[Node], None]) -> None:
    """Serves until SIGTERM, SIGINT, or an embedded daemon's idle end. `on_ready` is called once calls are answered.

    Raises `AlreadyRunning` where another daemon holds the socket or a cache directory, `ConfigurationError` where the
    socket or none of the directories can be used.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    with contextlib.ExitStack() as claimed:
        place = SocketPlace.claim(config.socket, config.group_id)
        claimed.callback(place.release)
        disks = Claims(config.group_id)
        claimed.callback(disks.close)
        found = disks.first(config.disks)
        staging = _claim_staging(config, found[0])
        if isinstance(staging, StagingArea):
            claimed.callback(staging.close)
        http = listener(config)
        node = Node(config, found, environment, clock=time.monotonic, claim=disks.claim, staging=staging)
        supervisor = Supervisor({} if config.embedded else environment)

        def ready(node: Node) -> None:
            supervisor.ready(f"serving on {place.path}")
            on_ready(node)

        watch = asyncio.create_task(supervisor.watch())
        claimed.callback(watch.cancel)
        async with status_page(node, http):
            await _serve_on(place, node, ending, supervisor, ready)


def _claim_staging(config: ServerConfig, first: CacheDisk | ForebayError) -> StagingArea | ForebayError:
    """Why not, where it cannot be used: a cache serves without it. Raises `AlreadyRunning`, and `ConfigurationError`
    for a directory that was named. Into a cache directory that is not this daemon's nothing is put."""
    if config.staging_dir is None and isinstance(first, ForebayError):
        _log.error("checkpoints cannot be staged in %s, which is left out", config.staging_path.parent)
        return first
    try:
        return StagingArea.claim(config.staging_path, config.group_id, is_private=config.embedded)
    except AlreadyRunning:
        raise
    except ForebayError as error:
        if config.staging_dir is not None:
            raise
        _log.error("checkpoints cannot be staged: %s", one_line(error))
        return error


async def _serve_on(
    place: SocketPlace, node: Node, ending: asyncio.Event, supervisor: Supervisor, on_ready: Callable[[Node], None]
) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_AT_ONCE)
    stop_serving = add_to(server, node)
    place.bind(server)
    await server.start()
    node.start()
    roots = ", ".join(str(disk.root) for disk in node.pool.disks)
    _log.info("serving on %s, cache in %s, pid %d", place.path, roots, node.process_id)
    on_ready(node)
    try:
        await _until_the_end(node, ending)
    finally:
        _log.info("ending")
        supervisor.stopping()
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
