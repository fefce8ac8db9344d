"""What do timing and MLflow tracking cost a trainer, at 20 and at 1000 batches a second?

Two trainers in one process over the same cached tokens: one with an active MLflow run (SQLite) that it reports to, one
with `report_to=None`. They take turns, in pairs, so that the machine's moods hit both alike.

An effect of one percent drowns in the wall clock of a machine with other work (its spread here is several percent), so
the fraction that counts is of CPU time. In a *paced* turn the trainer takes a batch, sleeps until the next is due, and
at the end sleeps on until the last window has been sent: all that the process burns is the loader and the reporting,
and the difference of the two trainers' CPU seconds, over the time that the batches took, is what tracking costs, as a
fraction of one core. The reporter holds the GIL for it at the worst, so that is also the most by which it can slow a
trainer that computes in Python. Timing cannot be switched off, so it is replayed: the clock readings, the four stages,
`time_batch` and the record of a batch, many times, and its CPU seconds at that rate are added.

In a *working* turn the trainer computes in Python instead of sleeping; the wall clock of the two trainers is reported
with its spread, and has no target.
"""

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.daemon import daemon
from benchmarks.shape import Report, Row, Target, describe_machine, interleaved, main, summarised
from forebay import DataLoader, StreamingDataset, Tokens
from forebay.timing import BatchTiming, Stage, time_batch

SEQUENCE, BATCH, SAMPLES = 64, 8, 1 << 19
RATES = {"overhead_fraction": 20, "overhead_fraction_1000": 1000}
TARGETS = {"overhead_fraction": Target(at_most=0.01), "overhead_fraction_1000": Target(at_most=0.03)}
REPLAYS = 20_000
SENT_AFTER_SECONDS = 5.0
"""Longer than two of the reporter's windows: when one brings nothing, all is sent."""
QUESTION = "What fraction of a core do timing and MLflow tracking cost, at 20 and at 1000 batches a second?"

Turn = Mapping[str, float]


class Trainer:
    """A loop over a loader of its own, which runs on over the epochs."""

    def __init__(self, tokens: Path, address: str, report_to: Any) -> None:
        dataset = StreamingDataset(str(tokens), format=Tokens(sequence_length=SEQUENCE, dtype="int32"), address=address)
        self.loader = DataLoader(dataset, BATCH, report_to=report_to)
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def paced(self, rate: int, seconds: float) -> Turn:
        """The CPU seconds of taking batches at a rate."""
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(1, round(rate * seconds) + 1):
            next(self._batches)
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        took = time.perf_counter() - began
        time.sleep(SENT_AFTER_SECONDS)
        return {"cpu_fraction": (time.process_time() - cpu) / took, "batches_per_second": rate * seconds / took}

    def working(self, rounds: int, batches: int) -> Turn:
        """The wall clock of taking batches and computing in between."""
        began = time.perf_counter()
        for _ in range(batches):
            next(self._batches)
            compute(rounds)
        return {"wall_seconds_per_batch": (time.perf_counter() - began) / batches}


def compute(rounds: int) -> int:
    """Work in Python, with the GIL."""
    total = 0
    for number in range(rounds):
        total += number & 7
    return total


def rounds_of(seconds: float) -> int:
    """How many rounds of `compute` take this long."""
    began = time.process_time()
    compute(1_000_000)
    return round(1_000_000 * seconds / (time.process_time() - began))


def replayed_timing() -> Turn:
    """The CPU seconds of timing one batch, without reading one."""
    kept: deque[BatchTiming] = deque(maxlen=10_000)
    cpu = time.process_time()
    for step in range(REPLAYS):
        blocked_from = at = time.monotonic()
        stages = []
        for name in ("remote_wait", "read", "transform", "collate"):
            now = time.monotonic()
            stages.append(Stage(name, at, now))
            at = now
        kept.append(time_batch(stages, blocked_from, time.monotonic(), step=step, samples=BATCH, at=time.time()))
    return {"timing_seconds_per_batch": (time.process_time() - cpu) / REPLAYS}


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary:
        directory = Path(temporary)
        tokens = directory / "tokens.bin"
        np.random.default_rng(0).integers(0, 2**15, SAMPLES * SEQUENCE, dtype=np.int32).tofile(tokens)
        with daemon(directory, "--read-in-place", "never") as node, _active_run(directory) as log:
            reporting = Trainer(tokens, node.address, "mlflow")
            silent = Trainer(tokens, node.address, None)
            for trainer in (reporting, silent):
                trainer.paced(20, 3.0)
            results = interleaved(_turns(reporting, silent, options.seconds), options.repeats)
            reporting.loader.close()
            silent.loader.close()
            logged = log()
    return _report(results, logged)


@contextmanager
def _active_run(directory: Path) -> Iterator[Callable[[], int]]:
    """An MLflow run in a database of its own; gives how many values of `fetch_seconds` it has."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
    with mlflow.start_run() as run:
        client = mlflow.MlflowClient()
        yield lambda: len(client.get_metric_history(run.info.run_id, "fetch_seconds"))


def _turns(reporting: Trainer, silent: Trainer, seconds: float) -> dict[str, Callable[[int], Turn]]:
    turns: dict[str, Callable[[int], Turn]] = {"timing, replayed": lambda _: replayed_timing()}
    for rate in RATES.values():
        rounds = rounds_of(1 / rate)
        for name, trainer in {"reporting": reporting, "silent": silent}.items():
            turns[f"{name}, paced, {rate} a second"] = partial(_paced, trainer, rate, seconds)
        for name, trainer in {"reporting": reporting, "silent": silent}.items():
            turns[f"{name}, working, {rate} a second"] = partial(_working, trainer, rounds, round(rate * seconds))
    return turns


def _paced(trainer: Trainer, rate: int, seconds: float, _: int) -> Turn:
    return trainer.paced(rate, seconds)


def _working(trainer: Trainer, rounds: int, batches: int, _: int) -> Turn:
    return trainer.working(rounds, batches)


def _report(results: Mapping[str, list[Turn]], logged: int) -> Report:
    assert logged > 0, "nothing reached MLflow"
    timing = median(turn["timing_seconds_per_batch"] for turn in results["timing, replayed"])
    rows = [summarised(name, turns) for name, turns in results.items()]
    ratios: dict[str, float] = {}
    for key, rate in RATES.items():
        tracking = differences(results, "paced", rate, "cpu_fraction")
        wall = [
            change / turn["wall_seconds_per_batch"]
            for change, turn in zip(
                differences(results, "working", rate, "wall_seconds_per_batch"),
                results[f"silent, working, {rate} a second"],
                strict=True,
            )
        ]
        each = [{"tracking_fraction": cpu, "wall_fraction": share} for cpu, share in zip(tracking, wall, strict=True)]
        rows.append(summarised(f"cost at {rate} a second", each))
        ratios[key] = median(tracking) + timing * rate
    rows.append(Row("MLflow", {"values_of_fetch_seconds": logged}))
    return Report(QUESTION, rows, ratios, TARGETS, describe_machine())


def differences(results: Mapping[str, list[Turn]], kind: str, rate: int, number: str) -> list[float]:
    """Reporting less silent, pair by pair."""
    pairs = zip(*(results[f"{name}, {kind}, {rate} a second"] for name in ("reporting", "silent")), strict=True)
    return [reporting[number] - silent[number] for reporting, silent in pairs]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a turn")
    parser.add_argument("--directory", default=None, help="where the data, the cache and the database go")


if __name__ == "__main__":
    main("bench_overhead", benchmark, repeats=5, add_arguments=_arguments)
