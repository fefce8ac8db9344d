"""The contract of whoever hands batches to the trainer in order, and what its implementations share.

`AheadDelivery` reads in one thread of this process, `ThreadDelivery` in several, `ProcessDelivery` in worker
processes. Chunks go round among the readers, and their batches come back in the same order: so a slow one delays and
never reorders. After an error nothing more is asked of a delivery until it is started anew.
"""

from collections.abc import Iterator
from typing import Protocol

from forebay.loading.chunk import Batch, Chunk, StillFilling
from forebay.loading.lookahead import Lookahead
from forebay.loading.reader import Reader
from forebay.loading.waits import Reading
from forebay_core.errors import DaemonError, PieceGone

ATTEMPTS = 10
"""How often in a row a chunk's files may be found gone before the loader gives up."""


class Delivery(Protocol):
    """Batches in order. All methods but `reading` are called by the trainer's thread."""

    def start(self, lookahead: Lookahead) -> None:
        """Begins to read what this planner will plan; what was read before is dropped. The planner has not started."""

    def next(self) -> Batch:
        """The next batch. Raises what kept it from being read."""

    def is_ready(self) -> bool:
        """Whether `next` would answer at once."""

    def reading(self) -> Reading:
        """Who reads what `next` waits for. Any thread, while `next` waits; only looks."""

    def close(self) -> None:
        """Ends all readers. The planner has been closed before. Idempotent."""


class LeasesAgain(Protocol):
    """Whoever leased a chunk's pieces."""

    def lease_again(self, chunk: Chunk, unreadable: str = "") -> Chunk:
        """The chunk with its pieces leased anew; the file at the path `unreadable` cannot be read."""


def check_gone(times: int, message: str) -> None:
    """Raises `DaemonError` where a chunk's files were found gone more than `ATTEMPTS` times in a row."""
    if times > ATTEMPTS:
        raise DaemonError(f"{message}; this happened {times} times in a row: is something else deleting the cache?")


def leased(reader: Reader, chunk: Chunk, lookahead: LeasesAgain) -> Iterator[Batch]:
    """The chunk's batches, each read when it is asked for; leased anew as long as its files go."""
    gone = 0
    while True:
        unreadable = ""
        try:
            yield from reader.batches(chunk)
        except StillFilling:
            gone = 0
        except PieceGone as error:
            gone += 1
            check_gone(gone, str(error))
            unreadable = error.unreadable
        else:
            return
        chunk = lookahead.lease_again(chunk, unreadable)
