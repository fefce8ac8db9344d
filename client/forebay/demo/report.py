"""What the demo says at the end: pure functions from what was recorded to numbers, and from numbers to a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from forebay.checkpoint.handle import POINTS
from forebay.demo.records import Event, StepRecord
from forebay.demo.scenario import Outcome

__all__ = ["failures", "summary", "table"]

#: A single batch of 64 says little: the loss at either end is the mean over this many steps.
_LOSS_STEPS = 5
_SOURCES = {"local": "from the node's staging directory", "durable": "from its destination"}


def summary(outcome: Outcome) -> dict[str, Any]:
    """The object that `forebay demo --json` prints."""
    records = [*outcome.first, *outcome.second]
    fetch = np.array([record.fetch_seconds for record in records])
    losses = _losses(outcome)
    return {
        "samples_repeated": outcome.verdict.samples_repeated,
        "samples_skipped": outcome.verdict.samples_skipped,
        "order_equal": outcome.verdict.order_equal,
        "loss_first": float(np.mean(losses[:_LOSS_STEPS])),
        "loss_last": float(np.mean(losses[-_LOSS_STEPS:])),
        "killed_at_step": outcome.first[-1].step,
        "resumed_at_step": outcome.restored.step,
        "resumed_from": outcome.restored.source,
        "checkpoints": _checkpoints(outcome.checkpoints),
        "world_sizes": [outcome.first[0].world_size, outcome.second[0].world_size],
        "fetch_seconds": {
            "p50": float(np.quantile(fetch, 0.5)),
            "p95": float(np.quantile(fetch, 0.95)),
            "max": float(fetch.max()),
        },
        "stall_fraction": float(fetch.sum() / sum(record.step_seconds for record in records)),
        "cache": {
            "hits": outcome.counters.hits,
            "misses": outcome.counters.misses,
            "bytes_downloaded": outcome.counters.bytes_downloaded,
        },
        "mlflow_uri": outcome.mlflow_uri,
        "mlflow_run_id": outcome.mlflow_run_id,
    }


def failures(numbers: dict[str, Any]) -> list[str]:
    """What the numbers say went wrong; empty where recovery was exact and the model learned."""
    checks = {
        f"{numbers['samples_repeated']} samples were repeated": numbers["samples_repeated"] == 0,
        f"{numbers['samples_skipped']} samples were skipped": numbers["samples_skipped"] == 0,
        "the order differs from that of one process": numbers["order_equal"],
        "the loss did not fall": numbers["loss_last"] < numbers["loss_first"],
        "the kill left nothing to repeat": numbers["resumed_at_step"] < numbers["killed_at_step"],
    }
    return [what for what, good in checks.items() if not good]


def table(outcome: Outcome, numbers: dict[str, Any], *, kept: bool) -> Table:
    """The same for people; `kept` says whether the MLflow run is still there to be looked at."""
    fetch, cache, checkpoints = numbers["fetch_seconds"], numbers["cache"], numbers["checkpoints"]
    first, second = numbers["world_sizes"]
    rows = {
        "killed": f"at step {numbers['killed_at_step']}, {first} ranks, SIGKILL to the whole process tree",
        "resumed": f"from step {numbers['resumed_at_step']}, {second} ranks, epoch {outcome.restored.epoch} "
        f"position {outcome.restored.position:,}; the checkpoint read {_SOURCES[numbers['resumed_from']]}",
        "checkpoints": f"{checkpoints['durable']} durable: {_points(checkpoints)} (medians of the time since the save)",
        "blocked": f"{1000 * checkpoints['blocked_seconds']['p50']:.1f} ms of training time by a save (median)",
        "finished": f"at step {outcome.second[-1].step}, after two whole epochs",
        "samples repeated": str(numbers["samples_repeated"]),
        "samples skipped": str(numbers["samples_skipped"]),
        "order": "equal to one process without training" if numbers["order_equal"] else "NOT EQUAL",
        "loss": f"{numbers['loss_first']:.3f} → {numbers['loss_last']:.3f} nats per byte",
        "fetch_seconds": "  ".join(f"{name} {1000 * fetch[name]:.2f} ms" for name in ("p50", "p95", "max")),
        "stall": f"{numbers['stall_fraction']:.2%} of the training time",
        "cache": f"{cache['hits']} hits, {cache['misses']} misses, {cache['bytes_downloaded'] / 2**20:.1f} MiB of "
        f"{outcome.shards} shards fetched",
    }
    if kept:
        rows["MLflow run"] = numbers["mlflow_run_id"]
        rows["look at it"] = f"mlflow ui --backend-store-uri {numbers['mlflow_uri']}"
    grid = Table(show_header=False, box=None, pad_edge=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, value)
    return grid


def _checkpoints(durable: Sequence[Event]) -> dict[str, Any]:
    """How many became durable, and of those the seconds from `save()` to each point, and for which training stood."""
    seconds = {name: [event.seconds[name] for event in durable] for name in (*POINTS, "blocked")}
    summaries = {
        f"{name}_seconds": {"p50": float(np.quantile(taken, 0.5)), "max": max(taken)}
        for name, taken in seconds.items()
        if taken
    }
    return {"durable": len(durable), **summaries}


def _points(checkpoints: dict[str, Any]) -> str:
    return ", ".join(f"{point} {checkpoints[f'{point}_seconds']['p50']:.3f} s" for point in POINTS)


def _losses(outcome: Outcome) -> Sequence[float]:
    """The mean loss of each step that the trained model has made, one for each step."""
    kept: dict[int, StepRecord] = {
        record.step: record for record in outcome.first if record.step <= outcome.restored.step
    }
    kept |= {record.step: record for record in outcome.second}
    return [kept[step].loss for step in sorted(kept)]
