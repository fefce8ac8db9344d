"""Reads in this process: ahead of the trainer in a thread, and in the trainer's own where it comes too early.

Handing a batch from one thread to another costs more than to gather it. So a trainer that waits for nothing else reads
the next batch itself, and the thread keeps out of its way; while the trainer is busy, the thread reads ahead.
"""

import threading
import time
from collections import deque
from collections.abc import Generator

from forebay.loading.chunk import Batch, Chunk, Closed
from forebay.loading.delivery import leased
from forebay.loading.lookahead import Lookahead
from forebay.loading.reader import ReaderSpec
from forebay.loading.waits import Reading, whereabouts

#: How often the thread looks whether the trainer has left it something to do.
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.016
_CLOSE_SECONDS = 10.0


class AheadDelivery:
    """One reader, used by the thread and by the trainer in turn; a planner gets one of its own, which ends with it.

    `ahead=False` leaves all to the trainer's thread, for what must not be called on another.
    """

    def __init__(self, spec: ReaderSpec, *, pin: bool, ahead: bool = True) -> None:
        self._spec, self._pin, self._ahead = spec, pin, ahead
        self._stretch: _Stretch | None = None

    def start(self, lookahead: Lookahead) -> None:
        self.close()
        self._stretch = _Stretch(self._spec.located(), lookahead, pin=self._pin, ahead=self._ahead)

    def next(self) -> Batch:
        assert self._stretch is not None
        return self._stretch.next()

    def is_ready(self) -> bool:
        return self._stretch is not None and self._stretch.is_ready()

    def reading(self) -> Reading:
        return Reading(None, "nobody") if self._stretch is None else self._stretch.reading()

    def close(self) -> None:
        if self._stretch is not None:
            self._stretch.close()
            self._stretch = None


class _Stretch:
    """The batches of one planner. `_producing` is held by whoever reads; only the trainer takes from `_ready`."""

    def __init__(self, spec: ReaderSpec, lookahead: Lookahead, *, pin: bool, ahead: bool) -> None:
        self._spec, self._lookahead, self._pin = spec, lookahead, pin
        self._ready: deque[Batch | BaseException] = deque()
        self._producing = threading.Lock()
        self._trainer_waits = False
        #: The thread that reads, or read last, and what.
        self._by: int | None = None
        self._chunk: Chunk | None = None
        self._batches = self._read()
        self._thread: threading.Thread | None = None
        if ahead:
            self._thread = threading.Thread(target=self._run, name="forebay-reader", daemon=True)
            self._thread.start()

    def next(self) -> Batch:
        if not self._ready:
            self._trainer_waits = True
            with self._producing:
                self._trainer_waits = False
                if not self._ready:
                    self._by = threading.get_ident()
                    return next(self._batches)
        batch = self._ready.popleft()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def is_ready(self) -> bool:
        return bool(self._ready)

    def reading(self) -> Reading:
        by, thread = self._by, self._thread
        name = "the reading thread" if thread is not None and by == thread.ident else "the trainer's own thread"
        return Reading(self._chunk, f"{name}, {whereabouts(by)}")

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        if self._producing.acquire(timeout=_CLOSE_SECONDS):
            self._batches.close()
            self._producing.release()

    def _read(self) -> Generator[Batch, None, None]:
        """Every batch that is planned, each read when it is asked for."""
        reader = self._spec.reader(is_closed=self._lookahead.is_closed)
        try:
            while True:
                self._chunk = None
                self._chunk = self._lookahead.next_chunk()
                for batch in leased(reader, self._chunk, self._lookahead):
                    yield batch.pin_memory() if self._pin else batch
        finally:
            reader.close()

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE_SECONDS
        while not self._lookahead.is_closed():
            if self._trainer_waits or not self._producing.acquire(blocking=False):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            try:
                self._by = threading.get_ident()
                self._ready.append(next(self._batches))
                pause = _SHORTEST_PAUSE_SECONDS
            except (Closed, StopIteration):
                return
            except BaseException as error:
                self._ready.append(error)
                return
            finally:
                self._producing.release()
