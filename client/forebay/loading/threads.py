"""Reads in several threads of this process: for transforms that let the GIL go, such as image decoding."""

import threading
from collections import deque

from forebay.loading.chunk import Batch, Chunk, Closed
from forebay.loading.delivery import leased
from forebay.loading.lookahead import Lookahead
from forebay.loading.reader import Reader, ReaderSpec
from forebay.loading.waits import Reading, whereabouts


class ThreadDelivery:
    """Reads in several threads of this process. A planner gets threads of its own, which end with it."""

    def __init__(self, spec: ReaderSpec, *, threads: int, pin: bool) -> None:
        self._spec, self._count, self._pin = spec, threads, pin
        self._readers: _Readers | None = None
        self._batches: deque[Batch] = deque()

    def start(self, lookahead: Lookahead) -> None:
        self.close()
        self._readers = _Readers(self._spec.located(), lookahead, self._count, self._pin)

    def next(self) -> Batch:
        while not self._batches:
            assert self._readers is not None
            self._batches.extend(self._readers.next())
        return self._batches.popleft()

    def is_ready(self) -> bool:
        return bool(self._batches) or (self._readers is not None and self._readers.is_ready())

    def reading(self) -> Reading:
        return Reading(None, "nobody") if self._readers is None else self._readers.reading()

    def close(self) -> None:
        self._batches.clear()
        if self._readers is not None:
            self._readers.close()
            self._readers = None


class _Readers:
    """Reader threads over one planner. Thread i reads chunks i, i + n, …; `_condition` guards the rest."""

    def __init__(self, spec: ReaderSpec, lookahead: Lookahead, count: int, pin: bool) -> None:
        self._spec, self._lookahead, self._count, self._pin = spec, lookahead, count, pin
        self._condition = threading.Condition()
        self._pulled = 0
        self._taken = 0
        self._results: dict[int, list[Batch] | BaseException] = {}
        self._closing = False
        #: What each thread reads, or read last, and the number of that chunk.
        self._chunks: dict[int, tuple[int, Chunk]] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"forebay-reader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def next(self) -> list[Batch]:
        with self._condition:
            self._condition.wait_for(lambda: self._taken in self._results)
            result = self._results.pop(self._taken)
        if isinstance(result, BaseException):
            raise result
        self._taken += 1
        return result

    def is_ready(self) -> bool:
        return self._taken in self._results

    def reading(self) -> Reading:
        number = self._taken % self._count
        sequence, chunk = self._chunks.get(number, (None, None))
        thread = self._threads[number]
        return Reading(chunk if sequence == self._taken else None, f"thread {thread.name}, {whereabouts(thread.ident)}")

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _run(self, number: int) -> None:
        reader = None
        sequence = number
        try:
            reader = self._spec.reader(is_closed=self._lookahead.is_closed)
            while True:
                chunk = self._pull(sequence)
                self._chunks[number] = sequence, chunk
                self._hand_in(sequence, self._read(reader, chunk))
                sequence += self._count
        except Closed:
            pass
        except BaseException as error:
            self._hand_in(sequence, error)
        finally:
            if reader is not None:
                reader.close()

    def _pull(self, sequence: int) -> Chunk:
        """The chunk of this number; the planner is asked by one thread at a time, in turn."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._pulled == sequence)
            if self._closing:
                raise Closed
        try:
            return self._lookahead.next_chunk()
        finally:
            with self._condition:
                self._pulled += 1
                self._condition.notify_all()

    def _read(self, reader: Reader, chunk: Chunk) -> list[Batch]:
        batches = list(leased(reader, chunk, self._lookahead))
        return [batch.pin_memory() for batch in batches] if self._pin else batches

    def _hand_in(self, sequence: int, result: list[Batch] | BaseException) -> None:
        with self._condition:
            self._results[sequence] = result
            self._condition.notify_all()
