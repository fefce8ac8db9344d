"""The daemon's checkpoints as one part: what the service calls, and what the node starts and ends.

It keeps the book of the staging area, decides by `rules` who gets room, and hands sealed attempts to `uploads`.
Everything happens on the event loop, files in threads. A daemon that is killed at any moment leaves a staging area from
which `start` goes on.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from forebay_core.checkpoints.documents import WERE_COMMITTED, State
from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import Retention, check_fenced
from forebay_core.errors import (
    CheckpointError,
    CheckpointNotFound,
    ForebayError,
    StagingFull,
    one_line,
)
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.fetching import Fetching, LocalFile
from forebay_server.checkpoints.records import Begun, Seal
from forebay_server.checkpoints.room import Room, Wanted
from forebay_server.checkpoints.rules import Patience, Phase
from forebay_server.checkpoints.sealing import check_ranks, take_over
from forebay_server.checkpoints.staged import Book, Staged, begun, sealed
from forebay_server.checkpoints.statuses import Status, status_elsewhere, status_of, watched
from forebay_server.checkpoints.uploading import Uploading
from forebay_server.checkpoints.uploads import Uploads
from forebay_server.concurrency import OneForAll, end_all, in_thread, repeat

_log = logging.getLogger(__name__)
#: Between two looks at who is gone.
_LOOK_SECONDS = 1.0
#: A daemon that ends when idle waits so long for the part of nodes that are not heard of.
_OTHERS_SECONDS = 900.0


class Desk:
    """Of one staging area. Made on a running event loop.

    boot: of the machine. wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        area: StagingArea,
        open_destination: Callable[[str], Awaitable[Destination]],
        *,
        quota_bytes: int,
        boot: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        patience: Patience | None = None,
    ) -> None:
        patience = patience or Patience()
        self.area = area
        self._open = open_destination
        self._has_started = asyncio.Event()
        self._boot = boot
        self._clock = clock
        self._wall_clock = wall_clock
        self._patience = patience
        self._book = Book(clock)
        self._room = Room(self._book, area, quota_bytes=quota_bytes, clock=clock, wall_clock=wall_clock)
        self._locks: WeakValueDictionary[tuple[str, Attempt], asyncio.Lock] = WeakValueDictionary()
        self._work: set[asyncio.Task[object]] = set()
        self._seals: OneForAll[tuple[str, Attempt], None] = OneForAll()
        self.counters = counters = UploadCounters()
        uploading = Uploading(
            area,
            patience,
            boot=boot,
            clock=clock,
            jitter=random.random,
            gives_up=self._need_not_wait,
            counters=counters,
        )
        self._uploads = Uploads(
            self._book,
            area,
            open_destination,
            uploading,
            patience,
            removes=self._remove_soon,
            outdated=self._remove_outdated,
            counters=counters,
            wall_clock=wall_clock,
        )
        self._fetching = Fetching(self._book, area, patience, room=self._room.free_bytes, clock=clock)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Finds what a former daemon left, and goes on with it."""
        try:
            await asyncio.to_thread(self.area.tidy)
            for record in await asyncio.to_thread(lambda: sorted(self.area.records(), key=_age)):
                await self._take_up(record)
        finally:
            self._has_started.set()
        self._remove_outdated()
        self._in_background(repeat(self._look, "looking after the staging area"))

    async def open(self, url: str) -> Destination:
        """The destination of a root, named by its URL or path, once `start` has found what there is.

        Raises `UnknownScheme`, `ConfigurationError`, `AccessDenied`.
        """
        await self._has_started.wait()
        return await self._open(url)

    async def drain(self, seconds: float) -> None:
        """Lets uploads that are under way end, for so long at the most. What is left a successor goes on with."""
        deadline = self._clock() + seconds
        while self.is_busy and (left := deadline - self._clock()) > 0:
            await self._book.change.wait(min(left, 0.1))

    async def close(self) -> None:
        await self._seals.close()
        await self._uploads.close()
        await self._fetching.close()
        await end_all(list(self._work))

    @property
    def is_starting(self) -> bool:
        """What a former daemon left is still being looked through."""
        return not self._has_started.is_set()

    @property
    def is_busy(self) -> bool:
        """Something is being written, or left to upload; a part of other nodes that does not come is not waited for."""
        return any(self._is_busy_with(staged) for staged in self._book)

    @property
    def used_bytes(self) -> int:
        return self._room.used_bytes

    @property
    def quota_bytes(self) -> int:
        return self._room.quota_bytes

    def statuses(self) -> list[Status]:
        """Of all attempts that are sealed here, oldest first."""
        there = [staged for staged in self._book if staged.phase is not Phase.BEGUN]
        return [
            status_of(staged, self._wall_clock())
            for staged in sorted(there, key=lambda each: (each.attempt, each.root))
        ]

    # -- saving ---------------------------------------------------------------------------------------------------

    async def begin(self, wanted: Wanted) -> Path | None:
        """Makes room, and the directory of the attempt; None where it is skipped.

        Raises `CheckpointFenced`, `StagingFull`, `CheckpointError` for an attempt that is sealed already.
        """
        check_ranks(wanted.ranks, wanted.world_size)
        root = await self.open(wanted.root)
        wanted = replace(wanted, root=root.url)
        if wanted.check_fenced:
            await drive(check_fenced(wanted.attempt.generation), root)
        async with self._lock(root.url, wanted.attempt):
            known = self._book.find(root.url, wanted.attempt)
            if known is not None and known.phase is not Phase.BEGUN:
                raise CheckpointError(f"{wanted.attempt.name} is sealed already: save under a new attempt")
            if known is None:
                for lost in self._room.lost_to(wanted):
                    await self._drop_begun(lost, f"{wanted.attempt.name} begins")
                known = await self._room.take(wanted)
            if known is None:
                return None
            try:
                await in_thread(self.area.begin, _begun(known))
            except OSError as error:
                self._book.forget(known)
                raise StagingFull(f"{self.area.root} takes no files: {error}") from error
        return self.area.directory(root.url, wanted.attempt)

    async def seal(
        self,
        root: Destination,
        attempt: Attempt,
        ranks: Sequence[int],
        world_size: int,
        *,
        retention: Retention | None = None,
        supersedes: bool = False,
    ) -> None:
        """Takes responsibility for the upload. Raises `CheckpointError` where not all of it is there as it should be,
        and `CheckpointNotFound` for an attempt that was not begun here, or was dropped."""
        check_ranks(ranks, world_size)
        record = Seal(
            root=root.url,
            attempt=attempt,
            ranks=tuple(ranks),
            world_size=world_size,
            size_bytes=0,
            since_unix_seconds=self._wall_clock(),
            boot=self._boot,
            keep_last=None if retention is None else retention.keep_last,
            keep_every_steps=None if retention is None else retention.keep_every_steps,
        )
        # Goes on also where the caller is gone: what is sealed on the disk is seen to.
        await self._seals.result((root.url, attempt), lambda: self._take_responsibility(record, supersedes))

    async def _take_responsibility(self, record: Seal, supersedes: bool) -> None:
        async with self._lock(record.root, record.attempt):
            staged = self._book.find(record.root, record.attempt)
            if staged is None:
                raise CheckpointNotFound(f"{record.attempt.name} was not begun here, or was dropped: save again")
            if staged.phase is not Phase.BEGUN:
                return
            staged = await in_thread(take_over, self.area, record, boot=self._boot)
            self._book.add(staged)
        if supersedes:
            self._uploads.supersede(staged)
        self._uploads.begin(staged)

    async def drop(self, root: str, attempt: Attempt) -> bool:
        """Removes all of an attempt from this node; one that is not durable is given up everywhere. Unknown: nothing.

        Whether it was sealed and is given up. root: the URL of a destination, which need not answer, or be permitted,
        any more; it is told when it can be, which a restart forgets. Nothing can be committed that lacks files: the
        manifests of this node are uploaded last. Raises `CheckpointError` where files cannot be removed.
        """
        await self._has_started.wait()
        async with self._lock(root, attempt):
            await self._fetching.forget(root, attempt)
            staged = self._book.find(root, attempt)
            if staged is None:
                return False
            is_cut_short = await self._uploads.stop(staged)
            is_given_up = staged.phase.is_pending
            if is_given_up or (is_cut_short and staged.phase is Phase.FAILED):
                self._uploads.lose(staged, _reason(staged))
            is_told = staged.phase is Phase.FAILED
            is_removed = await self._room.remove(staged)
            if not is_told:
                self._book.forget(staged)
            if not is_removed:
                raise CheckpointError(
                    f"the files of {attempt.name} in {self.area.root} cannot be removed; the daemon's log says why"
                )
            return is_given_up

    async def watch(self, root: Destination, attempt: Attempt) -> AsyncGenerator[Status, None]:
        """At once, at each change, and every second, until it is durable or has failed."""
        staged = self._book.find(root.url, attempt)
        if staged is None:
            yield await status_elsewhere(root, attempt)
            return
        async with aclosing(watched(staged, self._wall_clock)) as statuses:
            async for status in statuses:
                yield status

    # -- restoring ------------------------------------------------------------------------------------------------

    async def fetch(self, root: Destination, attempt: Attempt, name: str, wait_seconds: float) -> LocalFile:
        """See `Fetching.fetch`."""
        return await self._fetching.fetch(root, attempt, name, wait_seconds)

    def end_reading(self, root: Destination, attempt: Attempt) -> None:
        self._fetching.end(root, attempt)

    def known_root(self, url: str) -> str | None:
        """The URL of the destination that is named so, of which something is staged. Asks no file system."""
        return url if any(staged.root == url for staged in self._book) else None

    def expedite(self, root: Destination, attempt: Attempt) -> None:
        """Uploads it before others. Unknown: nothing."""
        if (staged := self._book.find(root.url, attempt)) is not None:
            self._uploads.expedite(staged)

    def staged(self, root: Destination) -> dict[Attempt, tuple[tuple[int, ...], int]]:
        """Of each attempt whose files are sealed here: their ranks, and the world size."""
        there = [staged for staged in self._book.of(root.url) if staged.is_whole_here]
        return {staged.attempt: (staged.ranks, staged.world_size) for staged in there}

    async def decided(self, root: Destination, attempt: Attempt, state: State) -> None:
        """Somebody decided on the attempt: what is staged of one that nobody restores goes."""
        staged = self._book.find(root.url, attempt)
        if staged is None or staged.phase is Phase.BEGUN or state is State.COMMITTED:
            return
        await self._uploads.stop(staged)
        if state in WERE_COMMITTED:
            staged.become(Phase.DURABLE)
        elif staged.phase is not Phase.DURABLE:
            staged.become(Phase.FAILED, CheckpointError(f"{attempt.name} is {state}"))
        await self._room.remove(staged)

    async def _look(self) -> None:
        for staged in self._room.dead():
            async with self._lock(*staged.key):
                if self._book.find(*staged.key) is staged and staged.phase is Phase.BEGUN:
                    await self._drop_begun(staged, "the process that wrote it is gone")
        self._remove_outdated()
        await self._fetching.look()
        await asyncio.sleep(_LOOK_SECONDS)

    async def _drop_begun(self, staged: Staged, why: str) -> None:
        _log.info("%s of %s was not sealed, and is removed: %s", staged.attempt.name, staged.root, why)
        await self._room.remove(staged)

    def _remove_outdated(self) -> None:
        for staged in self._room.outdated():
            self._remove_soon(staged)

    def _remove_soon(self, staged: Staged) -> None:
        self._in_background(self._room.remove(staged))

    def _need_not_wait(self, staged: Staged, quiet_seconds: float) -> bool:
        """Whether other nodes' part of an attempt need not be waited for: they have brought a newer one, and not it."""
        newer = any(
            other.phase is Phase.DURABLE and other.attempt > staged.attempt for other in self._book.of(staged.root)
        )
        return newer and quiet_seconds >= self._patience.others_seconds and not staged.is_expedited

    # -- what it is made of ---------------------------------------------------------------------------------------

    async def _take_up(self, record: Begun | Seal) -> None:
        if isinstance(record, Begun):
            self._book.add(begun(record))
            return
        try:
            staged = await asyncio.to_thread(
                lambda: sealed(record, tuple(self.area.manifests(record)), boot=self._boot)
            )
        except (OSError, CheckpointError) as error:
            _log.error("the sealed %s of %s cannot be read: %s", record.attempt.name, record.root, one_line(error))
            return
        self._book.add(staged)
        if staged.phase.is_pending:
            _log.info("going on with %s of %s", record.attempt.name, record.root)
            self._uploads.begin(staged)

    def _is_busy_with(self, staged: Staged) -> bool:
        if staged.phase is Phase.UPLOADED:
            return self._clock() - staged.heard_at < _OTHERS_SECONDS
        return staged.phase.is_pending or staged.was_held

    def _lock(self, root: str, attempt: Attempt) -> asyncio.Lock:
        return self._locks.setdefault((root, attempt), asyncio.Lock())

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _age(record: Begun | Seal) -> tuple[float, Attempt]:
    return record.since_unix_seconds, record.attempt


def _begun(staged: Staged) -> Begun:
    return Begun(
        root=staged.root,
        attempt=staged.attempt,
        ranks=staged.ranks,
        world_size=staged.world_size,
        size_bytes=staged.size_bytes,
        since_unix_seconds=staged.since_unix_seconds,
    )


def _reason(staged: Staged) -> ForebayError:
    """Why it is given up: what has been said already, else that somebody wants it so."""
    known = staged.error if staged.phase is Phase.FAILED else None
    return known or CheckpointError(
        f"{staged.attempt.name} was given up on a node: forebay checkpoints discard, or a restore that found its copy "
        f"damaged"
    )
