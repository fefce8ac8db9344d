"""The index of a cache directory: what `CacheDisk.entries` would find, in a form that loads at once.

A diskcache map (SQLite) from key to entry, with `JSONDisk` and without its own eviction. It is an accelerator only: one
that is missing, corrupt, of another cache directory or of another version is made anew, and the files are read instead;
one that cannot be written to (a full disk) is still read. Entries are read by a query of our own that takes JSON rows
and nothing else, because diskcache would unpickle a row that says it is a pickle.

`Index` blocks and is used by one thread at a time; `IndexThread` is that thread, for the event loop.
"""

import asyncio
import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import diskcache

from forebay_server.concurrency import complete
from forebay_server.disk.database import is_there, remove
from forebay_server.disk.entry import Entry

_log = logging.getLogger(__name__)
#: Changes with what an entry says.
_VERSION = 2
#: The key under which an index says whose it is; no piece has it.
_STAMP = "forebay"
_RAW_ROWS = "SELECT value FROM Cache WHERE raw = 1 AND mode = 1 AND value IS NOT NULL"
_FOREIGN_ROWS = "SELECT count(*) FROM Cache WHERE raw != 1 OR mode != 1 OR filename IS NOT NULL"
_SETTINGS = {*diskcache.core.DEFAULT_SETTINGS, *diskcache.core.METADATA, "disk_compress_level"}
_DATABASE = "cache.db"
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
    def open(cls, directory: Path, disk_id: str) -> "Index":
        """Opens and loads the index, or makes it anew. On a disk that takes no writes there is none; all else works."""
        stamp = {"version": _VERSION, "disk": disk_id}
        entries: dict[str, Entry] | None = None
        try:
            if is_there(directory / _DATABASE):
                entries = _load(directory, stamp)
                return cls(_open(directory), entries, is_new=False)
        except _FAULTS as error:
            _log.warning(
                "the index in %s cannot be used%s: %s", directory, "" if entries else " and is made anew", error
            )
        if entries is not None:
            return cls(None, entries, is_new=False)
        try:
            remove(directory / _DATABASE)
            directory.mkdir(mode=0o750, exist_ok=True)
            cache = _open(directory)
            cache.set(_STAMP, stamp)
            return cls(cache, {}, is_new=True)
        except _FAULTS as error:
            _log.error("there is no index in %s, the next start will read all files: %s", directory, error)
            return cls(None, {}, is_new=True)

    def put(self, entry: Entry) -> None:
        self._attempt(lambda cache: cache.set(entry.key, entry.to_json()))

    def put_all(self, entries: Iterable[Entry]) -> None:
        """Many, in one transaction."""

        def put(cache: diskcache.Cache) -> None:
            with cache.transact():
                for entry in entries:
                    cache.set(entry.key, entry.to_json())

        self._attempt(put)

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

    def __init__(self, directory: Path, disk_id: str) -> None:
        self._directory = directory
        self._disk_id = disk_id
        self._index: Index | None = None
        self._thread = ThreadPoolExecutor(1, "forebay-index")

    async def load(self) -> Index:
        """The index as it was when it was opened."""
        return await complete(asyncio.get_running_loop().run_in_executor(self._thread, self._opened))

    def put(self, entry: Entry) -> None:
        self._thread.submit(lambda: self._opened().put(entry))

    def put_all(self, entries: Sequence[Entry]) -> None:
        """Many, in one transaction."""
        if entries:
            self._thread.submit(lambda: self._opened().put_all(entries))

    def drop(self, key: str) -> None:
        self._thread.submit(lambda: self._opened().drop(key))

    async def close(self) -> None:
        """Makes the changes that are still to be made, and ends the thread."""
        await complete(asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._opened().close()))
        self._thread.shutdown()

    def _opened(self) -> Index:
        if self._index is None:
            self._index = Index.open(self._directory, self._disk_id)
        return self._index


def _open(directory: Path) -> diskcache.Cache:
    return diskcache.Cache(
        str(directory),
        disk=diskcache.JSONDisk,
        disk_compress_level=0,  # a start reads all of it, and half of that is keys
        eviction_policy="none",
        cull_limit=0,
        size_limit=2**62,
        timeout=10,
    )


def _load(directory: Path, stamp: dict[str, object]) -> dict[str, Entry]:
    """Raises `ValueError` where it is of another directory or version, or holds what is never written here."""
    connection = sqlite3.connect(directory / _DATABASE)
    try:
        _check_ours(connection)
        rows = connection.execute(_RAW_ROWS).fetchall()
    finally:
        connection.close()
    values = json.loads(b"[%b]" % b",".join(zlib.decompress(value) for (value,) in rows))
    if stamp not in values:
        raise ValueError("it is of another cache directory, or of another version")
    return {entry.key: entry for entry in map(Entry.from_json, values) if entry is not None}


def _check_ours(connection: sqlite3.Connection) -> None:
    """diskcache would unpickle, read or remove what other rows name, and set attributes by other settings."""
    if connection.execute(_FOREIGN_ROWS).fetchone() != (0,):
        raise ValueError("it has rows that are not JSON")
    names = {name for (name,) in connection.execute("SELECT key FROM Settings")}
    if not names <= _SETTINGS:
        raise ValueError("it has settings that are not known")
