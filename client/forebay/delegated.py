"""An iterable dataset with a state of its own, as torchdata's `Stateful` has it: read as torch reads it, resumed by it.

forebay plans nothing here. The dataset says what is next, shares itself out over workers and ranks as it does in
torch's loader, and takes its own state back; what is kept beside it is the epoch, the batches handed out and, with
worker processes, which state each of them has and whose turn it is. The state that is saved is the one after exactly
the batches handed out. It is the rank's own, and fits the same number of worker processes alone. On the trainer's
thread.
"""

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

from forebay.iteration import Length, Pass, Playback, Reports
from forebay.loading.assembly import Assembly
from forebay.loading.carried import Carried, Source, Start, StreamSpec, WorkerState
from forebay.loading.engine import lasting
from forebay.order import Split
from forebay.ordered import refuse_in_worker
from forebay.progress import STATE_VERSION, Progress
from forebay.reporting import ReportTo
from forebay.timing import BatchTiming, time_batch
from forebay_core.errors import ConfigurationError, StateError, StateMismatch


def is_stateful(dataset: Any) -> bool:
    """Whether it has torchdata's protocol."""
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


class DelegatedDataset:
    """The position of a loader in such a dataset.

    processes: worker processes that read it; 0 where it is read in the trainer's.
    """

    tail = "even"
    extras = ()
    sample_digest = None
    """What such a dataset hands out has no numbers to be known by."""

    def __init__(self, dataset: Any, *, batch_size: int | None, drop_last: bool, processes: int) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self._drop_last = drop_last
        self._processes = processes
        self._progress = Progress()
        self._first = 0
        self._workers: tuple[WorkerState, ...] = ()
        self._loaded: Start | None = None
        self._at_end = False
        self._has_ended = False
        self._batches = 0

    @property
    def name(self) -> str:
        """The dataset's class."""
        return f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}"

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._progress.epoch

    @property
    def position(self) -> int:
        """Batches of that epoch that this rank has handed out."""
        return self._progress.position

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that is iterated next; the present epoch keeps its position."""
        self._progress.set_epoch(epoch)

    def describe(self) -> dict[str, Any]:
        """`{"delegated", "epoch", "steps", "num_workers"}`: the rest is the dataset's own."""
        return {"delegated": self.name, "epoch": self.epoch, "steps": self.position, "num_workers": self._processes}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The position of this rank; JSON values if the dataset's own states are."""
        refuse_in_worker("state_dict()")
        here = self._here()
        workers = [
            {"state": worker.state, "begun": worker.begun, "ended": worker.ended}
            for worker in copy.deepcopy(here.workers)
        ]
        return {
            "version": STATE_VERSION,
            **self.describe(),
            "batches": self._batches,
            "next_worker": here.first,
            "workers": workers,
        }

    def load_state_dict(self, state: Mapping[str, Any], *_: Any, strict: bool = True, **__: Any) -> None:
        """Goes on where `state` was taken, from the next iteration on. The dataset judges its own part then.

        Raises `StateMismatch` for the state of another dataset (unless `strict=False`) or another number of workers.
        """
        refuse_in_worker("load_state_dict()")
        start, steps, batches = _decoded(state)
        if strict and state["delegated"] != self.name:
            raise StateMismatch(f"the state is of a {state['delegated']}, the dataset is a {self.name}")
        if state["num_workers"] != self._processes:
            raise StateMismatch(
                f"the state is of {state['num_workers']} worker processes, this loader has {self._processes}: each "
                f"state is of one copy of the {self.name}, which shares itself out over them; give "
                f"num_workers={state['num_workers']}, or use a dataset whose order forebay plans"
            )
        self._progress.resume_at(start.epoch, steps)
        self._loaded, self._batches = start, batches

    def iterate(
        self,
        playback: Playback,
        source: Callable[[StreamSpec], Source],
        assembly: Assembly,
        *,
        owner: object,
        report_to: ReportTo,
        asked: Callable[[], None],
    ) -> Pass:
        """The rest of the epoch, or the next one, over the source that `playback` has running or that is made."""
        spec = StreamSpec(self.dataset, self.batch_size, self._drop_last, assembly)
        readout = playback.ensure(None, lambda: _Readout(self, source(spec)))
        readout.report_to(report_to)
        return Pass(owner, readout, Length(), asked)

    def _here(self) -> Start:
        """Where the next batch comes from. A dataset that is read in turn is its own record."""
        if self._loaded is not None:
            return self._loaded
        if self._workers or self._processes:
            return Start(self.epoch, self._first, self._workers)
        begun = self.position > 0
        return Start(self.epoch, 0, (self._state_now(begun=begun, ended=begun and self._at_end),))

    def _state_now(self, *, begun: bool, ended: bool = False) -> WorkerState:
        return WorkerState(copy.deepcopy(self.dataset.state_dict()), begun, ended)

    def _begin(self, source: Source) -> Start:
        """An iteration begins: where? Workers whose epoch has ended go on, others are had anew."""
        resumed = self._here() if self._loaded is not None or self._progress.resuming else None
        if resumed is not None or not self._has_ended:
            source.close()
        epoch, _ = self._progress.begin()
        start = resumed or Start(epoch)
        self._loaded = None
        self._record(start, source, goes_on=resumed is None and self._has_ended)
        return start

    def _record(self, start: Start, source: Source, *, goes_on: bool) -> None:
        """The states that count until batches bring newer ones."""
        kept = self._workers if goes_on else start.workers
        if not source.carries_states:
            kept = ()
        elif not kept and self._processes:
            kept = (WorkerState(),) * self._processes
        elif not kept:
            kept = (self._state_now(begun=False),)
        self._first, self._workers, self._has_ended = start.first, kept, False

    def _take(self, carried: Carried, after: WorkerState) -> bool:
        """A worker has handed over a batch, or has ended. Says whether all have ended."""
        self._at_end = after.ended
        if carried.samples:
            self._batches += 1
            self._progress.commit(self.epoch, self.position + 1, 1)
        if not self._workers:
            return after.ended
        self._workers = tuple(
            after if worker == carried.worker else state for worker, state in enumerate(self._workers)
        )
        self._first = (carried.worker + 1) % len(self._workers)
        return all(state.ended for state in self._workers)

    def _end(self, source: Source) -> None:
        """The epoch is over; the next begins with the workers as they are now, or with new ones."""
        self._progress.commit(self.epoch + 1, 0, 1)
        kept = self._workers if source.outlives_epochs else ()
        self._first, self._workers = 0, tuple(WorkerState(state.state) for state in kept)
        self._has_ended = True

    def _replay(self, *_: Any, **__: Any) -> Any:
        raise ConfigurationError(f"replay(): {self.name} keeps its own order, which forebay cannot go back in")

    def _split(self, *_: Any) -> Split:
        return Split(1, 1)

    def _steps(self, _: Split, position: int = 0) -> int:
        """As torch reckons them, from the dataset's length; `TypeError` where it has none."""
        samples, size = len(self.dataset), self.batch_size or 1
        steps = samples // size if self._drop_last else -(-samples // size)
        return max(0, steps - position)


