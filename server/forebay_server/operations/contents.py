"""What is in the cache: by dataset from the books, by object from the sidecars. Called on the event loop.

A piece belongs to the dataset for which it was fetched first, although others may read it too.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from forebay_server.cache.cache import Cache
from forebay_server.disk.entry import Entry, Origin
from forebay_server.operations.selection import Reach, Selection
from forebay_server.pool.pool import Pool

#: Sidecars are read so many at a time: some tens of milliseconds, and one answer on the wire.
_SLICE = 500


@dataclass(slots=True)
class Content:
    """What is cached of one dataset or object: pieces, their bytes on the disks, and how many are held by whom."""

    url: str
    #: Of an object; empty for a dataset.
    version: str = ""
    pieces: int = 0
    bytes: int = 0
    rows: int = 0
    leased: int = 0
    kept: int = 0
    disks: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Known:
    """A piece, where it is, and what it was made from; None where its sidecar does not say."""

    cache: Cache
    entry: Entry
    origin: Origin | None


def datasets(pool: Pool, selection: Selection, is_kept: Callable[[str], bool]) -> list[Content]:
    """By the root of a dataset, the largest first. Of a dataset that is selected in part, all is counted."""
    found: dict[str, Content] = {}
    for cache, entry in _selected(pool, selection):
        content = found.setdefault(entry.dataset, Content(entry.dataset))
        _add(content, cache, entry, pool, is_kept(entry.key))
    return sorted(found.values(), key=lambda content: (-content.bytes, content.url))


async def objects(pool: Pool, selection: Selection, is_kept: Callable[[str], bool]) -> list[Content]:
    """By object and version, in the order of their names."""
    found: dict[tuple[str, str], Content] = {}
    async for pieces in selected(pool, selection):
        for piece in pieces:
            origin = piece.origin
            url, version = ("", "") if origin is None else (origin.url, origin.version)
            content = found.setdefault((url, version), Content(url, version))
            _add(content, piece.cache, piece.entry, pool, is_kept(piece.entry.key))
            content.rows += 0 if origin is None else origin.rows
    return [found[name] for name in sorted(found)]


async def selected(pool: Pool, selection: Selection) -> AsyncIterator[list[Known]]:
    """The pieces of which the object is selected, with their origins, in slices."""
    for cache in pool.usable:
        await cache.counted()
        entries = [entry for entry in cache.entries() if selection.reach(entry.dataset) is not Reach.NONE]
        for start in range(0, len(entries), _SLICE):
            part = entries[start : start + _SLICE]
            origins = await cache.in_thread(_origins, cache, part)
            yield [
                Known(cache, entry, origin)
                for entry, origin in zip(part, origins, strict=True)
                if _is_selected(selection, entry, origin)
            ]


def _origins(cache: Cache, entries: Sequence[Entry]) -> list[Origin | None]:
    return [cache.disk.origin(entry.key) for entry in entries]


def _is_selected(selection: Selection, entry: Entry, origin: Origin | None) -> bool:
    if selection.reach(entry.dataset) is Reach.ALL:
        return True
    return origin is not None and bool(origin.url) and selection.holds(origin.url)


def _selected(pool: Pool, selection: Selection) -> Iterator[tuple[Cache, Entry]]:
    for cache in pool.usable:
        reaches: dict[str, Reach] = {}
        for entry in cache.entries():
            reach = reaches.get(entry.dataset)
            if reach is None:
                reach = reaches[entry.dataset] = selection.reach(entry.dataset)
            if reach is not Reach.NONE:
                yield cache, entry


def _add(content: Content, cache: Cache, entry: Entry, pool: Pool, is_kept: bool) -> None:
    content.pieces += 1
    content.bytes += entry.blocks
    content.kept += is_kept
    content.leased += entry.key in pool.pins and not is_kept
    content.disks.add(str(cache.disk.root))


def by_cache(pieces: Iterable[Known]) -> dict[Cache, list[Entry]]:
    """The entries of each cache."""
    found: dict[Cache, list[Entry]] = {}
    for piece in pieces:
        found.setdefault(piece.cache, []).append(piece.entry)
    return found
