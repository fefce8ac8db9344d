"""All facts of one diagnosis, in the order in which they are found.

A failure is a fact as well: nothing but a wrong call is raised. Runs on the event loop, files on threads.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_core.diagnosis import DaemonFacts, DiskFacts, Fact
from forebay_core.errors import ConfigurationError
from forebay_core.filesystems import filesystem_type
from forebay_core.locations import Source
from forebay_core.machine import look
from forebay_core.node_layout import DISK_ID_FILE
from forebay_server.diagnosis.disk import measure_disk
from forebay_server.diagnosis.remote import remote_facts
from forebay_server.sources.registry import Stores

#: No caller can keep the daemon busy for longer, or move more.
_MOST_SECONDS, _MOST_BYTES = 30.0, 4 << 30


@dataclass(frozen=True, slots=True)
class DiskBooks:
    """A cache directory and what the daemon's books say of it; without an id while it could not be claimed."""

    disk_id: str
    root: Path
    capacity_bytes: int
    used_bytes: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Of each measurement; 0 seconds: none is made."""

    seconds: float
    bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= _MOST_SECONDS or not 0 <= self.bytes <= _MOST_BYTES:
            raise ConfigurationError(
                f"a measurement takes 0 to {_MOST_SECONDS:.0f} s and at most {_MOST_BYTES} bytes, not {self}"
            )


class Diagnosis:
    """Looks into one daemon. `disks` gives what is in its books at the moment."""

    def __init__(
        self,
        stores: Stores,
        disks: Callable[[], Sequence[DiskBooks]],
        *,
        environment: Mapping[str, str],
        version: str,
    ) -> None:
        self._stores = stores
        self._disks = disks
        self._environment = environment
        self._version = version

    async def facts(self, urls: Sequence[str], limits: Limits) -> AsyncIterator[Fact]:
        """The facts, as they are found. Raises `ConfigurationError` and `UnknownScheme` for an unusable source."""
        source = Source(tuple(urls)) if urls else None
        machine = await asyncio.to_thread(look, self._environment)
        yield DaemonFacts(self._version, os.getpid(), os.getuid(), machine)
        for books in self._disks():
            yield await asyncio.to_thread(_disk_facts, books)
        if source is not None:
            async for fact in remote_facts(self._stores, source, limits.seconds, limits.bytes):
                yield fact
        for books in self._disks() if limits.seconds else ():
            if books.state != "normal":
                continue
            for measurement in await asyncio.to_thread(
                measure_disk, books.disk_id, books.root, limits.seconds, limits.bytes
            ):
                yield measurement


def _disk_facts(books: DiskBooks) -> DiskFacts:
    found = _figures(books.root)
    return DiskFacts(
        disk_id=books.disk_id,
        path=str(books.root),
        id_inode=_inode(books.root / DISK_ID_FILE),
        file_system=filesystem_type(books.root),
        capacity_bytes=books.capacity_bytes,
        used_bytes=books.used_bytes,
        size_bytes=found.f_blocks * found.f_frsize if found else 0,
        free_bytes=found.f_bavail * found.f_frsize if found else 0,
        inodes=found.f_files if found else 0,
        free_inodes=found.f_favail if found else 0,
        state=books.state,
        reason=books.reason,
    )


def _figures(path: Path) -> os.statvfs_result | None:
    """None for a disk that does not even say how large it is."""
    try:
        return os.statvfs(path)
    except OSError:
        return None


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
