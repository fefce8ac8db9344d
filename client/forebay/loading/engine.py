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
        self._lookahead: Lookahead | None = None
        self._next: tuple[int, int] | None = None
        self._failure: BaseException | None = None

    def seek(self, epoch: int, position: int) -> None:
        """The next batch is the one at this place. Costs nothing where that is so already."""
        if self._next == (epoch, position) and self._failure is None and not self._feed.ends_with_epoch:
            return
        self._stop()
        self._lookahead = Lookahead(
            self._feed.order,
            self._feed.connect,
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

        An error stays: what comes after the batch that it befell is not handed out until `seek` starts anew.
        """
        if self._failure is not None:
            raise self._failure
        assert self._lookahead is not None
        watch = self._watch
        blocked_from = watch.blocked_from = time.monotonic()
        try:
            batch = self._delivery.next()
        except BaseException as error:
            watch.blocked_from, watch.has_warned = None, False
            self._failure = lasting(error)
            if self._failure is error:
                raise
            raise self._failure from error
        blocked_until = time.monotonic()
        watch.blocked_from = None
        if watch.has_warned:
            watch.went_on(blocked_until - blocked_from)
        self._lookahead.delivered(batch.end)
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
        self._next = self._failure = None
        if self._lookahead is not None:
            self._lookahead.close()
            self._lookahead = None


def lasting(error: BaseException) -> BaseException:
    """What a trainer that asks again is told."""
    if isinstance(error, StopIteration | Closed):
        return StateError("the loader was closed while it was iterated: iterate it again")
    return error
