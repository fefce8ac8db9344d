"""Batches of an iterable dataset that keeps its own position, each with the dataset's state right after it.

A *worker* here is one copy of the dataset that is iterated: the trainer's own object, or the copy of a worker process.
`read` runs where the copy is. The sources hand over what it yields: `InTurn` reads in the trainer's thread, only when
asked, so that the dataset itself is the state; `Ahead` in one thread; `Processes` in torch's worker processes, whose
batches come round robin among those that have not ended. All methods of a source are called by the trainer's thread.
"""

import copy
import itertools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from forebay.loading.assembly import Assembly, Clock
from forebay.loading.chunk import Closed
from forebay.loading.processes import WorkerOptions
from forebay.order.philox import seed_digest
from forebay.timing import Stage

_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The dataset's own state in one worker.

    state: as `dataset.state_dict()` gave it; None where the worker starts with the dataset as it is.
    begun: it was taken within the epoch, and not at its start.
    ended: this worker has no more of the epoch.
    """

    state: Any = None
    begun: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where the workers begin to read: in this epoch, each from its state, the first batch being worker `first`'s.

    after_end: they had the end of the epoch before from a state, and not by reading.
    """

    epoch: int
    first: int = 0
    workers: tuple[WorkerState, ...] = ()
    after_end: bool = False

    def of(self, worker: int) -> WorkerState:
        """The state of a worker."""
        return self.workers[worker] if self.workers else WorkerState()

    def passes(self, worker: int) -> bool:
        """Whether this worker's first turn is another's; those that have ended have none."""
        turns = [*range(self.first, len(self.workers)), *range(self.first)]
        first = next((turn for turn in turns if not self.of(turn).ended), 0)
        return worker < first


@dataclass(frozen=True, slots=True)
class Carried:
    """A batch; or no samples: from a worker that has ended, or (`after` is None too) one that passes its turn."""

    worker: int
    data: Any = None
    samples: int = 0
    stages: tuple[Stage, ...] = ()
    after: WorkerState | None = None

    def pin_memory(self) -> "Carried":
        """With its tensors in pinned memory; torch's loader calls it too."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, data=pin_memory(self.data))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class StreamSpec:
    """What is read, and how samples become batches; `batch_size=None` hands single samples over."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    assembly: Assembly = field(default_factory=Assembly)


def read(spec: StreamSpec, start: Start, worker: int, *, keeps_states: bool = True) -> Iterator[Carried]:
    """What one worker has: its batches, and that it has ended."""
    dataset, state = spec.dataset, start.of(worker)
    if callable(getattr(dataset, "set_epoch", None)):
        dataset.set_epoch(start.epoch)
    if state.state is not None:
        dataset.load_state_dict(copy.deepcopy(state.state))
    if start.passes(worker):
        yield Carried(worker)
    if not state.ended:
        again = start.after_end or (state.state is not None and not state.begun)
        for data, samples, stages in _batches(spec, again=again):
            after = _state_after(dataset, ended=samples < (spec.batch_size or 1), kept=keeps_states)
            yield Carried(worker, data, samples, stages, after)
    yield Carried(worker, after=_state_after(dataset, ended=True, kept=keeps_states))


def _state_after(dataset: Any, *, ended: bool, kept: bool) -> WorkerState:
    """Where a short batch has shown the end, the dataset's state may be of its next epoch already."""
    return WorkerState(copy.deepcopy(dataset.state_dict()) if kept else None, begun=True, ended=ended)


def _batches(spec: StreamSpec, *, again: bool) -> Iterator[tuple[Any, int, tuple[Stage, ...]]]:
    """The epoch's batches. `again`: a dataset that was left at the end of an epoch may say so once more."""
    iterator, clock = iter(spec.dataset), Clock()
    size = spec.batch_size or 1
    while True:
        clock.begin()
        samples = list(itertools.islice(iterator, size))
        clock.lap("read")
        if not samples and again:
            iterator = iter(spec.dataset)
        again, retried = False, again and not samples
        if retried:
            continue
        if not samples or (spec.drop_last and len(samples) < size):
            return
        batch = spec.assembly.collated(samples)
        clock.lap("collate")
        batch = spec.assembly.transformed(batch, clock)
        yield batch, len(samples), clock.take()
        if len(samples) < size:
            return


class Source(Protocol):
    """What gives the batches of one epoch after another."""

    @property
    def carries_states(self) -> bool:
        """Whether batches come with the dataset's state; else the dataset itself has it."""

    @property
    def outlives_epochs(self) -> bool:
        """Whether the next epoch is read by the workers that have read this one."""

    def start(self, start: Start) -> None:
        """Begins to read there; what was read before is dropped."""

    def next(self) -> Carried:
        """What comes next. Raises what kept it from being read; not asked any more once all workers have ended."""

    def close(self) -> None:
        """Ends all that runs. Idempotent."""


