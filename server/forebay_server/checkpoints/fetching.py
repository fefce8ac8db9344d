"""Files of an attempt as local files, for a restore: the staged one where there is one, else one that is fetched.

Several ranks that want a file share one fetch. A file that is not at the destination yet is waited for, as long as the
caller wishes. What was fetched is removed when the reading has ended, or when nobody has asked for long; a file that
was just answered stays until its reader has had the time to open it. Everything happens on the event loop.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import METADATA, Attempt, checked_file, rank_manifest
from forebay_core.checkpoints.protocol import read_decision
from forebay_core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, StagingFull
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.below import opened
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.rules import Patience
from forebay_server.checkpoints.staged import Book, Staged
from forebay_server.concurrency import OneForAll, in_thread

_log = logging.getLogger(__name__)
#: Without a call, after which a reader is taken to be gone.
QUIET_SECONDS = 600.0
#: Between the answer and the reader's opening of the file.
OPENING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A whole file of an attempt in the staging area."""

    path: Path
    inode: int
    size_bytes: int
    is_staged: bool


@dataclass(slots=True)
class _Reading:
    root: str
    attempt: Attempt
    last_call: float
    has_ended: bool = False
    fetches: int = 0


class Fetching:
    """Of one staging area. `room`: how many bytes may still be written to its disk."""

    def __init__(
        self,
        book: Book,
        area: StagingArea,
        patience: Patience,
        *,
        room: Callable[[], int],
        clock: Callable[[], float],
        quiet_seconds: float = QUIET_SECONDS,
        opening_seconds: float = OPENING_SECONDS,
    ) -> None:
        self._book = book
        self._area = area
        self._patience = patience
        self._room = room
        self._clock = clock
        self._quiet_seconds = quiet_seconds
        self._opening_seconds = opening_seconds
        self._fetches: OneForAll[tuple[str, Attempt, str], LocalFile] = OneForAll()
        self._readings: dict[tuple[str, Attempt], _Reading] = {}

    async def fetch(self, root: Destination, attempt: Attempt, name: str, wait_seconds: float) -> LocalFile:
        """The file. Raises `CheckpointNotFound` for one that is not there, nor comes in that time, `CheckpointDamaged`
        for one that is staged here, cannot be used, and is nowhere else, `ConfigurationError` for a name that no file
        has, `StagingFull`, and what the destination raises."""
        checked_file(name)
        if (found := await self._staged(root, attempt, name)) is not None:
            return found
        reading = self._readings.setdefault((root.url, attempt), _Reading(root.url, attempt, self._clock()))
        reading.fetches += 1
        try:
            with suppress(FileNotFoundError):
                return await asyncio.to_thread(_look, self._area.fetched(root.url, attempt), name, is_staged=False)
            await self._await_object(root, attempt, name, wait_seconds)
            key = (root.url, attempt, name)
            return await self._fetches.result(key, lambda: self._download(root, attempt, name))
        finally:
            reading.fetches -= 1
            reading.last_call, reading.has_ended = self._clock(), False

    def end(self, root: Destination, attempt: Attempt) -> None:
        """Nobody reads the attempt any more."""
        if (reading := self._readings.get((root.url, attempt))) is not None:
            reading.has_ended = True
        if (staged := self._book.find(root.url, attempt)) is not None:
            staged.read_until = 0.0
            self._book.change.tell()

    async def forget(self, root: str, attempt: Attempt) -> None:
        """What was fetched of it is not wanted any more, and goes, but for what somebody is just asking for."""
        reading = self._readings.get((root, attempt))
        if reading is not None and reading.fetches == 0:
            del self._readings[root, attempt]
            await in_thread(self._area.remove_fetched, root, attempt)

    async def look(self) -> None:
        """Removes what was fetched for those who have ended, or are silent."""
        for key, reading in list(self._readings.items()):
            quiet = self._clock() - reading.last_call
            limit = self._opening_seconds if reading.has_ended else self._quiet_seconds
            if reading.fetches == 0 and quiet >= limit:
                del self._readings[key]
                await asyncio.to_thread(self._area.remove_fetched, reading.root, reading.attempt)

    async def close(self) -> None:
        await self._fetches.close()

    async def _staged(self, root: Destination, attempt: Attempt, name: str) -> LocalFile | None:
        staged = self._book.find(root.url, attempt)
        if staged is None or not staged.is_whole_here:
            return None
        files = staged.files()
        named = {*files, METADATA, *map(rank_manifest, staged.ranks)}
        if name not in named:
            return None
        try:
            directory = self._area.directory(root.url, attempt)
            found = await asyncio.to_thread(_look, directory, name, is_staged=True)
        except (OSError, CheckpointError) as error:
            if name in files:
                _log.warning("the staged %s of %s is fetched instead: %s", name, attempt.name, error)
            return None
        if name in files and found.size_bytes != files[name].size_bytes:
            return None
        self._mark(staged)
        return found

    def _is_own(self, root: Destination, attempt: Attempt, name: str) -> bool:
        """Whether it is a file of this node's ranks, which their daemon alone can upload, and is taken to be staged."""
        staged = self._book.find(root.url, attempt)
        if staged is None or not staged.is_whole_here:
            return False
        return name in staged.files() or name in map(rank_manifest, staged.ranks)

    def _mark(self, staged: Staged) -> None:
        staged.read_until = self._clock() + self._quiet_seconds

    async def _await_object(self, root: Destination, attempt: Attempt, name: str, wait_seconds: float) -> None:
        polls, deadline = 0, self._clock() + wait_seconds
        while await root.head(attempt.key(name)) is None:
            decision = await drive(read_decision(attempt), root)
            if decision is not None:
                if decision.state is State.COMMITTED and await root.head(attempt.key(name)) is not None:
                    return  # it came, and the decision, between the two looks
                _raise_missing(attempt, name, decision.state)
            left = deadline - self._clock()
            if self._is_own(root, attempt, name):  # nobody else will bring it
                raise CheckpointDamaged(f"the staged {name} of {attempt.name} is not as it was written")
            if left <= 0:
                raise CheckpointNotFound(f"{name} of {attempt.name} is neither staged here nor at {root.url}")
            await asyncio.sleep(min(left, self._patience.before_poll(polls)))
            polls += 1

    async def _download(self, root: Destination, attempt: Attempt, name: str) -> LocalFile:
        directory = await asyncio.to_thread(self._area.make_fetched, root.url, attempt)
        found = await root.head(attempt.key(name))
        if found is None:
            raise CheckpointNotFound(
                f"{name} of {attempt.name} is not at {root.url} any more: list the checkpoints again"
            )
        if (size := found.size_bytes) > self._room():
            raise StagingFull(
                f"{name} of {attempt.name} has {size} bytes, and the staging disk of {self._area.root} has no room for"
                f" it: free some, or give another place (--staging-dir)"
            )
        temp = directory / f".{secrets.token_hex(6)}"
        try:
            await root.download(attempt.key(name), temp, size_bytes=size)
            await asyncio.to_thread(_finish, temp, directory / name, size)
        finally:
            temp.unlink(missing_ok=True)
        return await asyncio.to_thread(_look, directory, name, is_staged=False)


def _raise_missing(attempt: Attempt, name: str, state: State) -> None:
    if state is State.COMMITTED:
        raise CheckpointDamaged(f"{attempt.name} is committed, and its {name} is not there")
    raise CheckpointNotFound(f"{attempt.name} is {state}: list the checkpoints again")


def _look(directory: Path, name: str, *, is_staged: bool) -> LocalFile:
    with opened(directory, name) as descriptor:
        found = os.fstat(descriptor)
    return LocalFile(directory / name, found.st_ino, found.st_size, is_staged)


def _finish(temp: Path, path: Path, size: int) -> None:
    found = temp.stat().st_size
    if found != size:
        raise CheckpointDamaged(f"{path.name} arrived with {found} bytes of {size}")
    temp.chmod(0o640)
    temp.rename(path)
