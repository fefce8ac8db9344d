"""A daemon without its socket: the parts of a node's cache, put together, and their life from start to drain.

Everything runs on one event loop. The service translates to and from it; tests use it directly.
"""

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import CheckpointError, ConfigurationError, DaemonUnavailable, ForebayError, one_line
from forebay_core.eviction import POLICIES
from forebay_core.machine import usable_memory_bytes
from forebay_server.cache.cache import Cache
from forebay_server.cache.capacity import Ledger, floor_bytes, floor_inodes
from forebay_server.cache.care import Care
from forebay_server.cache.choosing import NextUse
from forebay_server.cache.pins import Pins
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.desk import Desk
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.checkpoints.destinations.registry import Destinations
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.checkpoints.rules import default_quota
from forebay_server.concurrency import end_all, repeat
from forebay_server.config import ServerConfig
from forebay_server.diagnosis.run import Diagnosis, DiskBooks
from forebay_server.disk.cache_disk import CacheDisk, kernel_boot_id
from forebay_server.filling.bypass import Bypass
from forebay_server.filling.fills import Fills
from forebay_server.operations.keeping import Keeping
from forebay_server.operations.warming import Warming, WarmStep
from forebay_server.pool.member import Member, Members
from forebay_server.pool.pool import Pool
from forebay_server.pool.probing import Prober
from forebay_server.prefetch.choice import Bounds
from forebay_server.prefetch.prefetcher import Prefetcher
from forebay_server.process.budgets import Budgets, budgets
from forebay_server.reading import Reading
from forebay_server.sessions import QUIET_SECONDS, Session, Sessions
from forebay_server.sources.fetching import Fetcher
from forebay_server.sources.manifests import Manifests, OpenedDataset
from forebay_server.sources.pacing import PaceRules
from forebay_server.sources.permits import Permits
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters
from forebay_server.views import View, Views

_log = logging.getLogger(__name__)
#: Where nothing is fetched ahead of trainers.
_WARMED_AT_ONCE = 8


