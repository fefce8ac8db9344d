"""One attempt of a fill to bring its piece to one disk.

Footer → memory → reserve → temp file → ranged GETs → local layout and checksum → sidecar → rename → index. A crash at
any point leaves nothing that looks whole; a failure takes the temp file and the reservation back.

On the event loop; the local layout is written by one thread per fill, which asks the loop for more room as the file
grows.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from forebay_core.errors import ForebayError
from forebay_core.formats.base import Localiser
from forebay_server.cache.cache import Cache
from forebay_server.cache.capacity import Reservation
from forebay_server.concurrency import complete
from forebay_server.disk.blocks import room_for
from forebay_server.disk.digests import Digest
from forebay_server.disk.entry import Entry
from forebay_server.disk.temp_file import TempFile
from forebay_server.filling.agreement import FillDigest, Witnesses
from forebay_server.filling.evidence import Watched, is_whole, weigh
from forebay_server.filling.fill import Fill
from forebay_server.filling.job import Reader
from forebay_server.filling.sink import Sink
from forebay_server.memory import Memory
from forebay_server.pool.pool import Pool
from forebay_server.sources.fetching import write_all
from forebay_server.sources.remote import Received

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: Attempts that begin at once. Of many that were asked for together the first has sent its request while the last has
#: not begun, instead of all of them going from step to step together and the network waiting.
_BEGINNING = 4


class DiskFailed(Exception):
    """The disk of a fill failed, or takes no more. Never leaves the daemon."""

    def __init__(self, error: OSError, wanted_bytes: int) -> None:
        super().__init__(str(error))
        self.error = error
        #: What the fill had reserved.
        self.wanted_bytes = wanted_bytes


class Attempts:
    """Makes them, with what all fills share."""

    def __init__(self, pool: Pool, reader: Reader, memory: Memory, threads: int) -> None:
        self._pool = pool
        self._reader = reader
        self._memory = memory
        self._threads = ThreadPoolExecutor(threads, "forebay-fill")
        self._beginning = asyncio.Semaphore(_BEGINNING)

    def close(self) -> None:
        """Ends the threads; no attempt runs any more."""
        self._threads.shutdown()

    async def make(self, fill: Fill) -> Entry:
        """The piece on the fill's disk. Whatever it took is given back where that fails.

        Raises `DiskFailed`; `NoRoom` and `CapacityError` (`Cache.reserve`); `FillAgain` and `BadObject` for bytes that
        are not to be believed; and what the source raises.
        """
        job, cache = fill.job, fill.cache
        prepared = await self._reader.prepare(job.root, fill.read, job.format)
        reservation = cache.ledger.open()
        sink = Sink(fill, reservation, asyncio.get_running_loop())
        try:
            piece = replace(job.piece, object=fill.read)
            async with self._beginning:
                localiser = await self._in_thread(sink, job.format.localise, piece, job.columns, sink, prepared)
            watched = self._watched(fill, localiser)
            async with self._memory.taken(fill, localiser.memory_bytes):
                fill.memory_bytes = localiser.memory_bytes
                with _of_disk(reservation):
                    await cache.room.reserve(reservation, room_for(sum(part.length for part in localiser.ranges)), fill)
                    sink.temp = await cache.in_thread(cache.disk.create)
                await self._write(fill, watched or localiser, sink)
                blocks, earlier = await self._in_thread(sink, self._finish, fill, watched or localiser, sink)
            with _of_disk(reservation):
                await cache.room.reserve(reservation, blocks, fill)
            self._weigh(fill, sink.temp, watched, earlier)
            with _of_disk(reservation):
                return await cache.admit(sink.temp, job.key, job.origin(fill.read), reservation)
        except Exception as error:
            if sink.failure is not None:
                raise DiskFailed(sink.failure, reservation.bytes) from error
            raise
        finally:
            self._pool.wrote(cache, sink.written_bytes, sink.writing_seconds)
            fill.memory_bytes = 0
            if reservation.bytes:
                self._pool.moved()
            reservation.release()
            if sink.temp is not None and sink.temp.is_open:
                await self._discard(cache, sink.temp)

    async def _discard(self, cache: Cache, temp: TempFile) -> None:
        try:
            await cache.in_thread(cache.disk.discard, temp)
        except OSError as error:
            _log.warning("the unfinished file %s in %s stays for now: %s", temp.name, cache.disk.root, error)

    def _watched(self, fill: Fill, localiser: Localiser) -> Watched | None:
        """The localiser with the MD5 of its bytes, where the store says what that should be."""
        is_told = fill.job.md5 is not None and not fill.is_of_another_version
        return Watched(localiser) if is_told and is_whole(localiser.ranges, fill.read) else None

    def _weigh(self, fill: Fill, temp: TempFile, watched: Watched | None, earlier: Digest | None) -> None:
        """Raises `FillAgain` or `BadObject` where the bytes are not to be believed."""
        if fill.is_of_another_version:
            return
        witnesses = Witnesses(earlier, fill.job.md5 if watched else None)
        fill.brought.append(FillDigest(Digest(temp.size, temp.crc32c), watched.md5 if watched else None))
        weigh(fill.name, witnesses, fill.brought)

    async def _write(self, fill: Fill, localiser: Localiser, sink: Sink) -> None:
        async def push(chunks: Received) -> None:
            fill.received_bytes += sum(memoryview(chunk).nbytes for chunk in chunks)
            await self._in_thread(sink, write_all, localiser, chunks)

        ranges = localiser.ranges
        fill.received_bytes, fill.total_bytes = 0, sum(part.length for part in ranges)
        await self._reader.stream(fill.job.root, fill.read, ranges, push, fill)

    def _finish(self, fill: Fill, localiser: Localiser, sink: Sink) -> tuple[int, Digest | None]:
        """Ends the file; what it takes on the disk, and what the piece held when it was here last."""
        return sink.finish(localiser), self._pool.digest(fill.job.key)

    async def _in_thread(self, sink: Sink, work: Callable[..., T], *arguments: object) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            sink.stop()
            await complete(asyncio.ensure_future(_settle(running)))
            raise


@contextmanager
def _of_disk(reservation: Reservation) -> Iterator[None]:
    """What goes wrong in here is the disk's."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ForebayError):
            raise
        raise DiskFailed(error, reservation.bytes) from error


async def _settle(work: "asyncio.Future[T]") -> None:
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()
