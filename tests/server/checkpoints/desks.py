"""Ranks that write attempts as trainers do, and desks over real directories, for tests without a daemon's process."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from forebay_core.checkpoints.documents import FileRecord, Item, RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt, rank_data, rank_manifest
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.desk import Desk
from forebay_server.checkpoints.destinations.permits import WritePermits
from forebay_server.checkpoints.destinations.registry import Destinations
from forebay_server.checkpoints.destinations.transfers import Transfers
from forebay_server.checkpoints.room import Wanted, WhenFull
from forebay_server.checkpoints.rules import Patience, Phase
from forebay_server.checkpoints.statuses import Status
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from tests.server.checkpoints.watched import Watched

BOOT = "this-boot"
LIMIT_SECONDS = 30.0
#: Looks often and tries again soon, so that a test is quick.
QUICK = Patience(
    first_retry_seconds=0.02,
    longest_retry_seconds=0.1,
    denied_seconds=0.1,
    first_poll_seconds=0.01,
    longest_poll_seconds=0.05,
    others_seconds=0.2,
)
_nonces = itertools.count(1)


def attempt(step: int, generation: int = 1) -> Attempt:
    """A new one."""
    return Attempt(generation, step, f"{next(_nonces):012x}")


def content_of(step: int, rank: int, size: int = 3000) -> bytes:
    return bytes((step * 31 + rank * 7 + index) % 251 for index in range(size))


def record(name: str, content: bytes) -> FileRecord:
    """Of a file of two items."""
    half = len(content) // 2
    parts = [(0, content[:half]), (half, content[half:])]
    items = tuple(Item(offset, len(part), google_crc32c.value(part)) for offset, part in parts)
    return FileRecord(name, len(content), items)


def files_of(this: Attempt, rank: int, size: int = 3000) -> dict[str, bytes]:
    """What a rank writes besides its manifest."""
    files = {f"__{rank}_0.distcp": content_of(this.step, rank, size), rank_data(rank): b'{"epoch":0}'}
    return files | ({METADATA: b"metadata of " + this.name.encode()} if rank == 0 else {})


def write(directory: Path, this: Attempt, ranks: Sequence[int], world_size: int, *, size: int = 3000) -> None:
    """What ranks of one node write: their files, `.metadata` on each node, and their manifests last."""
    (directory / METADATA).write_bytes(b"metadata of " + this.name.encode())
    for rank in ranks:
        files = files_of(this, rank, size)
        for name, content in files.items():
            (directory / name).write_bytes(content)
        records = tuple(record(name, content) for name, content in files.items())
        manifest = RankManifest(this, rank, world_size, records)
        (directory / rank_manifest(rank)).write_bytes(manifest.encode())


def size_of(this: Attempt, ranks: Sequence[int], size: int = 3000) -> int:
    return sum(len(content) for rank in ranks for content in files_of(this, rank, size).values())


def open_destinations(own: Path) -> Destinations:
    """Of a daemon without credentials."""
    return Destinations(Stores({}, RemoteCounters()), Transfers(time.monotonic), WritePermits(own=[own]))


async def eventually(predicate: Callable[[], bool]) -> None:
    """Until it is so."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not predicate():  # noqa: ASYNC110 - a state of the disk, which nobody tells of
            await asyncio.sleep(0.01)


@dataclass
class Rig:
    """A desk, and what a rank of its node does."""

    desk: Desk
    root: Watched
    ranks: tuple[int, ...]
    world_size: int

    async def begin(self, this: Attempt, *, size_bytes: int | None = None, **options: Any) -> Path | None:
        wanted = Wanted(
            self.root.url,
            this,
            self.ranks,
            self.world_size,
            size_of(this, self.ranks) if size_bytes is None else size_bytes,
            **{"when_full": WhenFull.FAIL, **options},
        )
        return await self.desk.begin(wanted)

    async def stage(self, this: Attempt, **options: Any) -> Path:
        """Begins it and writes all."""
        directory = await self.begin(this, **options)
        assert directory is not None
        await asyncio.to_thread(write, directory, this, self.ranks, self.world_size)
        return directory

    async def seal(self, this: Attempt, **options: Any) -> None:
        await self.desk.seal(self.root, this, self.ranks, self.world_size, **options)

    async def save(self, this: Attempt, **options: Any) -> Attempt:
        await self.stage(this)
        await self.seal(this, **options)
        return this

    async def until(self, this: Attempt, is_it: Callable[[Status], bool]) -> Status:
        """The first status that is it."""
        async with asyncio.timeout(LIMIT_SECONDS):
            async for status in self.desk.watch(self.root, this):
                if is_it(status):
                    return status
        raise AssertionError(f"{this.name} ended otherwise")

    async def ended(self, this: Attempt) -> Status:
        return await self.until(this, lambda status: status.phase.is_final)

    async def durable(self, this: Attempt) -> None:
        status = await self.ended(this)
        assert status.phase is Phase.DURABLE, status.error


@asynccontextmanager
async def rig(
    home: Path,
    *,
    root: Path | None = None,
    name: str = "a",
    ranks: Sequence[int] = (0,),
    world_size: int = 1,
    quota_bytes: int = 1 << 20,
    boot: str = BOOT,
    patience: Patience = QUICK,
    is_conditional: bool = True,
) -> AsyncIterator[Rig]:
    """A node with its staging directory `<home>/staging-<name>`, whose destination the test watches."""
    area = StagingArea.claim(home / f"staging-{name}")
    destinations = open_destinations(area.root)
    watched: dict[str, Watched] = {}

    async def open_destination(url: str) -> Watched:
        found = await destinations.open(url)
        made = watched.setdefault(found.url, Watched(found))
        made.is_conditional = is_conditional
        return made

    desk = Desk(area, open_destination, quota_bytes=quota_bytes, boot=boot, patience=patience)
    try:
        destination = await open_destination(str(root or home / "root"))
        await desk.start()
        yield Rig(desk, destination, tuple(ranks), world_size)
    finally:
        await desk.close()
        area.close()
