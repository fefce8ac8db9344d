"""Where a local layout's bytes go: into a temp file, for which there is room before they are written.

Called on a fill's writing thread, which waits there while the event loop finds more room; `stop` is for the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial

from forebay_core.errors import ForebayError, InternalError
from forebay_core.formats.base import Buffer, Localiser
from forebay_server.cache.capacity import Reservation
from forebay_server.disk.blocks import room_for
from forebay_server.disk.temp_file import TempFile
from forebay_server.filling.fill import Fill

#: How much a reservation grows beyond what is written, so that the writing thread seldom has to ask.
_SPARE_BYTES = 8 << 20


class Sink:
    """Takes a local layout's bytes on the writing thread, and sees to it that there is room before they are written."""

    def __init__(self, fill: Fill, reservation: Reservation, loop: asyncio.AbstractEventLoop) -> None:
        self.temp: TempFile | None = None
        self._fill = fill
        self._reservation = reservation
        self._loop = loop
        self._asking: Future[None] | None = None
        self._is_stopped = False
        #: Why the disk did not take the bytes.
        self.failure: OSError | None = None
        self.written_bytes = 0
        self.writing_seconds = 0.0

    def __call__(self, chunk: Buffer) -> None:
        if self.temp is None:
            raise InternalError(f"{self._fill.name}: the format wrote before it was given any bytes")
        if self._is_stopped:
            raise CancelledError
        total = room_for(self.temp.size + memoryview(chunk).nbytes)
        try:
            if total > self._reservation.bytes:
                self._ask(total)
            self._timed(self.temp, partial(self.temp.write, chunk))
        except OSError as error:
            if not isinstance(error, ForebayError):
                self.failure = error
            raise

    def finish(self, localiser: Localiser) -> int:
        """Writes what is left, and returns what the file takes on the disk as a piece, in bytes."""
        localiser.finish()
        if self.temp is None:
            raise InternalError(f"{self._fill.name}: the format finished before it was given any bytes")
        try:
            self._timed(self.temp, self.temp.flush)
            return self.temp.blocks()
        except OSError as error:
            self.failure = error
            raise

    def _timed(self, temp: TempFile, write: Callable[[], None]) -> None:
        before, begun = temp.written, time.perf_counter()
        write()
        if temp.written > before:
            self.written_bytes += temp.written - before
            self.writing_seconds += time.perf_counter() - begun
        self._reservation.written = temp.written

    def stop(self) -> None:
        """Ends a wait for room, and the work at its next write; called on the event loop when the fill is cancelled."""
        self._is_stopped = True
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self, total: int) -> None:
        self._asking = asyncio.run_coroutine_threadsafe(
            self._fill.cache.room.reserve(self._reservation, total, self._fill, spare=_SPARE_BYTES), self._loop
        )
        if self._is_stopped:
            self._asking.cancel()
        self._asking.result()
