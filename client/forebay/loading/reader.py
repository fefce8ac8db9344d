"""The contract of whoever turns chunks into batches, and how what a reader cannot read crosses processes.

A `ReaderSpec` is picklable and says all that a reader needs, wherever it runs; each reader thread or worker process
makes its own `Reader` there. What a batch contains follows from the chunk alone.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from forebay.loading.chunk import Batch, Chunk, Failed, Lost, StillFilling
from forebay_core.errors import ForebayError, PieceGone


class Reader(Protocol):
    """Not for several threads at once."""

    def batches(self, chunk: Chunk) -> Iterator[Batch]:
        """The chunk's batches, step after step, each read when asked for.

        `PieceGone` and `StillFilling` only come before the first. What the user's own code raises passes as it is.
        """

    def close(self) -> None:
        """Lets go of everything."""


class ReaderSpec(Protocol):
    """Makes readers."""

    @property
    def seed(self) -> int:
        """Of the samples' random numbers."""

    def place(self, piece: int, row: int) -> str:
        """In words, where a sample of a chunk lies."""

    def located(self) -> "ReaderSpec":
        """The same with its files where they are by now, fit to be sent to other processes.

        Called in the trainer's process, each time before readers are made.
        """

    def reader(self, *, is_closed: Callable[[], bool] = lambda: False) -> Reader:
        """A reader for this thread; `is_closed` ends its waits."""


def read(reader: Reader, chunk: Chunk) -> list[Batch] | Lost | Failed:
    """All batches of a chunk; forebay's own errors come back as values, so that they cross processes."""
    try:
        return list(reader.batches(chunk))
    except PieceGone as error:
        return Lost(chunk, str(error), gone=True, unreadable=error.unreadable)
    except StillFilling as error:
        return Lost(chunk, str(error), gone=False)
    except ForebayError as error:
        return Failed.of(error)
