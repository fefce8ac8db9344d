"""Room in the staging area: who gets it, who makes it, and who has lost it.

Room is taken before anything is written, and the decision and the reservation are one step of the event loop, so that
two attempts never get the same bytes. Removing is slow and happens in threads; what is being removed is no longer in
the book, and its bytes count as taken until the disk has them back. Everything happens on the event loop.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import StagingFull
from forebay_server.cache.capacity import floor_bytes, floor_inodes
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.below import written_bytes
from forebay_server.checkpoints.records import Begun
from forebay_server.checkpoints.rules import Occupant, Phase, Space, is_lost_to, outdated, to_remove
from forebay_server.checkpoints.staged import Book, Staged, begun
from forebay_server.concurrency import in_thread

_log = logging.getLogger(__name__)
#: An attempt whose process is not known to live, and in which nothing was written for so long, is nobody's.
_ABANDONED_SECONDS = 3600.0
_LOOK_SECONDS = 1.0


class WhenFull(StrEnum):
    """What to do where there is no room for an attempt."""

    BLOCK = "block"
    SKIP = "skip"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An attempt that ranks of this node want to write. `wait_seconds`: 0 is without a limit."""

    root: str
    attempt: Attempt
    ranks: tuple[int, ...]
    world_size: int
    size_bytes: int
    when_full: WhenFull = WhenFull.BLOCK
    wait_seconds: float = 0.0
    check_fenced: bool = False


class Room:
    """Of one staging area. wall_clock: seconds since 1970."""

    def __init__(
        self,
        book: Book,
        area: StagingArea,
        *,
        quota_bytes: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.quota_bytes = quota_bytes
        self._book = book
        self._area = area
        self._clock = clock
        self._wall_clock = wall_clock

    @property
    def used_bytes(self) -> int:
        return sum(each.size_bytes for each in self._book.occupants())

    async def take(self, wanted: Wanted) -> Staged | None:
        """The attempt, in the book from now on; None where it is skipped. Raises `StagingFull`."""
        deadline = self._clock() + wanted.wait_seconds if wanted.wait_seconds > 0 else None
        if wanted.size_bytes > self.quota_bytes:
            raise StagingFull(self._full(wanted, "which is more than it may ever hold"))
        while True:
            chosen = to_remove(wanted.size_bytes, self._book.occupants(), self._space())
            if chosen == []:
                return self._reserved(wanted)
            if chosen:
                await self._remove_all(chosen)
                continue
            if wanted.when_full is WhenFull.SKIP:
                _log.warning("%s is skipped: %s", wanted.attempt.name, self._full(wanted, "without room"))
                return None
            left = None if deadline is None else deadline - self._clock()
            if wanted.when_full is WhenFull.FAIL or (left is not None and left <= 0):
                raise StagingFull(self._full(wanted, "and there is no room now"))
            await self._book.change.wait(min(_LOOK_SECONDS, _LOOK_SECONDS if left is None else left))

    def _reserved(self, wanted: Wanted) -> Staged:
        staged = begun(
            Begun(
                root=wanted.root,
                attempt=wanted.attempt,
                ranks=wanted.ranks,
                world_size=wanted.world_size,
                size_bytes=wanted.size_bytes,
                since_unix_seconds=self._wall_clock(),
            )
        )
        self._book.add(staged)
        return staged

    def _full(self, wanted: Wanted, why: str) -> str:
        there = self._book.occupants()
        pending = sum(each.phase.is_pending for each in there)
        return (
            f"{wanted.attempt.name} needs {wanted.size_bytes} bytes of the staging directory {self._area.root}, {why}:"
            f" {self.used_bytes} of {self.quota_bytes} bytes are taken by {len(there)} checkpoints, {pending} of which"
            f" wait for their upload, and its disk has {max(0, self.free_bytes())} bytes free;"
            f" {self._advice(wanted.size_bytes, pending)}"
        )

    def _advice(self, size_bytes: int, pending: int) -> str:
        """By what the room is taken: nothing that is saved less often helps against others' files."""
        if size_bytes > self.quota_bytes:
            return "give it more (--staging-dir PATH:SIZE)"
        if not pending and self.used_bytes + size_bytes <= self.quota_bytes:
            return "make room on that disk, or give it another (--staging-dir PATH:SIZE)"
        return "give it more (--staging-dir PATH:SIZE), or save less often"

    def _space(self) -> Space:
        inodes = self._area.free_inodes()
        if inodes is not None and inodes < floor_inodes(self._area.inodes):
            return Space(self.quota_bytes, 0)
        return Space(self.quota_bytes, self.free_bytes())

    def free_bytes(self) -> int:
        """Of the file system, beyond what stays free and what others were promised."""
        promised = 0
        for staged in self._book:
            if staged.phase is Phase.BEGUN:
                written = written_bytes(self._area.directory(staged.root, staged.attempt))
                promised += max(0, staged.size_bytes - written)
        return self._area.free_bytes() - floor_bytes(self._area.size_bytes) - promised

    def outdated(self) -> list[Staged]:
        """Durable copies that are not worth keeping."""
        found = (self._book.find(each.root, each.attempt) for each in outdated(self._book.occupants()))
        return [staged for staged in found if staged is not None and staged.phase is Phase.DURABLE]

    async def remove(self, staged: Staged) -> bool:
        """Takes the files of an attempt away, and says whether they are. Known is still one that waits for other nodes,
        or has failed."""
        if staged.phase in (Phase.UPLOADED, Phase.FAILED):
            staged.has_files = False
            self._book.forget_old()
        else:
            self._book.forget(staged)
        try:
            await in_thread(self._area.remove, staged.root, staged.attempt)
        except OSError as error:
            _log.error("the staged %s of %s cannot be removed: %s", staged.attempt.name, staged.root, error)
            return False
        finally:
            self._book.change.tell()
        return True

    async def _remove_all(self, chosen: Sequence[Occupant]) -> None:
        for each in chosen:
            if (staged := self._book.find(each.root, each.attempt)) is not None:
                _log.info("the staged %s of %s makes room", staged.attempt.name, staged.root)
                await self.remove(staged)

    def lost_to(self, wanted: Wanted) -> list[Staged]:
        """Attempts that were begun, and that nobody will seal now that this one begins."""
        return [
            staged
            for staged in self._book.of(wanted.root)
            if is_lost_to(
                self._book.occupant(staged),
                wanted.root,
                wanted.attempt,
                same_ranks=bool(set(staged.ranks) & set(wanted.ranks)),
            )
        ]

    def dead(self) -> list[Staged]:
        """Attempts that were begun, and that nobody writes any more."""
        return [staged for staged in self._book if staged.phase is Phase.BEGUN and self._is_dead(staged)]

    def _is_dead(self, staged: Staged) -> bool:
        """Whether nobody writes the attempt any more: its directory's lock was let go of, or nothing happens in it."""
        directory = self._area.directory(staged.root, staged.attempt)
        try:
            if _is_locked(directory):
                staged.was_held = True
                return False
            last = max([path.lstat().st_mtime for path in (directory, *directory.iterdir())])
        except OSError:
            return False
        return staged.was_held or self._wall_clock() - max(last, staged.since_unix_seconds) > _ABANDONED_SECONDS


def _is_locked(directory: Path) -> bool:
    """Whether a process holds a lock on the directory. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
