"""The bytes of pieces and manifests over the wire, for clients that cannot see the files.

A chunk is read, in a thread, when the client has taken the one before: however slow a client is, it holds no more of
the daemon's memory than that. While a piece is read it is leased to the session and its file is locked as by a reader
that has it mapped, so nothing takes it away; the session lives as long as chunks are taken. Everything but the reading
happens on the event loop.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from forebay_core.errors import CapacityError, ConfigurationError, ObjectChanged, PieceGone
from forebay_server.filling.bypass import Bypass
from forebay_server.filling.fills import Fills
from forebay_server.pool.pool import Pool
from forebay_server.sessions import Lease, Session, Sessions
from forebay_server.sources.manifests import OpenedDataset
from forebay_server.sources.permits import Permits

CHUNK_BYTES = 1 << 20
#: How often it is said that a piece is still on its way.
_NEWS_SECONDS = 1.0
#: How often in a row a file may be gone that was just found.
_ATTEMPTS = 10


class Part(NamedTuple):
    """Bytes that follow those before, and how many there are in all; nothing of 0 while they are on their way."""

    data: bytes
    size: int


class Reading:
    """Reads for clients."""

    def __init__(
        self,
        sessions: Sessions,
        pool: Pool,
        fills: Fills,
        manifest: Callable[[str], OpenedDataset | None],
        *,
        bypass: Bypass,
        permits: Permits,
    ) -> None:
        self._permits = permits
        self._sessions = sessions
        self._bypass = bypass
        self._pool = pool
        self._fills = fills
        self._manifest = manifest

    async def piece(self, session: Session, piece: int) -> AsyncGenerator[Part]:
        """The local form of a piece, fetched first where it is not there.

        Raises the error of its fill, `AccessDenied`, `ConfigurationError`, and `UnknownSession` where the session ends
        meanwhile.
        """
        session.view.check([piece])
        key = session.view.key(piece)
        was_leased = key in session.leases
        try:
            async with aclosing(self._piece(session, piece)) as parts:
                async for part in parts:
                    self._sessions.get(session.id)
                    yield part
        finally:
            if not was_leased:
                self._sessions.release(session, [piece])

    async def manifest(self, dataset_id: str) -> AsyncGenerator[Part]:
        """The file of a dataset's manifest. Raises `ConfigurationError` for one that was not opened."""
        opened = self._manifest(dataset_id)
        if opened is None:
            raise ConfigurationError(f"there is no dataset {dataset_id!r} here: open it first")
        with _opened(opened.path, inode=None, is_ours=True) as file:
            async for part in _parts(file, 0, os.fstat(file).st_size, opened.path):
                yield part

    async def _piece(self, session: Session, piece: int) -> AsyncGenerator[Part]:
        for attempt in range(1, _ATTEMPTS + 1):
            (lease,) = await self._sessions.acquire(session, [piece])
            while lease.is_pending:
                yield Part(b"", 0)
                await self._news_of(session.view.key(piece))
                (lease,) = await self._sessions.acquire(session, [piece])
            if lease.is_bypassed:
                async with aclosing(self._bypassed(session, piece)) as parts:
                    async for part in parts:
                        yield part
                return
            path = self._path(lease)
            try:
                with _opened(path, inode=lease.inode, is_ours=bool(lease.disk_id)) as file:
                    if not lease.disk_id:
                        self._permits.check_opened(file, lease.path)
                    length = lease.length if not lease.disk_id else lease.size
                    async for part in _parts(file, lease.offset, length, path):
                        yield part
                    return
            except PieceGone:
                if attempt == _ATTEMPTS:
                    raise

    async def _bypassed(self, session: Session, piece: int) -> AsyncGenerator[Part]:
        served = self._bypass.open(session.view.job(piece))
        try:
            while not (await asyncio.wait([served.task], timeout=_NEWS_SECONDS))[0]:
                yield Part(b"", 0)
            file = served.task.result()
            async for part in _parts(file.descriptor, 0, file.size, Path(file.path)):
                yield part
        finally:
            await self._bypass.close(served)

    async def _news_of(self, key: str) -> None:
        """Waits for the fill of a piece, but not for long. Raises what it failed with."""
        fill = self._fills.running.get(key)
        if fill is None:
            return
        done, _ = await asyncio.wait([fill.task], timeout=_NEWS_SECONDS)
        for task in done:
            with suppress(CapacityError):  # it passes the cache by
                task.result()

    def _path(self, lease: Lease) -> Path:
        if not lease.disk_id:
            return Path(lease.path)
        root = next(disk.root for disk in self._pool.disks if disk.id == lease.disk_id)
        return root / lease.path


@contextmanager
def _opened(path: Path, *, inode: int | None, is_ours: bool) -> Iterator[int]:
    """A file, locked where it is in the cache. Raises `PieceGone` where it is not the one expected."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NOFOLLOW if is_ours else 0))
    except FileNotFoundError:
        raise PieceGone(f"{path} is not there any more") from None
    try:
        if is_ours:
            fcntl.flock(file, fcntl.LOCK_SH)
        found = os.fstat(file)
        if found.st_nlink == 0 or inode not in (None, found.st_ino):
            raise PieceGone(f"{path} was removed while it was opened")
        yield file
    finally:
        os.close(file)


async def _parts(file: int, offset: int, length: int, path: Path) -> AsyncGenerator[Part]:
    if length == 0:
        yield Part(b"", 0)
    done = 0
    while done < length:
        data = await asyncio.to_thread(os.pread, file, min(CHUNK_BYTES, length - done), offset + done)
        if not data:
            raise ObjectChanged(f"{path} was truncated while it was read: replace files whole")
        yield Part(data, length)
        done += len(data)
