"""The uploads of sealed attempts, one after another: the queue that outlives trainers and the daemon itself.

Each pending attempt has a task of its own, which waits for its turn, uploads, and then without a turn waits for other
nodes and the decision. One that somebody waits to restore takes its turn at once. What may heal is tried again for
ever, with growing waits; what cannot is `failed`, and abandoned at the destination so that other nodes stop too.

Everything happens on the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from forebay_core.checkpoints.documents import SUPERSEDED, WERE_COMMITTED
from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import abandon
from forebay_core.errors import CheckpointDamaged, CheckpointError, ForebayError, InternalError, one_line
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.rules import Patience, Phase, is_final, is_superseded, turn
from forebay_server.checkpoints.staged import Book, Staged
from forebay_server.checkpoints.uploading import Uploading, checked
from forebay_server.concurrency import end_all, in_thread

_log = logging.getLogger(__name__)
_STOP_SECONDS = 5.0


class Turns:
    """One upload at a time, besides those that are expedited."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Staged, asyncio.Future[None]]] = []
        self._running: Staged | None = None

    @asynccontextmanager
    async def turn(self, staged: Staged) -> AsyncIterator[None]:
        """Holds the attempt's turn."""
        if not staged.is_expedited:
            await self._wait(staged)
        try:
            yield
        finally:
            if self._running is staged:
                self._running = None
                self.look()

    def look(self) -> None:
        """Lets those go on whose turn it is."""
        for staged, future in list(self._waiting):
            if staged.is_expedited:
                self._go(staged, future)
        if self._running is None and self._waiting:
            order = [(each.is_expedited, each.since_unix_seconds, each.attempt) for each, _ in self._waiting]
            staged, future = self._waiting[turn(order)]
            self._running = staged
            self._go(staged, future)

    async def _wait(self, staged: Staged) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((staged, future))
        self.look()
        try:
            await future
        except asyncio.CancelledError:
            self._waiting = [each for each in self._waiting if each[1] is not future]
            if self._running is staged:
                self._running = None
                self.look()
            raise

    def _go(self, staged: Staged, future: "asyncio.Future[None]") -> None:
        self._waiting.remove((staged, future))
        if not future.done():
            future.set_result(None)


