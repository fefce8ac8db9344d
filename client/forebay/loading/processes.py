"""Reads in worker processes: for transforms that hold the GIL.

The processes are our own and not those of torch's loader: its workers share one pipe, so that one that is killed can
hang them all, cannot be replaced, and raises in the middle of whatever the trainer is doing; they pass tensors through
names in /dev/shm and sockets in temporary directories; and torch asks for the next chunk inside its own `next()`. What
users know of torch's workers holds: their options, `get_worker_info()`, and that an error keeps its class.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from forebay.loading.chunk import Batch, Closed, Failed, Lost
from forebay.loading.crew import Crew, Task
from forebay.loading.delivery import check_gone
from forebay.loading.lookahead import Lookahead
from forebay.loading.raised import Raised
from forebay.loading.reader import ReaderSpec
from forebay.loading.start_methods import context_for
from forebay.loading.waits import Reading
from forebay.loading.workers import Assignment, Result
from forebay.order.philox import seed_digest
from forebay_core.errors import WorkerError

_PREFETCH_FACTOR = 2
"""torch's, for each worker, where none is given."""
_FEED_SECONDS = 0.02
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerOptions:
    """torch's options of worker processes, as its `DataLoader` takes them.

    dataset: what `get_worker_info().dataset` is in a worker. `generator` is asked for its seed and never advanced.
    pin: called with each batch that comes back, on a thread of its own.
    """

    num_workers: int
    prefetch_factor: int | None = None
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    pin: Callable[[Batch], Batch] | None = None
    dataset: Any = None

    @property
    def prefetched(self) -> int:
        """Batches that all workers together have under way."""
        return (self.prefetch_factor or _PREFETCH_FACTOR) * self.num_workers


class ProcessDelivery:
    """Worker processes that live as long as this object. Chunks go to whoever has the least to do."""

    def __init__(self, spec: ReaderSpec, options: WorkerOptions) -> None:
        self._spec, self._options = spec, options
        self._most_tasks = options.prefetched
        self._batches: deque[Batch] = deque()
        #: In the order of the batches. Those that have come back stay until it is their turn.
        self._tasks: dict[int, Task] = {}
        self._number = 0
        self._crew: Crew | None = None
        self._pinner: ThreadPoolExecutor | None = None

    def start(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead
        self._batches.clear()
        self._tasks.clear()
        if self._crew is not None and not self._crew.is_sound:
            self.close()
        if self._crew is None:
            self._crew = Crew(context_for(self._options.multiprocessing_context), self._assignments())
        self._crew.want_from(self._number)

    def next(self) -> Batch:
        try:
            while not self._batches:
                self._advance()
            self._feed()
            self._receive(0)
        except WorkerError:
            self.close()
            raise
        return self._batches.popleft()

    def is_ready(self) -> bool:
        if self._batches or self._crew is None:
            return bool(self._batches)
        self._receive(0)
        return bool(self._tasks) and next(iter(self._tasks.values())).result is not None

    def reading(self) -> Reading:
        first = next(iter(list(self._tasks.values())), None)
        if first is None or self._crew is None:
            return Reading(None, "nobody")
        return Reading(first.chunk, self._crew.stuck(first))

    def close(self) -> None:
        self._batches.clear()
        self._tasks.clear()
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()
        if self._pinner is not None:
            self._pinner.shutdown()
            self._pinner = None

    def _assignments(self) -> list[Assignment]:
        options = self._options
        spec = self._spec.located()
        seed = seed_digest(self._spec.seed) >> 1 if options.generator is None else options.generator.initial_seed()
        return [
            Assignment(spec, number, options.num_workers, seed + number, options.dataset, options.worker_init_fn)
            for number in range(options.num_workers)
        ]

    def _feed(self) -> None:
        """Hands out what is planned, as far as there is room for it."""
        assert self._crew is not None
        while len(self._tasks) < self._most_tasks:
            chunk = self._lookahead.take_ready()
            if chunk is None:
                return
            task = self._tasks[self._number] = Task(self._number, chunk)
            self._number += 1
            self._crew.send(task)

    def _advance(self) -> None:
        """Waits for the next batches and takes them."""
        self._feed()
        if not self._tasks:
            self._lookahead.await_chunk()
            return
        first = next(iter(self._tasks.values()))
        self._await(first)
        del self._tasks[first.number]
        self._batches.extend(_batches(first.result))

    def _await(self, first: Task) -> None:
        assert self._crew is not None
        begun = time.monotonic()
        while first.result is None:
            if self._lookahead.is_closed():
                raise Closed
            self._receive(self._patience(begun))
            if first.result is None and 0 < self._options.timeout <= time.monotonic() - begun:
                raise WorkerError(
                    f"no batch came within timeout={self._options.timeout:g} s: it is with {self._crew.stuck(first)}; "
                    f"give more time, or look what the transform waits for there"
                )
            self._feed()

    def _receive(self, seconds: float) -> None:
        assert self._crew is not None
        for task, result in self._crew.receive(seconds):
            self._take(task, result)

    def _patience(self, begun: float) -> float:
        """How long to wait for workers before looking at something else."""
        most = _LOOK_SECONDS if len(self._tasks) >= self._most_tasks else _FEED_SECONDS
        if self._options.timeout == 0:
            return most
        return max(0.0, min(most, begun + self._options.timeout - time.monotonic()))

    def _pinned(self, result: Result) -> Result | Future[list[Batch]]:
        pin = self._options.pin
        if pin is None or not isinstance(result, list):
            return result
        if self._pinner is None:
            self._pinner = _pinner()
        return self._pinner.submit(lambda: [pin(batch) for batch in result])

    def _take(self, task: Task, result: Result) -> None:
        """Keeps a result until it is its turn; where a worker found files gone, it reads them again elsewhere."""
        assert self._crew is not None
        if not isinstance(result, Lost):
            task.result = self._pinned(result)
            return
        task.gone = task.gone + 1 if result.gone else 0
        check_gone(task.gone, result.message)
        task.chunk = self._lookahead.lease_again(result.chunk, result.unreadable)
        self._crew.send(task)


def _pinner() -> ThreadPoolExecutor:
    """One thread, on the device of the thread that is calling."""
    if not torch.accelerator.is_available():
        return ThreadPoolExecutor(1, "forebay-pin")
    device = torch.accelerator.current_device_index()
    return ThreadPoolExecutor(1, "forebay-pin", torch.accelerator.set_device_index, (device,))


def _batches(result: Result | Future[list[Batch]]) -> list[Batch]:
    """Raises what a worker has raised."""
    if isinstance(result, Future):
        return result.result()
    if isinstance(result, Failed):
        raise result.raised()
    if isinstance(result, Raised):
        result.reraise()
    assert isinstance(result, list)
    return result
