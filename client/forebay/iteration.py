"""What `for batch in loader` runs: one epoch over an engine, committing the position as each batch is handed out.

Used on the trainer's thread alone.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from forebay.loading.engine import Engine
from forebay.order import Split
from forebay.progress import Identity, Progress
from forebay.reporting import MlflowReporter, ReportTo
from forebay.timing import BatchTiming
from forebay_core.errors import StateError

KEPT_TIMINGS = 10_000


class Readout:
    """An engine bound to the position that it moves, and to those who are told of each batch's timing."""

    def __init__(self, engine: Engine, progress: Progress, split: Split, identity: Identity) -> None:
        self.engine, self.progress, self.split, self.identity = engine, progress, split, identity
        self.timings: deque[BatchTiming] = deque(maxlen=KEPT_TIMINGS)
        self._reporter: MlflowReporter | None = None
        #: Counts the iterations; an iterator of an earlier one has ended.
        self.iteration = 0

    def report_to(self, report_to: ReportTo) -> None:
        """Timings go to the run that is active now, if to any."""
        run_id = self._reporter.run_id if self._reporter is not None else None
        reporter = MlflowReporter.for_active_run(report_to, unless=run_id)
        if reporter is not None:
            if self._reporter is not None:
                self._reporter.close()
            self._reporter = reporter

    def begin(self) -> int:
        """Starts an iteration where the position says."""
        self.iteration += 1
        epoch, position = self.progress.begin()
        if position > 0 and self.split.steps(self.identity.samples, position) == 0:
            epoch, position = epoch + 1, 0
        self.progress.commit(epoch, position, self.split.global_batch)
        self.engine.seek(epoch, position)
        return self.iteration

    def next(self) -> tuple[Any, bool]:
        """The next batch, and whether it is the epoch's last."""
        batch, timing = self.engine.next()
        self.progress.commit(batch.end.epoch, batch.end.position, self.split.global_batch)
        self.timings.append(timing)
        if self._reporter is not None:
            self._reporter.record(timing)
        return batch.data, batch.end.last_of_epoch

    def close(self) -> None:
        """Ends the engine and sends what is left to report. Idempotent."""
        self.iteration += 1
        self.engine.close()
        if self._reporter is not None:
            self._reporter.close()


class EpochIterator(Iterator[Any]):
    """The rest of one epoch. Begins when it is made; a later iterator of the same loader ends it."""

    def __init__(self, readout: Readout) -> None:
        self._readout = readout
        self._iteration = readout.begin()
        self._ended = False

    def __iter__(self) -> "EpochIterator":
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._iteration != self._readout.iteration:
            raise StateError(
                "this iterator has ended: its loader was closed or iterated again since; use the newer one"
            )
        data, self._ended = self._readout.next()
        return data
