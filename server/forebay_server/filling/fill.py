"""A fill in flight: how far it is, how urgent, what it holds. Changed on the event loop by `fills` and `attempt`."""

import asyncio
from dataclasses import dataclass, field

from forebay_core.formats.base import ObjectInfo
from forebay_server.cache.cache import Cache
from forebay_server.disk.entry import Entry
from forebay_server.filling.agreement import FillDigest
from forebay_server.filling.job import Job
from forebay_server.memory import Memory


@dataclass(slots=True, eq=False)
class Fill:
    """A fill in flight. As a `Want` of the cache and a `Caller` of stores it says how urgent it is at the moment."""

    job: Job
    #: Of the disk that the piece goes to.
    cache: Cache
    #: Of disks that failed it or are too small, and of those that had no room for a prefetch.
    left: set[Cache] = field(default_factory=set, init=False)
    without_room: set[Cache] = field(default_factory=set, init=False)
    #: How often a disk failed, and the last one that was full.
    setbacks: int = field(default=0, init=False)
    full: OSError | None = field(default=None, init=False)
    before: float | None
    turn: int
    #: When it was begun, or became a demand.
    asked_at: float
    began_at: float
    #: Shared by all fills, and what it holds of it.
    memory: Memory
    memory_bytes: int = 0
    #: The most bytes of which a piece is served without the cache where that has no room.
    passing_bytes: int = 0
    #: A prefetch that would be too late if it waited, as was last looked.
    is_due: bool = False
    #: It was begun before anybody asked.
    was_prefetch: bool = False
    #: Bytes that have come of those that are fetched; 0 of 0 until it is known which.
    received_bytes: int = 0
    total_bytes: int = 0
    #: What came of it.
    entry: Entry | None = None
    #: The object as it is read: of another version than the job's where changed objects are allowed.
    read: ObjectInfo = field(init=False)
    #: What it has brought so far without being believed.
    brought: list[FillDigest] = field(default_factory=list)
    has_failed: bool = False
    #: It was a prefetch, and nothing that is needed later could make room for it.
    found_no_room: bool = False
    task: "asyncio.Task[Entry | None]" = field(init=False)

    def __post_init__(self) -> None:
        self.read = self.job.piece.object

    @property
    def is_of_another_version(self) -> bool:
        return self.read.version != self.job.piece.object.version

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def is_demand(self) -> bool:
        return self.before is None

    @property
    def is_in_the_way(self) -> bool:
        return self.memory_bytes > 0 and self.memory.is_awaited_before(self.turn)

    def passes_by(self, size: int) -> bool:
        return size <= self.passing_bytes
