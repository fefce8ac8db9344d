"""Which objects a source consists of, asked of its store.

A URL that is no glob may be a directory or one object, and only the store knows which. A name with the extension of a
format is first tried as an object (so that a reader who may not list can still name objects), any other as a
directory; then the other way round. Hidden and bookkeeping names are left out below a directory and in globs, never
where an object is named itself. So are the zero-length objects by which some tools mark directories. Called on the
event loop.
"""

import asyncio
import dataclasses
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from forebay_core.errors import SourceNotFound
from forebay_core.formats import by_extension, is_data_key
from forebay_core.formats.base import ObjectInfo
from forebay_core.locations import Source
from forebay_server.concurrency import gather_bounded
from forebay_server.sources.failures import shown
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import Target
from forebay_server.sources.retries import OPENING, attempt

#: Requests at once while a list of URLs is looked up.
_LOOKUPS = 32


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a source, sorted by the bytes of their keys, which are relative to the root of `source`.

    `source` is the one asked for, or the same as an object where it turned out to be one.
    """

    source: Source
    objects: list[ObjectInfo]


async def list_objects(stores: Stores, source: Source) -> Listing:
    """The objects of a source. Raises `SourceNotFound` where it, or one URL of a list, names none."""
    if len(source.urls) == 1:
        return await _list_one(stores, source)
    parts = await gather_bounded(_LOOKUPS, lambda url: _list_one(stores, Source((url,))), source.urls)
    merged = {obj.key: obj for part in parts for obj in _rebased(part, source.root)}
    return Listing(source, await asyncio.to_thread(_in_order, list(merged.values())))


async def _list_one(stores: Stores, source: Source) -> Listing:
    as_object = source if source.kind == "object" else source.as_object()
    if as_object and by_extension(source.urls[0]) and (found := await _look_up(stores, as_object)):
        return found
    below = _Below(source)
    if objects := await below.list(stores.target(source.root)):
        return Listing(source, objects)
    if as_object and not by_extension(source.urls[0]) and (found := await _look_up(stores, as_object)):
        return found
    raise SourceNotFound(f"{shown(source.display)}: {below.nothing_found()}")


async def _look_up(stores: Stores, source: Source) -> Listing | None:
    """The source as the one object that it names, if there is one."""
    key = source.urls[0].rpartition("/")[2]
    target = stores.target(source.root, key)
    try:
        info = await attempt(target.store, target.url, OPENING, lambda: target.store.head(target.key))
    except SourceNotFound:
        return None
    return Listing(source, [dataclasses.replace(info, key=key)])


class _Below:
    """What lies below the root of a prefix or glob, and how much of it was passed over."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hidden = 0
        self._unmatched = 0

    async def list(self, root: Target) -> list[ObjectInfo]:
        if self._source.kind == "object":
            return []
        found: list[ObjectInfo] = []
        async for batch in _pages(root, self._keep):
            found += batch
        return await asyncio.to_thread(_without_markers, _in_order(found))

    def nothing_found(self) -> str:
        root = self._source.root
        passed = [f"{self._unmatched} do not match"] if self._unmatched else []
        passed += [f"{self._hidden} have hidden or bookkeeping names ('.…', '_…', '….crc')"] if self._hidden else []
        if passed:
            return f"nothing found: of the objects below {shown(root)}, {' and '.join(passed)}; check the name"
        if self._source.kind == "glob":
            return f"nothing found: there is no object below {shown(root)}; check the name"
        return "nothing found: no object has this name and none lies below it; check the name"

    def _keep(self, key: str) -> bool:
        if not is_data_key(key):
            self._hidden += 1
            return False
        if not self._source.matches(key):
            self._unmatched += 1
            return False
        return True


async def _pages(root: Target, keep: Callable[[str], bool]) -> AsyncIterator[list[ObjectInfo]]:
    """The pages of a listing, each with attempts of its own; after a failure it goes on behind the last key."""
    last: str | None = None
    pages: AsyncIterator[list[ObjectInfo]] | None = None

    async def next_page() -> list[ObjectInfo] | None:
        nonlocal pages
        if pages is None:
            pages = root.store.list(root.key, keep, after=last)
        try:
            return await anext(pages, None)
        except BaseException:
            pages = None
            raise

    while (page := await attempt(root.store, root.url, OPENING, next_page)) is not None:
        last = page[-1].key if page else last
        yield page


def _in_order(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(objects, key=lambda obj: obj.key.encode())


def _without_markers(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    """Without the objects of no bytes that have other objects below their name, or a name without an extension."""
    names = [obj.key.encode() for obj in objects]
    return [obj for obj in objects if obj.size or not _is_marker(obj.key, names)]


def _is_marker(key: str, names: list[bytes]) -> bool:
    if "." not in key.rpartition("/")[2]:
        return True
    inside = f"{key}/".encode()
    place = bisect_left(names, inside)
    return place < len(names) and names[place].startswith(inside)


def _rebased(part: Listing, root: str) -> list[ObjectInfo]:
    inside = part.source.root.removeprefix(root).strip("/")
    if not inside:
        return part.objects
    return [dataclasses.replace(obj, key=f"{inside}/{obj.key}") for obj in part.objects]
