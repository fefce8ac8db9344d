"""Logs where the time went to MLflow, without ever slowing, stopping or holding up training.

The loader calls `record` on the trainer's thread for every batch: it appends to a bounded queue and returns. One thread
of our own wakes once a window, turns what the queue holds into metrics (`summarise`, which is pure) and sends those of
several windows together with MLflow's synchronous client: a call costs as much as a hundred metrics. Whatever goes
wrong there costs metrics and nothing else: a queue that is full and a server that is down drop timings, which are
counted, and one warning says so. MLflow's own asynchronous logging is not used: its queue has no bound, it hangs after
a fork, and it blocks the exit.

The active run is looked up on the caller's thread, because MLflow keeps it per thread. A forked child inherits the
object and not the thread, so it never logs.
"""

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from forebay.timing import BatchTiming
from forebay_core.errors import ConfigurationError

__all__ = ["Metric", "MlflowReporter", "ReportTo", "summarise"]

_log = logging.getLogger("forebay.reporting")

#: Above this rate of batches one metric per batch would take a noticeable share of a core; below it every batch counts.
MAX_BATCHES_PER_SECOND = 20.0
#: From here on the trainer was blocked for a batch, and where that time went is worth its metrics; at the highest rate
#: it is a fiftieth of the time from one batch to the next.
BLOCKED_SECONDS = 0.001
#: What MLflow accepts in one call.
METRICS_PER_CALL = 1000
#: How long metrics wait for others while batches come; the first window is sent at once, and so is the rest when none
#: come any more. Nobody looks more often.
SEND_SECONDS = 10.0
#: About eight minutes at the highest rate that is logged batch by batch: longer than the client's own retries.
QUEUE_TIMINGS = 10_000
ReportTo: TypeAlias = Literal["auto", "mlflow"] | None
_PARTS = ("remote_wait", "read", "transform", "collate", "queue")


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of one metric: `step` as in the timing it is of, `at` in seconds since the epoch."""

    name: str
    value: float
    step: int
    at: float


class MetricSink(Protocol):
    """Where metrics go: at most `METRICS_PER_CALL` at a time, on the reporter's thread. May block, may raise."""

    def __call__(self, metrics: Sequence[Metric]) -> None: ...


def summarise(timings: Sequence[BatchTiming], since: float | None) -> list[Metric]:
    """The metrics of one window of timings, oldest first.

    `since` is when the batch before the window was handed over, in seconds since the epoch; None at the start. Up to
    `MAX_BATCHES_PER_SECOND` every batch has its own `fetch_seconds`, and its parts too where it is the slowest of the
    window or blocked the trainer for `BLOCKED_SECONDS`: a metric costs CPU, and the parts of what did not block say
    nothing. Above that rate the window has the means, and p95 and maximum of `fetch_seconds`. So where a step has
    parts, they add up to its `fetch_seconds`. The window's stall fraction and rate of samples always come.
    """
    if not timings:
        return []
    start = timings[0].at - timings[0].fetch_seconds if since is None else since
    span_seconds = max(timings[-1].at - start, 1e-9)
    if len(timings) <= max(1.0, MAX_BATCHES_PER_SECOND * span_seconds):
        metrics = _batch_metrics(timings)
    else:
        metrics = _window_metrics(timings)
    blocked_seconds = sum(timing.fetch_seconds for timing in timings)
    last = timings[-1]
    return [
        *metrics,
        Metric("forebay/stall_fraction", min(1.0, blocked_seconds / span_seconds), last.step, last.at),
        Metric("forebay/samples_per_second", sum(t.samples for t in timings) / span_seconds, last.step, last.at),
    ]


def _batch_metrics(timings: Sequence[BatchTiming]) -> list[Metric]:
    slowest = max(timings, key=lambda timing: timing.fetch_seconds)
    metrics = [Metric("fetch_seconds", timing.fetch_seconds, timing.step, timing.at) for timing in timings]
    for timing in timings:
        if timing.fetch_seconds >= BLOCKED_SECONDS or timing is slowest:
            metrics += [Metric(f"fetch/{part}", getattr(timing, part), timing.step, timing.at) for part in _PARTS]
    return metrics


def _window_metrics(timings: Sequence[BatchTiming]) -> list[Metric]:
    last = timings[-1]
    fetch = np.array([timing.fetch_seconds for timing in timings])
    values = {
        "fetch_seconds": fetch.mean(),
        "fetch_seconds/p95": np.quantile(fetch, 0.95),
        "fetch_seconds/max": fetch.max(),
        **{f"fetch/{part}": np.mean([getattr(timing, part) for timing in timings]) for part in _PARTS},
    }
    return [Metric(name, float(value), last.step, last.at) for name, value in values.items()]


