"""What all transfers of files between this node and the destinations share: memory, turns, and how much at once.

An upload is less urgent than everything that a trainer waits for or will soon: at the gate of its store it comes after
what is fetched ahead. But not for ever: after it has waited for a while it comes before that, and demands alone go
before it. A download is a demand, since a job waits for its checkpoint. On the event loop.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import ByteRange
from forebay_server.checkpoints.destinations.base import Progress
from forebay_server.concurrency import gather_bounded, in_thread
from forebay_server.memory import Memory
from forebay_server.sources.remote import Caller, Received, RemoteStore, Waiter
from forebay_server.sources.retries import READING, RetryPolicy, attempt

MIB = 1 << 20
#: Long enough that a request's latency is a small part of it, short enough to be sent within the time for a stall.
PART_BYTES = 8 * MIB
#: Of S3, for one object.
_MOST_PARTS = 10_000
_PATIENCE_SECONDS = 30.0
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Background:
    """An upload, as it stands now."""

    turn: int
    clock: Callable[[], float]
    asked_at: float
    is_demand: bool = False

    @property
    def before(self) -> float:
        return float("inf") if self.clock() - self.asked_at < _PATIENCE_SECONDS else 0.0


class Transfers:
    """One per daemon."""

    def __init__(self, clock: Callable[[], float], *, parts_at_once: int = 8, part_bytes: int = PART_BYTES) -> None:
        """`parts_at_once`: on their way, over all files together; one more is in memory, so that it is ready."""
        if parts_at_once < 1 or part_bytes < 1:
            raise ConfigurationError(f"uploads need a part at least, not {parts_at_once} of {part_bytes} bytes")
        self.memory = Memory((parts_at_once + 1) * part_bytes)
        self.flight = Memory(parts_at_once * part_bytes)
        self.parts_at_once = parts_at_once
        self.part_bytes = part_bytes
        self._clock = clock
        self._turns = itertools.count()

    def caller(self) -> Caller:
        """Of one upload; those that came first go first."""
        return Background(next(self._turns), self._clock, self._clock())

    def sizes(self, size_bytes: int) -> list[int]:
        """Of the parts of a file."""
        part = max(self.part_bytes, -(-size_bytes // _MOST_PARTS))
        part = -(-part // self.part_bytes) * self.part_bytes
        whole, rest = divmod(size_bytes, part)
        return [part] * whole + [rest] * bool(rest)

    async def receive(
        self,
        store: RemoteStore,
        key: str,
        version: str,
        local: Path,
        *,
        size_bytes: int,
        url: str,
        progress: Progress,
        retries: RetryPolicy = READING,
    ) -> None:
        """Writes one version of an object into a file; nothing is kept after a failure."""
        descriptor = os.open(local, _WRITE, 0o644)
        caller = Waiter(next(self._turns))
        done = 0

        async def part(wanted: ByteRange) -> None:
            nonlocal done
            received: Received = []

            async def go_on() -> None:
                rest = ByteRange(wanted.start + sum(memoryview(chunk).nbytes for chunk in received), wanted.stop)
                await store.read(key, rest, version, received)

            async with self.memory.taken(caller, wanted.length):
                await attempt(store, url, retries, go_on, caller)
                await in_thread(_write, descriptor, received, wanted.start)
            done += wanted.length
            progress(done)

        try:
            starts = range(0, size_bytes, self.part_bytes)
            parts = [ByteRange(start, min(start + self.part_bytes, size_bytes)) for start in starts]
            await gather_bounded(self.parts_at_once, part, parts)
        except BaseException:
            os.unlink(local)  # noqa: PTH108 - one short call
            raise
        finally:
            os.close(descriptor)


def _write(descriptor: int, chunks: Received, offset: int) -> None:
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            count = os.pwrite(descriptor, view, offset)
            view, offset = view[count:], offset + count
