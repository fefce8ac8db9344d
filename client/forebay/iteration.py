"""What `for batch in loader` runs: a pass over an engine, committing the position as each batch is handed out.

A pass is the rest of an epoch, or a number of steps.

Used on the trainer's thread alone.
"""

import logging
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from forebay.loading.engine import Engine
from forebay.order import RankOrder
from forebay.progress import Progress
from forebay.reporting import MlflowReporter, ReportTo
from forebay.skipping import SkipLedger
from forebay.timing import BatchTiming
from forebay_core.errors import ConfigurationError, StateError

KEPT_TIMINGS = 10_000
_of_parents: list["Readable"] = []
"""What a forked child inherited and must not end, not even by dropping the last reference to it."""
_log = logging.getLogger("forebay")


@dataclass(frozen=True)
class Handover:
    """How batches are handed over.

    stall_warning_seconds: how long the trainer may be blocked for a batch before the log says why; None never says.
    skips: where samples that could not be read are counted.

    Raises `ConfigurationError` for values that cannot work.
    """

    stall_warning_seconds: float | None = 60.0

    skips: SkipLedger = field(default_factory=SkipLedger)

    def __post_init__(self) -> None:
        seconds = self.stall_warning_seconds
        if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
            raise ConfigurationError(
                f"stall_warning_seconds={seconds!r}: give a number of seconds above 0, or None for no warnings"
            )


class Watchers:
    """Those who are told, on the trainer's thread, that the next batch is being asked for. What they raise passes."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def add(self, told: Callable[[], None]) -> Callable[[], None]:
        """Gives what takes it off again, once or more often."""
        self._told.append(told)

        def remove() -> None:
            if told in self._told:
                self._told.remove(told)

        return remove

    def __call__(self) -> None:
        for told in self._told:
            told()


class Reports:
    """Those who are told of each batch's timing: whoever asks for the latest, and the active run."""

    def __init__(self) -> None:
        self._timings: deque[BatchTiming] = deque(maxlen=KEPT_TIMINGS)
        self._reporter: MlflowReporter | None = None

    @property
    def timings(self) -> list[BatchTiming]:
        """Of the latest batches, oldest first."""
        return list(self._timings)

    def report_to(self, report_to: ReportTo) -> None:
        """Timings go to the run that is active now, if to any."""
        if self._reporter is not None and self._reporter.run_id != MlflowReporter.active_run_id(report_to):
            self._reporter.close()
            self._reporter = None
        if self._reporter is None:
            self._reporter = MlflowReporter.for_active_run(report_to)

    def record(self, timing: BatchTiming) -> None:
        """Takes one timing."""
        self._timings.append(timing)
        if self._reporter is not None:
            self._reporter.record(timing)

    def close(self) -> None:
        """Sends what is left to report."""
        if self._reporter is not None:
            self._reporter.close()


class Readable(Protocol):
    """What a `Pass` reads, and a `Playback` keeps running."""

    @property
    def iteration(self) -> int:
        """Counts the iterations; an iterator of an earlier one has ended."""

    @property
    def moves(self) -> int:
        """Changes when anyone begins another iteration over the same position, or chooses another place."""

    @property
    def timings(self) -> list[BatchTiming]:
        """Of the latest batches, oldest first."""

    def report_to(self, report_to: ReportTo) -> None:
        """Timings go to the run that is active now, if to any."""

    def read_ahead(self, *, runs_on: bool) -> None:
        """Starts to read where the next iteration will begin, as far as that is known; moves nothing."""

    def begin(self, *, runs_on: bool) -> int:
        """Starts an iteration where the position says; how many steps of it were handed out before a resume."""

    def next(self, step: int = 0) -> tuple[Any, bool]:
        """The next batch, and whether it is known to be the epoch's last; `StopIteration` at the end.

        `step` is how many batches this pass then has handed out. Not asked again after an error.
        """

    def close(self) -> None:
        """Ends what runs and sends what is left to report. Idempotent."""


