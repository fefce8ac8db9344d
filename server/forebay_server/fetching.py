"""The bytes of objects: what a format asks for, and the stream that fills a piece.

`drive` runs a format's sans-I/O generator. `stream` hands over the bytes of a piece in order while its next parts are
already on their way. Both read one version of an object (If-Match) or raise `ObjectChanged`.

The invariant: not more than `parts_in_flight` parts of `part_bytes` are in memory over all streams together. A part
takes its place before it is requested and gives it back when it was handed over; the parts of one stream take places in
order, so that its first one is never behind its own later ones. Called on the event loop; formats run on threads.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import Buffer, ByteRange, ObjectInfo, Steps, T
from forebay_server.concurrency import end_all, gather_bounded
from forebay_server.remote import Target
from forebay_server.retries import READING, RetryPolicy, attempt
from forebay_server.stores import Stores

MIB = 1 << 20
OnChunk = Callable[[Buffer], Awaitable[None]]


class Fetcher:
    """Reads objects of all stores. One per daemon."""

    def __init__(
        self,
        stores: Stores,
        *,
        part_bytes: int = 8 * MIB,
        parts_in_flight: int = 16,
        footer_cache_bytes: int = 64 * MIB,
        retries: RetryPolicy = READING,
    ) -> None:
        """Parts of 8 MiB: long enough that a request's latency is a small part of it, short enough to be repeated."""
        if part_bytes < 1 or parts_in_flight < 1 or footer_cache_bytes < 0:
            raise ConfigurationError("part_bytes and parts_in_flight must be at least 1, footer_cache_bytes at least 0")
        self._stores = stores
        self._part_bytes = part_bytes
        self._parts_in_flight = parts_in_flight
        self._places = asyncio.Semaphore(parts_in_flight)
        self._kept = RangeCache(footer_cache_bytes)
        self._retries = retries

    async def drive(self, source_root: str, obj: ObjectInfo, steps: Steps[T]) -> T:
        """Runs a format's generator over an object and returns its result."""
        target = self._stores.target(source_root, obj.key)
        answer: list[Buffer] | None = None
        try:
            while True:
                advanced = await asyncio.to_thread(_advance, steps, answer)
                if isinstance(advanced, _Done):
                    return advanced.result
                answer = await gather_bounded(
                    self._parts_in_flight, lambda wanted: self._kept_read(target, obj, wanted), advanced.ranges
                )
        finally:
            with contextlib.suppress(ValueError):  # a cancelled step runs on to its end on its thread
                steps.close()

    async def stream(self, root: str, obj: ObjectInfo, ranges: Sequence[ByteRange], on_chunk: OnChunk) -> None:
        """Awaits `on_chunk` with the bytes of the concatenated ranges, in order, in chunks of at most `part_bytes`.

        A chunk must not be kept after the call. Cancelling ends all requests of the stream.
        """
        target = self._stores.target(root, obj.key)
        parts = split(ranges, self._part_bytes)
        ahead: deque[_Part] = deque()
        try:
            self._start_parts(target, obj, parts, ahead)
            while ahead:
                chunk = await ahead[0].task
                await on_chunk(chunk)
                del chunk
                ahead.popleft().give_back()
                self._start_parts(target, obj, parts, ahead)
        finally:
            await end_all([part.task for part in ahead])
            for part in ahead:
                part.give_back()

    def _start_parts(self, target: Target, obj: ObjectInfo, parts: Iterator[ByteRange], ahead: "deque[_Part]") -> None:
        while len(ahead) < self._parts_in_flight and (wanted := next(parts, None)):
            ahead.append(_Part(self._places, partial(self._read, target, obj, wanted)))

    async def _kept_read(self, target: Target, obj: ObjectInfo, wanted: ByteRange) -> Buffer:
        name = (target.url, obj.version, wanted)
        data = self._kept.get(name)
        if data is None:
            data = await self._read(target, obj, wanted)
            self._kept.put(name, data)
        return data

    async def _read(self, target: Target, obj: ObjectInfo, wanted: ByteRange) -> Buffer:
        if wanted.length == 0:
            return b""
        return await attempt(
            target.store, target.url, self._retries, lambda: target.store.read(target.key, wanted, obj.version)
        )


class _Part:
    """One part of a stream on its way, with its place in memory once it has one."""

    def __init__(self, places: asyncio.Semaphore, read: Callable[[], Awaitable[Buffer]]) -> None:
        self._places = places
        self._has_place = False
        self.task = asyncio.create_task(self._run(read))

    async def _run(self, read: Callable[[], Awaitable[Buffer]]) -> Buffer:
        await self._places.acquire()
        self._has_place = True
        return await read()

    def give_back(self) -> None:
        if self._has_place:
            self._has_place = False
            self._places.release()


class RangeCache:
    """The bytes of ranges that were read lately, least recently used out first. What is large for it is not kept."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._used = 0
        self._entries: OrderedDict[tuple[str, str, ByteRange], Buffer] = OrderedDict()

    def get(self, name: tuple[str, str, ByteRange]) -> Buffer | None:
        """The bytes kept under (URL, version, range), if they are."""
        if name in self._entries:
            self._entries.move_to_end(name)
        return self._entries.get(name)

    def put(self, name: tuple[str, str, ByteRange], data: Buffer) -> None:
        """Keeps the bytes of a range."""
        if name in self._entries or len(data) > self._capacity // 4:
            return
        self._entries[name] = data
        self._used += len(data)
        while self._used > self._capacity:
            _, dropped = self._entries.popitem(last=False)
            self._used -= len(dropped)


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
