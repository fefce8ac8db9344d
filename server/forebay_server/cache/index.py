"""The index of a cache directory: what `CacheDisk.entries` would find, in a form that loads at once.

A diskcache map (SQLite) from key to entry, with `JSONDisk` and without its own eviction. It is an accelerator only: one
that is missing, foreign or corrupt is made anew, and the files are read instead. Entries are read by a query of our own
that takes JSON rows and nothing else, because diskcache would unpickle a row that says it is a pickle.

`Index` blocks and is used by one thread at a time; `IndexThread` is that thread, for the event loop.
"""

import asyncio
import json
import logging
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import diskcache

from forebay_server.cache.disk import Entry
from forebay_server.concurrency import complete

_log = logging.getLogger(__name__)
_RAW_ROWS = "SELECT value FROM Cache WHERE raw = 1 AND mode = 1 AND value IS NOT NULL"
_FAULTS = (sqlite3.Error, OSError, diskcache.Timeout, ValueError, zlib.error)


class Index:
    """The index of one cache directory. Made by `open`."""

    def __init__(self, cache: diskcache.Cache | None, entries: dict[str, Entry], *, is_new: bool) -> None:
        self._cache = cache
        #: As loaded.
        self.entries = entries
        #: True where nothing was there that could be used: the files may hold pieces that the index does not know.
        self.is_new = is_new

    @classmethod
    def open(cls, directory: Path) -> "Index":
        """Opens and loads the index, or makes it anew. On a disk that takes no writes there is none; all else works."""
        is_new = not (directory / "cache.db").exists()
        try:
            return cls(_open(directory), _load(directory), is_new=is_new)
        except _FAULTS as error:
            _log.warning("the index in %s cannot be used and is made anew: %s", directory, error)
        try:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o750, exist_ok=True)
            return cls(_open(directory), {}, is_new=True)
        except _FAULTS as error:
            _log.error("there is no index in %s, the next start will read all files: %s", directory, error)
            return cls(None, {}, is_new=True)

    def put(self, entry: Entry) -> None:
        self._attempt(lambda cache: cache.set(entry.key, asdict(entry)))

    def drop(self, key: str) -> None:
        self._attempt(lambda cache: cache.delete(key))

    def close(self) -> None:
        self._attempt(lambda cache: cache.close())

    def _attempt(self, change: Callable[[diskcache.Cache], object]) -> None:
        if self._cache is None:
            return
        try:
            change(self._cache)
        except _FAULTS as error:
            _log.warning("the index cannot be written, the files stay the truth: %s", error)


class IndexThread:
    """The index of a directory behind a thread of its own: changes are made in their order, and nobody waits for them.

    Methods are for the event loop.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._index: Index | None = None
        self._thread = ThreadPoolExecutor(1, "forebay-index")

    async def load(self) -> Index:
        """The index as it was when it was opened."""
        return await complete(asyncio.get_running_loop().run_in_executor(self._thread, self._opened))

    def put(self, entry: Entry) -> None:
        self._thread.submit(lambda: self._opened().put(entry))

    def drop(self, key: str) -> None:
        self._thread.submit(lambda: self._opened().drop(key))

    async def close(self) -> None:
        """Makes the changes that are still to be made, and ends the thread."""
        await complete(asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._opened().close()))
        self._thread.shutdown()

    def _opened(self) -> Index:
        if self._index is None:
            self._index = Index.open(self._directory)
        return self._index


def _open(directory: Path) -> diskcache.Cache:
    return diskcache.Cache(
        str(directory), disk=diskcache.JSONDisk, eviction_policy="none", cull_limit=0, size_limit=2**62, timeout=10
    )


def _load(directory: Path) -> dict[str, Entry]:
    connection = sqlite3.connect(directory / "cache.db")
    try:
        rows = connection.execute(_RAW_ROWS).fetchall()
    finally:
        connection.close()
    found = (Entry.from_json(json.loads(zlib.decompress(value))) for (value,) in rows)
    return {entry.key: entry for entry in found if entry is not None}
