"""Emptying the cache of what an operator names, or saying what that would remove. Called on the event loop.

What is leased or mapped is spared unless it is forced; then readers that have it mapped keep it, and its room, until
they end, and others fetch it again. What is kept (`forebay pin`) is spared in any case.
"""

from dataclasses import dataclass

from forebay_server.cache.cache import Cache
from forebay_server.disk.entry import Entry
from forebay_server.operations.contents import by_cache, selected
from forebay_server.operations.keeping import Keeping
from forebay_server.operations.selection import Selection
from forebay_server.pool.pool import Pool


@dataclass(slots=True)
class Evicted:
    """What went, or would go, and what was spared for which reason: pieces, and bytes on the disks."""

    pieces: int = 0
    bytes: int = 0
    kept: int = 0
    leased: int = 0
    #: Mapped by a reader, or just now in use otherwise.
    in_use: int = 0


async def evict(pool: Pool, keeping: Keeping, selection: Selection, *, dry_run: bool, force: bool) -> Evicted:
    """Removes the pieces of the selected objects."""
    result = Evicted()
    async for pieces in selected(pool, selection):
        for cache, entries in by_cache(pieces).items():
            await _evict(cache, entries, keeping, result, dry_run=dry_run, force=force)
    return result


async def _evict(
    cache: Cache, entries: list[Entry], keeping: Keeping, result: Evicted, *, dry_run: bool, force: bool
) -> None:
    free = []
    for entry in entries:
        if keeping.keeps(entry.key):
            result.kept += 1
        elif cache.is_pinned(entry.key) and not force:
            result.leased += 1
        else:
            free.append(entry)
    gone = set(await _mapped_apart(cache, free, dry_run=dry_run, force=force))
    result.pieces += len(gone)
    result.bytes += sum(entry.blocks for entry in free if entry.key in gone)
    result.in_use += len(free) - len(gone)


async def _mapped_apart(cache: Cache, entries: list[Entry], *, dry_run: bool, force: bool) -> list[str]:
    keys = [entry.key for entry in entries]
    if not dry_run:
        return await cache.room.evict(keys, force=force)
    return keys if force else await cache.room.unmapped(keys)
