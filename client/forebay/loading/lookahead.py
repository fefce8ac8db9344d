"""The planner: one thread that turns the order into chunks whose pieces are leased, some steps ahead of the trainer.

It plans many steps at once, leases their pieces in one call, tells the daemon what will be needed and where the trainer
is, and gives leases back when the trainer has passed them. It runs over the epochs' borders without end. It never waits
for a piece to arrive: a chunk may name files that are still being filled, and its reader waits for them.

Pieces are held until the order is done with them. Where the cache has no room for that, the planner is *frugal*: it
holds what the steps under way need, and pieces are leased, and maybe fetched, again.

`next_chunk` and `lease_again` are called by readers, or for worker processes by the trainer's thread; `await_chunk`,
`take_ready`, `forget_failure`, `delivered` and `close` by the trainer's thread. `_condition` guards what both sides
touch; no call to the daemon is made under it. `delivered` takes it only to wake a planner that waits.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forebay.daemon.session import Taken
from forebay.loading.chunk import Chunk, Closed, Int64, PieceFile, StepEnd
from forebay.loading.holdings import Bounds, Holdings
from forebay.loading.leases import Leases, Questions, WatchedLeases, tell_unreadable
from forebay.loading.step_ends import step_ends
from forebay.loading.waits import Asking
from forebay.order import Needs, RankOrder, RankPlan
from forebay.order.rank_order import rank_samples
from forebay_core.errors import DaemonError

OnSmallCache = Callable[[int, int, float], None]
"""Called on the planner's thread with the epoch, the bytes that should be held at once, and by how much what has
arrived was larger than stated."""
HEARTBEAT_SECONDS = 1.0
_BLOCK_STEPS = 256
_BLOCK_SAMPLES = 16384


@dataclass(frozen=True, slots=True)
class Depth:
    """How far the planner runs ahead.

    steps: planned and not yet with the trainer, at most. chunk_steps: read together, at most.
    """

    steps: int
    chunk_steps: int


class Lookahead:
    """Plans from (epoch, position) on, once started. Owns the session; `connect` opens it on the planner's thread."""

    def __init__(
        self,
        order: RankOrder,
        connect: Callable[[], Leases],
        *,
        piece_bytes: Int64,
        start: tuple[int, int],
        depth: Depth,
        ends_with_epoch: bool = False,
        on_small_cache: OnSmallCache = lambda *_: None,
        taken: Callable[[], Taken] = Taken,
    ) -> None:
        """`taken`: what the trainer has taken, for the daemon."""
        self._order, self._depth, self._ends_with_epoch = order, depth, ends_with_epoch
        self._samples = order.samples
        self._connect = connect
        self._session: Leases | None = None
        self._questions = Questions()
        self._start = start
        self._condition = threading.Condition()
        self._ready: deque[Chunk] = deque()
        #: Steps planned, counted by the planner, and steps with the trainer, counted by the trainer.
        self._planned = self._handed = 0
        self._is_waiting = False
        self._delivered = start[0] * order.samples + start[1]
        self._failure: BaseException | None = None
        self._closing = False
        self._holdings = Holdings(piece_bytes)
        self._is_tight = False
        self._on_small_cache = on_small_cache
        self._taken = taken
        #: The budget that was found too small.
        self._frugal_bytes = -1
        self._leased_again: deque[PieceFile] = deque()
        self._rate = _Rate(self._delivered)
        self._reported_at = 0.0
        self._chunk_steps = 1
        self._block_begin = start[1]
        self._thread = threading.Thread(target=self._run, name="forebay-lookahead", daemon=True)

    def start(self) -> None:
        """Begins to plan. Whoever forks readers does it before this."""
        self._thread.start()

    def next_chunk(self) -> Chunk:
        """The next chunk, waiting for the planner. Raises what the planner failed with, or `Closed`."""
        self.await_chunk()
        with self._condition:
            return self._ready.popleft()

    def await_chunk(self) -> None:
        """Waits until a chunk is ready. Raises what the planner failed with, or `Closed`."""
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._failure or self._closing)
            if not self._ready:
                raise self._failure or Closed

    def take_ready(self) -> Chunk | None:
        """The next chunk if it is ready. Never waits, never raises."""
        with self._condition:
            return self._ready.popleft() if self._ready else None

    def lease_again(self, chunk: Chunk, unreadable: str = "") -> Chunk:
        """The chunk with its pieces leased anew, where a reader found files gone; later chunks name the new ones.

        `unreadable` is the path of a file that is there and cannot be read.
        """
        session = self._session
        if session is None or self._closing:
            raise Closed
        tell_unreadable(session, chunk, unreadable)
        until = {file.piece: file.until for file in chunk.files}
        try:
            files = session.lease(list(until))
        except DaemonError as error:
            raise self._failure or error from error  # the session of a planner that has failed is closed
        self._leased_again.extend(files)
        return chunk.with_files(tuple(file._replace(until=until[file.piece]) for file in files))

    def forget_failure(self) -> None:
        """The trainer has been told; whoever else still asks finds it closed."""
        with self._condition:
            if self._failure is not None:
                self._failure = Closed()

    def delivered(self, end: StepEnd) -> None:
        """A step is with the trainer."""
        self._delivered = end.epoch * self._samples + end.position
        self._handed += 1
        # The planner says that it waits before it looks whether it must: one of the two sees the other.
        if self._is_waiting and self._wakes():
            with self._condition:
                self._condition.notify_all()

    def _wakes(self) -> bool:
        depth = self._depth
        has_room = self._planned - self._handed + depth.chunk_steps <= depth.steps
        return has_room or self._is_tight or self._holdings.next_end <= self._delivered

    def is_closed(self) -> bool:
        """True once it was closed."""
        return self._closing

    @property
    def thread(self) -> int | None:
        """The identity of the planner's thread, once it runs."""
        return self._thread.ident

    def asking(self) -> Asking | None:
        """The oldest of the calls to the daemon that are under way. Any thread."""
        return self._questions.oldest()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Ends the thread and the session. Idempotent."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._session is not None:
            self._session.interrupt()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            with self._questions.asking("a session"):
                session = self._connect()
            self._session = WatchedLeases(session, self._questions)
            for chunk in self._chunks(self._session):
                self._put(chunk, self._session)
        except Closed:
            pass
        except BaseException as error:
            with self._condition:
                self._failure = error
                self._condition.notify_all()
        finally:
            if self._session is not None:
                self._session.close()

    def _put(self, chunk: Chunk, session: Leases) -> None:
        steps = len(chunk.ends)
        while True:
            with self._condition:
                self._wait(lambda: self._has_work(steps))
                if self._closing:
                    raise Closed
                room = self._has_room(steps)
                if room:
                    self._planned += steps
                    self._ready.append(chunk)
                    self._condition.notify_all()
            self._keep_in_touch(session)
            if room:
                return

    @property
    def _outstanding(self) -> int:
        """Steps that are planned and not with the trainer."""
        return self._planned - self._handed

    def _wait(self, predicate: Callable[[], bool]) -> None:
        """Waits for the trainer, at most until the next heartbeat. With the condition held."""
        self._is_waiting = True
        self._condition.wait_for(predicate, HEARTBEAT_SECONDS)
        self._is_waiting = False

    def _has_work(self, steps: int) -> bool:
        return self._closing or self._has_room(steps) or self._holdings.next_end <= self._delivered

    def _has_room(self, steps: int) -> bool:
        return self._outstanding == 0 or self._outstanding + steps <= self._depth.steps

    def _keep_in_touch(self, session: Leases) -> None:
        """Reports the position, gives passed leases back, looks after pieces that take long."""
        position = self._delivered
        passed = self._holdings.passed(position)
        if passed:
            session.release(passed)
        now = time.monotonic()
        if now - self._reported_at < HEARTBEAT_SECONDS:
            return
        self._reported_at = now
        session.report(position, self._rate.update(position, now), self._taken())
        waiting = self._holdings.still_pending()
        if waiting:
            self._holdings.take(session.lease(waiting))

    def _chunks(self, session: Leases) -> Iterator[Chunk]:
        epoch, position = self._start
        steps = 1
        while True:
            needs = self._order.needs(epoch, position)
            bounds = Bounds(needs, epoch * self._order.samples)
            is_published = False
            while position < self._order.samples:
                if self._closing:
                    raise Closed
                block = self._order.plan(epoch, position, self._block_steps(steps))
                if block.steps == 0:
                    break
                for chunk in self._cut(session, epoch, position, block, bounds):
                    yield chunk
                    if not is_published:
                        self._publish(session, epoch, needs)
                        is_published = True
                position = int(block.after[-1])
                steps = min(2 * steps, _BLOCK_STEPS)
            if self._ends_with_epoch:
                return
            epoch, position = epoch + 1, 0

    def _block_steps(self, steps: int) -> int:
        return max(1, min(steps, _BLOCK_SAMPLES // rank_samples(self._order)))

    def _publish(self, session: Leases, epoch: int, here: Needs) -> None:
        """This epoch's needs and the next one's. After the first chunk: its pieces are wanted before all others."""
        samples = self._order.samples
        there = self._order.needs(epoch + 1, 0)
        base, following = epoch * samples, (epoch + 1) * samples
        session.publish(
            np.concatenate([here.pieces, there.pieces]),
            np.concatenate([here.first + base, there.first + following]),
            np.concatenate([here.last + base, there.last + following]),
        )

    def _cut(self, session: Leases, epoch: int, position: int, block: RankPlan, bounds: Bounds) -> Iterator[Chunk]:
        """The block's chunks; the pieces of each are leased when its turn comes, not before."""
        ends_of_steps = step_ends(self._order, epoch, position, block)
        self._block_begin = position
        start = 0
        while start < block.steps:
            stop = min(start + self._chunk_steps, block.steps)
            self._chunk_steps = min(2 * self._chunk_steps, self._depth.chunk_steps)
            self._holdings.replace(self._leased_again)
            pieces = self._pieces(block, start, stop)
            if not self._fits(session, pieces):
                stop = start + 1
                pieces = self._pieces(block, start, stop)
                self._await_budget(session, epoch, pieces)
            ends = self._ends(
                session, pieces, bounds.up_to(int(block.after[stop - 1])), self._place(epoch, block, stop)
            )
            missing = self._holdings.missing(pieces, ends)
            if missing:
                self._holdings.take(session.lease(missing))
            arrived = self._arrived(block, start, stop)
            if arrived < stop:
                stop, pieces = arrived, self._pieces(block, start, arrived)
            is_frugal = self._is_frugal(session)
            yield self._chunk(epoch, block, ends_of_steps[start:stop], pieces, start=start, is_frugal=is_frugal)
            start = stop

    def _ends(self, session: Leases, pieces: Sequence[int], bounds: Int64, end: int) -> list[int]:
        """Until which position to hold each piece for a chunk that ends at `end`."""
        if self._is_frugal(session):
            return [end] * len(pieces)
        ends: list[int] = bounds[pieces].tolist()
        return ends

    def _is_frugal(self, session: Leases) -> bool:
        return session.budget_bytes <= self._frugal_bytes

    def _pieces(self, block: RankPlan, start: int, stop: int) -> list[int]:
        """The pieces of these steps, in the order in which they are wanted."""
        if not self._order.has_pieces:
            return []
        wanted = block.piece[block.offsets[start] : block.offsets[stop]]
        pieces, first = np.unique(wanted, return_index=True)
        in_order: list[int] = pieces[np.argsort(first)].tolist()
        return in_order

    def _fits(self, session: Leases, pieces: Sequence[int]) -> bool:
        return self._holdings.bytes_with(pieces) <= session.budget_bytes

    def _await_budget(self, session: Leases, epoch: int, pieces: Sequence[int]) -> None:
        """Where the cache is small, a step is leased when it fits beside what is held, or when it is the very next."""
        self._is_tight = True
        while (outstanding := self._outstanding) and not self._fits(session, pieces):
            with self._condition:
                self._wait(lambda: self._has_moved(outstanding))
                if self._closing:
                    raise Closed
            self._keep_in_touch(session)
        self._is_tight = False
        if not self._fits(session, pieces):
            self._exceed_budget(session, epoch, pieces)

    def _exceed_budget(self, session: Leases, epoch: int, pieces: Sequence[int]) -> None:
        """No step is under way, and the next one does not fit beside what is held for later ones."""
        budget = session.budget_bytes
        self._on_small_cache(epoch, budget, self._holdings.growth)
        if self._holdings.bytes_with(pieces) > budget + budget // 2 and not self._is_frugal(session):
            self._frugal_bytes = budget
            self._holdings.shorten(self._delivered)
            self._keep_in_touch(session)

    def _has_moved(self, outstanding: int) -> bool:
        return self._closing or self._outstanding < outstanding or self._holdings.next_end <= self._delivered

    def _arrived(self, block: RankPlan, start: int, stop: int) -> int:
        """Where to end: a step whose pieces have not all arrived is not read together with one before it."""
        if not self._holdings.has_pending:
            return stop
        for step in range(start + 1, stop):
            if self._holdings.any_pending(self._pieces(block, step, step + 1)):
                return step
        return stop

    def _chunk(
        self,
        epoch: int,
        block: RankPlan,
        ends: Sequence[StepEnd],
        pieces: Sequence[int],
        *,
        start: int,
        is_frugal: bool,
    ) -> Chunk:
        stop = start + len(ends)
        cut = slice(int(block.offsets[start]), int(block.offsets[stop]))
        return Chunk(
            epoch=epoch,
            offsets=block.offsets[start : stop + 1] - cut.start,
            sample_id=block.sample_id[cut],
            piece=block.piece[cut],
            row=block.row[cut],
            position=block.position[cut],
            is_pad=block.is_pad[cut],
            ends=tuple(ends),
            files=self._holdings.files(pieces),
            begin=self._place(epoch, block, start),
            end=self._place(epoch, block, stop),
            source=None if block.source is None else block.source[cut],
            source_epoch=None if block.source_epoch is None else block.source_epoch[cut],
            is_frugal=is_frugal,
        )

    def _place(self, epoch: int, block: RankPlan, steps: int) -> int:
        """The position over all epochs after so many steps of the block."""
        after = int(block.after[steps - 1]) if steps else self._block_begin
        return epoch * self._order.samples + after


class _Rate:
    """Positions per second, smoothed over some ten seconds."""

    def __init__(self, position: int) -> None:
        self._position, self._at, self._rate = position, time.monotonic(), 0.0

    def update(self, position: int, now: float) -> float:
        elapsed = now - self._at
        if elapsed > 0:
            measured = max(0.0, (position - self._position) / elapsed)
            weight = min(1.0, elapsed / 10.0) if self._rate else 1.0
            self._rate += weight * (measured - self._rate)
            self._position, self._at = position, now
        return self._rate
