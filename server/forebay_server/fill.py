"""Bringing a piece from its remote place into the cache: once, however many ask.

Footer → memory → reserve → temp file → ranged GETs → local layout and checksum → sidecar → rename → index. A crash at
any point leaves nothing that looks whole; a failure takes the temp file and the reservation back and says why in
`<path>.error`, where every waiting reader looks. A demand turns a prefetch of the same piece into a demand.

`Fills` runs on the event loop; the local layout is written by one thread per fill, which asks the loop for more room as
the file grows.
"""

import asyncio
import errno
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from forebay_core.errors import DaemonUnavailable, ForebayError, InternalError, one_line
from forebay_core.formats.base import Buffer, ByteRange, Format, Localiser, ObjectInfo, Piece, Prepared
from forebay_server.cache.cache import Cache, NoRoom
from forebay_server.cache.capacity import Reservation
from forebay_server.cache.disk import Entry, Origin, TempFile, explain_full, room_for
from forebay_server.concurrency import complete
from forebay_server.memory import Memory
from forebay_server.sources.failures import naming

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: How much a reservation grows beyond what is written, so that the writing thread seldom has to ask.
_SPARE_BYTES = 8 << 20


class Reader(Protocol):
    """What reads remote objects (`forebay_server.sources.fetching.Fetcher`)."""

    async def prepare(self, root: str, obj: ObjectInfo, format: Format) -> Prepared: ...

    async def stream(
        self, root: str, obj: ObjectInfo, ranges: Sequence[ByteRange], on_chunk: Callable[[Buffer], Awaitable[None]]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One piece to fill: everything that its local file depends on."""

    key: str
    root: str
    piece: Piece
    columns: tuple[str, ...]
    format: Format
    #: The object's URL.
    url: str

    @property
    def name(self) -> str:
        return f"piece {self.piece.index} of {self.url} ({self.piece.cut.rows} rows)"

    @property
    def origin(self) -> Origin:
        return Origin(
            self.url, self.piece.object.version, self.piece.cut.rows, self.columns, self.format.local_layout()
        )


@dataclass(slots=True, eq=False)
class Fill:
    """A fill in flight. As a `Want` of the cache it says how urgent it is at the moment."""

    job: Job
    before: float | None
    turn: int
    asked_at: float
    #: Shared by all fills, and what it holds of it.
    memory: Memory
    memory_bytes: int = 0
    has_failed: bool = False
    #: It was a prefetch, and nothing that is needed later could make room for it.
    found_no_room: bool = False
    task: "asyncio.Task[Entry | None]" = field(init=False)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def is_demand(self) -> bool:
        return self.before is None

    @property
    def is_in_the_way(self) -> bool:
        return self.memory_bytes > 0 and self.memory.is_awaited_before(self.turn)


@dataclass(slots=True)
class FillCounters:
    """Since the daemon's start."""

    fills: int = 0
    failures: int = 0
    #: Fills that were over before anybody asked for the piece.
    prefetches: int = 0


class Fills:
    """All fills of a daemon."""

    def __init__(
        self, cache: Cache, reader: Reader, *, clock: Callable[[], float], memory_bytes: int, threads: int = 8
    ) -> None:
        self.counters = FillCounters()
        #: By key. A fill is here from `start` until its file is at its path, or its error.
        self.running: dict[str, Fill] = {}
        #: By key, what a demand failed with that could not be written beside the piece.
        self._unsaid: dict[str, ForebayError] = {}
        self._cache = cache
        self._reader = reader
        self._clock = clock
        self._turns = itertools.count()
        self._memory = Memory(memory_bytes)
        self._threads = ThreadPoolExecutor(max(threads, os.cpu_count() or 1), "forebay-fill")
        self._listeners: list[Callable[[Fill], None]] = []
        self._is_draining = False

    def listen(self, listener: Callable[[Fill], None]) -> None:
        """Calls `listener(fill)` at the end of each fill from now on."""
        self._listeners.append(listener)

    def start(self, job: Job, *, before: float | None = None) -> Fill:
        """Begins the fill of a piece, or joins the one in flight.

        `before`: seconds until a prefetch is needed; None is a demand. When this returns, no earlier error or broken
        file is at the piece's path. The caller has found that the piece is not in the cache. The fill's task gives the
        entry, or None for a prefetch that found no room, or raises the typed error that is also at `<path>.error`.
        """
        fill = self.running.get(job.key)
        if fill is None and self._is_draining:
            raise DaemonUnavailable("the daemon is ending; try again when its successor runs")
        if fill is None:
            self._cache.expect(job.key)
            self._unsaid.pop(job.key, None)
            fill = Fill(job, before, next(self._turns), self._clock(), self._memory)
            fill.task = asyncio.get_running_loop().create_task(self._run(fill), name=f"fill {job.key[:12]}")
            fill.task.add_done_callback(_retrieve)
            self.running[job.key] = fill
        elif before is None and fill.before is not None:
            fill.before, fill.turn, fill.asked_at = None, next(self._turns), self._clock()
        return fill

    def raise_unsaid(self, key: str) -> None:
        """Raises, once, the error of the piece's last fill where that could not be written beside the piece."""
        if (error := self._unsaid.pop(key, None)) is not None:
            raise error

    async def drain(self, grace_seconds: float) -> None:
        """Ends the prefetches, lets the demands finish for a while, then ends them too. Begins no others."""
        self._is_draining = True
        self._cancel([fill for fill in self.running.values() if not fill.is_demand])
        if tasks := [fill.task for fill in self.running.values()]:
            await asyncio.wait(tasks, timeout=grace_seconds)
        self._cancel(list(self.running.values()))
        while tasks := [fill.task for fill in self.running.values()]:
            await asyncio.wait(tasks)
        self._threads.shutdown()

    def _cancel(self, fills: list[Fill]) -> None:
        for fill in fills:
            fill.task.cancel()

    async def _run(self, fill: Fill) -> Entry | None:
        key = fill.job.key
        try:
            return await self._entry(fill)
        except Exception as error:
            fill.has_failed = True
            self.counters.failures += 1
            typed = self._typed(error, fill.job)
            await self._leave_word(fill, typed)
            if typed is error:
                raise
            raise typed from error
        finally:
            self._cache.arrived(key)
            del self.running[key]
            for listener in self._listeners:
                listener(fill)

    async def _entry(self, fill: Fill) -> Entry | None:
        spared = await self._cache.settled(fill.job.key)
        if spared is not None:
            return spared
        entry = None
        while entry is None:
            try:
                entry = await self._fetch(fill)
            except NoRoom:
                if not fill.is_demand:
                    fill.found_no_room = True
                    return None
        self.counters.fills += 1
        self.counters.prefetches += not fill.is_demand
        return entry

    async def _fetch(self, fill: Fill) -> Entry:
        job, cache = fill.job, self._cache
        prepared = await self._reader.prepare(job.root, job.piece.object, job.format)
        reservation = cache.ledger.open()
        sink = _Sink(fill, cache, reservation, asyncio.get_running_loop())
        try:
            localiser = await self._in_thread(sink, job.format.localise, job.piece, job.columns, sink, prepared)
            async with self._memory.taken(fill, localiser.memory_bytes):
                fill.memory_bytes = localiser.memory_bytes
                await cache.reserve(reservation, room_for(sum(part.length for part in localiser.ranges)), fill)
                sink.temp = await cache.in_thread(cache.disk.create)
                await self._write(job, localiser, sink)
            await cache.reserve(reservation, sink.temp.blocks(), fill)
            return await cache.admit(sink.temp, job.key, job.origin, reservation)
        finally:
            fill.memory_bytes = 0
            if reservation.bytes:
                cache.moved()
            reservation.release()
            if sink.temp is not None:
                await cache.in_thread(cache.disk.discard, sink.temp)

    async def _write(self, job: Job, localiser: Localiser, sink: "_Sink") -> None:
        async def push(chunk: Buffer) -> None:
            await self._in_thread(sink, localiser.write, chunk)

        await self._reader.stream(job.root, job.piece.object, localiser.ranges, push)
        await self._in_thread(sink, localiser.finish)
        if sink.temp is not None:
            await self._in_thread(sink, sink.temp.flush)

    async def _in_thread(self, sink: "_Sink", work: Callable[..., T], *arguments: object) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            sink.stop()
            await complete(asyncio.ensure_future(_settle(running)))
            raise

    async def _leave_word(self, fill: Fill, error: ForebayError) -> None:
        key = fill.job.key
        try:
            await self._cache.in_thread(self._cache.disk.write_error, key, error)
        except OSError as problem:
            _log.error("the error of piece %s cannot be written beside it: %s", key, problem)
            if fill.is_demand:
                self._unsaid[key] = error

    def _typed(self, error: Exception, job: Job) -> ForebayError:
        if isinstance(error, OSError) and not isinstance(error, ForebayError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return explain_full(error, self._cache.disk.root)
            _log.error("%s cannot be written: %s", job.name, error)
            return InternalError(f"{job.name} cannot be written to {self._cache.disk.root}: {one_line(error)}")
        if isinstance(error, ForebayError):
            typed = naming(error, key=job.piece.object.key, url=job.url)
            _log.warning("%s cannot be filled: %s", job.name, one_line(typed))
            return typed
        _log.error("%s cannot be filled", job.name, exc_info=error)
        return InternalError(
            f"{job.name} cannot be filled: {type(error).__name__}: {one_line(error)}; see the daemon's log"
        )


class _Sink:
    """Takes a local layout's bytes on the writing thread, and sees to it that there is room before they are written."""

    def __init__(self, fill: Fill, cache: Cache, reservation: Reservation, loop: asyncio.AbstractEventLoop) -> None:
        self.temp: TempFile | None = None
        self._fill = fill
        self._cache = cache
        self._reservation = reservation
        self._loop = loop
        self._asking: Future[None] | None = None
        self._is_stopped = False

    def __call__(self, chunk: Buffer) -> None:
        if self.temp is None:
            raise InternalError(f"{self._fill.name}: the format wrote before it was given any bytes")
        if self._is_stopped:
            raise CancelledError
        total = room_for(self.temp.size + memoryview(chunk).nbytes)
        if total > self._reservation.bytes:
            self._ask(total)
        self.temp.write(chunk)
        self._reservation.written = self.temp.written

    def stop(self) -> None:
        """Ends a wait for room, and the work at its next write; called on the event loop when the fill is cancelled."""
        self._is_stopped = True
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self, total: int) -> None:
        self._asking = asyncio.run_coroutine_threadsafe(
            self._cache.reserve(self._reservation, total, self._fill, spare=_SPARE_BYTES), self._loop
        )
        if self._is_stopped:
            self._asking.cancel()
        self._asking.result()


async def _settle(work: "asyncio.Future[T]") -> None:
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


def _retrieve(task: "asyncio.Task[Entry | None]") -> None:
    """Nobody need await a fill: what went wrong was logged, and stands beside the piece."""
    if not task.cancelled():
        task.exception()
