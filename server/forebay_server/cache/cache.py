"""The cache of one disk: what is there of a piece, and what becomes of pieces as they come, are doubted, fail and go.

State lives on the event loop's thread and is changed there alone (`books`); making room is `room`'s. Files are the
truth: serving begins at once, `start` then loads the index and compares it with the files in the background, and a key
that is not known is looked up on the disk. Nothing is fetched before it is known how much is there. What may not be
what was written is held, and is not there for anyone until it is proven (`doubts`).

Work on files whose length nobody knows runs in threads: data is written, committed and unlinked there, error files are
written, the directory is read through, and the index is loaded and written. `find` and `expect` do theirs on the loop,
because their answer must hold when they return: a look at one directory entry for a hit (and at a small sidecar for
what the index does not know), and the unlinking of a file that is in the way of a fill, which is one that is not whole.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from forebay_core.eviction import Policy
from forebay_core.mapping import remove
from forebay_server.cache.books import Books
from forebay_server.cache.capacity import Ledger, Reservation
from forebay_server.cache.choosing import NextUse
from forebay_server.cache.pins import Pins
from forebay_server.cache.room import Room
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.survey import survey
from forebay_server.disk.temp_file import TempFile

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: So many entries are taken in before others have their turn.
#: So many entries are taken in before others have their turn.
_SLICE = 1000


class Cache:
    """The pieces on one disk. Methods are for the event loop's thread."""

    def __init__(
        self,
        disk: CacheDisk,
        ledger: Ledger,
        *,
        needs: NextUse,
        policy: Policy,
        pins: Pins,
        clock: Callable[[], float],
        room_wait_seconds: float = 30.0,
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self._books = books = Books(disk, ledger, clock=clock)
        self.room = Room(books, needs=needs, policy=policy, pins=pins, clock=clock, wait_seconds=room_wait_seconds)
        #: By the root of the dataset for which a piece was fetched first.
        self.holdings = books.holdings
        self.integrity = books.integrity
        self.custody = books.custody
        #: Pieces that are held and not served.
        self.doubts = books.doubts
        self.digests = books.digests
        self._pins = pins
        self._clock = clock

    # -- what is there --------------------------------------------------------------------------------------------

    def find(self, key: str) -> Entry | None:
        """The whole piece `key`, checked against its file; None where it must be filled."""
        if self._books.is_barred(key):
            return None
        held = self._books.held.get(key)
        if held is not None and not self.disk.stands(held.entry):
            self._books.forget(key)
            held = None
        if held is None:
            entry = self.disk.lookup(key)
            if entry is None:
                return None
            held = self._books.add(entry)
            self._books.index.put(entry)
        if key in self.doubts:
            return None
        held.last_used = self._clock()
        self.room.transit.leave(key)
        return held.entry

    def holds(self, key: str) -> bool:
        """Whether the piece is there as far as the books say, without a look at its file."""
        return key in self._books.held and key not in self.doubts

    def entry(self, key: str) -> Entry | None:
        """What the books say of a piece, in doubt or not."""
        held = self._books.held.get(key)
        return None if held is None else held.entry

    def entries(self) -> list[Entry]:
        """What the books say of all pieces, in doubt or not."""
        return [held.entry for held in self._books.held.values()]

    def is_current(self, entry: Entry) -> bool:
        """Whether this is what the books say of the piece now."""
        return self.entry(entry.key) is entry

    def is_leaving(self, key: str) -> bool:
        """Whether the piece is being evicted."""
        return key in self._books.leaving

    @property
    def fills(self) -> int:
        """How many pieces are being written."""
        return len(self._books.arriving)

    def is_pinned(self, key: str) -> bool:
        """Whether somebody holds a lease on the piece, or wants it to stay."""
        return key in self._pins

    def held_bytes(self) -> int:
        """What pins keep from eviction, in bytes on the disk."""
        return sum(self._books.held[key].entry.blocks for key in self._pins if key in self._books.held)

    def listen(self, listener: Callable[[str, bool], None]) -> None:
        """Calls `listener(key, is_there)` at each arrival and departure from now on."""
        self._books.listen(listener)

    def keys(self) -> Iterator[str]:
        return iter(self._books.held)

    def __len__(self) -> int:
        return len(self._books.held)

    # -- arrivals -------------------------------------------------------------------------------------------------

    def expect(self, key: str) -> None:
        """Announces a fill: nothing of an earlier file or error is at the piece's path when this returns.

        A file that is being evicted may stay for a moment: it is whole, so a reader may take it.
        """
        self.disk.clear_error(key)
        if key in self.doubts and key in self._books.leaving:
            self.disk.remove(key)
        elif key not in self._books.leaving:
            if key in self.doubts:
                self.doubts.set_aside(self._books.held[key].entry)
            self.discard(key)
            self._books.unreadable.discard(key)
        self._books.arriving.add(key)

    async def settled(self, key: str) -> Entry | None:
        """Waits until an eviction of the key is over; the piece if it was spared, or was in doubt and proves right."""
        while key in self._books.leaving:
            await asyncio.wait([self._books.leaving[key]])
        held = self._books.held.get(key)
        if held is not None and key not in self.doubts:
            return held.entry
        proven = await self.doubts.proven(key, self.in_thread)
        if proven is not None:
            self._books.add(proven)
            self._books.index.put(proven)
        return proven

    async def admit(self, temp: TempFile, key: str, origin: Origin, reservation: Reservation) -> Entry:
        """Turns a written temp file into a piece and its reservation into used bytes."""
        entry = await self.in_thread(self.disk.commit, temp, key, origin)
        reservation.release()
        self._books.add(entry)
        self._books.index.put(entry)
        self.room.moved()
        return entry

    def arrived(self, key: str) -> None:
        """Ends what `expect` began, however the fill ended."""
        self.doubts.forget(key)
        self._books.arriving.discard(key)
        if key not in self._books.held or key in self._pins:
            self.room.transit.leave(key)
        self.room.look_again()

    def discard(self, key: str) -> None:
        """Takes a piece away at once, whoever holds or maps it: it is not whole, or not wanted any more.

        What readers have mapped keeps its room on the disk until they end. Blocks for one unlinking.
        """
        self._books.forget(key)
        self.room.linger(remove(self.disk.path(key), lambda: self.disk.remove(key)))

    # -- what becomes of pieces -----------------------------------------------------------------------------------

    async def revise(self, entry: Entry, work: Callable[[Entry], Entry]) -> bool:
        """Lets `work` change what the files say of a piece, on a thread, while nobody else touches them.

        False: the piece is not there any more, or another. Raises what `work` does; the books stay as they are then.
        """
        if not self.is_current(entry):
            return False
        key, held = entry.key, self._books.held.pop(entry.key)
        done = self._books.leaving[key] = asyncio.get_running_loop().create_future()
        try:
            held.entry = await self.in_thread(work, entry)
        finally:
            del self._books.leaving[key]
            self._books.held[key] = held
            done.set_result(None)
        self._books.index.put(held.entry)
        if key in self.doubts and self.disk.trusts(held.entry):
            self.doubts.end(key)
            self._books.tell(key, is_there=True)
        return True

    def reject(self, entry: Entry) -> bool:
        """Takes a damaged piece out of use at once (a rename). False: it is not there any more, or another."""
        if not self.is_current(entry):
            return False
        self._books.forget(entry.key)
        if not self.custody.quarantine(entry.key):
            self.discard(entry.key)
        self.doubts.account()
        return True

    # -- a disk that fails ----------------------------------------------------------------------------------------

    def drop(self, key: str) -> int | None:
        """The piece is of no use to its readers: nothing of it counts from now on, and its file is removed if the disk
        lets us. A descriptor of the file for whoever wants to see what is wrong with it; None where there is none.

        Raises `OSError` where the disk does not let us: what is there stays unused.
        """
        if key in self._books.leaving or key in self._books.arriving or key not in self._books.held:
            return None
        self._books.unreadable.add(key)
        descriptor = self.disk.open(key)
        try:
            self.discard(key)
        except OSError:
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._books.unreadable.discard(key)
        return descriptor

    def lose(self) -> None:
        """The disk is out: nothing on it counts, and nobody waits for room on it, until `regain`."""
        self._books.is_lost = True
        self._books.is_counted.set()
        for key in list(self._books.held):
            self._books.forget(key)
        self.room.look_again()

    async def regain(self) -> None:
        """The disk is back: what is on it counts again."""
        self._books.is_lost = False
        self._books.unreadable.clear()
        await self.reconcile()

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
        index = await self._books.index.load()
        for entries in _sliced(list(index.entries.values())):
            for entry in entries:
                if not self._books.is_known(entry.key) and (self.disk.allows_changed or not entry.is_changed):
                    self._books.add(entry)
            await asyncio.sleep(0)
        if not index.is_new:
            self._books.is_counted.set()

    async def reconcile(self) -> None:
        """Brings the books in line with the files, and removes what an earlier daemon left half done."""
        try:
            known = {key: held.entry for key, held in self._books.held.items()}
            found = await self.in_thread(survey, self.disk, known)
            for entries in _sliced(found):
                self._books.index.put_all([entry for entry in entries if self._books.adopt(entry)])
                await asyncio.sleep(0)
            whole = {entry.key for entry in found}
            for key in [key for key in self._books.held if key not in whole]:
                if not self.disk.stands(self._books.held[key].entry):
                    self._books.forget(key)
        except OSError as error:
            _log.error("the cache directory %s cannot be read through: %s", self.disk.root, error)
        finally:
            self._books.is_counted.set()
        await self.room.trim()

    async def close(self) -> None:
        """Writes the index to its end."""
        self.room.close()
        await self._books.close()

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs blocking work on files. Not over before the work is, even when cancelled: it may hold a descriptor."""
        return await self._books.in_thread(work, *arguments)

    async def counted(self) -> None:
        """Waits until it is known how much is there."""
        await self._books.is_counted.wait()


def _sliced(entries: list[Entry]) -> Iterator[list[Entry]]:
    return (entries[start : start + _SLICE] for start in range(0, len(entries), _SLICE))
