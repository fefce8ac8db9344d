"""The books of one disk: which pieces are there, are coming and are going, and the room that they take.

The invariant: the ledger's used bytes and `holdings` count the pieces in `held`, and those in `leaving` until it is
known what became of them. A piece that comes into the books or leaves them is told to the index and to those who
listen. State lives on the event loop's thread; the books look at files, and change none.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar

from forebay_server.cache.capacity import Ledger
from forebay_server.cache.choosing import Held
from forebay_server.cache.doubts import Doubts
from forebay_server.cache.integrity import IntegrityCounters
from forebay_server.concurrency import complete
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.custody import Custody
from forebay_server.disk.digests import Digest, Digests
from forebay_server.disk.entry import Entry
from forebay_server.disk.index import IndexThread

T = TypeVar("T")


@dataclass(slots=True)
class Holding:
    """What is there of one dataset: pieces, and their bytes on the disk."""

    pieces: int = 0
    bytes: int = 0


class Books:
    """What is known of the pieces on one disk. Methods are for the event loop's thread."""

    def __init__(self, disk: CacheDisk, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self.disk = disk
        self.ledger = ledger
        #: By the root of the dataset for which a piece was fetched first.
        self.holdings: dict[str, Holding] = {}
        self.integrity = IntegrityCounters()
        self.custody = Custody(disk)
        #: Pieces that are held and not served.
        self.doubts = Doubts(self.custody, ledger, self.integrity)
        self.digests = Digests(disk.root / "digests.db", makers=_makers())
        self.index = IndexThread(disk.index, disk.id)
        self.held: dict[str, Held] = {}
        #: Keys being written, and keys being unlinked: neither is there nor may be looked up.
        self.arriving: set[str] = set()
        self.leaving: dict[str, asyncio.Future[None]] = {}
        #: Pieces that cannot be read, and could not be removed.
        self.unreadable: set[str] = set()
        self.is_lost = False
        #: Set once it is known how much is there.
        self.is_counted = asyncio.Event()
        self._clock = clock
        self._listeners: list[Callable[[str, bool], None]] = []
        self._files = ThreadPoolExecutor(8, "forebay-files")

    async def close(self) -> None:
        """Writes the index to its end."""
        await self.index.close()
        self._files.shutdown()
        self.custody.close()
        self.digests.close()

    def listen(self, listener: Callable[[str, bool], None]) -> None:
        """Calls `listener(key, is_there)` at each arrival and departure from now on."""
        self._listeners.append(listener)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs blocking work on files. Not over before the work is, even when cancelled: it may hold a descriptor."""
        return await complete(asyncio.get_running_loop().run_in_executor(self._files, work, *arguments))

    def is_barred(self, key: str) -> bool:
        """Whether what lies at the piece's path does not count: it is coming or going, or the disk does not give it."""
        return self.is_lost or key in self.arriving or key in self.leaving or key in self.unreadable

    def is_known(self, key: str) -> bool:
        """Whether what the disk says of the piece is no news."""
        return key in self.held or self.is_barred(key)

    def adopt(self, entry: Entry) -> bool:
        """Takes in what was found on the disk. Whether that is news."""
        if self.is_known(entry.key) or not self.disk.stands(entry):
            return False
        self.add(entry)
        return True

    def add(self, entry: Entry) -> Held:
        """The piece is there, and counts unless it is in doubt."""
        self.forget(entry.key)
        held = self.held[entry.key] = Held(entry, self._clock())
        self._account(entry, 1)
        if self.disk.trusts(entry):
            self.tell(entry.key, is_there=True)
        else:
            self.doubts.add(entry)
        return held

    def forget(self, key: str) -> None:
        """The piece is not there any more, if it was."""
        held = self.held.pop(key, None)
        if held is not None:
            self.departed(held.entry)

    def departed(self, entry: Entry) -> None:
        """A piece that is in `held` no longer is gone from the disk too."""
        self._account(entry, -1)
        if not self.is_lost:
            self.index.drop(entry.key)
            if not entry.is_changed and entry.key not in self.doubts:
                self._files.submit(self.digests.put, entry.key, Digest(entry.size, entry.crc32c))
        self.doubts.end(entry.key)
        self.tell(entry.key, is_there=False)

    def _account(self, entry: Entry, sign: int) -> None:
        self.ledger.used_bytes += sign * entry.blocks
        holding = self.holdings.setdefault(entry.dataset, Holding())
        holding.pieces += sign
        holding.bytes += sign * entry.blocks
        if not holding.pieces:
            del self.holdings[entry.dataset]

    def tell(self, key: str, *, is_there: bool) -> None:
        """Tells those who listen of an arrival or a departure."""
        for listener in self._listeners:
            listener(key, is_there)


def _makers() -> str:
    """What the bytes of a local layout depend on besides what is in its key."""
    return f"pyarrow {metadata.version('pyarrow')}"
