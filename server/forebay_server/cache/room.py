"""Room on one disk: who gets it, in which order, and what goes for it.

A fill reserves what it will take. Where that is not free a policy (`forebay_core.eviction`, asked by `choosing`) says
which pieces go, by the next use that `NextUse` states; those that readers have mapped are spared, and looked at again
later. Demands wait in their order (`queueing`), prefetches do not wait. On the event loop; files are unlinked in
threads.
"""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from forebay_core.errors import CapacityError
from forebay_core.eviction import Policy
from forebay_core.mapping import Lingering, remove, unmapped
from forebay_server.cache.books import Books
from forebay_server.cache.capacity import Reservation
from forebay_server.cache.choosing import Chooser, Held, NextUse
from forebay_server.cache.pins import Pins
from forebay_server.cache.queueing import RoomQueue
from forebay_server.disk.cache_disk import CacheDisk

#: How long a piece that was seen mapped is spared before it is looked at again, and how often room is sought anew.
_RECHECK_SECONDS = 0.25
_REMEDY = "give it more (--capacity, FOREBAY_CAPACITY), or cut smaller pieces (piece_bytes= of the format)"
#: Why pieces are evicted: room for what somebody waits for, or for what is fetched ahead; a capacity that became
#: smaller; a piece that another disk has too; an operator who asked for it.
REASONS = ("demand", "prefetch", "smaller", "duplicate", "asked")


class Want(Protocol):
    """Who asks for room, as it stands now: a prefetch may become a demand while it waits."""

    @property
    def name(self) -> str:
        """For messages: the piece and where it comes from."""

    @property
    def key(self) -> str:
        """Of the piece."""

    @property
    def before(self) -> float | None:
        """Seconds until a prefetch is needed, `BEYOND` where nobody has said that it is; None for a demand."""

    @property
    def is_due(self) -> bool:
        """Whether a prefetch would be too late if it waited."""

    @property
    def turn(self) -> int:
        """Counts demands in the order in which they were made."""

    @property
    def asked_at(self) -> float:
        """When the demand was made, on the cache's clock."""

    @property
    def is_in_the_way(self) -> bool:
        """Whether an earlier demand waits for something else that this one holds."""

    def passes_by(self, size: int) -> bool:
        """Whether a piece of so many bytes is served without the cache where that has no room."""


class NoRoom(Exception):
    """A prefetch does not fit without pushing out what is needed sooner, or a demand must first let an earlier one by.
    Never leaves the daemon."""


class DiskLost(OSError):
    """The disk is out, so nobody can wait for room on it. Never leaves the daemon."""


