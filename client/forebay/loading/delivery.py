"""Hands batches to the trainer in order, read by threads of this process or by torch's worker processes.

Chunks go round among the readers, and their batches come back in the same order: so a slow one delays and never
reorders. A chunk whose files are gone is leased and read again; a failure is raised where its batch would have been.

`start`, `next` and `close` are called by the trainer's thread.
"""

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from forebay.loading.chunk import Batch, Chunk, Closed, Failed, Lost
from forebay.loading.lookahead import Lookahead
from forebay.loading.open_pieces import StillFilling
from forebay.loading.reader import Reader, ReaderSpec
from forebay_core.errors import PieceGone, by_name

Result = list[Batch] | Lost | Failed
ATTEMPTS = 10
"""How often in a row a chunk's files may be found gone before the loader gives up."""

_TOO_OFTEN = f"this happened more than {ATTEMPTS} times in a row: is something else deleting the cache?"
#: How often the thread looks whether the trainer has left it something to do.
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.016


class Delivery(Protocol):
    """Batches in order."""

    def start(self, lookahead: Lookahead) -> None:
        """Begins to read what this planner plans; what was read before is dropped."""

    def next(self) -> Batch:
        """The next batch. Raises what kept it from being read."""

    def close(self) -> None:
        """Ends all readers. Idempotent."""


@dataclass(frozen=True)
class WorkerOptions:
    """torch's options of worker processes, as its `DataLoader` takes them."""

    num_workers: int
    prefetch_factor: int | None = None
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    pin_memory: bool = False


