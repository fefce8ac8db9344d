"""All fills of a daemon: one per piece however many ask, and what becomes of each.

A demand turns a prefetch of the same piece into a demand. A failure says why in `<path>.error`, where every waiting
reader looks. A fill that its disk fails, or has no room for, moves to another; the word that it leaves at the former
path is `PieceGone`, upon which readers lease the piece again and learn where it is to come now. On the event loop.
"""

import asyncio
import errno
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from forebay_core.errors import (
    CapacityError,
    DaemonUnavailable,
    ForebayError,
    InternalError,
    ObjectChanged,
    PieceGone,
    one_line,
)
from forebay_server.cache.cache import Cache
from forebay_server.cache.room import NoRoom
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.entry import Entry
from forebay_server.distribution import DURATIONS, Distribution
from forebay_server.filling.attempt import Attempts, DiskFailed
from forebay_server.filling.changes import Changes
from forebay_server.filling.evidence import FillAgain
from forebay_server.filling.fill import Fill
from forebay_server.filling.job import Job, Reader
from forebay_server.filling.leads import Leads
from forebay_server.memory import Memory
from forebay_server.pool.health import Trouble, in_words, trouble_of
from forebay_server.pool.pool import Pool
from forebay_server.sources.failures import naming

_log = logging.getLogger(__name__)
#: Longer than a reader takes to look, and than it waits before it asks again.
_SAID_SECONDS = 5.0
#: So often a fill begins again where disks fail under it.
_SETBACKS = 8


@dataclass(slots=True)
class FillCounters:
    """Since the daemon's start."""

    fills: int = 0
    failures: int = 0
    #: Fills that were over before anybody asked for the piece.
    prefetches: int = 0
    #: How long those took that brought a piece: of pieces that were asked for before they came, and of the others.
    demand_seconds: Distribution = field(default_factory=lambda: Distribution(DURATIONS))
    prefetch_seconds: Distribution = field(default_factory=lambda: Distribution(DURATIONS))
    #: Fills whose bytes were not those that were expected, and that were made once more.
    disputed: int = 0


