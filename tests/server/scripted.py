"""Parts that a test passes to the cache in place of the network and of time: both whole, both obedient."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import ForebayError
from forebay_core.eviction import DEFAULT_POLICY, NOBODY, POLICIES
from forebay_core.formats import Tokens
from forebay_core.formats.base import Buffer, ByteRange, Cut, Format, Localiser, ObjectInfo, Piece, Prepared, Sink
from forebay_core.needs import Seconds
from forebay_server.cache.cache import Cache
from forebay_server.cache.capacity import Ledger
from forebay_server.cache.pins import Pins
from forebay_server.disk.blocks import room_for
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.temp_file import TempFile
from forebay_server.filling.fills import Fills
from forebay_server.filling.job import Job
from forebay_server.pool.health import Allowance, Health
from forebay_server.pool.member import Member
from forebay_server.pool.pool import Pool
from forebay_server.sources.failures import changed
from forebay_server.sources.fetching import OnPart
from forebay_server.sources.remote import Caller

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
    #: Of objects that have changed since they were listed.
    versions: dict[str, str] = field(default_factory=dict)
    chunk_bytes: int = 4096
    streams: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def head(self, root: str, obj: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(obj.key, len(self.objects[obj.key]), self.versions.get(obj.key, obj.version))

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
        self,
        root: str,
        obj: ObjectInfo,
        ranges: Sequence[ByteRange],
        on_part: OnPart,
        caller: Caller,
    ) -> None:
        self.streams.append(obj.key)
        self._check(obj)
        data = b"".join(self.objects[obj.key][part.start : part.stop] for part in ranges)
        await on_part([data[:1]])
        self.started.set()
        await self.gate.wait()
        if self.failures.get(obj.key):
            raise self.failures[obj.key].pop(0)
        self._check(obj)
        for start in range(1, len(data), self.chunk_bytes):
            await on_part([data[start : start + self.chunk_bytes]])

    def _check(self, obj: ObjectInfo) -> None:
        if (now := self.versions.get(obj.key, obj.version)) != obj.version:
            raise changed(obj.key, was=obj.version, now=now)


@dataclass
class ScriptedNeeds:
    """The future, as the test has it: seconds by key."""

    by_key: dict[str, float] = field(default_factory=dict)
    version: int = 0

    async def seconds(self, keys: Sequence[str]) -> Seconds:
        return np.array([self.by_key.get(key, NOBODY) for key in keys])


def content(number: int, size: int) -> bytes:
    """Bytes that differ for each number."""
    return (hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1))[:size]


@dataclass
class Rig:
    """A cache of one disk and its fills over a real directory."""

    disk: CacheDisk
    cache: Cache
    pool: Pool
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


async def until(condition: Callable[[], object], what: str) -> None:
    """Waits for what the event loop brings about."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(what)


class FailingDisk(CacheDisk):
    """A disk that fails as its script says: an error number for each kind of work, until it is taken out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: By "create", "write", "commit", "error", "remove", "probe": what it fails with.
        self.script: dict[str, int] = {}
        #: The same, for the next time alone.
        self.once: dict[str, int] = {}
        #: Called by a probe first.
        self.hang: Callable[[], object] = lambda: None

    def fail(self, work: str) -> None:
        number = self.once.pop(work, None) or self.script.get(work)
        if number is not None:
            raise OSError(number, os.strerror(number), str(self.root))

    def create(self) -> TempFile:
        self.fail("create")
        temp = super().create()
        return FailingFile(temp.name, temp._descriptor, self)

    def commit(self, temp: TempFile, key: str, origin: Origin) -> Entry:
        self.fail("commit")
        return super().commit(temp, key, origin)

    def write_error(self, key: str, error: ForebayError) -> None:
        self.fail("error")
        super().write_error(key, error)

    def remove(self, key: str) -> None:
        self.fail("remove")
        super().remove(key)

    def probe(self) -> None:
        self.hang()
        self.fail("probe")
        super().probe()


class FailingFile(TempFile):
    """Of a disk that fails."""

    def __init__(self, name: str, descriptor: int, disk: FailingDisk) -> None:
        super().__init__(name, descriptor)
        self._disk = disk

    def flush(self) -> None:
        if self._held:
            self._disk.fail("write")
        super().flush()


@asynccontextmanager
async def rig(
    root: Path,
    *,
    more: Sequence[Path] = (),
    capacity: int = 1 << 30,
    room_wait_seconds: float = 30.0,
    memory_bytes: int = 1 << 30,
    load: bool = True,
    reconcile: bool = True,
    free_bytes: Callable[[], int] = lambda: 1 << 40,
    free_inodes: Callable[[], int | None] = lambda: None,
    eviction: str = DEFAULT_POLICY,
    allow_changed: bool = False,
) -> AsyncIterator[Rig]:
    """A cache over `root`, loaded and reconciled, and drained at the end; others beside it over `more`, as large."""
    with ExitStack() as stack:
        clock, needs, reader, pins = ManualClock(), ScriptedNeeds(), ScriptedReader(), Pins()

        def member(path: Path) -> Member:
            disk = FailingDisk.claim(path)
            disk.allows_changed = allow_changed
            stack.callback(disk.close)
            cache = Cache(
                disk,
                Ledger(capacity, 0, free_bytes, free_inodes=free_inodes),
                needs=needs,
                policy=POLICIES[eviction],
                pins=pins,
                clock=clock,
                room_wait_seconds=room_wait_seconds,
            )
            return Member(CacheDirectory(path), cache, Health(), Allowance(capacity))

        pool = Pool([member(path) for path in (root, *more)], pins, clock=clock)
        cache = pool.caches[0]
        fills = Fills(pool, reader, clock=clock, memory_bytes=memory_bytes, allow_changed=allow_changed)
        for each in pool.caches:
            if load:
                await each.load()
            if load and reconcile:
                await each.reconcile()
        try:
            yield Rig(cache.disk, cache, pool, fills, reader, needs, clock)
        finally:
            reader.gate.set()
            await fills.drain(5)
            await pool.close()