class Room:
    """The room on the disk of `books`. Methods are for the event loop's thread."""

    def __init__(
        self,
        books: Books,
        *,
        needs: NextUse,
        policy: Policy,
        pins: Pins,
        clock: Callable[[], float],
        wait_seconds: float,
    ) -> None:
        #: The demands that wait for room.
        self.queue = RoomQueue(clock, wait_seconds)
        self.evictions = 0
        #: The same by what they were for: one of `REASONS`.
        self.evicted_for: Counter[str] = Counter()
        self._books = books
        self._disk = books.disk
        self._ledger = ledger = books.ledger
        self._chooser = Chooser(
            books.held, pins, needs, policy, clock=clock, capacity_bytes=lambda: ledger.capacity_bytes
        )
        #: Pieces that were fetched early, at the cost of others.
        self.transit = self._chooser.transit
        self._lock = asyncio.Lock()
        self._lingering: list[Lingering] = []
        self._changed = asyncio.Event()
        pins.listen(self._unpinned)
        books.listen(self._heard)

    async def unmapped(self, keys: Sequence[str]) -> list[str]:
        """Those of the pieces that no reader has mapped at the moment."""
        return await self._books.in_thread(_unmapped, self._disk, keys)

    async def reserve(self, reservation: Reservation, total: int, want: Want, *, spare: int = 0) -> None:
        """Grows the reservation to `total` bytes, and by up to `spare` more where that much is free anyway.

        Raises `DiskLost` where the disk is out; `CapacityError` where a demand can never fit, or others leave it no
        room for long; `NoRoom` where a prefetch does not fit now, and where a demand that holds some room, or something
        else, stands in the way of an earlier one.
        """
        if total <= reservation.bytes:
            return
        await self._books.is_counted.wait()
        try:
            while not await self._take_in_turn(reservation, total, want):
                self._wait_or_fail(reservation, total, want)
                await self._change()
        finally:
            self.queue.leave(want)
            self._changed.set()
        extra = min(spare, -self._ledger.missing(0)) if spare else 0
        if extra > 0:
            reservation.grow_to(total + extra)

    async def _take_in_turn(self, reservation: Reservation, total: int, want: Want) -> bool:
        if self._books.is_lost:
            raise DiskLost(errno.EIO, "the disk is down", str(self._disk.root))
        if want.before is not None:
            return self.queue.is_empty() and await self._take(reservation, total, want)
        return not self.queue.must_wait(want.turn) and await self._take(reservation, total, want)

    def _wait_or_fail(self, reservation: Reservation, total: int, want: Want) -> None:
        stands_before_another = reservation.bytes and self.queue.must_wait(want.turn)
        if want.before is not None or want.is_in_the_way or stands_before_another:
            raise NoRoom
        if self.queue.gives_up(want, passes_by=want.passes_by(total)):
            raise CapacityError(f"{want.name} needs {total} bytes, but {self._obstacle()}")
        self.queue.join(want)

    def _obstacle(self) -> str:
        if self._ledger.lacks_inodes():
            return (
                f"the file system of {self._disk.root} has hardly any inodes left ({self._ledger.free_inodes()}):"
                " remove files there, or give a directory of another one (--cache-dir)"
            )
        return f"pieces in use hold the cache of {self._ledger.capacity_bytes} bytes: {_REMEDY}"

    def moved(self) -> None:
        """A trainer has read on, or room was given back: what waits for room may hope."""
        self.queue.moved()

    async def _take(self, reservation: Reservation, total: int, want: Want) -> bool:
        async with self._lock:
            self.recount_lingering()
            while (missing := self._ledger.missing(total - reservation.bytes)) > 0:
                if not self.fits(total):
                    raise CapacityError(
                        f"{want.name} needs at least {total} bytes, and the cache {self._disk.root} has a capacity of"
                        f" {self._ledger.capacity_bytes} bytes ({max(0, self._ledger.most())} of them usable):"
                        f" {_REMEDY}"
                    )
                if not await self._evict(missing, want, total):
                    return False
            reservation.grow_to(total)
            return True

    def fits(self, total: int) -> bool:
        """Whether so many bytes could ever have room here, were everything else gone."""
        return total <= self._ledger.capacity_bytes and total <= self._ledger.most()

    async def _evict(self, missing: int, want: Want | None = None, total: int = 0) -> bool:
        """Removes pieces worth `missing` bytes, less those that turn out to be in use. False: not so many may go."""
        if want is None or want.before is None:
            chosen = await self._chooser.for_demand(missing)
        else:
            chosen = await self._chooser.for_prefetch(
                want.key, missing, total=total, before=want.before, due=want.is_due
            )
        if chosen:
            await self._remove(chosen, _reason(want))
        return bool(chosen)

    def look_again(self) -> None:
        """Something changed that may have made room: who waits looks again."""
        self._changed.set()

    def _unpinned(self) -> None:
        self.queue.moved()
        self._changed.set()

    def _heard(self, key: str, is_there: bool) -> None:
        if not is_there:
            self.transit.leave(key)

    async def evict(self, keys: Iterable[str], *, force: bool = False, reason: str = "asked") -> list[str]:
        """Removes these pieces on an operator's word: which of them went. What is leased, pinned or mapped stays unless
        it is forced; what is mapped then keeps its room on the disk until its readers end."""
        free = [key for key in keys if key in self._books.held and (force or self._chooser.is_free(key))]
        return await self._remove(free, reason, force)

    async def _remove(self, keys: list[str], reason: str, force: bool = False) -> list[str]:
        """Which of the pieces went; all leave the books at once, so that nobody else can take them. Not over before it
        is done, even when cancelled."""
        leaving = {key: self._books.held.pop(key) for key in keys}
        done = asyncio.get_running_loop().create_future()
        self._books.leaving |= dict.fromkeys(keys, done)
        return await asyncio.shield(asyncio.ensure_future(self._unlinked(leaving, done, reason, force)))

    async def _unlinked(
        self, leaving: dict[str, Held], done: "asyncio.Future[None]", reason: str, force: bool
    ) -> list[str]:
        gone: dict[str, Lingering | None] = {}
        try:
            await self._books.in_thread(_unlink, self._disk, list(leaving), force, gone)
        finally:
            for key, held in leaving.items():
                self._settle(key, held, gone)
            done.set_result(None)
            if gone:
                self.queue.moved()
            self._changed.set()
            self.evicted_for[reason] += len(gone)
        return list(gone)

    def _settle(self, key: str, held: Held, gone: dict[str, Lingering | None]) -> None:
        del self._books.leaving[key]
        if key in gone or self._books.is_lost:
            self.evictions += key in gone
            self._books.departed(held.entry)
            self.linger(gone.get(key))
        else:
            self._chooser.spare(key, _RECHECK_SECONDS)
            self._books.held[key] = held

    def linger(self, lingering: Lingering | None) -> None:
        """What was removed keeps its room as long as readers have it mapped."""
        if lingering is not None:
            self._lingering.append(lingering)
        self.recount_lingering()

    def recount_lingering(self) -> None:
        """Brings the books up to date with what readers have let go of, which happens without a word."""
        self._lingering = [file for file in self._lingering if not file.is_over()]
        self._ledger.lingering_bytes = sum(file.bytes for file in self._lingering)

    async def _change(self) -> None:
        """Waits until something may have made room. Mappings end without a word, so never for long."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), _RECHECK_SECONDS)
        except TimeoutError:
            return

    async def trim(self) -> None:
        """Makes the pieces fit into the capacity, as far as they may go."""
        async with self._lock:
            while (missing := self._ledger.missing(0)) > 0 and await self._evict(missing):
                pass

    def close(self) -> None:
        """Lets go of the files that readers still have mapped."""
        for file in self._lingering:
            file.close()
        self._lingering.clear()


def _reason(want: Want | None) -> str:
    if want is None:
        return "smaller"
    return "demand" if want.before is None else "prefetch"


def _unlink(disk: CacheDisk, keys: list[str], force: bool, gone: dict[str, Lingering | None]) -> None:
    """Puts the keys of the pieces that went into `gone`, with what lingers of them. On any thread."""
    for key in keys:
        if force:
            gone[key] = remove(disk.path(key), partial(disk.remove, key))
            continue
        with unmapped(disk.path(key)) as is_free:
            if is_free:
                disk.remove(key)
                gone[key] = None


def _unmapped(disk: CacheDisk, keys: Sequence[str]) -> list[str]:
    found = []
    for key in keys:
        with unmapped(disk.path(key)) as is_free:
            if is_free:
                found.append(key)
    return found
