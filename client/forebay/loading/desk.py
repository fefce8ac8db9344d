"""A few numbers that the trainer and one worker process share, so that each sees what the other is at without asking.

The trainer writes from which chunk on the worker's reading is wanted; the worker writes which chunk and sample it is
reading, so that a worker that hangs or dies can be described. Anonymous memory (memfd); each number has one writer.
"""

import mmap
import os
from typing import NamedTuple

import numpy as np

from forebay_core.mapping import map_shared

NO_SAMPLE = -1


class Entry(NamedTuple):
    """What a worker said last: the chunk's number and the sample's id, `NO_SAMPLE` where none is in a transform."""

    chunk: int
    sample: int


class Desk:
    """Made in the trainer; in the worker opened over the same file."""

    def __init__(self, file: int | None = None) -> None:
        if file is None:
            file = os.memfd_create("forebay-desk")
            os.ftruncate(file, mmap.PAGESIZE)
        self.file = file
        self._numbers = np.frombuffer(map_shared(file, mmap.PAGESIZE), dtype=np.int64)

    def want_from(self, chunk: int) -> None:
        """Chunks of smaller numbers are not wanted any more."""
        self._numbers[0] = chunk

    def is_wanted(self, chunk: int) -> bool:
        """Whether a chunk is still wanted."""
        return chunk >= int(self._numbers[0])

    def begin(self, chunk: int, sample: int = NO_SAMPLE) -> None:
        """The worker reads this now."""
        self._numbers[1], self._numbers[2] = chunk, sample

    def reading(self) -> Entry:
        """What the worker reads, or read last."""
        return Entry(int(self._numbers[1]), int(self._numbers[2]))

    def close(self) -> None:
        """Closes the file; the memory goes with the object."""
        os.close(self.file)
