"""One loader's running machinery: a planner over its leases, and a delivery that reads what it plans.

It runs on over the epochs' borders, so the first batch of a later epoch is there as soon as any other; it is started
again only where the trainer goes somewhere else than straight on, or where a sampler says anew what an epoch is. All
methods are called by the trainer's thread; what runs beside it are the planner's thread and the readers.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay.loading.chunk import Batch, Closed, Int64
from forebay.loading.delivery import Delivery
from forebay.loading.leases import Leases
from forebay.loading.lookahead import Depth, Lookahead, OnSmallCache
from forebay.loading.stall_watch import StallWatch
from forebay.loading.trainer_log import TrainerLog
from forebay.loading.waits import Names, NoNames, explain
from forebay.order import RankOrder
from forebay.timing import BatchTiming, time_batch
from forebay_core.errors import StateError


@dataclass(frozen=True)
class Feed:
    """What an engine reads from: an order, and where its pieces come from.

    connect: opens the session, on the planner's thread.
    piece_bytes: int64 [pieces], how large each piece is, as the manifest states it; empty for an order without pieces.
    names: what a warning calls the pieces, and the daemon's own word.
    ends_with_epoch: the next epoch is only known when the trainer begins it, so nothing is planned beyond its border.
    note: what the log says when reading begins, if anything.
    on_small_cache: told when the cache has no room for what the order mixes; see `Lookahead`.
    """

    order: RankOrder
    connect: Callable[[], Leases]
    piece_bytes: Int64
    names: Names = field(default_factory=NoNames)
    ends_with_epoch: bool = False
    note: str = ""
    on_small_cache: OnSmallCache = lambda *_: None


class Engine:
    """Batches in order from anywhere."""

    def __init__(
        self, feed: Feed, delivery: Delivery, depth: Depth, *, stall_warning_seconds: float | None = None
    ) -> None:
        self._feed, self._delivery, self._depth = feed, delivery, depth
        why = weakref.WeakMethod(self._why)  # no cycle: what has been read is let go of with the last reference
        self._watch = StallWatch(stall_warning_seconds, lambda: found() if (found := why()) else "nothing any more")
        self._log = TrainerLog()
        self._lookahead: Lookahead | None = None
        self._next: tuple[int, int] | None = None
        self._has_failed = False

    def seek(self, epoch: int, position: int) -> None:
        """The next batch is the one at this place. Costs nothing where that is so already."""
        if self._next == (epoch, position) and not self._has_failed and not self._feed.ends_with_epoch:
            return
        self._stop()
        self._log = TrainerLog()
        self._lookahead = Lookahead(
            self._feed.order,
            self._feed.connect,
            taken=self._log.taken,
            piece_bytes=self._feed.piece_bytes,
            start=(epoch, position),
            depth=self._depth,
            ends_with_epoch=self._feed.ends_with_epoch,
            on_small_cache=self._feed.on_small_cache,
        )
        self._delivery.start(self._lookahead)
        self._lookahead.start()
        self._watch.start()
        self._next = (epoch, position)

    def next(self) -> tuple[Batch, BatchTiming]:
        """The next batch, and how long the trainer was blocked for it.

        After an error nothing is handed out until `seek` starts anew. The error is kept by who asked, and not here: it
        leads to the frames it went through, and so to the loader, which must end with its last reference.
        """
        lookahead, watch = self._lookahead, self._watch
        assert lookahead is not None
        assert not self._has_failed
        blocked_from = watch.blocked_from = time.monotonic()
        self._log.waits(blocked_from)
        try:
            batch = self._delivery.next()
        except BaseException as error:
            self._log.took(time.monotonic(), 0)
            watch.blocked_from, watch.has_warned = None, False
            self._has_failed = True
            lookahead.forget_failure()
            if (said := lasting(error)) is error:
                raise
            raise said from error
        blocked_until = time.monotonic()
        self._log.took(blocked_until, batch.samples)
        watch.blocked_from = None
        if watch.has_warned:
            watch.went_on(blocked_until - blocked_from)
        lookahead.delivered(batch.end)
        self._next = (batch.end.epoch, batch.end.position)
        timing = time_batch(
            batch.stages, blocked_from, blocked_until, step=batch.end.step, samples=batch.samples, at=time.time()
        )
        return batch, timing

    def close(self) -> None:
        """Ends the session, the threads and the workers. Idempotent."""
        self._stop()
        self._delivery.close()
        self._watch.close()

    def _why(self) -> str:
        """What the next batch waits for; on the watch's thread."""
        lookahead, at = self._lookahead, self._next
        if lookahead is None or at is None:
            return "the loader is being closed"
        why = explain(self._delivery.reading(), lookahead, self._feed.names)
        return f"the batch at epoch {at[0]}, position {at[1]}: {why}"

    def _stop(self) -> None:
        self._next, self._has_failed = None, False
        if self._lookahead is not None:
            self._lookahead.close()
            self._lookahead = None


def lasting(error: BaseException) -> BaseException:
    """What a trainer that asks again is told."""
    if isinstance(error, StopIteration | Closed):
        return StateError("the loader was closed while it was iterated: iterate it again")
    return error
