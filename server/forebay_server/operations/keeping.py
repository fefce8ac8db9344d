"""What an operator wants to stay in the cache (`forebay pin`): all pieces of the objects below some URLs.

The URLs are written to a note in the first cache directory and outlive the daemon. What of them is there, and what
comes, is pinned as leases pin; so nothing evicts it, except that on each disk not more than a part of the capacity is
kept: what comes beyond that is cached like anything else, or one dataset would leave no room for the others to pass
through. Everything happens on the event loop, but for the note and for sidecars, which are read on threads.
"""

import asyncio
import json
import logging
from collections import Counter
from dataclasses import dataclass

from forebay_core.errors import CapacityError
from forebay_server.cache.cache import Cache
from forebay_server.concurrency import repeat
from forebay_server.operations.contents import selected
from forebay_server.operations.selection import Reach, Selection
from forebay_server.pool.pool import Pool

_log = logging.getLogger(__name__)
_NOTE = "kept.json"
#: Of a disk's capacity, at the most.
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one URL: pieces, bytes on the disks, and the pieces that are there but for which no room is
    left among what may be kept."""

    url: str
    pieces: int
    bytes: int
    beyond: int


class Keeping:
    """The URLs that are kept, and their pieces."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._selections: list[Selection] = _read(pool)
        #: By key, on which disk, with how many bytes.
        self._kept: dict[str, tuple[Cache, int]] = {}
        self._bytes: Counter[Cache] = Counter()
        self._undecided: set[str] = set()
        self._wake = asyncio.Event()
        pool.listen(self._changed)

    def keeps(self, key: str) -> bool:
        return key in self._kept

    async def keep(self, selection: Selection) -> None:
        """Keeps what is there of it, and what comes. Raises `CapacityError` where that cannot be written down."""
        if selection not in self._selections:
            self._selections.append(selection)
            await self._note()
        async for pieces in selected(self._pool, selection):
            for piece in pieces:
                self._take(piece.entry.key)

    async def release(self, selection: Selection) -> int:
        """Keeps the URLs at or below it no longer: how many that were."""
        ended = [each for each in self._selections if selection.holds(each.url) or each == selection]
        if ended:
            self._selections = [each for each in self._selections if each not in ended]
            await self._note()
            for key in list(self._kept):
                self._leave(key)
            await self._decide_all()
        return len(ended)

    async def rows(self) -> list[Kept]:
        """What is kept, by URL in the order in which they were named. A piece of two URLs counts for both."""
        return [await self._row(selection) for selection in self._selections]

    async def run(self) -> None:
        """Decides about pieces whose dataset does not tell, until it is cancelled."""
        await repeat(self._decide, "keeping pieces")

    async def _row(self, selection: Selection) -> Kept:
        kept = size = beyond = 0
        async for pieces in selected(self._pool, selection):
            for piece in pieces:
                is_kept = piece.entry.key in self._kept
                kept, beyond = kept + is_kept, beyond + (not is_kept)
                size += piece.entry.blocks if is_kept else 0
        return Kept(selection.url, kept, size, beyond)

    def _changed(self, key: str, is_there: bool) -> None:
        if not is_there:
            self._undecided.discard(key)
            self._leave(key)
        elif self._selections:
            self._judge(key)

    def _judge(self, key: str) -> None:
        entry = self._entry(key)
        if entry is None:
            return
        reaches = {selection.reach(entry[1]) for selection in self._selections}
        if Reach.ALL in reaches:
            self._take(key)
        elif Reach.SOME in reaches:
            self._undecided.add(key)
            self._wake.set()

    def _entry(self, key: str) -> tuple[Cache, str, int] | None:
        for cache in self._pool.caches:
            if (entry := cache.entry(key)) is not None:
                return cache, entry.dataset, entry.blocks
        return None

    def _take(self, key: str) -> None:
        found = self._entry(key)
        if found is None or key in self._kept:
            return
        cache, _, size = found
        if self._bytes[cache] + size > _SHARE * cache.ledger.capacity_bytes:
            return
        self._kept[key] = (cache, size)
        self._bytes[cache] += size
        self._pool.pins.pin(key)

    def _leave(self, key: str) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            cache, size = kept
            self._bytes[cache] -= size
            self._pool.pins.unpin(key)

    async def _decide(self) -> None:
        await self._wake.wait()
        self._wake.clear()
        keys, self._undecided = self._undecided, set()
        for key in keys:
            if (found := self._entry(key)) is None:
                continue
            origin = await found[0].in_thread(found[0].disk.origin, key)
            if origin is not None and any(selection.holds(origin.url) for selection in self._selections):
                self._take(key)

    async def _decide_all(self) -> None:
        for selection in self._selections:
            async for pieces in selected(self._pool, selection):
                for piece in pieces:
                    self._take(piece.entry.key)

    async def _note(self) -> None:
        content = json.dumps({"version": 1, "urls": [selection.url for selection in self._selections]}).encode()
        cache = self._pool.caches[0]
        try:
            await cache.in_thread(cache.disk.write_note, _NOTE, content)
        except OSError as error:
            raise CapacityError(f"what is kept cannot be written down in {cache.disk.root}: {error}") from error


def _read(pool: Pool) -> list[Selection]:
    disk = pool.disks[0]
    content = disk.read_note(_NOTE)
    if content is None:
        return []
    try:
        return [Selection.parse(url) for url in json.loads(content)["urls"]]
    except (ValueError, LookupError, TypeError) as error:
        _log.error("%s in %s cannot be read, so nothing is kept: %s", _NOTE, disk.root, error)
        return []