class Fills:
    """All fills of a daemon."""

    def __init__(
        self,
        pool: Pool,
        reader: Reader,
        *,
        clock: Callable[[], float],
        memory_bytes: int,
        threads: int = 8,
        allow_changed: bool = False,
    ) -> None:
        self.counters = FillCounters()
        #: Called with the job and the error of a demand for which the cache has no room, where somebody serves such
        #: pieces without it; their readers are told to ask again.
        self.refuse: Callable[[Job, CapacityError], None] | None = None
        #: How long before their first use pieces arrived.
        self.leads = Leads(clock)
        self.changes = Changes(reader, are_allowed=allow_changed)
        #: By key. A fill is here from `start` until its file is at its path, or its error.
        self.running: dict[str, Fill] = {}
        #: By key, the disk beside whose path a demand's error was written, and when: the latest last.
        self._said: dict[str, tuple[CacheDisk, float]] = {}
        #: By key, what a demand failed with that could not be written beside the piece.
        self._unsaid: dict[str, ForebayError] = {}
        self._pool = pool
        self._clock = clock
        self._turns = itertools.count()
        self._memory_bytes = memory_bytes
        self._memory = Memory(memory_bytes)
        self._attempts = Attempts(pool, reader, self._memory, max(threads, os.cpu_count() or 1))
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
            cache = self._pool.expect(job.key, job.expected_bytes)
            if cache is None:
                raise self._pool.no_disk()
            self._unsaid.pop(job.key, None)
            self._said.pop(job.key, None)
            now = self._clock()
            fill = Fill(job, cache, before, next(self._turns), now, now, self._memory, was_prefetch=before is not None)
            fill.passing_bytes = 0 if self.refuse is None else self._memory_bytes
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

    def said(self, key: str) -> CacheDisk | None:
        """The disk beside whose path the error of the piece's last fill was written, where that was just now.

        Who waits for the piece there may not have looked yet: a fill begun anew would take the word away, and where it
        fails after as long as readers wait before they ask again, they would ask for ever.
        """
        disk, at = self._said.get(key, (None, 0.0))
        return disk if self._clock() - at < _SAID_SECONDS else None

    async def drain(self, grace_seconds: float) -> None:
        """Ends the prefetches, lets the demands finish for a while, then ends them too. Begins no others."""
        self._is_draining = True
        self._cancel([fill for fill in self.running.values() if not fill.is_demand])
        if tasks := [fill.task for fill in self.running.values()]:
            await asyncio.wait(tasks, timeout=grace_seconds)
        self._cancel(list(self.running.values()))
        while tasks := [fill.task for fill in self.running.values()]:
            await asyncio.wait(tasks)
        self._attempts.close()

    def _cancel(self, fills: list[Fill]) -> None:
        for fill in fills:
            fill.task.cancel()

    async def _run(self, fill: Fill) -> Entry | None:
        key = fill.job.key
        try:
            fill.entry = await self._entry(fill)
            return fill.entry
        except Exception as error:
            fill.has_failed = True
            self.counters.failures += 1
            typed = _typed(error, fill)
            await self._leave_word(fill, self._refused(fill, typed))
            if typed is error:
                raise
            raise typed from error
        finally:
            fill.cache.arrived(key)
            del self.running[key]
            for listener in self._listeners:
                listener(fill)

    def _refused(self, fill: Fill, error: ForebayError) -> ForebayError:
        """What the readers of a piece are told: of one that has no room, to ask again."""
        if self.refuse is None or not isinstance(error, CapacityError):
            return error
        self.refuse(fill.job, error)
        return PieceGone(f"{one_line(error)}; it passes the cache by: lease it again")

    async def _entry(self, fill: Fill) -> Entry | None:
        spared = await fill.cache.settled(fill.job.key)
        if spared is not None:
            return spared
        entry = None
        while entry is None:
            try:
                entry = await self._attempts.make(fill)
            except FillAgain:
                self.counters.disputed += 1
            except ObjectChanged as error:
                job = fill.job
                fill.read = await self.changes.present(job.root, job.piece.object, fill.read, url=job.url, error=error)
            except NoRoom:
                fill.without_room.add(fill.cache)
                if not fill.is_demand and not await self._move(fill):
                    fill.found_no_room = True
                    return None
            except DiskFailed as failure:
                await self._recover(fill, failure)
            except CapacityError as error:
                fill.left.add(fill.cache)
                if not await self._move(fill):
                    raise (_explain_full(fill.full, fill.cache.disk.root) if fill.full else error) from error
        self._count(fill)
        self._tell_arrival(fill)
        return entry

    async def _recover(self, fill: Fill, failure: DiskFailed) -> None:
        """Goes on, on this disk or another, after one has failed. Raises `CapacityError` where there is no other."""
        error, disk = failure.error, fill.cache.disk
        self._pool.failed(fill.cache, error, wanted_bytes=failure.wanted_bytes)
        _log.warning("%s cannot be written to %s: %s", fill.name, disk.root, error)
        fill.setbacks += 1
        if trouble_of(error) is Trouble.FULL:
            fill.full = error
        else:
            fill.left.add(fill.cache)
        if fill.setbacks > _SETBACKS or not await self._move(fill):
            if fill.full is error:
                raise _explain_full(error, disk.root) from error
            raise CapacityError(
                f"{fill.name} cannot be written to {disk.root}: {in_words(error)}; no other disk takes it, see forebay"
                " status"
            ) from error

    async def _move(self, fill: Fill) -> bool:
        """Turns to the best disk that is left, maybe the same; False where there is none."""
        before = fill.cache
        avoid = fill.left if fill.is_demand else fill.left | fill.without_room
        cache = self._pool.expect(fill.key, fill.job.expected_bytes, avoid=avoid)
        if cache is None:
            return False
        if cache is not before:
            fill.cache = cache
            before.arrived(fill.key)
            await self._send_away(fill, before)
        return True

    async def _send_away(self, fill: Fill, before: Cache) -> None:
        """Lets those who wait for the piece on its former disk ask again."""
        word = PieceGone(f"{fill.name} goes to another disk: lease it again")
        try:
            await before.in_thread(before.disk.write_error, fill.key, word)
        except OSError as error:
            _log.info(
                "%s takes no word for the readers of %s, who ask by themselves: %s", before.disk.root, fill.name, error
            )

    def _count(self, fill: Fill) -> None:
        counters, seconds = self.counters, self._clock() - fill.began_at
        counters.fills += 1
        counters.prefetches += not fill.is_demand
        (counters.demand_seconds if fill.is_demand else counters.prefetch_seconds).add(seconds)

    def _tell_arrival(self, fill: Fill) -> None:
        if not fill.is_demand:
            self.leads.arrived(fill.job.key)
        elif fill.was_prefetch:
            self.leads.overtaken(fill.asked_at)
        else:
            self.leads.never_begun()

    async def _leave_word(self, fill: Fill, error: ForebayError) -> None:
        key = fill.job.key
        try:
            await fill.cache.in_thread(fill.cache.disk.write_error, key, error)
            if fill.is_demand and not isinstance(error, PieceGone):
                self._remember(key, fill.cache.disk)
        except OSError as problem:
            _log.error("the error of piece %s cannot be written beside it: %s", key, problem)
            if fill.is_demand and not isinstance(error, PieceGone):
                self._unsaid[key] = error

    def _remember(self, key: str, disk: CacheDisk) -> None:
        now = self._clock()
        self._said[key] = (disk, now)
        while now - next(iter(self._said.values()))[1] >= _SAID_SECONDS:
            del self._said[next(iter(self._said))]


def _typed(error: Exception, fill: Fill) -> ForebayError:
    job, root = fill.job, fill.cache.disk.root
    if isinstance(error, OSError) and not isinstance(error, ForebayError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _explain_full(error, root)
        _log.error("%s cannot be written: %s", job.name, error)
        return InternalError(f"{job.name} cannot be written to {root}: {one_line(error)}")
    if isinstance(error, ForebayError):
        typed = naming(error, key=job.piece.object.key, url=job.url)
        _log.warning("%s cannot be filled: %s", job.name, one_line(typed))
        return typed
    _log.error("%s cannot be filled", job.name, exc_info=error)
    return InternalError(
        f"{job.name} cannot be filled: {type(error).__name__}: {one_line(error)}; see the daemon's log"
    )


def _explain_full(error: OSError, root: Path) -> CapacityError:
    """ENOSPC and EDQUOT as the error that a user can act on."""
    return CapacityError(
        f"the disk of the cache directory {root} is full ({os.strerror(error.errno or 0)});"
        " free some space, or give a smaller capacity (--capacity, FOREBAY_CAPACITY)"
    )


def _retrieve(task: "asyncio.Task[Entry | None]") -> None:
    """Nobody need await a fill: what went wrong was logged, and stands beside the piece."""
    if not task.cancelled():
        task.exception()
