"""The bytes of objects: what a format must know of one, and the stream that fills a piece.

`prepare` runs a format's sans-I/O generator and keeps what it gives, by URL and version: the footer of an object is
read and parsed once for its many pieces. `stream` hands over the bytes of a piece in order while its next parts are
already on their way. Both read one version of an object (If-Match) or raise `ObjectChanged`.

The invariant: not more than `flight_bytes` of parts are in memory over all streams together. A part takes its memory
before it is requested and gives it back when it was handed over; the parts of one stream take it in order, so that its
first one is never behind its own later ones, and those that somebody waits for come first. A part whose connection
breaks or stalls is asked for again, and from then on goes on behind the bytes that had come. Called on the event loop;
formats run on threads.
"""

import asyncio
import contextlib
import itertools
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import (
    Buffer,
    ByteRange,
    Counted,
    Counter,
    Format,
    Localiser,
    ObjectCut,
    ObjectInfo,
    Piece,
    Prepared,
    Steps,
    T,
)
from forebay_core.formats.derived import recounted
from forebay_server.concurrency import OneForAll, complete, end_all, gather_bounded, in_thread
from forebay_server.memory import Memory
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import NOW, Caller, Received, Target, Waiter
from forebay_server.sources.retries import READING, RetryPolicy, attempt

MIB = 1 << 20
#: Pieces of one object that are counted at once: enough that bytes are on their way while others are decoded.
_COUNTS = 4
#: Parts of one stream that are on their way at once, where there is the memory: one large piece fills a link too.
_PARTS_AHEAD = 16
#: Ranges that a format asks for together, such as the footers of its parts.
_RANGES_AT_ONCE = 16
#: Of the memory for parts what is kept for demands: one that comes finds some free at once.
_DEMANDS_PART = 4
#: Takes the bytes of one part, in chunks of any length, and may free them.
OnPart = Callable[[Received], Awaitable[None]]


