"""Reads in torch's worker processes: for transforms that hold the GIL.

torch's own loader does it, over a sampler of chunks: its processes, pinning, time limits and errors are torch's.
"""

import os
import select
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from forebay.loading.chunk import Batch, Chunk, Failed, Lost
from forebay.loading.delivery import leased
from forebay.loading.lookahead import Lookahead
from forebay.loading.reader import Reader, ReaderSpec, read
from forebay.order.philox import seed_digest
from forebay_core.errors import by_name

Result = list[Batch] | Lost | Failed
"""What comes back for a chunk; an empty list for none."""


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


class ProcessDelivery:
    """Worker processes that live as long as this object."""

    def __init__(self, spec: ReaderSpec, options: WorkerOptions) -> None:
        self._spec = spec
        self._plans = _Plans()
        self._batches: deque[Batch] = deque()
        self._loader = self._make_loader(options)
        self._results: Iterator[Result] | None = None

    def start(self, lookahead: Lookahead) -> None:
        if not self._is_whole():
            self.close()
        self._batches.clear()
        self._plans.lookahead = self._lookahead = lookahead
        self._results = iter(self._loader)

    def next(self) -> Batch:
        assert self._results is not None
        while not self._batches:
            if self._plans.is_idle:
                self._lookahead.await_chunk()
            result = next(self._results)
            if result != []:
                self._plans.under_way -= 1
                self._batches.extend(self._settled(result))
        return self._batches.popleft()

    def close(self) -> None:
        self._batches.clear()
        iterator, self._results = self._results, None
        self._loader._iterator = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _is_whole(self) -> bool:
        """Whether all workers live that there are; torch would go on with a crew of which one has died."""
        workers = getattr(self._results, "_workers", ())
        return all(worker.is_alive() for worker in workers)

    def _make_loader(self, options: WorkerOptions) -> DataLoader[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # said by the user's own loader
            return DataLoader(
                _Chunks(self._spec, os.getpid()),
                batch_size=None,
                sampler=self._plans,
                num_workers=options.num_workers,
                collate_fn=_as_it_is,
                pin_memory=options.pin_memory,
                timeout=options.timeout,
                worker_init_fn=Beginning(options.worker_init_fn),
                multiprocessing_context=options.multiprocessing_context,
                generator=options.generator or generator_of(self._spec.seed),
                prefetch_factor=options.prefetch_factor,
                persistent_workers=True,
            )

    def _settled(self, result: Result) -> list[Batch]:
        """The batches of a result, read here where a worker found files gone. Raises what a worker could not read."""
        if isinstance(result, Failed):
            raise by_name(result.error)(result.message)
        if not isinstance(result, Lost):
            return result
        reader = self._spec.reader()
        try:
            return list(leased(reader, self._lookahead.lease_again(result.chunk), self._lookahead))
        finally:
            reader.close()


class _Plans(Sampler[Chunk | None]):
    """What torch takes for a sampler: it yields chunks, the indices of `_Chunks`, and None where none is ready.

    torch asks for the next one inside its own `next()`, before it hands out the batch that it has. If that waited for
    the planner, which may wait until that batch is handed out, nothing would ever move.
    """

    def __init__(self) -> None:
        self.lookahead: Lookahead | None = None
        #: Chunks that were yielded and whose batches have not come back.
        self.under_way = 0

    @property
    def is_idle(self) -> bool:
        """True where no worker has anything to read."""
        return self.under_way == 0

    def __iter__(self) -> Iterator[Chunk | None]:
        assert self.lookahead is not None
        self.under_way = 0
        while True:
            chunk = self.lookahead.take_ready()
            self.under_way += chunk is not None
            yield chunk


class _Chunks(Dataset[Result]):
    """What torch takes for a map-style dataset. Its reader is made in the worker that first reads.

    To the user's code a worker's dataset is their own.
    """

    def __init__(self, spec: ReaderSpec, trainer: int) -> None:
        self._spec = spec
        self._trainer = trainer
        self._reader: Reader | None = None
        self._is_watching = False

    def __getitem__(self, chunk: Chunk | None) -> Result:
        if not self._is_watching:
            self._is_watching = True
            threading.Thread(target=_end_with, args=(self._trainer,), name="forebay-watch", daemon=True).start()
        if chunk is None:
            return []
        if self._reader is None:
            self._reader = self._spec.reader()
        return read(self._reader, chunk)

    @property
    def users(self) -> Any:
        """What the user's code takes for this worker's dataset; None where it has none to know."""
        return self._spec.dataset

    def __len__(self) -> int:
        return 2**62

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_trainer": self._trainer, "_reader": None, "_is_watching": False}


@dataclass(frozen=True)
class Beginning:
    """What a worker does first: it shows the user's dataset to their code, and calls their `worker_init_fn`.

    For datasets of forebay's that have the user's as `users`.
    """

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", info.dataset.users)  # a WorkerInfo refuses to be set
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def _end_with(trainer: int) -> None:
    """Ends this worker when the trainer is gone. torch watches its parent, which under forkserver is another."""
    try:
        ends = os.pidfd_open(trainer)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return  # a kernel before 5.3, or one that forbids it: torch's own watch remains
    poll = select.poll()
    poll.register(ends, select.POLLIN)
    poll.poll()
    os._exit(1)


def generator_of(seed: int) -> torch.Generator:
    """For the workers' seeds: torch would draw them from the trainer's own generator and so change its training."""
    return torch.Generator().manual_seed(seed_digest(seed) >> 1)


def _as_it_is(result: Result) -> Result:
    return result