class AheadDelivery:
    """Reads in this process, ahead of the trainer in a thread, and in the trainer's own where it comes too early.

    Handing a batch from one thread to another costs more than to gather it. So a trainer that waits for nothing else
    reads the next batch itself, and the thread keeps out of its way; while the trainer is busy, the thread reads ahead.
    `_producing` is held by whoever reads; only the trainer takes from `_ready`.
    """

    def __init__(self, spec: ReaderSpec, *, pin: bool) -> None:
        self._spec, self._pin = spec, pin
        self._ready: deque[Batch] = deque()
        self._producing = threading.Lock()
        self._trainer_waits = False
        self._batches: Iterator[Batch] = iter(())
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, lookahead: Lookahead) -> None:
        self.close()
        self._failure = None
        self._batches = _read_all(self._spec, lookahead)
        self._thread = threading.Thread(target=self._run, args=(lookahead,), name="forebay-reader", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        if self._ready:
            return self._ready.popleft()
        self._trainer_waits = True
        with self._producing:
            self._trainer_waits = False
            if self._ready:
                return self._ready.popleft()
            return self._produce()

    def close(self) -> None:
        """The planner has been closed before, which ends every wait."""
        if self._thread is not None:
            self._thread.join(timeout=10.0)
            self._thread = None
        with self._producing:
            self._batches = iter(())
            self._ready.clear()

    def _produce(self) -> Batch:
        """The next batch. A failure is kept: whatever comes after it must not be handed out."""
        if self._failure is not None:
            raise self._failure
        try:
            batch = next(self._batches)
            return batch.pin_memory() if self._pin else batch
        except BaseException as error:
            self._failure = error
            raise

    def _run(self, lookahead: Lookahead) -> None:
        pause = _SHORTEST_PAUSE_SECONDS
        while not lookahead.is_closed() and self._failure is None:
            if self._trainer_waits or not self._producing.acquire(blocking=False):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            try:
                self._ready.append(self._produce())
                pause = _SHORTEST_PAUSE_SECONDS
            except BaseException:
                return
            finally:
                self._producing.release()


def _read_all(spec: ReaderSpec, lookahead: Lookahead) -> Iterator[Batch]:
    """Every batch that is planned, each read when it is asked for."""
    reader = Reader(spec, is_closed=lookahead.is_closed)
    try:
        while True:
            yield from _leased(reader, lookahead.next_chunk(), lookahead)
    finally:
        reader.close()


def _leased(reader: Reader, chunk: Chunk, lookahead: Lookahead) -> Iterator[Batch]:
    """The chunk's batches, leased anew as long as its files go."""
    gone = 0
    while True:
        try:
            yield from reader.batches(chunk)
        except PieceGone as error:
            gone = 0 if isinstance(error, StillFilling) else gone + 1
            if gone > ATTEMPTS:
                raise PieceGone(f"{error}; {_TOO_OFTEN}") from error
            chunk = lookahead.lease_again(chunk)
        else:
            return


class ThreadDelivery:
    """Reads in several threads of this process. A planner gets threads of its own, which end with it."""

    def __init__(self, spec: ReaderSpec, *, threads: int, pin: bool) -> None:
        self._spec, self._count, self._pin = spec, threads, pin
        self._crew: _Crew | None = None
        self._batches: deque[Batch] = deque()

    def start(self, lookahead: Lookahead) -> None:
        self.close()
        self._crew = _Crew(self._spec, lookahead, self._count, self._pin)

    def next(self) -> Batch:
        while not self._batches:
            assert self._crew is not None
            self._batches.extend(self._crew.next())
        return self._batches.popleft()

    def close(self) -> None:
        self._batches.clear()
        if self._crew is not None:
            self._crew.close()
            self._crew = None


class _Crew:
    """Reader threads over one planner. Thread i reads chunks i, i + n, …; `_condition` guards the rest."""

    def __init__(self, spec: ReaderSpec, lookahead: Lookahead, count: int, pin: bool) -> None:
        self._spec, self._lookahead, self._count, self._pin = spec, lookahead, count, pin
        self._condition = threading.Condition()
        self._pulled = 0
        self._taken = 0
        self._results: dict[int, list[Batch] | BaseException] = {}
        self._closing = False
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
                self._results[self._taken] = result
                raise result
            self._taken += 1
            return result

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
            reader = Reader(self._spec, is_closed=self._lookahead.is_closed)
            while True:
                chunk = self._pull(sequence)
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
        batches = list(_leased(reader, chunk, self._lookahead))
        return [batch.pin_memory() for batch in batches] if self._pin else batches

    def _hand_in(self, sequence: int, result: list[Batch] | BaseException) -> None:
        with self._condition:
            self._results[sequence] = result
            self._condition.notify_all()


def settle(result: Result, reader: Callable[[], Reader], lookahead: Lookahead) -> list[Batch]:
    """The batches of a result, read here again by `reader` where its files were gone."""
    gone = 0
    while not isinstance(result, list):
        if isinstance(result, Failed):
            raise by_name(result.error)(result.message)
        gone = gone + 1 if result.gone else 0
        if gone > ATTEMPTS:
            raise PieceGone(f"{result.message}; {_TOO_OFTEN}")
        result = reader().read(lookahead.lease_again(result.chunk))
    return result


class ProcessDelivery:
    """Reads in torch's worker processes, which live as long as this object."""

    def __init__(self, spec: ReaderSpec, options: WorkerOptions) -> None:
        self._spec = spec
        self._plans = _Plans()
        self._own: Reader | None = None
        self._batches: deque[Batch] = deque()
        self._loader = self._make_loader(options)
        self._results: Iterator[Result] | None = None

    def start(self, lookahead: Lookahead) -> None:
        self._batches.clear()
        self._plans.lookahead = lookahead
        self._results = iter(self._loader)

    def next(self) -> Batch:
        while not self._batches:
            assert self._results is not None
            assert self._plans.lookahead is not None
            self._batches.extend(settle(next(self._results), self._reader, self._plans.lookahead))
        return self._batches.popleft()

    def close(self) -> None:
        self._batches.clear()
        if self._own is not None:
            self._own.close()
            self._own = None
        iterator, self._results = self._results, None
        self._loader._iterator = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _make_loader(self, options: WorkerOptions) -> DataLoader[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # said by the user's own loader
            return DataLoader(
                _Chunks(self._spec),
                batch_size=None,
                sampler=self._plans,
                num_workers=options.num_workers,
                collate_fn=_as_it_is,
                pin_memory=options.pin_memory,
                timeout=options.timeout,
                worker_init_fn=options.worker_init_fn,
                multiprocessing_context=options.multiprocessing_context,
                generator=options.generator,
                prefetch_factor=options.prefetch_factor,
                persistent_workers=True,
            )

    def _reader(self) -> Reader:
        """Of the trainer's process, for what a worker could not read."""
        if self._own is None:
            self._own = Reader(self._spec)
        return self._own


class _Plans(Sampler[Chunk]):
    """What torch takes for a sampler: it yields chunks, the indices of `_Chunks`."""

    def __init__(self) -> None:
        self.lookahead: Lookahead | None = None

    def __iter__(self) -> Iterator[Chunk]:
        assert self.lookahead is not None
        while True:
            try:
                yield self.lookahead.next_chunk()
            except Closed:
                return


class _Chunks(Dataset[Result]):
    """What torch takes for a map-style dataset. Its reader is made in the worker that first reads."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._reader: Reader | None = None

    def __getitem__(self, chunk: Chunk) -> Result:
        if self._reader is None:
            self._reader = Reader(self._spec)
        return self._reader.read(chunk)

    def __len__(self) -> int:
        return 2**62

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_reader": None}


def _as_it_is(result: Result) -> Result:
    return result
