"""A daemon without its socket: the parts of a node's cache, put together, and their life from start to drain.

Everything runs on one event loop. The service translates to and from it; tests use it directly.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata

from forebay_core.errors import ConfigurationError, DaemonUnavailable
from forebay_server.cache.cache import Cache
from forebay_server.cache.capacity import Ledger, floor_bytes
from forebay_server.cache.disk import CacheDisk
from forebay_server.concurrency import end_all, repeat
from forebay_server.config import ServerConfig
from forebay_server.fill import Fills
from forebay_server.prefetch import Prefetcher
from forebay_server.sessions import QUIET_SECONDS, Session, Sessions
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.manifests import Manifests, OpenedDataset
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from forebay_server.views import Views

_log = logging.getLogger(__name__)


class Node:
    """All parts of one daemon. Made on a running event loop, over a claimed disk."""

    def __init__(
        self, config: ServerConfig, disk: CacheDisk, environment: Mapping[str, str], *, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self.version = _version()
        self.boot_id = uuid.uuid4().hex
        self.process_id = os.getpid()
        self.is_draining = False
        self.remote = RemoteCounters()
        self._clock = clock
        self._started = self._last_call = clock()
        self._calls = 0
        in_place = config.read_in_place == "auto"
        stores = Stores(environment, self.remote)
        self._fetcher = Fetcher(stores)
        self._views = Views(stores)
        self._manifests = Manifests(disk.manifests, stores, self._fetcher)
        self.cache = _cache(config, disk, self._views, clock)
        self._views.holds = self.cache.holds
        self.fills = Fills(self.cache, self._fetcher, clock=clock, memory_bytes=config.fill_memory_bytes)
        self.sessions = Sessions(
            self.cache,
            self.fills,
            self._views,
            clock=clock,
            lapse_seconds=config.session_lapse_seconds,
            read_in_place=in_place,
        )
        self._prefetcher = Prefetcher(
            self.cache, self.fills, self._views, limit=config.prefetch_fills, read_in_place=in_place
        )
        self.cache.listen(self._piece_changed)
        self.sessions.listen(self._prefetcher.wake)
        self._views.listen(self._prefetcher.wake)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins the work in the background: learning what the cache holds, prefetching, ending lapsed sessions."""
        lapses = repeat(self._end_lapsed_sessions, "looking for sessions that lapsed")
        for work in (self.cache.start(), self._prefetcher.run(), lapses):
            task = asyncio.create_task(work)
            task.add_done_callback(_report)
            self._tasks.append(task)

    async def open_dataset(self, urls: Sequence[str], format_json: str) -> OpenedDataset:
        """Lists the source and builds or finds its manifest."""
        self._refuse_while_draining()
        if not urls:
            raise ConfigurationError("a dataset needs at least one URL")
        return await self._manifests.open(urls, format_json)

    def open_session(self, dataset_id: str, columns: Sequence[str], *, label: str, process_id: int) -> Session:
        """Registers a loader. Raises `ColumnNotFound`, `ConfigurationError`."""
        self._refuse_while_draining()
        opened = self._manifests.get(dataset_id)
        if opened is None:
            raise ConfigurationError(f"there is no dataset {dataset_id!r} here: open it before the session")
        return self.sessions.open(opened, columns, label=label, process_id=process_id)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call of a client, so that a busy daemon is not taken for idle."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._last_call = self._clock()

    def idle_seconds(self) -> float:
        """Since when nobody has had a session, a call or a fill."""
        if self._calls or len(self.sessions) or self.fills.running:
            self._last_call = self._clock()
        return self._clock() - self._last_call

    def uptime_seconds(self) -> float:
        return self._clock() - self._started

    async def drain(self) -> None:
        """Ends the work: no new sessions, no prefetches; running demands finish within the time configured."""
        self.is_draining = True
        await end_all(self._tasks)
        await self._manifests.close()
        await self.fills.drain(self.config.drain_seconds)
        await self._fetcher.close()

    async def close(self) -> None:
        """After `drain`: writes the index to its end. The disk stays claimed."""
        await self._views.end()
        await self.cache.close()

    def _refuse_while_draining(self) -> None:
        if self.is_draining:
            raise DaemonUnavailable("the daemon is ending; try again when its successor runs")

    def _piece_changed(self, key: str, is_there: bool) -> None:
        self._views.arrived(key, is_there)
        if not is_there:
            self._prefetcher.wake()

    async def _end_lapsed_sessions(self) -> None:
        await asyncio.sleep(min(QUIET_SECONDS / 3, max(0.05, self.config.session_lapse_seconds / 8)))
        for session in self.sessions.lapse():
            _log.warning("session %s of %s (pid %d) lapsed", session.id, session.label, session.process_id)


def _cache(config: ServerConfig, disk: CacheDisk, views: Views, clock: Callable[[], float]) -> Cache:
    capacity = config.capacity_of(config.disks[0]).of(disk.size_bytes)
    ledger = Ledger(capacity, floor_bytes(disk.size_bytes), disk.free_bytes)
    return Cache(
        disk,
        ledger,
        needs=views,
        clock=clock,
        room_wait_seconds=config.room_wait_seconds,
    )


def _version() -> str:
    try:
        return metadata.version("forebay")
    except metadata.PackageNotFoundError:
        return "unknown"


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background work ended: %s", error, exc_info=error)