class Node:
    """All parts of one daemon. Made on a running event loop."""

    def __init__(
        self,
        config: ServerConfig,
        disks: Sequence[CacheDisk | ForebayError],
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float],
        claim: Callable[[CacheDirectory], CacheDisk] | None = None,
        staging: StagingArea | ForebayError | None = None,
    ) -> None:
        """`disks`: for each directory of the configuration, or why it could not be claimed; then `claim` tries again.
        `staging`: where checkpoints are staged, or why they cannot be; None: nowhere.

        Raises `ConfigurationError` where the directories of one file system are to hold more than it has.
        """
        self.config = config
        self.version = _version()
        self.boot_id = uuid.uuid4().hex
        self.process_id = os.getpid()
        self.is_draining = False
        #: Where the status page is served; empty: nowhere.
        self.http_address = ""
        self.remote = RemoteCounters()
        self.clock = clock
        self._started = self._last_call = clock()
        self._calls = 0
        in_place = config.read_in_place == "auto"
        memory = _budgets(config)
        self.stores = stores = Stores(
            _source_environment(config, environment),
            self.remote,
            ConnectionOptions(stall_timeout_seconds=config.stall_seconds),
            permits=_permits(config),
            pace=PaceRules.up_to(config.remote_requests),
        )
        self.diagnosis = Diagnosis(stores, self._books, environment=environment, version=self.version)
        self.fetcher = Fetcher(stores, flight_bytes=memory.flight_bytes, count_bytes=memory.decode_bytes)
        self._views = Views(stores, clock)
        self._manifests = Manifests(self._manifest_directories, stores, self.fetcher)
        pins = Pins()
        members = Members(config.capacity, _caches(config, self._views, pins, clock))
        self.pool = Pool(members.of(zip(config.disks, disks, strict=True), clock()), pins, clock=clock)
        self._prober = Prober(self.pool, members, claim or _claim_none, clock=clock)
        self._views.holds = self.pool.holds
        self.keeping = Keeping(self.pool)
        self.fills = Fills(
            self.pool,
            self.fetcher,
            clock=clock,
            memory_bytes=memory.decode_bytes,
            allow_changed=config.allow_changed,
        )
        self.bypass = Bypass(
            self.fetcher,
            capacity_bytes=memory.decode_bytes,
            clock=clock,
            changes=self.fills.changes,
            earlier=self.pool.digest,
        )
        self.fills.refuse = self.bypass.refused
        self._care = [self._care_of(cache) for cache in self.pool.caches]
        self.pool.on_attach = lambda cache: self._begin(self._care_of(cache).run())
        self.sessions = Sessions(
            self.pool,
            self.fills,
            self._views,
            clock=clock,
            lapse_seconds=config.session_lapse_seconds,
            read_in_place=in_place,
            bypass=self.bypass,
        )
        self.reading = Reading(
            *(self.sessions, self.pool, self.fills, self._manifests.get), bypass=self.bypass, permits=stores.permits
        )
        self.warming = Warming(
            self.pool, self.fills, self.sessions, limit=config.prefetch_fills or _WARMED_AT_ONCE, clock=clock
        )
        self._prefetcher = Prefetcher(
            self.pool,
            self.fills,
            self._views,
            bounds=Bounds(config.prefetch_fills, memory.flight_bytes),
            read_in_place=in_place,
            clock=clock,
            demand_waits=lambda: any(store.gate.has_waiting_demand for store in stores),
        )
        self.pool.listen(self._piece_changed)
        self.sessions.listen(self._prefetcher.wake)
        self._views.listen(self._prefetcher.wake)
        self._staging = staging if staging is not None else CheckpointError("this daemon has no staging directory")
        self._desk = self._make_desk(staging) if isinstance(staging, StagingArea) else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins the work in the background: learning what the cache holds and looking after it, prefetching, ending
        lapsed sessions."""
        lapses = repeat(self._end_lapsed_sessions, "looking for sessions that lapsed")
        care = [each.run() for each in self._care]
        for work in (self.pool.start(), self._prefetcher.run(), self._prober.run(), self.keeping.run(), lapses, *care):
            self._begin(work)
        if self._desk is not None:
            self._begin(self._desk.start())

    @property
    def desk(self) -> Desk:
        """The checkpoints of this node. Raises `CheckpointError` where there is no place to stage them."""
        if self._desk is None:
            raise CheckpointError(f"checkpoints cannot be saved here: {one_line(self.staging_reason)}")
        return self._desk

    @property
    def staging_reason(self) -> ForebayError:
        """Why there is no desk."""
        assert isinstance(self._staging, ForebayError)
        return self._staging

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

    async def warm(
        self, urls: Sequence[str], format_json: str, columns: Sequence[str], *, check: bool, process_id: int
    ) -> AsyncGenerator[WarmStep, None]:
        """Brings a dataset into the cache, in steps; a check only counts what is there."""
        opened = await self.open_dataset(urls, format_json)
        session = self.open_session(opened.dataset_id, columns, label="warm", process_id=process_id)
        return self.warming.steps(session, check=check, in_place=self.reads_in_place(session.view))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call of a client, so that a busy daemon is not taken for idle."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._last_call = self.clock()

    def idle_seconds(self) -> float:
        """Since when nobody has had a session, a call or a fill, and nothing was left to upload."""
        is_saving = self._desk is not None and self._desk.is_busy
        if self._calls or len(self.sessions) or self.fills.running or is_saving:
            self._last_call = self.clock()
        return self.clock() - self._last_call

    def uptime_seconds(self) -> float:
        return self.clock() - self._started

    def reads_in_place(self, view: View) -> bool:
        """Whether the pieces of a view are read where they lie, and not from the cache."""
        return self.config.read_in_place == "auto" and view.is_in_place

    async def drain_disk(self, path: str) -> Member:
        """Puts nothing more on a disk. Raises `ConfigurationError` for one that this daemon does not have."""
        return self.pool.drain(path, wanted=True)

    async def admit_disk(self, path: str) -> Member:
        """Puts pieces on a disk again, which is looked at first where something was wrong with it."""
        member = self.pool.drain(path, wanted=False)
        await self._prober.probe_due()
        return member

    async def drain(self) -> None:
        """Ends the work: no new sessions, no prefetches; running demands finish within the time configured."""
        self.is_draining = True
        await end_all(self._tasks)
        if self._desk is not None:
            # Of a daemon that ends with the node's own successor waiting, what is sealed is the successor's.
            await self._desk.drain(self.config.drain_seconds if self.config.embedded else 0.0)
            await self._desk.close()
        await self._manifests.close()
        await self.fills.drain(self.config.drain_seconds)
        await self.bypass.end()
        await self.fetcher.close()

    async def close(self) -> None:
        """After `drain`: writes the index to its end. The disks stay claimed."""
        await self._views.end()
        await self._prober.close()
        await self.pool.close()

    def _books(self) -> list[DiskBooks]:
        return [_books(member) for member in self.pool.members]

    def _make_desk(self, area: StagingArea) -> Desk:
        disks = [cache for cache in self.pool.caches if cache.disk.device == area.device]
        usual = default_quota(area.size_bytes, sum(cache.ledger.capacity_bytes for cache in disks))
        transfers = Transfers(self.clock, parts_at_once=self.config.upload_parts)
        given = None if self.config.staging_dir is None else self.config.staging_dir.capacity
        return Desk(
            area,
            Destinations(self.stores, transfers, self._write_permits(area)).open,
            quota_bytes=usual if given is None else given.of(area.size_bytes),
            boot=kernel_boot_id(),
            clock=self.clock,
        )

    def _write_permits(self, area: StagingArea) -> WritePermits:
        own = [area.root, *(disk.path for disk in self.config.disks)]
        return WritePermits(self.config.allow_write, own=own, group_id=self.config.group_id)

    def _manifest_directories(self) -> list[Path]:
        return [cache.disk.manifests for cache in self.pool.usable]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_report)
        self._tasks.append(task)

    def _care_of(self, cache: Cache) -> Care:
        return Care(cache, self.config.care, clock=self.clock, wall_clock=time.time)

    def _refuse_while_draining(self) -> None:
        if self.is_draining:
            raise DaemonUnavailable("the daemon is ending; try again when its successor runs")

    def _piece_changed(self, key: str, is_there: bool) -> None:
        self._views.arrived(key, is_there)
        if not is_there:
            self.fills.leads.gone(key)
            self._prefetcher.wake()

    async def _end_lapsed_sessions(self) -> None:
        await asyncio.sleep(min(QUIET_SECONDS / 3, max(0.05, self.config.session_lapse_seconds / 8)))
        for session in self.sessions.lapse():
            _log.warning("session %s of %s (pid %d) lapsed", session.id, session.label, session.process_id)


def _permits(config: ServerConfig) -> Permits:
    return Permits(config.allow_read, config.group_id)


def _budgets(config: ServerConfig) -> Budgets:
    """What was configured, and for the rest what the machine's memory allows."""
    sized = budgets(usable_memory_bytes())
    return Budgets(
        sized.flight_bytes if config.flight_bytes is None else config.flight_bytes,
        sized.decode_bytes if config.fill_memory_bytes is None else config.fill_memory_bytes,
    )