class Uploads:
    """Of one staging area. `removes`: takes the files of an attempt away that nobody needs any more."""

    def __init__(
        self,
        book: Book,
        area: StagingArea,
        open_destination: Callable[[str], Awaitable[Destination]],
        uploading: Uploading,
        patience: Patience,
        *,
        removes: Callable[[Staged], None],
        outdated: Callable[[], None],
        counters: UploadCounters,
        wall_clock: Callable[[], float],
    ) -> None:
        self._book = book
        self._area = area
        self._open = open_destination
        self._uploading = uploading
        self._patience = patience
        self._removes = removes
        self._outdated = outdated
        self._counters = counters
        self._wall_clock = wall_clock
        self._turns = Turns()
        self._tasks: dict[tuple[str, Attempt], asyncio.Task[None]] = {}

    def begin(self, staged: Staged) -> None:
        """Sees to a sealed attempt from now on."""
        self._keep(staged, asyncio.create_task(self._run(staged)))

    def expedite(self, staged: Staged) -> None:
        """Somebody waits for it."""
        staged.is_expedited = True
        self._turns.look()
        staged.change.tell()

    def supersede(self, newer: Staged) -> None:
        """Earlier attempts of its root whose upload has not begun are given up."""
        for older in self._book.of(newer.root):
            if is_superseded(self._book.occupant(older), newer.attempt, newer.root) and not older.is_expedited:
                reason = f"{SUPERSEDED} {newer.attempt.name} before its upload began"
                self.lose(older, CheckpointError(f"{older.attempt.name} is {reason}"))

    def lose(self, staged: Staged, error: ForebayError) -> None:
        """Ends a pending attempt as failed, and has it abandoned at its destination."""
        running = self._tasks.get(staged.key)
        staged.become(Phase.FAILED, error)
        self._keep(staged, asyncio.create_task(self._abandon(staged, error, running)))

    async def stop(self, staged: Staged) -> bool:
        """Does no more for an attempt; whether something was left to do. A file system that hangs is not waited for."""
        if (task := self._tasks.get(staged.key)) is None:
            return False
        task.cancel()
        await asyncio.wait([task], timeout=_STOP_SECONDS)
        return True

    async def close(self) -> None:
        """Leaves all as it is, for a successor."""
        await end_all(list(self._tasks.values()))

    def _keep(self, staged: Staged, task: "asyncio.Task[None]") -> None:
        self._tasks[staged.key] = task

        def ended(_task: "asyncio.Task[None]") -> None:
            if self._tasks.get(staged.key) is task:
                del self._tasks[staged.key]

        task.add_done_callback(ended)

    async def _run(self, staged: Staged) -> None:
        failures = 0
        while True:
            try:
                await self._see_through(staged)
                return
            except ForebayError as error:
                failure = error
            except Exception as error:
                _log.exception("uploading %s of %s failed", staged.attempt.name, staged.root)
                failure = InternalError(f"{type(error).__name__}: {one_line(error)}; the daemon's log has the details")
            if is_final(failure):
                _log.error("%s of %s is lost: %s", staged.attempt.name, staged.root, one_line(failure))
                asyncio.get_running_loop().call_soon(self.lose, staged, failure)
                return
            failures += 1
            await self._pause(staged, failure, failures)

    async def _pause(self, staged: Staged, failure: ForebayError, failures: int) -> None:
        seconds = self._patience.before_retry(failures, failure)
        where = f"{staged.attempt.name} of {staged.root}"
        _log.warning("the upload of %s failed, next try in %.0f s: %s", where, seconds, one_line(failure))
        staged.error = failure
        staged.change.tell()
        self._counters.failures += 1
        await staged.change.wait(seconds)

    async def _see_through(self, staged: Staged) -> None:
        async with self._turns.turn(staged):
            root = await self._open(staged.root)
            decision = await self._uploading.bring(staged, root)
        if decision is None:
            decision = await self._uploading.complete(staged, root)
        checked(staged, decision)
        await self._now_durable(staged)
        try:
            await self._uploading.retain(staged, root)
        except ForebayError as error:
            _log.warning("the retention of %s is left to the next commit: %s", staged.root, one_line(error))

    async def _now_durable(self, staged: Staged) -> None:
        if staged.has_files:
            await self._note_durable(staged)
        else:
            self._book.forget_old()
        staged.uploaded_bytes = staged.size_bytes
        staged.become(Phase.DURABLE)
        self._counters.durable += 1
        self._counters.seconds.add(max(0.0, self._wall_clock() - staged.since_unix_seconds))
        _log.info("%s of %s is durable", staged.attempt.name, staged.root)
        self._outdated()

    async def _note_durable(self, staged: Staged) -> None:
        assert staged.seal is not None
        staged.seal = replace(staged.seal, is_durable=True)
        try:
            await in_thread(self._area.note, staged.seal)
        except OSError as error:
            _log.warning("a restart will look again whether %s is durable: %s", staged.attempt.name, error)

    async def _abandon(self, staged: Staged, error: ForebayError, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await end_all([running])
        failures = 0
        while True:
            try:
                root = await self._open(staged.root)
                conditional = await root.probe_put_if_absent()
                losing = abandon(staged.attempt, one_line(error), conditional=conditional)
                held = await drive(losing, root)
                break
            except ForebayError as failure:
                failures += 1
                if is_final(failure):
                    _log.warning("%s cannot be abandoned: %s", staged.attempt.name, one_line(failure))
                    self._lost(staged)
                    return
                await asyncio.sleep(self._patience.before_retry(failures, failure))
        if held.state in WERE_COMMITTED and not isinstance(error, CheckpointDamaged):
            await self._now_durable(staged)
            return
        self._lost(staged)

    def _lost(self, staged: Staged) -> None:
        self._counters.lost += 1
        self._removes(staged)
