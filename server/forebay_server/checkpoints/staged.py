"""The attempts in the staging area as the daemon knows them, and who waits for a change in them.

Everything happens on the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from forebay_core.checkpoints.documents import FileRecord, RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt
from forebay_core.errors import ForebayError
from forebay_server.checkpoints.records import Begun, Seal
from forebay_server.checkpoints.rules import Occupant, Phase

#: That have ended and are still told of when their files are gone.
_TOLD = 20


class Change:
    """Something that changes, and that can be waited for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wakes all who wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Until the next change, or for so long."""
        event = self._event
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return


@dataclass(slots=True, eq=False)
class Staged:
    """One attempt. While it is begun `size_bytes` is what was reserved, then what its manifests say."""

    root: str
    attempt: Attempt
    ranks: tuple[int, ...]
    world_size: int
    size_bytes: int
    phase: Phase
    since_unix_seconds: float
    seal: Seal | None = None
    #: As they were sealed, in the order of `ranks`.
    manifests: tuple[RankManifest, ...] = ()
    contents: tuple[bytes, ...] = ()
    uploaded_bytes: int = 0
    #: The last failure; of a pending attempt one that is being retried.
    error: ForebayError | None = None
    is_expedited: bool = False
    #: False: a power loss may have taken some of the files, which have not been verified since.
    is_trusted: bool = True
    #: False: they made room, because all of them are at the destination, or nobody wants them.
    has_files: bool = True
    #: A process was seen to hold the lock of the directory: its end ends an attempt that is not sealed.
    was_held: bool = False
    #: When other nodes, whose part is waited for, were last seen to get on, by the monotonic clock.
    heard_at: float = 0.0
    #: Until when, by the monotonic clock, somebody is taken to restore from it.
    read_until: float = 0.0
    change: Change = field(default_factory=Change)

    @property
    def key(self) -> tuple[str, Attempt]:
        return self.root, self.attempt

    @property
    def has_rank_zero(self) -> bool:
        return 0 in self.ranks

    def files(self) -> dict[str, FileRecord]:
        """What the manifests name, by name."""
        return {file.name: file for manifest in self.manifests for file in manifest.files}

    def metadata(self) -> FileRecord | None:
        """`.metadata`, where a manifest of this node names it."""
        return self.files().get(METADATA)

    @property
    def is_whole_here(self) -> bool:
        """All files of this node's ranks are staged, as they were written."""
        return self.has_files and self.is_trusted and self.phase.is_sealed

    def become(self, phase: Phase, error: ForebayError | None = None) -> None:
        """Changes the phase and tells who waits."""
        self.phase, self.error = phase, error
        self.change.tell()

    def progressed(self, count: int) -> None:
        """So many bytes more are at the destination (or fewer, where a file is begun anew)."""
        self.uploaded_bytes += count


class Book:
    """All attempts of the staging area, by root and attempt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._staged: dict[tuple[str, Attempt], Staged] = {}
        #: Something came, went, or may go now.
        self.change = Change()

    def add(self, staged: Staged) -> None:
        self._staged[staged.key] = staged
        self.change.tell()

    def find(self, root: str, attempt: Attempt) -> Staged | None:
        return self._staged.get((root, attempt))

    def forget(self, staged: Staged) -> None:
        self._staged.pop(staged.key, None)
        self.change.tell()

    def forget_old(self) -> None:
        """What has ended and has no files is told for a while, to who asks later, and in the status."""
        ended = [staged for staged in self if staged.phase.is_final and not staged.has_files]
        for staged in ended[:-_TOLD]:
            self.forget(staged)

    def __iter__(self) -> Iterator[Staged]:
        return iter(list(self._staged.values()))

    def of(self, root: str) -> list[Staged]:
        return [staged for staged in self if staged.root == root]

    def occupants(self) -> list[Occupant]:
        """As the rules see them."""
        return [self.occupant(staged) for staged in self if staged.has_files]

    def occupant(self, staged: Staged) -> Occupant:
        return Occupant(
            staged.root,
            staged.attempt,
            staged.size_bytes,
            staged.phase,
            is_read=staged.read_until > self._clock(),
            is_needed=staged.has_rank_zero,
        )


def begun(record: Begun) -> Staged:
    """An attempt that is being written."""
    return Staged(
        root=record.root,
        attempt=record.attempt,
        ranks=record.ranks,
        world_size=record.world_size,
        size_bytes=record.size_bytes,
        phase=Phase.BEGUN,
        since_unix_seconds=record.since_unix_seconds,
    )


def sealed(record: Seal, contents: tuple[bytes, ...], *, boot: str) -> Staged:
    """One that is to be uploaded, or was. Raises `CheckpointDamaged` for contents that are no manifests.

    boot: of the machine, now.
    """
    return Staged(
        root=record.root,
        attempt=record.attempt,
        ranks=record.ranks,
        world_size=record.world_size,
        size_bytes=record.size_bytes,
        phase=Phase.DURABLE if record.is_durable else Phase.QUEUED,
        since_unix_seconds=record.since_unix_seconds,
        seal=record,
        manifests=tuple(RankManifest.decode(content) for content in contents),
        contents=contents,
        is_trusted=record.is_synced or record.boot == boot,
        uploaded_bytes=record.size_bytes if record.is_durable else 0,
    )