def _caches(
    config: ServerConfig, needs: NextUse, pins: Pins, clock: Callable[[], float]
) -> Callable[[CacheDisk, int], Cache]:
    """What makes a disk's cache of so many bytes."""

    def make(disk: CacheDisk, capacity_bytes: int) -> Cache:
        disk.allows_changed = config.allow_changed
        ledger = Ledger(
            capacity_bytes,
            floor_bytes(disk.size_bytes),
            disk.free_bytes,
            free_inodes=disk.free_inodes,
            floor_inodes=floor_inodes(disk.inodes),
        )
        return Cache(
            disk,
            ledger,
            needs=needs,
            policy=POLICIES[config.eviction],
            pins=pins,
            clock=clock,
            room_wait_seconds=config.room_wait_seconds,
        )

    return make


def _books(member: Member) -> DiskBooks:
    """What a diagnosis is told of a directory."""
    cache, health = member.cache, member.health
    return DiskBooks(
        disk_id="" if cache is None else cache.disk.id,
        root=member.path,
        capacity_bytes=0 if cache is None else cache.ledger.capacity_bytes,
        used_bytes=0 if cache is None else cache.ledger.used_bytes,
        state=health.state,
        reason=health.reason,
    )


def _source_environment(config: ServerConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment by which sources are read: the configuration's switches win."""
    switches = {"AWS_SKIP_SIGNATURE": config.anonymous, "AWS_REQUEST_PAYER": config.requester_pays}
    return {**environment, **{name: "true" for name, is_on in switches.items() if is_on}}


def _claim_none(directory: CacheDirectory) -> CacheDisk:
    raise ConfigurationError(f"{directory.path} is not tried again")


def _version() -> str:
    try:
        return metadata.version("forebay")
    except metadata.PackageNotFoundError:
        return "unknown"


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background work ended: %s", error, exc_info=error)
