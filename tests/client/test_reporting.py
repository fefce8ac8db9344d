"""The MLflow reporter against a real SQLite store, a server that is not there, and a sink that blocks."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.reporting import BLOCKED_SECONDS, QUEUE_TIMINGS, SEND_SECONDS, Metric, MlflowReporter, summarise
from forebay.timing import BatchTiming
from forebay_core.errors import ConfigurationError

PARTS = {"fetch/remote_wait": 0.004, "fetch/read": 0.003, "fetch/transform": 0.002, "fetch/collate": 0.001}


def timing(step: int, at: float, fetch_seconds: float = 0.011) -> BatchTiming:
    return BatchTiming(
        step=step,
        fetch_seconds=fetch_seconds,
        remote_wait=0.004,
        read=0.003,
        transform=0.002,
        collate=0.001,
        queue=fetch_seconds - 0.010,
        samples=32,
        at=at,
    )


def _five(parts: list[float]) -> tuple[float, float, float, float, float]:
    remote_wait, read, transform, collate, queue = parts
    return remote_wait, read, transform, collate, queue


def by_name(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    grouped: dict[str, list[Metric]] = {}
    for metric in metrics:
        grouped.setdefault(metric.name, []).append(metric)
    return grouped


class Collector:
    """A sink that keeps what it is given, once it is let through."""

    def __init__(self, *, open_at_once: bool = True) -> None:
        self.metrics: list[Metric] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        if open_at_once:
            self.gate.set()

    def __call__(self, metrics: Sequence[Metric]) -> None:
        assert len(metrics) <= 1000
        self.entered.set()
        self.gate.wait()
        self.metrics.extend(metrics)


@pytest.fixture
def mlflow_store(tmp_path: Path) -> Iterator[str]:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    yield uri
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def test_a_window_without_batches_has_no_metrics() -> None:
    assert summarise([], None) == []


def test_slow_batches_are_logged_one_by_one_with_parts_that_add_up() -> None:
    timings = [timing(step, at=100.0 + step * 0.1) for step in range(5)]
    metrics = by_name(summarise(timings, since=99.9))
    assert [(m.step, m.value) for m in metrics["fetch_seconds"]] == [(step, 0.011) for step in range(5)]
    for name, value in PARTS.items():
        assert [m.value for m in metrics[name]] == [value] * 5
    parts = sum(metrics[name][0].value for name in [*PARTS, "fetch/queue"])
    assert parts == pytest.approx(metrics["fetch_seconds"][0].value)
    assert "fetch_seconds/p95" not in metrics


def test_a_run_without_stalls_costs_one_metric_a_batch_and_the_parts_of_the_slowest_of_a_window() -> None:
    fetch_seconds = [0.0004, 0.0009, 0.0002, 0.0003] * 10
    timings = [timing(step, at=100.0 + step * 0.05, fetch_seconds=each) for step, each in enumerate(fetch_seconds)]
    metrics = summarise(timings, since=99.95)
    assert len(metrics) == 40 + 5 + 2
    grouped = by_name(metrics)
    assert [m.value for m in grouped["fetch_seconds"]] == fetch_seconds
    assert [m.step for m in grouped["fetch/queue"]] == [1]


@given(
    parts=st.lists(
        st.lists(st.one_of(st.just(0.0), st.floats(0, 0.01)), min_size=5, max_size=5), min_size=1, max_size=80
    ),
    period_seconds=st.sampled_from([0.02, 0.05, 1.0]),
)
def test_parts_add_up_wherever_they_are_logged_and_are_logged_wherever_the_trainer_was_blocked(
    parts: list[list[float]], period_seconds: float
) -> None:
    timings = [
        BatchTiming(step, sum(each), *_five(each), 8, 100.0 + step * period_seconds) for step, each in enumerate(parts)
    ]
    grouped = by_name(summarise(timings, since=100.0 - period_seconds))
    whole = {m.step: m.value for m in grouped["fetch_seconds"]}
    logged = {name: {m.step: m.value for m in grouped[name]} for name in [*PARTS, "fetch/queue"]}
    steps = set(logged["fetch/queue"])
    assert all(set(values) == steps for values in logged.values())
    for step in steps:
        assert sum(values[step] for values in logged.values()) == pytest.approx(whole[step])
    if len(whole) == len(timings):
        assert {step for step, seconds in whole.items() if seconds >= BLOCKED_SECONDS} <= steps
        assert max(whole, key=lambda step: whole[step]) in steps


def test_fast_batches_are_summarised_per_window() -> None:
    timings = [timing(step, at=100.0 + step * 0.01, fetch_seconds=0.010 + step * 1e-4) for step in range(100)]
    metrics = by_name(summarise(timings, since=99.99))
    assert all(len(values) == 1 for values in metrics.values())
    assert metrics["fetch_seconds"][0].value == pytest.approx(0.010 + 49.5e-4)
    assert metrics["fetch_seconds/max"][0].value == pytest.approx(0.0199)
    assert metrics["fetch_seconds/p95"][0].value == pytest.approx(0.010 + 94.05e-4)
    assert metrics["fetch/read"][0].value == pytest.approx(0.003)
    assert metrics["fetch_seconds"][0].step == 99


def test_stall_fraction_and_samples_per_second_cover_the_window() -> None:
    timings = [timing(step, at=100.5 + step * 0.5, fetch_seconds=0.125) for step in range(4)]
    metrics = by_name(summarise(timings, since=100.0))
    assert metrics["forebay/stall_fraction"][0].value == pytest.approx(0.25)
    assert metrics["forebay/samples_per_second"][0].value == pytest.approx(64.0)


def test_the_first_window_starts_when_its_first_batch_was_asked_for() -> None:
    metrics = by_name(summarise([timing(0, at=10.0, fetch_seconds=2.0)], since=None))
    assert metrics["forebay/stall_fraction"][0].value == pytest.approx(1.0)
    assert metrics["forebay/samples_per_second"][0].value == pytest.approx(16.0)


def test_a_clock_that_stands_still_or_goes_back_gives_no_nonsense() -> None:
    metrics = by_name(summarise([timing(0, at=10.0), timing(1, at=10.0)], since=11.0))
    assert 0.0 <= metrics["forebay/stall_fraction"][0].value <= 1.0


def test_close_sends_what_is_left_in_calls_of_at_most_1000_metrics() -> None:
    sink = Collector()
    reporter = MlflowReporter(sink, window_seconds=3600)
    for step in range(1500):
        reporter.record(timing(step, at=float(step)))
    reporter.close()
    assert [m.step for m in by_name(sink.metrics)["fetch_seconds"]] == list(range(1500))
    assert reporter.dropped == 0


def test_windows_are_sent_together_but_the_first_and_the_last_at_once() -> None:
    calls: list[list[int]] = []
    reporter = MlflowReporter(
        lambda metrics: calls.append([m.step for m in metrics if m.name == "fetch_seconds"]), window_seconds=3600
    )
    for step, now in enumerate((0.0, 2.0, SEND_SECONDS - 0.1, SEND_SECONDS, SEND_SECONDS + 2.0)):
        reporter.record(timing(step, at=now))
        reporter._outbox._turn(now)
    assert calls == [[0], [1, 2, 3]]
    reporter._outbox._turn(SEND_SECONDS + 4.0)
    reporter._outbox._turn(SEND_SECONDS + 6.0)
    assert calls == [[0], [1, 2, 3], [4]]
    reporter.close()


def test_close_is_idempotent_and_later_timings_are_ignored() -> None:
    sink = Collector()
    reporter = MlflowReporter(sink, window_seconds=3600)
    reporter.close()
    reporter.close()
    reporter.record(timing(0, at=1.0))
    assert sink.metrics == []


def test_a_sink_that_blocks_neither_slows_the_trainer_nor_grows_the_queue() -> None:
    sink = Collector(open_at_once=False)
    reporter = MlflowReporter(sink, window_seconds=0.01)
    reporter.record(timing(0, at=0.0))
    assert sink.entered.wait(10)
    started = time.process_time()
    for step in range(1, QUEUE_TIMINGS + 101):
        reporter.record(timing(step, at=step * 1.0))
    assert time.process_time() - started < 2.0
    assert reporter.dropped == 100
    sink.gate.set()
    reporter.close(30)
    assert len(by_name(sink.metrics)["fetch_seconds"]) == QUEUE_TIMINGS + 1


def test_close_does_not_wait_longer_than_it_may_for_a_sink_that_blocks() -> None:
    sink = Collector(open_at_once=False)
    reporter = MlflowReporter(sink, window_seconds=0.01)
    reporter.record(timing(0, at=0.0))
    assert sink.entered.wait(10)
    started = time.monotonic()
    reporter.close(0.05)
    assert time.monotonic() - started < 5
    sink.gate.set()


def test_a_failing_sink_costs_its_timings_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    arrived: list[Metric] = []
    calls = threading.Semaphore(0)
    answers = iter([ConnectionError("refused\nand a long story"), ConnectionError("refused"), None])

    def sink(metrics: Sequence[Metric]) -> None:
        answer = next(answers)
        calls.release()
        if answer is not None:
            raise answer
        arrived.extend(metrics)

    reporter = MlflowReporter(sink, window_seconds=0.01)
    for step in range(3):
        reporter.record(timing(step, at=float(step)))
        assert calls.acquire(timeout=10)
    reporter.close()
    assert [m.step for m in by_name(arrived)["fetch_seconds"]] == [2]
    assert reporter.dropped == 2
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]


def test_a_dropped_reporter_sends_what_it_has_and_ends_its_thread() -> None:
    sink = Collector()
    reporter = MlflowReporter(sink, window_seconds=3600)
    thread = reporter._outbox._thread
    reporter.record(timing(7, at=1.0))
    del reporter
    thread.join(10)
    assert not thread.is_alive()
    assert by_name(sink.metrics)["fetch_seconds"][0].step == 7


def test_a_forked_child_never_logs() -> None:
    sink = Collector()
    reporter = MlflowReporter(sink, window_seconds=3600)
    child = os.fork()
    if child == 0:
        reporter.record(timing(1, at=1.0))
        reporter.close()
        os._exit(0 if not sink.metrics and not reporter._outbox._queue else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reporter.record(timing(2, at=2.0))
    reporter.close()
    assert [m.step for m in by_name(sink.metrics)["fetch_seconds"]] == [2]


def test_report_to_none_is_off_and_other_names_are_refused() -> None:
    assert MlflowReporter.for_active_run(None) is None
    with pytest.raises(ConfigurationError, match="wandb"):
        MlflowReporter.for_active_run("wandb")


def test_report_to_mlflow_without_an_active_run_says_what_to_do(mlflow_store: str) -> None:
    with pytest.raises(ConfigurationError, match="start_run"):
        MlflowReporter.for_active_run("mlflow")
    assert MlflowReporter.for_active_run("auto") is None


def test_auto_never_imports_mlflow() -> None:
    program = "import sys; from forebay.reporting import MlflowReporter as R; R.for_active_run('auto')"
    check = f"{program}; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")
def test_metrics_arrive_in_the_active_run_of_a_real_store(mlflow_store: str) -> None:
    import mlflow

    with mlflow.start_run() as run:
        reporter = MlflowReporter.for_active_run("auto")
        assert reporter is not None
        assert reporter.run_id == run.info.run_id
        assert MlflowReporter.active_run_id("auto") == run.info.run_id
        now = time.time()
        for step in range(30):
            reporter.record(timing(step, at=now + step * 0.1))
        reporter.close(60)
    history = mlflow.MlflowClient(mlflow_store).get_metric_history(run.info.run_id, "fetch_seconds")
    assert [(m.step, m.value) for m in history] == [(step, 0.011) for step in range(30)]
    values = mlflow.get_run(run.info.run_id).data.metrics
    assert PARTS.items() <= values.items()
    assert values["forebay/samples_per_second"] == pytest.approx(32 * 30 / (2.9 + 0.011), rel=1e-3)


def test_a_server_that_is_down_neither_stops_training_nor_holds_up_the_exit() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = textwrap.dedent(
        f"""
        import time
        from forebay.reporting import MlflowReporter, _RunSink
        from forebay.timing import BatchTiming
        reporter = MlflowReporter(_RunSink("http://127.0.0.1:{port}", "0" * 32), window_seconds=0.01)
        for step in range(100):
            reporter.record(BatchTiming(step, 0.1, 0.1, 0, 0, 0, 0, 8, time.time()))
        time.sleep(0.1)
        started = time.monotonic()
        reporter.close(0.5)
        assert time.monotonic() - started < 5
        print("trained to the end")
        """
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "trained to the end\n"


def test_metrics_of_other_things_than_batches_arrive_too() -> None:
    sink = Collector()
    reporter = MlflowReporter(sink, window_seconds=0.01)
    reporter.report([Metric("checkpoint/local_seconds", 1.5, 7, 100.0)])
    reporter.close(20)
    assert sink.metrics == [Metric("checkpoint/local_seconds", 1.5, 7, 100.0)]
