"""Parts that a test passes to the cache in place of the network and of time: both whole, both obedient."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from forebay_core.formats import Tokens
from forebay_core.formats.base import Buffer, ByteRange, Cut, Format, Localiser, ObjectInfo, Piece, Prepared, Sink
from forebay_server.cache.cache import Cache
from forebay_server.cache.capacity import Ledger
from forebay_server.cache.disk import CacheDisk, room_for
from forebay_server.fill import Fills, Job

FORMAT = Tokens(sequence_length=16, dtype="int32")
KIB = 1024


@dataclass(frozen=True)
class Swelling(Tokens):
    """A format whose local layout is `factor` times what was fetched, and is written only at the end."""

    factor: int = 4

    def localise(self, piece: Piece, columns: Sequence[str], sink: Sink, prepared: Prepared) -> Localiser:
        return _Swell(piece, sink, self.factor)


class _Swell:
    def __init__(self, piece: Piece, sink: Sink, factor: int) -> None:
        self.ranges: Sequence[ByteRange] = [ByteRange(piece.cut.start, piece.cut.stop)]
        self.memory_bytes = piece.cut.stop - piece.cut.start
        self._sink, self._factor, self._data = sink, factor, bytearray()

    def write(self, chunk: Buffer) -> None:
        self._data += chunk

    def finish(self) -> None:
        for _ in range(self._factor):
            self._sink(self._data)


class ManualClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedReader:
    """Remote objects in memory. Streams stop at `gate` after their first byte, and fail as `failures` says; what is to
    be known of an object stops at its gate of `prepare_gates`, if it has one."""

    objects: dict[str, bytes] = field(default_factory=dict)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    prepare_gates: dict[str, asyncio.Event] = field(default_factory=dict)
    chunk_bytes: int = 4096
    streams: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def prepare(self, root: str, obj: ObjectInfo, format: Format) -> Prepared:
        if obj.key in self.prepare_gates:
            await self.prepare_gates[obj.key].wait()
        steps, answer = format.prepare(obj), None
        while True:
            try:
                ranges = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                prepared: Prepared = stop.value
                return prepared
            answer = [self.objects[obj.key][part.start : part.stop] for part in ranges]

    async def stream(
        self, root: str, obj: ObjectInfo, ranges: Sequence[ByteRange], on_chunk: Callable[[Buffer], Awaitable[None]]
    ) -> None:
        self.streams.append(obj.key)
        data = b"".join(self.objects[obj.key][part.start : part.stop] for part in ranges)
        await on_chunk(data[:1])
        self.started.set()
        await self.gate.wait()
        if self.failures.get(obj.key):
            raise self.failures[obj.key].pop(0)
        for start in range(1, len(data), self.chunk_bytes):
            await on_chunk(data[start : start + self.chunk_bytes])


@dataclass
class ScriptedNeeds:
    """The future, as the test has it: seconds by key."""

    by_key: dict[str, float] = field(default_factory=dict)
    version: int = 0

    async def seconds(self, keys: Sequence[str]) -> list[float | None]:
        return [self.by_key.get(key) for key in keys]


def content(number: int, size: int) -> bytes:
    """Bytes that differ for each number."""
    return (hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1))[:size]


@dataclass
class Rig:
    """A cache and its fills over a real directory."""

    disk: CacheDisk
    cache: Cache
    fills: Fills
    reader: ScriptedReader
    needs: ScriptedNeeds
    clock: ManualClock
    format: Format = FORMAT

    def job(self, number: int, size: int = 64 * KIB) -> Job:
        """Piece `number`: a whole object of that many bytes."""
        key = f"{number}.bin"
        self.reader.objects.setdefault(key, content(number, size))
        size = len(self.reader.objects[key])
        piece = Piece(number, ObjectInfo(key, size, "v1"), Cut(size // 64, 0, size, 0, size // 64, size))
        return Job(key_of(number), "s3://bucket", piece, ("tokens",), self.format, f"s3://bucket/{key}")

    async def fill(self, number: int, size: int = 64 * KIB) -> str:
        """Fills a piece to its end, a second after whatever came before, and returns its key."""
        self.clock.now += 1
        await self.fills.start(self.job(number, size)).task
        return key_of(number)


def key_of(number: int) -> str:
    return hashlib.sha256(f"piece {number}".encode()).hexdigest()


def pieces_of_room(count: int, size: int = 64 * KIB) -> int:
    """The capacity that holds exactly `count` pieces."""
    return count * room_for(size)


@contextmanager
def claimed(root: Path) -> Iterator[CacheDisk]:
    disk = CacheDisk.claim(root)
    try:
        yield disk
    finally:
        disk.close()


@asynccontextmanager
async def rig(
    root: Path,
    *,
    capacity: int = 1 << 30,
    room_wait_seconds: float = 30.0,
    memory_bytes: int = 1 << 30,
    load: bool = True,
    reconcile: bool = True,
    free_bytes: Callable[[], int] = lambda: 1 << 40,
) -> AsyncIterator[Rig]:
    """A cache over `root`, loaded and reconciled, and drained at the end."""
    with claimed(root) as disk:
        clock, needs, reader = ManualClock(), ScriptedNeeds(), ScriptedReader()
        cache = Cache(
            disk,
            Ledger(capacity, 0, free_bytes),
            needs=needs,
            clock=clock,
            room_wait_seconds=room_wait_seconds,
        )
        fills = Fills(cache, reader, clock=clock, memory_bytes=memory_bytes)
        if load:
            await cache.load()
        if load and reconcile:
            await cache.reconcile()
        try:
            yield Rig(disk, cache, fills, reader, needs, clock)
        finally:
            reader.gate.set()
            await fills.drain(5)
            await cache.close()