class InTurn:
    """Reads in the trainer's thread, when a batch is asked for. States are asked of the dataset itself."""

    carries_states = False
    outlives_epochs = True

    def __init__(self, spec: StreamSpec, *, pin: bool) -> None:
        self._spec, self._pin = spec, pin
        self._carried: Iterator[Carried] = iter(())

    def start(self, start: Start) -> None:
        self._carried = read(self._spec, start, 0, keeps_states=False)

    def next(self) -> Carried:
        carried = next(self._carried)
        return carried.pin_memory() if self._pin else carried

    def close(self) -> None:
        self._carried = iter(())


class Ahead:
    """Reads in one thread, up to `depth` batches ahead."""

    carries_states = outlives_epochs = True

    def __init__(self, spec: StreamSpec, *, depth: int, pin: bool) -> None:
        self._spec, self._depth, self._pin = spec, depth, pin
        self._run: _Run | None = None

    def start(self, start: Start) -> None:
        self.close()
        self._run = _Run(read(self._spec, start, 0), self._depth, self._pin)

    def next(self) -> Carried:
        assert self._run is not None
        return self._run.next()

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class _Run:
    """One thread over one epoch; `_condition` guards `_ready`."""

    def __init__(self, carried: Iterator[Carried], depth: int, pin: bool) -> None:
        self._carried, self._depth, self._pin = carried, depth, pin
        self._condition = threading.Condition()
        self._ready: deque[Carried | BaseException] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="forebay-reader", daemon=True)
        self._thread.start()

    def next(self) -> Carried:
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._closing)
            if self._closing:
                raise Closed
            carried = self._ready.popleft()
            self._condition.notify_all()
        if isinstance(carried, BaseException):
            raise carried
        return carried

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def _read(self) -> None:
        try:
            for carried in self._carried:
                self._put(carried.pin_memory() if self._pin else carried)
        except Closed:
            pass
        except BaseException as error:
            with self._condition:
                self._ready.append(error)
                self._condition.notify_all()

    def _put(self, carried: Carried) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._closing or len(self._ready) < self._depth)
            if self._closing:
                raise Closed
            self._ready.append(carried)
            self._condition.notify_all()


class Processes:
    """Reads in torch's worker processes: new ones for each epoch, or persistent ones while it goes straight on."""

    carries_states = True

    def __init__(self, spec: StreamSpec, options: WorkerOptions, *, persistent: bool) -> None:
        self.outlives_epochs = persistent
        self._copies = _Copies(spec)
        self._generator = options.generator
        self._seeds = torch.Generator()
        self._persistent = persistent
        self._loader = self._make_loader(options)
        self._carried: Iterator[Carried] | None = None
        self._next_epoch: int | None = None

    def start(self, start: Start) -> None:
        straight_on = self._persistent and start.epoch == self._next_epoch and not start.workers
        if not straight_on:
            self.close()
            self._copies.start = start
        if self._generator is None:
            self._seeds.manual_seed(seed_digest(start.epoch) >> 1)
        self._carried = iter(self._loader)
        self._next_epoch = start.epoch + 1

    def next(self) -> Carried:
        assert self._carried is not None
        return next(self._carried)

    def close(self) -> None:
        iterator, self._carried = self._carried, None
        self._loader._iterator = None
        self._next_epoch = None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _make_loader(self, options: WorkerOptions) -> DataLoader[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # said by the user's own loader
            return DataLoader(
                self._copies,
                batch_size=None,
                num_workers=options.num_workers,
                collate_fn=_as_it_is,
                pin_memory=options.pin is not None,
                timeout=options.timeout,
                worker_init_fn=Beginning(options.worker_init_fn),
                multiprocessing_context=options.multiprocessing_context,
                generator=options.generator or self._seeds,
                prefetch_factor=options.prefetch_factor,
                persistent_workers=self._persistent,
            )


class _Copies(IterableDataset[Carried]):
    """What torch's workers iterate, each in its copy: the same epoch's batches, then the next epoch's."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self.start = Start(0)

    @property
    def users(self) -> Any:
        """What the user's code takes for this worker's dataset."""
        return self._spec.dataset

    def __iter__(self) -> Generator[Carried, None, None]:
        info = get_worker_info()
        assert info is not None
        start = self.start
        self.start = Start(start.epoch + 1, after_end=start.of(info.id).ended)
        yield from read(self._spec, start, info.id)


@dataclass(frozen=True)
class Beginning:
    """What a worker does first: it shows the user's dataset to their code, and calls their `worker_init_fn`."""

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.users)  # a WorkerInfo refuses to be set
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def _as_it_is(carried: Any) -> Any:
    return carried