class _Readout:
    """A source bound to the position that it moves; what a `Pass` reads."""

    def __init__(self, owner: DelegatedDataset, source: Source) -> None:
        self._owner, self._source = owner, source
        self._reports = Reports()
        self.iteration = 0
        self._is_over = self._may_go_on = False

    @property
    def timings(self) -> list[BatchTiming]:
        return self._reports.timings

    @property
    def moves(self) -> int:
        return self._owner._progress.moves

    def report_to(self, report_to: ReportTo) -> None:
        self._reports.report_to(report_to)

    def read_ahead(self, *, runs_on: bool) -> None:
        """The dataset alone knows what is next."""

    def begin(self, *, runs_on: bool) -> int:
        self.iteration += 1
        self._is_over = False
        start = self._owner._begin(self._source)
        self._may_go_on = self._owner.position > 0
        self._source.start(start)
        return 0

    def next(self, step: int = 0) -> tuple[Any, bool]:
        """The next batch; the epoch's end is only known when it comes, so none is ever said to be the last."""
        if self._is_over:
            raise StopIteration
        blocked_from = time.monotonic()
        try:
            carried = self._next()
        except BaseException as error:
            if self._is_over or (said := lasting(error)) is error:
                raise
            raise said from error
        blocked_until = time.monotonic()
        self._may_go_on = False
        self._reports.record(
            time_batch(
                carried.stages,
                blocked_from,
                blocked_until,
                step=self._owner._batches - 1,
                samples=carried.samples,
                at=time.time(),
            )
        )
        return carried.data, False

    def close(self) -> None:
        self.iteration += 1
        self._source.close()
        self._owner._has_ended = False
        self._reports.close()

    def _next(self) -> Carried:
        while True:
            carried = self._source.next()
            if carried.after is None:
                continue
            all_ended = self._owner._take(carried, carried.after)
            if carried.samples:
                return carried
            if all_ended:
                self._end_of_epoch()

    def _end_of_epoch(self) -> None:
        """Where a state was taken behind an epoch's last batch, nothing is left of it: the next epoch follows."""
        self._owner._end(self._source)
        if not self._source.outlives_epochs:
            self._source.close()
        if not self._may_go_on:
            self._is_over = True
            raise StopIteration
        self._may_go_on = False
        start = Start(self._owner.epoch, after_end=True)
        self._owner._record(start, self._source, goes_on=True)
        self._source.start(start)


def _decoded(state: Mapping[str, Any]) -> tuple[Start, int, int]:
    """Where a state was taken, the steps of its epoch and the batches before it; `StateError` where it is none."""
    try:
        if state["version"] != STATE_VERSION:
            raise StateError(f"the state has version {state['version']!r}, this forebay reads version {STATE_VERSION}")
        workers = tuple(WorkerState(each["state"], each["begun"], each["ended"]) for each in state["workers"])
        numbers = [state[name] for name in ("epoch", "steps", "batches", "next_worker", "num_workers")]
        if any(type(number) is not int or number < 0 for number in numbers) or "delegated" not in state:
            raise ValueError("a number in it is none")
        epoch, steps, batches, first, processes = numbers
        if len(workers) not in ({1} if processes == 0 else {0, processes}):
            raise ValueError(f"states of {len(workers)} workers")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"not a state of a loader over a stateful dataset ({type(error).__name__}: {error}): give what "
            f"state_dict() returned"
        ) from error
    return Start(epoch, first, workers), steps, batches