class MlflowReporter:
    """Sends the timings of one process to one MLflow run.

    Made, fed and closed by the process that has the run, on any of its threads. `dropped` counts the timings that never
    arrived.
    """

    @classmethod
    def active_run_id(cls, report_to: str | None) -> str | None:
        """The run that `report_to` asks to report to now, if there is one. Never imports MLflow."""
        mlflow = None if report_to is None else sys.modules.get("mlflow")
        run = getattr(mlflow, "active_run", lambda: None)()
        return None if run is None else str(run.info.run_id)

    @classmethod
    def for_active_run(cls, report_to: str | None) -> "MlflowReporter | None":
        """The reporter that `report_to` asks for, or None. Call it on the thread that started the run.

        `"auto"` reports when this process uses MLflow and has an active run, and never imports MLflow; `"mlflow"`
        insists; None is off. Raises `ConfigurationError` for anything else, and for `"mlflow"` without MLflow or
        without an active run.
        """
        if report_to is None:
            return None
        if report_to not in ("auto", "mlflow"):
            raise ConfigurationError(f'report_to={report_to!r} is not known: give "auto", "mlflow" or None')
        mlflow = sys.modules.get("mlflow") if report_to == "auto" else _import_mlflow()
        run = getattr(mlflow, "active_run", lambda: None)()
        if run is not None and mlflow is not None:
            run_id = run.info.run_id
            return cls(_RunSink(mlflow.get_tracking_uri(), run_id), run_id=run_id)
        if report_to == "mlflow":
            raise ConfigurationError(
                'report_to="mlflow" needs an active run on this thread: call mlflow.start_run() before iterating'
            )
        return None

    def __init__(self, sink: MetricSink, *, window_seconds: float = 2.0, run_id: str | None = None) -> None:
        self.run_id = run_id
        self._outbox = _Outbox(sink, window_seconds)
        self._drop_owner = weakref.finalize(self, self._outbox.request_stop)
        self._drop_owner.atexit = False

    @property
    def dropped(self) -> int:
        return self._outbox.dropped

    def record(self, timing: BatchTiming) -> None:
        """Takes one timing. Never blocks and never raises."""
        self._outbox.put(timing)

    def report(self, metrics: Sequence[Metric]) -> None:
        """Takes metrics of other things than batches. Never blocks and never raises."""
        self._outbox.put_metrics(metrics)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Sends what is left, for at most `timeout_seconds`, and not at all to a server that is known to be down."""
        self._outbox.close(timeout_seconds)


class _Outbox:
    """The queue and the thread that empties it. Apart from the reporter, so that a dropped reporter ends its thread."""

    def __init__(self, sink: MetricSink, window_seconds: float) -> None:
        self._sink = sink
        self._window_seconds = window_seconds
        self._queue: deque[BatchTiming] = deque()
        self._others: deque[Metric] = deque(maxlen=QUEUE_TIMINGS)
        self._stopping = threading.Event()
        self._since: float | None = None
        self._unsent: list[Metric] = []
        self._unsent_timings = 0
        self._due_at = 0.0
        self._failing = False
        self._sending_since: float | None = None
        self._owner = os.getpid()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="forebay-mlflow", daemon=True)
        self._thread.start()
        _open_outboxes.add(self)

    def put(self, timing: BatchTiming) -> None:
        if os.getpid() != self._owner or self._stopping.is_set():
            return
        if len(self._queue) >= QUEUE_TIMINGS:
            self._drop(1, "the queue is full")
            return
        self._queue.append(timing)

    def put_metrics(self, metrics: Sequence[Metric]) -> None:
        if os.getpid() == self._owner and not self._stopping.is_set():
            self._others.extend(metrics)

    def request_stop(self) -> None:
        if os.getpid() == self._owner:
            self._stopping.set()

    def close(self, timeout_seconds: float) -> None:
        if os.getpid() != self._owner:
            return
        self._stopping.set()
        since = self._sending_since
        stuck = since is not None and time.monotonic() - since > timeout_seconds
        if not self._failing and not stuck:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopping.wait(self._window_seconds):
            self._turn(time.monotonic())
        self._take_window()
        self._send()

    def _turn(self, now: float) -> None:
        """A window has passed: sends what is due, all of it where nothing more comes."""
        if not self._take_window() or now >= self._due_at:
            self._due_at = now + SEND_SECONDS
            self._send()

    def _take_window(self) -> bool:
        """Turns the queue into metrics; whether there was anything in it."""
        others = [self._others.popleft() for _ in range(len(self._others))]
        timings = [self._queue.popleft() for _ in range(len(self._queue))]
        self._unsent += others
        self._unsent_timings += len(others)
        if not timings:
            return bool(others)
        self._unsent += summarise(timings, self._since)
        self._unsent_timings += len(timings)
        self._since = timings[-1].at
        return True

    def _send(self) -> None:
        metrics, timings = self._unsent, self._unsent_timings
        if not metrics:
            return
        self._unsent, self._unsent_timings = [], 0
        self._sending_since = time.monotonic()
        try:
            for start in range(0, len(metrics), METRICS_PER_CALL):
                self._sink(metrics[start : start + METRICS_PER_CALL])
            self._failing = False
        except Exception as error:
            self._failing = True
            self._drop(timings, str(error).partition("\n")[0] or type(error).__name__)
        finally:
            self._sending_since = None

    def _drop(self, count: int, why: str) -> None:
        if not self.dropped:
            _log.warning("timings are not reaching MLflow and are dropped; training goes on (%s)", why)
        self.dropped += count


class _RunSink:
    """MLflow's run behind the synchronous client, which is made on the first call and so on the reporter's thread."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        self._tracking_uri = tracking_uri
        self._run_id = run_id
        self._client: Any = None

    def __call__(self, metrics: Sequence[Metric]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric as MlflowMetric

        if self._client is None:
            self._client = MlflowClient(tracking_uri=self._tracking_uri)
        rows = [MlflowMetric(m.name, float(m.value), int(m.at * 1000), m.step) for m in metrics]
        self._client.log_batch(self._run_id, metrics=rows, synchronous=True)


def _import_mlflow() -> ModuleType:
    try:
        import mlflow
    except ImportError as error:
        raise ConfigurationError('report_to="mlflow" needs MLflow: pip install "forebay[mlflow]"') from error
    return mlflow


_open_outboxes: "weakref.WeakSet[_Outbox]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    deadline = time.monotonic() + 5.0
    for outbox in list(_open_outboxes):
        outbox.close(max(0.0, deadline - time.monotonic()))
