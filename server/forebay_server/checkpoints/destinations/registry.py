"""Which destination a root means. One per root, opened when it is first named and kept for the daemon's life, so that
what was found out about it once is known. On the event loop.
"""

import asyncio
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.locations import Location, root_of
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.file import FileDestination
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.checkpoints.destinations.s3 import S3Destination
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.sources.failures import shown
from forebay_server.sources.registry import Stores
from forebay_server.sources.retries import READING, RetryPolicy
from forebay_server.sources.s3 import S3


class Destinations:
    """All roots that a daemon was told of."""

    def __init__(
        self, stores: Stores, transfers: Transfers, permits: WritePermits, *, retries: RetryPolicy = READING
    ) -> None:
        self._stores = stores
        self._transfers = transfers
        self._permits = permits
        self._retries = retries
        self._opened: dict[str, Destination] = {}

    async def open(self, url: str) -> Destination:
        """The destination of a root, named by its URL or path; the same one each time, as is its `url`.

        Raises `UnknownScheme`, `ConfigurationError` or `AccessDenied`, before any request.
        """
        root = await asyncio.to_thread(self._permitted, url)
        if root.url not in self._opened:
            self._opened[root.url] = self._make(root)
        return self._opened[root.url]

    def _permitted(self, url: str) -> Location:
        root = root_of(url)
        self._permits.check(root)
        return root

    def _make(self, root: Location) -> Destination:
        if root.scheme == "file":
            return FileDestination(Path(root.path), self._transfers)
        store = self._stores.open(root)
        if not isinstance(store, S3):
            raise ConfigurationError(f"{shown(root.url)}: checkpoints cannot be kept there yet; name s3:// or file://")
        return S3Destination(store, root, self._transfers, retries=self._retries)
