"""Pieces for which the cache has no room, served all the same: made in memory, streamed to their readers, forgotten.

That is so for a piece that is larger than the cache, while the pieces in use fill it, and while no disk takes any. Who
leases such a piece is told that there is no file and reads it over the socket (`reading`). Each time it is fetched
anew, so the cache is tried again after a while, which doubles with each failure. Memory is bounded: one piece is made
at a time, those that are being sent count too, and one that does not fit even alone is a `CapacityError`. What is known
of a piece's bytes, and of objects that changed, counts here as it does for pieces that are filled.

Used on the event loop; a piece is written on a thread of its own.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from forebay_core.anonymous import AnonymousFile
from forebay_core.checksums import crc32c
from forebay_core.errors import CapacityError, ForebayError, InternalError, ObjectChanged, one_line
from forebay_core.formats.base import Buffer, ObjectInfo
from forebay_server.concurrency import complete
from forebay_server.disk.digests import Digest
from forebay_server.filling.agreement import FillDigest, Witnesses
from forebay_server.filling.changes import Changes
from forebay_server.filling.evidence import FillAgain, Watched, is_whole, weigh
from forebay_server.filling.job import Job, Reader
from forebay_server.sources.failures import naming
from forebay_server.sources.fetching import write_all
from forebay_server.sources.remote import Received

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: After so long a piece that had no room may try for it again, and at the latest.
_FIRST_RETRY_SECONDS = 30.0
_LAST_RETRY_SECONDS = 3600.0
#: How long a piece that is being made waits for the memory of those that are being sent.
_MEMORY_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Reader:
    """On whose behalf a piece is fetched: of somebody who waits, behind those that the cache serves."""

    before: float | None = None
    is_demand: bool = True
    turn: int = 1 << 62


@dataclass(slots=True)
class _Refusal:
    until: float
    seconds: float


@dataclass(slots=True, eq=False)
class Served:
    """A piece that is in memory, or comes there: the task gives its file."""

    key: str
    task: "asyncio.Task[AnonymousFile]"
    readers: int = 0


class Bypass:
    """All pieces that pass the cache by. `capacity_bytes` of memory for them."""

    def __init__(
        self,
        reader: Reader,
        *,
        capacity_bytes: int,
        clock: Callable[[], float],
        changes: Changes,
        earlier: Callable[[str], Digest | None],
    ) -> None:
        """`earlier` says what a piece held when it was in the cache; it blocks."""
        #: Pieces made for their readers since the daemon's start.
        self.bypasses = 0
        self._reader = reader
        self._changes = changes
        self._earlier = earlier
        self._clock = clock
        self._memory = _Memory(capacity_bytes)
        self._refused: dict[str, _Refusal] = {}
        self._warned: set[str] = set()
        self._served: dict[str, Served] = {}
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "forebay-bypass")

    def refused(self, job: Job, error: BaseException) -> None:
        """The cache has no room for the piece, for this reason."""
        known = self._refused.get(job.key)
        seconds = _FIRST_RETRY_SECONDS if known is None else min(2 * known.seconds, _LAST_RETRY_SECONDS)
        self._refused[job.key] = _Refusal(self._clock() + seconds, seconds)
        if job.root not in self._warned:
            self._warned.add(job.root)
            _log.warning(
                "pieces of %s pass the cache by and are fetched for each reader: %s", job.root, one_line(error)
            )

    def admitted(self, key: str) -> None:
        """The cache has the piece."""
        self._refused.pop(key, None)

    def has(self, key: str) -> bool:
        """Whether the piece is to be read without the cache."""
        refusal = self._refused.get(key)
        return refusal is not None and (self._clock() < refusal.until or key in self._served)

    def open(self, job: Job) -> Served:
        """The piece in memory, made once for all who read it at the same time. `close` it.

        The task raises the errors of the source, and `CapacityError` where memory does not suffice either.
        """
        served = self._served.get(job.key)
        if served is None:
            task = asyncio.get_running_loop().create_task(self._made(job), name=f"bypass {job.key[:12]}")
            served = self._served[job.key] = Served(job.key, task)
        served.readers += 1
        return served

    async def close(self, served: Served) -> None:
        """Lets go of it; the last one frees its memory."""
        served.readers -= 1
        if served.readers:
            return
        if self._served.get(served.key) is served:
            del self._served[served.key]
        served.task.cancel()
        await asyncio.wait([served.task])
        if not served.task.cancelled() and served.task.exception() is None:
            self._free(served.task.result())

    async def end(self) -> None:
        """Ends what is being made."""
        for served in list(self._served.values()):
            served.task.cancel()
        self._memory.end()
        self._thread.shutdown()

    async def _made(self, job: Job) -> AnonymousFile:
        async with self._turn:
            try:
                file = await self._believed(job)
            except ForebayError as error:
                raise naming(error, key=job.piece.object.key, url=job.url) from error
            except Exception as error:
                _log.exception("%s cannot be served without the cache", job.name)
                raise InternalError(f"{job.name} cannot be served: {one_line(error)}") from error
            self.bypasses += 1
            return file

    async def _believed(self, job: Job) -> AnonymousFile:
        """The piece, made anew where its bytes are doubtful, or where its object has changed and may be read so."""
        named = read = job.piece.object
        brought: list[FillDigest] = []
        while True:
            file = AnonymousFile()
            try:
                digest = await self._make(job, read, file)
                if read.version == named.version:
                    brought.append(digest)
                    await self._weigh(job, brought)
                return file
            except BaseException as error:
                self._free(file)
                if isinstance(error, ObjectChanged):
                    read = await self._changes.present(job.root, named, read, url=job.url, error=error)
                elif not isinstance(error, FillAgain):
                    raise

    async def _make(self, job: Job, read: ObjectInfo, file: AnonymousFile) -> FillDigest:
        checksum = 0

        def sink(chunk: Buffer) -> None:
            nonlocal checksum
            self._memory.take(memoryview(chunk).nbytes, file, job)
            file.write(chunk)
            checksum = crc32c(chunk, checksum)

        async def push(chunks: Received) -> None:
            await self._in_thread(lambda: write_all(watched or localiser, chunks))

        piece = replace(job.piece, object=read)
        prepared = await self._reader.prepare(job.root, read, job.format)
        localiser = await self._in_thread(lambda: job.format.localise(piece, job.columns, sink, prepared))
        watched = Watched(localiser) if is_whole(localiser.ranges, read) else None
        await self._reader.stream(job.root, read, localiser.ranges, push, _Reader())
        await self._in_thread(localiser.finish)
        return FillDigest(Digest(file.size, checksum), watched.md5 if watched else None)

    async def _weigh(self, job: Job, brought: Sequence[FillDigest]) -> None:
        earlier = await self._in_thread(lambda: self._earlier(job.key))
        weigh(job.name, Witnesses(earlier, job.md5 if brought[-1].md5 else None), brought)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Not over before the work is, even when cancelled: it writes to a descriptor."""
        return await complete(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def _free(self, file: AnonymousFile) -> None:
        self._memory.give(file.size)
        file.close()


class _Memory:
    """The bytes of all files together. `take` is called on the writing thread, the others on the event loop."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._used = 0
        self._changed = threading.Condition()
        self._has_ended = False

    def take(self, more: int, file: AnonymousFile, job: Job) -> None:
        """Takes so many more bytes for the file, once others have given theirs back. Raises `CapacityError`."""
        with self._changed:
            if file.size + more <= self._capacity:
                self._changed.wait_for(lambda: self._has_ended or self._fits(more), _MEMORY_WAIT_SECONDS)
            if self._has_ended or not self._fits(more):
                raise CapacityError(
                    f"{job.name} has no room in the cache, and passing it by would take more than the {self._capacity} "
                    "bytes of memory for such pieces (--fill-memory-bytes, FOREBAY_FILL_MEMORY_BYTES): give the cache "
                    "more (--capacity, FOREBAY_CAPACITY), or cut smaller pieces (piece_bytes= of the format)"
                )
            self._used += more

    def give(self, count: int) -> None:
        """Gives a file's bytes back."""
        with self._changed:
            self._used -= count
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing is taken any more."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _fits(self, more: int) -> bool:
        return self._used + more <= self._capacity
