"""The digests of pieces that have left the cache, so that a later fill of the same piece can be told from damage.

A table in the cache directory, bounded in its rows, the oldest out first. It is no truth: a row that is lost or damaged
costs a second fill of its piece at the most (`filling.agreement`), and a table that cannot be used is made anew, or
done without. Digests of other versions of the libraries that decode say nothing of these, so such a table is emptied.

Blocking; safe from any thread. Rows are numbers and text: nothing that is read from them is run.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from forebay_server.disk.database import is_there, remove

_log = logging.getLogger(__name__)
T = TypeVar("T")
_TABLES = """
PRAGMA synchronous = OFF;
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS makers (name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS digests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, crc32c INTEGER NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Digest:
    """What a local file holds, in short: its length in bytes and its CRC-32C."""

    size: int
    crc32c: int


class Digests:
    """The digests that are remembered: 200,000 take some 30 MB on the disk, and none of memory."""

    def __init__(self, path: Path, *, makers: str, limit: int = 200_000) -> None:
        """`makers` names what the bytes of local layouts depend on besides their keys."""
        self._path = path
        self._makers = makers
        self._limit = limit
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        #: The table is opened when it is first asked.
        self._is_opened = False

    def get(self, key: str) -> Digest | None:
        """What the piece held when it was here last; None where that is not known."""

        def read(table: sqlite3.Connection) -> Digest | None:
            row = table.execute("SELECT size, crc32c FROM digests WHERE key = ?", (key,)).fetchone()
            return Digest(*row) if row and all(type(number) is int for number in row) else None

        return self._attempt(read)

    def put(self, key: str, digest: Digest) -> None:
        """Remembers a piece that leaves, and forgets the oldest beyond the limit."""

        def write(table: sqlite3.Connection) -> None:
            made = table.execute(
                "INSERT OR REPLACE INTO digests (key, size, crc32c) VALUES (?, ?, ?)",
                (key, digest.size, digest.crc32c),
            )
            table.execute("DELETE FROM digests WHERE number <= ?", ((made.lastrowid or 0) - self._limit,))

        self._attempt(write)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        with self._lock:
            if not self._is_opened:
                self._is_opened, self._connection = True, self._opened()
            if self._connection is None:
                return None
            try:
                return work(self._connection)
            except (sqlite3.Error, OverflowError) as error:
                _log.warning("%s is used no longer: %s", self._path, error)
                self._connection.close()
                self._connection = None
                return None

    def _opened(self) -> sqlite3.Connection | None:
        try:
            is_there(self._path)
            return _open(self._path, self._makers)
        except (sqlite3.Error, OSError, ValueError) as error:
            _log.warning("%s cannot be used and is made anew: %s", self._path, error)
        try:
            remove(self._path)
            return _open(self._path, self._makers)
        except (sqlite3.Error, OSError) as error:
            _log.warning("no digests are remembered in %s: %s", self._path, error)
            return None


def _open(path: Path, makers: str) -> sqlite3.Connection:
    table = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        table.executescript(_TABLES)
        if table.execute("SELECT name FROM makers").fetchall() != [(makers,)]:
            table.execute("DELETE FROM makers")
            table.execute("DELETE FROM digests")
            table.execute("INSERT INTO makers VALUES (?)", (makers,))
    except BaseException:
        table.close()
        raise
    return table
