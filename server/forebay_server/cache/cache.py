"""The cache of one disk: which pieces are there, who holds them, and how room is made for others.

State lives on the event loop's thread and is changed there alone. Files are the truth: serving begins at once, `start`
then loads the index and compares it with the files in the background, and a key that is not known is looked up on the
disk. Nothing is fetched before it is known how much is there. Eviction asks `forebay_core.eviction` which pieces go,
with the next use that `NextUse` states, and spares those that readers have mapped.

Work on files whose length nobody knows runs in threads: data is written, committed and unlinked there, error files are
written, the directory is read through, and the index is loaded and written. `find` and `expect` do theirs on the loop,
because their answer must hold when they return: a look at one directory entry for a hit (and at a small sidecar for
what the index does not know), and the unlinking of a file that is in the way of a fill, which is one that is not whole.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from forebay_core.errors import CapacityError
from forebay_core.eviction import Resident
from forebay_core.mapping import is_mapped
from forebay_server.cache.capacity import Ledger, Reservation
from forebay_server.cache.departures import Departure, Departures, plan
from forebay_server.cache.disk import CacheDisk, Entry, Origin, TempFile
from forebay_server.cache.index import IndexThread
from forebay_server.cache.queueing import RoomQueue
from forebay_server.concurrency import complete

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: How long a piece that was seen mapped is spared before it is looked at again, and how often room is sought anew.
_RECHECK_SECONDS = 0.25
_SLICE = 1000


class NextUse(Protocol):
    """What the sessions say about the future."""

    @property
    def version(self) -> int:
        """Changes when sessions publish other needs, not when they only move on."""

    async def seconds(self, keys: Sequence[str]) -> list[float | None]:
        """For each key the seconds until its next use; None: nobody needs it; infinite: that is not known yet."""


class Want(Protocol):
    """Who asks for room, as it stands now: a prefetch may become a demand while it waits."""

    @property
    def name(self) -> str:
        """For messages: the piece and where it comes from."""

    @property
    def before(self) -> float | None:
        """Seconds until a prefetch is needed; None for a demand."""

    @property
    def turn(self) -> int:
        """Counts demands in the order in which they were made."""

    @property
    def asked_at(self) -> float:
        """When the demand was made, on the cache's clock."""

    @property
    def is_in_the_way(self) -> bool:
        """Whether an earlier demand waits for something else that this one holds."""


class NoRoom(Exception):
    """A prefetch does not fit without pushing out what is needed sooner, or a demand must first let an earlier one by.
    Never leaves the daemon."""


@dataclass(slots=True)
class _Held:
    entry: Entry
    last_used: float
    spared_until: float = 0.0


