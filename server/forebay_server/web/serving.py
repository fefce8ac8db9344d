"""Whether a daemon has a status page, and the page's life beside the daemon's.

The server is imported only where it is asked for: that takes half a second, and no trainer has to wait for it.
"""

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forebay_core.errors import ConfigurationError
from forebay_server.config import ServerConfig
from forebay_server.node import Node

_log = logging.getLogger(__name__)


def listener(config: ServerConfig) -> socket.socket | None:
    """Takes the configured address; None where there is none.

    Raises `ConfigurationError` for one that cannot be had, except for a daemon that a trainer has started: that one
    does not end for want of a page.
    """
    if config.http is None:
        return None
    from forebay_server.web.server import listen

    try:
        return listen(config.http)
    except ConfigurationError as error:
        if not config.embedded:
            raise
        _log.warning("there is no status page: %s", error)
        return None


@asynccontextmanager
async def status_page(node: Node, http: socket.socket | None) -> AsyncIterator[None]:
    """Serves the node's page on the socket for as long as the context lasts."""
    if http is None:
        yield
        return
    from forebay_server.web.server import StatusServer

    page = StatusServer(node, http)
    await page.start()
    node.http_address = page.address.url
    _log.info("metrics and the status page on %s", node.http_address)
    if not page.address.is_loopback:
        _log.warning("everyone who reaches %s can read the status page and the metrics", page.address.url)
    try:
        yield
    finally:
        await page.close()
