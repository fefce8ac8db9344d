"""Single samples by their number: what `dataset[index]` reads, through the daemon like any others.

Made at the first look-up, with a session and a reader of its own, so it neither moves a position nor waits for a
loader. The pieces that were read last stay mapped, so that neighbouring samples cost no further call; a mapped piece
needs no lease. Any thread; they read in turn.
"""

import threading
import weakref
from typing import Any

import numpy as np

from forebay.loading.chunk import Chunk, PieceFile, StepEnd
from forebay.loading.delivery import leased
from forebay.loading.leases import Leases, tell_unreadable
from forebay.loading.reader import ReaderSpec

KEPT_LOOKUPS = 16
"""For so many look-ups a piece stays mapped: few, since the daemon cannot evict it meanwhile."""


class Lookup:
    """Reads single samples. `spec` is of a reader that hands single samples over. Ends with its owner."""

    def __init__(self, spec: ReaderSpec, leases: Leases, owner: object) -> None:
        self._closed = False
        self._reader = spec.reader(is_closed=lambda: self._closed)
        self._leases = leases
        self._lock = threading.Lock()
        self._files: dict[int, PieceFile] = {}
        self._lookups = 0
        self._end = weakref.finalize(owner, self._finish)

    def sample(self, sample_id: int, piece: int, row: int) -> Any:
        """The sample as a transform returns it in epoch 0. Raises what reading it raises."""
        with self._lock:
            self._lookups += 1
            self._files = {number: file for number, file in self._files.items() if file.until > self._lookups}
            is_mapped = piece in self._files
            file = self._until_later(self._files[piece]) if is_mapped else self._lease(piece)
            try:
                (batch,) = leased(self._reader, _chunk(sample_id, row, file, self._lookups), self)
            except BaseException:
                del self._files[piece]
                raise
            finally:
                if not is_mapped:
                    self._leases.release([piece])
            return batch.data

    def lease_again(self, chunk: Chunk, unreadable: str = "") -> Chunk:
        """The chunk with its piece leased anew."""
        tell_unreadable(self._leases, chunk, unreadable)
        return chunk.with_files(tuple(self._lease(file.piece) for file in chunk.files))

    def close(self) -> None:
        """Ends the session and unmaps everything. Idempotent."""
        self._end()

    def _finish(self) -> None:
        self._closed = True
        self._leases.interrupt()
        with self._lock:
            self._reader.close()
            self._leases.close()

    def _lease(self, piece: int) -> PieceFile:
        (file,) = self._leases.lease([piece])
        return self._until_later(file)

    def _until_later(self, file: PieceFile) -> PieceFile:
        file = self._files[file.piece] = file._replace(until=self._lookups + KEPT_LOOKUPS)
        return file


def _chunk(sample_id: int, row: int, file: PieceFile, at: int) -> Chunk:
    """One step of one sample."""
    return Chunk(
        epoch=0,
        offsets=np.array([0, 1]),
        sample_id=np.array([sample_id]),
        piece=np.array([file.piece]),
        row=np.array([row]),
        position=np.zeros(1, dtype=np.int64),
        is_pad=np.zeros(1, dtype=np.bool_),
        ends=(StepEnd(0, 0, 0, last_of_epoch=False),),
        files=(file,),
        begin=at,
        end=at,
    )