class Readout:
    """An engine bound to the position that it moves.

    skips: where samples that could not be read are counted.
    enter: called before an epoch is read on from the one before it, which nobody has begun by `begin`.
    """

    def __init__(
        self, engine: Engine, progress: Progress, order: RankOrder, *, skips: SkipLedger, enter: Callable[[], None]
    ) -> None:
        self._order, self._skips, self._enter = order, skips, enter
        self._is_at_border = False
        self.iteration = 0
        self._engine = engine
        self._progress = progress
        self._reports = Reports()

    @property
    def timings(self) -> list[BatchTiming]:
        return self._reports.timings

    def report_to(self, report_to: ReportTo) -> None:
        self._reports.report_to(report_to)

    def read_ahead(self, *, runs_on: bool) -> None:
        self._engine.seek(*self._begin_of(self._progress.upcoming(runs_on=runs_on)))

    def begin(self, *, runs_on: bool) -> int:
        self.iteration += 1
        epoch, position = self._begin_of(self._progress.begin(runs_on=runs_on))
        self._announce(position)
        step = self._progress.step
        self._progress.commit(epoch, position, self._order.split.global_batch, step)
        self._engine.seek(epoch, position)
        self._is_at_border = False
        return step

    @property
    def moves(self) -> int:
        return self._progress.moves

    def next(self, step: int = 0) -> tuple[Any, bool]:
        if self._is_at_border:
            self._enter()
            self._engine.seek(self._progress.epoch, self._progress.position)
        batch, timing = self._engine.next()
        digest = batch.end.digest
        if batch.skipped:
            digest = replace(digest, skipped=len(batch.skipped))
        self._progress.commit(batch.end.epoch, batch.end.position, self._order.split.global_batch, step, digest=digest)
        if batch.skipped:
            self._skips.take(batch.skipped)
        if batch.end.last_of_epoch:
            self._skips.summarise(f"epoch {batch.end.epoch - 1} has ended")
        self._is_at_border = batch.end.last_of_epoch
        self._reports.record(timing)
        return batch.data, batch.end.last_of_epoch

    def close(self) -> None:
        self.iteration += 1
        self._engine.close()
        self._skips.summarise("the loader was closed")
        self._reports.close()

    def _begin_of(self, upcoming: tuple[int, int]) -> tuple[int, int]:
        epoch, position = upcoming
        return (epoch + 1, 0) if position > 0 and self._order.steps(position) == 0 else upcoming

    def _announce(self, position: int) -> None:
        """Says what a user may not have meant to change, and what the end of the epoch will look like."""
        split, samples, before = self._order.split, self._order.samples, self._progress.last_global_batch
        if position > 0 and before not in (None, split.global_batch):
            _log.warning(
                "the global batch is %d samples now and was %d before position %d: right where you changed the batch "
                "size; where the world size changed, global_batch_size=%d keeps it",
                split.global_batch,
                before,
                position,
                before,
            )
        left = samples - position
        if split.tail == "even" and left < split.world_size:
            _log.warning(
                "%d samples are left of this epoch for %d ranks: the others get samples again, marked forebay.IS_PAD",
                left,
                split.world_size,
            )


class Playback:
    """The readout that a loader or a dataset has running, kept for as long as it fits; it ends with its owner.

    A forked child leaves its parent's alone: what runs it is not there, and locks may have been held at the fork.
    """

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._readout: Readable | None = None
        self._key: object = None
        self._end: weakref.finalize[..., Any] | None = None
        self._process = os.getpid()

    def ensure(self, key: object, make: Callable[[], Readable]) -> Readable:
        """The readout that runs if it was made for an equal `key` (what is read, and as whom), else a new one."""
        if self._readout is None or self._key != key or self._process != os.getpid():
            self.close()
            self._readout, self._key, self._process = make(), key, os.getpid()
            owner = self._owner()
            assert owner is not None
            self._end = weakref.finalize(owner, _close, self._readout, self._process)
        return self._readout

    @property
    def timings(self) -> list[BatchTiming]:
        """Of the latest batches, oldest first."""
        return [] if self._readout is None else self._readout.timings

    def close(self) -> None:
        """Ends the readout. Idempotent."""
        if self._readout is not None and self._process != os.getpid():
            _of_parents.append(self._readout)
        if self._end is not None:
            self._end()
        self._readout = self._end = None


def _close(readout: Readable, process: int) -> None:
    if process == os.getpid():
        readout.close()


@dataclass(frozen=True, slots=True)
class Length:
    """How long a pass is: the rest of an epoch, or where it `runs_on` over epochs, so many steps (None: no end)."""

    runs_on: bool = False
    steps: int | None = None


class Pass(Iterator[Any]):
    """What one `for` over a loader hands out. Begins when it is made; a later one of the same loader ends it.

    Steps that a resumed pass had handed out before count. It keeps its owner alive: `for batch in DataLoader(…)` must
    outlive the only name of the loader. An error stays, and is raised again.

    asked: called before each batch is read.
    """

    def __init__(
        self, owner: object, readout: Readable, length: Length, asked: Callable[[], None] = lambda: None
    ) -> None:
        self._owner = owner
        self._asked = asked
        self._readout = readout
        self._length = length
        self._step = readout.begin(runs_on=length.runs_on)
        self._began = (readout.iteration, readout.moves)
        self._process = os.getpid()
        self._ended = length.steps is not None and self._step >= length.steps
        self._failure: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._process != os.getpid():
            raise StateError(
                f"this iterator is of process {self._process}, from which this one was forked without its threads and "
                f"workers: iterate the loader anew here"
            )
        if self._began != (self._readout.iteration, self._readout.moves):
            raise StateError(
                "this iterator has ended: its loader was closed, iterated again or moved since; iterate it anew"
            )
        if self._failure is not None:
            raise self._failure
        self._asked()
        try:
            return self._next()
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _next(self) -> Any:
        if not self._length.runs_on:
            data, self._ended = self._readout.next()
            return data
        is_last = self._step + 1 == self._length.steps
        step = 0 if is_last or self._length.steps is None else self._step + 1
        data, _ = self._readout.next(step)
        self._step, self._ended = step, is_last
        return data