class Fetcher:
    """Reads objects of all stores. One per daemon."""

    def __init__(
        self,
        stores: Stores,
        *,
        part_bytes: int = 8 * MIB,
        flight_bytes: int = 128 * MIB,
        prepared_bytes: int = 128 * MIB,
        count_bytes: int = 1024 * MIB,
        retries: RetryPolicy = READING,
    ) -> None:
        """Parts of 8 MiB: long enough that a request's latency is a small part of it, short enough to be repeated.

        `prepared_bytes`: of memory for what formats know of objects: the footers of some thousands of usual files.
        `count_bytes`: of memory for all pieces together whose rows are being counted; a larger piece goes alone.
        """
        if min(part_bytes, flight_bytes, count_bytes) < 1 or prepared_bytes < 0:
            raise ConfigurationError("part_bytes, flight_bytes and count_bytes must be 1 at least, prepared_bytes 0")
        #: What is in memory of the parts that are on their way.
        self.flight = Memory(flight_bytes, for_demands_bytes=flight_bytes // _DEMANDS_PART)
        self._stores = stores
        self._part_bytes = part_bytes
        self._parts_ahead = min(_PARTS_AHEAD, max(1, flight_bytes // part_bytes))
        self._kept = PreparedObjects(prepared_bytes)
        self._preparing: OneForAll[_Name, Prepared] = OneForAll()
        self._counting = Memory(count_bytes)
        self._turns = itertools.count()
        #: For what takes long: nobody else's work may wait for it, nor a part's place in memory be held meanwhile.
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, "forebay-count")
        self._retries = retries

    async def head(self, root: str, obj: ObjectInfo) -> ObjectInfo:
        """The object as it is now."""
        target = self._stores.target(root, obj.key)
        now = await attempt(target.store, target.url, self._retries, lambda: target.store.head(target.key))
        return replace(now, key=obj.key)

    async def prepare(self, root: str, obj: ObjectInfo, format: Format) -> Prepared:
        """What the format knows of the object, read once for all who ask at the same time, and kept for a while."""
        target = self._stores.target(root, obj.key)
        name = (target.url, obj.version, format)
        kept = self._kept.get(name)
        return kept or await self._preparing.result(name, lambda: self._prepare(name, target, obj, format))

    async def cut(self, root: str, obj: ObjectInfo, format: Format) -> ObjectCut:
        """The object as the format cuts it, its rows counted where that must be. What it came to know of it for that is
        kept for a while."""
        target = self._stores.target(root, obj.key)
        prepared, cut = await self._drive(target, obj, _prepared_and_cut(obj, format))
        if format.must_count():

            async def count(index: int) -> Counted:
                return await self._count(root, Piece(index, obj, cut.pieces[index]), format, prepared)

            counted = await gather_bounded(_COUNTS, count, range(len(cut.pieces)))
            cut = await asyncio.to_thread(recounted, cut, counted)
        self._kept.put((target.url, obj.version, format), prepared)
        return cut

    async def _count(self, root: str, piece: Piece, format: Format, prepared: Prepared) -> Counted:
        counter = await asyncio.to_thread(format.count, piece, prepared)

        async def push(chunks: Received) -> None:
            await in_thread(write_all, counter, chunks)

        caller = Waiter(next(self._turns))
        async with self._counting.taken(caller, counter.memory_bytes):
            await self.stream(root, piece.object, counter.ranges, push, caller)
            await self._finish(counter)
        return counter.counted()

    async def _finish(self, counter: Counter) -> None:
        finishing = asyncio.get_running_loop().run_in_executor(self._threads, counter.finish)
        try:
            await asyncio.shield(finishing)
        except asyncio.CancelledError:
            counter.stop()
            await complete(asyncio.ensure_future(asyncio.wait([finishing])))
            raise

    async def close(self) -> None:
        """Ends what is being prepared. Counts must have ended."""
        await self._preparing.close()
        self._threads.shutdown()

    async def _prepare(self, name: "_Name", target: Target, obj: ObjectInfo, format: Format) -> Prepared:
        prepared = await self._drive(target, obj, format.prepare(obj))
        self._kept.put(name, prepared)
        return prepared

    async def _drive(self, target: Target, obj: ObjectInfo, steps: Steps[T]) -> T:
        answer: list[Buffer] | None = None
        try:
            while True:
                advanced = await asyncio.to_thread(_advance, steps, answer)
                if isinstance(advanced, _Done):
                    return advanced.result
                answer = await gather_bounded(
                    _RANGES_AT_ONCE, lambda wanted: self._read_whole(target, obj, wanted), advanced.ranges
                )
        finally:
            with contextlib.suppress(ValueError):  # a cancelled step runs on to its end on its thread
                steps.close()

    async def stream(
        self, root: str, obj: ObjectInfo, ranges: Sequence[ByteRange], on_part: OnPart, caller: Caller
    ) -> None:
        """Awaits `on_part` with the bytes of the concatenated ranges, in order, at most `part_bytes` at a time.

        A little of them may be kept after the call. Cancelling ends all requests of the stream.
        """
        target = self._stores.target(root, obj.key)
        parts = split(ranges, self._part_bytes)
        ahead: deque[_Part] = deque()
        try:
            self._start_parts(target, obj, parts, ahead, caller)
            while ahead:
                chunks = await ahead[0].task
                await on_part(chunks)
                del chunks
                ahead.popleft().give_back()
                self._start_parts(target, obj, parts, ahead, caller)
        finally:
            await end_all([part.task for part in ahead])
            for part in ahead:
                part.give_back()

    def _start_parts(
        self, target: Target, obj: ObjectInfo, parts: Iterator[ByteRange], ahead: "deque[_Part]", caller: Caller
    ) -> None:
        while len(ahead) < self._parts_ahead and (wanted := next(parts, None)):
            ahead.append(_Part(self.flight, wanted.length, partial(self._read, target, obj, wanted, caller), caller))

    async def _read_whole(self, target: Target, obj: ObjectInfo, wanted: ByteRange) -> Buffer:
        chunks = await self._read(target, obj, wanted, NOW) if wanted.length else []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _read(self, target: Target, obj: ObjectInfo, wanted: ByteRange, caller: Caller) -> Received:
        received: Received = []
        has_failed = False

        async def go_on() -> None:
            nonlocal has_failed
            keeps, has_failed = has_failed, True
            rest = ByteRange(wanted.start + sum(memoryview(chunk).nbytes for chunk in received), wanted.stop)
            await target.store.read(target.key, rest, obj.version, received, keeps=keeps)

        await attempt(target.store, target.url, self._retries, go_on, caller)
        return received


def write_all(localiser: Localiser, chunks: Received) -> None:
    """Writes the chunks of a part, and frees them; on a thread, one hop for all of them."""
    for chunk in chunks:
        localiser.write(chunk)
    chunks.clear()


class _Part:
    """One part of a stream on its way, with its memory once it has it."""

    def __init__(self, flight: Memory, size: int, read: Callable[[], Awaitable[Received]], caller: Caller) -> None:
        self._flight = flight
        self._size = size
        self._held = 0
        self.task = asyncio.create_task(self._run(read, caller))

    async def _run(self, read: Callable[[], Awaitable[Received]], caller: Caller) -> Received:
        await self._flight.take(caller, self._size)
        self._held = self._size
        return await read()

    def give_back(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._flight.give_back(held)


#: The URL of an object, its version, and the format that looked at it.
_Name = tuple[str, str, Format]


class PreparedObjects:
    """What formats know of the objects that were looked at lately, least recently used out first.

    What would not fit at all is kept besides, the latest one: a huge footer must not be parsed for each of its pieces.
    """

    #: Of an entry besides what it holds: names, and places in tables.
    ENTRY_BYTES = 1024

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._used = 0
        self._entries: OrderedDict[_Name, Prepared] = OrderedDict()
        self._large: tuple[_Name, Prepared] | None = None

    def get(self, name: _Name) -> Prepared | None:
        """What is kept under the name, if it is."""
        if self._large is not None and self._large[0] == name:
            return self._large[1]
        if name in self._entries:
            self._entries.move_to_end(name)
        return self._entries.get(name)

    def put(self, name: _Name, prepared: Prepared) -> None:
        """Keeps it for as long as there is room."""
        size = prepared.memory_bytes + self.ENTRY_BYTES
        if self.get(name) is not None:
            return
        if size > self._capacity:
            self._large = (name, prepared)
            return
        self._entries[name] = prepared
        self._used += size
        while self._used > self._capacity:
            _, dropped = self._entries.popitem(last=False)
            self._used -= dropped.memory_bytes + self.ENTRY_BYTES


def _prepared_and_cut(obj: ObjectInfo, format: Format) -> Steps[tuple[Prepared, ObjectCut]]:
    prepared = yield from format.prepare(obj)
    return prepared, format.cut(obj, prepared)


def split(ranges: Sequence[ByteRange], part_bytes: int) -> Iterator[ByteRange]:
    """The ranges in order, cut into parts of at most `part_bytes`; empty ranges are left out."""
    for whole in ranges:
        for start in range(whole.start, whole.stop, part_bytes):
            yield ByteRange(start, min(start + part_bytes, whole.stop))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The byte ranges that a generator asks for."""

    ranges: list[ByteRange]


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """What a generator returned: a StopIteration cannot travel through a future."""

    result: T


def _advance(steps: Steps[T], answer: list[Buffer] | None) -> _Wanted | _Done[T]:
    try:
        return _Wanted(next(steps) if answer is None else steps.send(answer))
    except StopIteration as stop:
        return _Done(stop.value)