class Cache:
    """The pieces on one disk. Methods are for the event loop's thread."""

    def __init__(
        self,
        disk: CacheDisk,
        ledger: Ledger,
        *,
        needs: NextUse,
        clock: Callable[[], float],
        room_wait_seconds: float = 30.0,
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self.evictions = 0
        self._index = IndexThread(disk.index)
        self._needs = needs
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._pins: Counter[str] = Counter()
        #: Keys being written, and keys being unlinked: neither is there nor may be looked up.
        self._arriving: set[str] = set()
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._listeners: list[Callable[[str, bool], None]] = []
        self._room_lock = asyncio.Lock()
        #: The demands that wait for room.
        self.queue = RoomQueue(clock, room_wait_seconds)
        self._departures = Departures(clock)
        self._changed = asyncio.Event()
        #: Set once it is known how much is there.
        self._is_counted = asyncio.Event()
        self._files = ThreadPoolExecutor(8, "forebay-files")

    # -- what is there --------------------------------------------------------------------------------------------

    def find(self, key: str) -> Entry | None:
        """The whole piece `key`, checked against its file; None where it must be filled."""
        if key in self._leaving or key in self._arriving:
            return None
        held = self._held.get(key)
        if held is not None and not self.disk.stands(held.entry):
            self._forget(key)
            held = None
        if held is None:
            entry = self.disk.lookup(key)
            if entry is None:
                return None
            held = self._add(entry)
            self._index.put(entry)
        held.last_used = self._clock()
        return held.entry

    def holds(self, key: str) -> bool:
        """Whether the piece is there as far as the books say, without a look at its file."""
        return key in self._held

    def pin(self, key: str) -> None:
        """Keeps the piece from eviction until as many `unpin`. It need not be there yet."""
        self._pins[key] += 1

    def unpin(self, key: str) -> None:
        self._pins[key] -= 1
        if self._pins[key] <= 0:
            del self._pins[key]
            self.queue.moved()
            self._changed.set()

    def listen(self, listener: Callable[[str, bool], None]) -> None:
        """Calls `listener(key, is_there)` at each arrival and departure from now on."""
        self._listeners.append(listener)

    def keys(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    # -- arrivals -------------------------------------------------------------------------------------------------

    def expect(self, key: str) -> None:
        """Announces a fill: nothing of an earlier file or error is at the piece's path when this returns.

        A file that is being evicted may stay for a moment: it is whole, so a reader may take it.
        """
        self.disk.clear_error(key)
        if key not in self._leaving:
            self._forget(key)
            self.disk.remove(key)
        self._arriving.add(key)

    async def settled(self, key: str) -> Entry | None:
        """Waits until an eviction of the key is over; the piece if it was spared."""
        while key in self._leaving:
            await asyncio.wait([self._leaving[key]])
        held = self._held.get(key)
        return None if held is None else held.entry

    async def admit(self, temp: TempFile, key: str, origin: Origin, reservation: Reservation) -> Entry:
        """Turns a written temp file into a piece and its reservation into used bytes."""
        entry = await self.in_thread(self.disk.commit, temp, key, origin)
        reservation.release()
        self._add(entry)
        self._index.put(entry)
        self.queue.moved()
        return entry

    def arrived(self, key: str) -> None:
        """Ends what `expect` began, however the fill ended."""
        self._arriving.discard(key)
        self._changed.set()

    # -- room -----------------------------------------------------------------------------------------------------

    async def reserve(self, reservation: Reservation, total: int, want: Want, *, spare: int = 0) -> None:
        """Grows the reservation to `total` bytes, and by up to `spare` more where that much is free anyway.

        Raises `CapacityError` where a demand can never fit, or others leave it no room for long; `NoRoom` where a
        prefetch does not fit now, and where a demand that holds some room, or something else, stands in the way of an
        earlier one.
        """
        await self._is_counted.wait()
        try:
            while not await self._take_in_turn(reservation, total, want):
                self._wait_or_fail(reservation, total, want)
                await self._change()
        finally:
            self.queue.leave(want)
            self._changed.set()
        extra = min(spare, -self.ledger.missing(0))
        if extra > 0:
            reservation.grow_to(total + extra)

    async def _take_in_turn(self, reservation: Reservation, total: int, want: Want) -> bool:
        if want.before is not None:
            return self.queue.is_empty() and await self._take(reservation, total, want)
        return not self.queue.must_wait(want.turn) and await self._take(reservation, total, want)

    def _wait_or_fail(self, reservation: Reservation, total: int, want: Want) -> None:
        stands_before_another = reservation.bytes and self.queue.must_wait(want.turn)
        if want.before is not None or want.is_in_the_way or stands_before_another:
            raise NoRoom
        if self.queue.gives_up(want):
            raise CapacityError(
                f"{want.name} needs {total} bytes, but pieces in use hold the cache of"
                f" {self.ledger.capacity_bytes} bytes: {_REMEDY}"
            )
        self.queue.join(want)

    def moved(self) -> None:
        """A trainer has read on, or room was given back: what waits for room may hope."""
        self.queue.moved()

    async def _take(self, reservation: Reservation, total: int, want: Want) -> bool:
        async with self._room_lock:
            while (missing := self.ledger.missing(total - reservation.bytes)) > 0:
                if total > self.ledger.capacity_bytes or total > self.ledger.most():
                    raise CapacityError(
                        f"{want.name} needs at least {total} bytes, and the cache {self.disk.root} has a capacity of"
                        f" {self.ledger.capacity_bytes} bytes ({max(0, self.ledger.most())} of them usable): {_REMEDY}"
                    )
                if not await self._evict(missing, want.before):
                    return False
            reservation.grow_to(total)
            return True

    async def _evict(self, missing: int, before: float | None) -> bool:
        """Removes pieces worth `missing` bytes, less those that turn out to be in use. False: there are not so many."""
        chosen = self._take_planned(missing, before)
        if chosen is None:
            await self._plan_departures(missing, before)
            chosen = self._take_planned(missing, before)
        if chosen is None:
            return False
        await asyncio.shield(asyncio.ensure_future(self._remove(chosen)))
        return True

    def _take_planned(self, missing: int, before: float | None) -> list[str] | None:
        return self._departures.take(missing, before=before, version=self._needs.version, is_free=self._is_free)

    async def _plan_departures(self, missing: int, before: float | None) -> None:
        version, held = self._needs.version, list(self._held.items())
        next_uses = await self._needs.seconds([key for key, _ in held])
        pinned, now = frozenset(self._pins), self._clock()

        def choose() -> list[Departure]:
            residents = [
                Resident(key, piece.entry.blocks, next_use, piece.last_used, key in pinned or piece.spared_until > now)
                for (key, piece), next_use in zip(held, next_uses, strict=True)
            ]
            return plan(residents, missing, before=before, capacity=self.ledger.capacity_bytes) or []

        chosen = await self.in_thread(choose)
        self._departures.keep(chosen, version=version, made_at=self._clock())

    def _is_free(self, key: str) -> bool:
        held = self._held.get(key)
        return held is not None and key not in self._pins and held.spared_until <= self._clock()

    async def _remove(self, keys: list[str]) -> None:
        leaving = {key: self._held.pop(key) for key in keys}
        done = asyncio.get_running_loop().create_future()
        self._leaving |= dict.fromkeys(keys, done)
        try:
            gone = await self.in_thread(_unlink_unmapped, self.disk, keys)
        finally:
            for key in keys:
                del self._leaving[key]
            done.set_result(None)
        for key, held in leaving.items():
            if key in gone:
                self.evictions += 1
                self._account_loss(held.entry)
            else:
                held.spared_until = self._clock() + _RECHECK_SECONDS
                self._held[key] = held
        if gone:
            self.queue.moved()
        self._changed.set()

    async def _change(self) -> None:
        """Waits until something may have made room. Mappings end without a word, so never for long."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), _RECHECK_SECONDS)
        except TimeoutError:
            return

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the index, brings the books in line with the files, and removes what an earlier daemon left half
        done."""
        try:
            await self.load()
        except Exception:
            _log.exception("the index of %s cannot be loaded; the files are read instead", self.disk.root)
        await self.reconcile()

    async def load(self) -> None:
        """Takes in what the index says is there. One that says nothing useful leaves that to `reconcile`."""
        index = await self._index.load()
        for entries in _sliced(list(index.entries.values())):
            for entry in entries:
                if not self._is_known(entry.key) and self.disk.trusts(entry):
                    self._add(entry)
            await asyncio.sleep(0)
        if not index.is_new:
            self._is_counted.set()

    async def reconcile(self) -> None:
        """Brings the books in line with the files, and removes what an earlier daemon left half done."""
        try:
            found = await self.in_thread(_survey, self.disk)
            for entries in _sliced(found):
                for entry in entries:
                    self._adopt(entry)
                await asyncio.sleep(0)
            known = {entry.key for entry in found}
            for key in [key for key in self._held if key not in known]:
                if not self.disk.stands(self._held[key].entry):
                    self._forget(key)
        except OSError as error:
            _log.error("the cache directory %s cannot be read through: %s", self.disk.root, error)
        finally:
            self._is_counted.set()
        await self._trim()

    async def close(self) -> None:
        """Writes the index to its end."""
        await self._index.close()
        self._files.shutdown()

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs blocking work on files. Not over before the work is, even when cancelled: it may hold a descriptor."""
        return await complete(asyncio.get_running_loop().run_in_executor(self._files, work, *arguments))

    async def _trim(self) -> None:
        async with self._room_lock:
            while (missing := self.ledger.missing(0)) > 0 and await self._evict(missing, None):
                pass

    def _is_known(self, key: str) -> bool:
        return key in self._held or key in self._arriving or key in self._leaving

    def _adopt(self, entry: Entry) -> None:
        if not self._is_known(entry.key) and self.disk.stands(entry):
            self._add(entry)
            self._index.put(entry)

    def _add(self, entry: Entry) -> _Held:
        self._forget(entry.key)
        held = self._held[entry.key] = _Held(entry, self._clock())
        self.ledger.used_bytes += entry.blocks
        self._tell(entry.key, is_there=True)
        return held

    def _forget(self, key: str) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._account_loss(held.entry)

    def _account_loss(self, entry: Entry) -> None:
        self.ledger.used_bytes -= entry.blocks
        self._index.drop(entry.key)
        self._tell(entry.key, is_there=False)

    def _tell(self, key: str, *, is_there: bool) -> None:
        for listener in self._listeners:
            listener(key, is_there)


_REMEDY = "give it more (--capacity, FOREBAY_CAPACITY), or cut smaller pieces (piece_bytes= of the format)"


def _sliced(entries: list[Entry]) -> Iterator[list[Entry]]:
    return (entries[start : start + _SLICE] for start in range(0, len(entries), _SLICE))


def _survey(disk: CacheDisk) -> list[Entry]:
    disk.sweep()
    return list(disk.entries())


def _unlink_unmapped(disk: CacheDisk, keys: list[str]) -> set[str]:
    gone = set()
    for key in keys:
        if not is_mapped(disk.path(key)):
            disk.remove(key)
            gone.add(key)
    return gone
