"""Does a trainer start as fast in the middle of a huge dataset as at its beginning, and with how much memory?

One sparse token file of 10⁹ samples of 256 bytes, cut into 100,000 pieces. Every start is a process of its own with a
daemon and an empty cache of its own; the daemon copies what the first batch needs (`--read-in-place never`). A start
counts from the dataset's constructor, with the daemon's manifest, the plan and the fills, to the first batch.
Planning is measured apart: 1000 steps of 4096 samples over 16 lanes, as one rank of 16.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.daemon import Daemon, daemon
from benchmarks.shape import Report, Row, interleaved, main, measured, summarised

SAMPLES, SAMPLE_TOKENS, PIECES = 1_000_000_000, 64, 100_000
SAMPLE_BYTES = 4 * SAMPLE_TOKENS
PIECE_ROWS = SAMPLES // PIECES
BATCH = 64
PLANNED_STEPS, PLANNED_BATCH, LANES, RANKS = 1000, 4096, 16, 16
PLACES = {"0 %": 0, "50 %": SAMPLES // 2, "99 %": SAMPLES // 100 * 99}
QUESTION = "How long and how much memory does the first batch take at 0 %, 50 % and 99 % of 10^9 samples?"


def start(source: str, address: str, position: int) -> dict[str, float]:
    """A trainer's start, in this process: seconds to the first batch, and what it added to the resident memory."""
    from forebay import DataLoader, StreamingDataset, Tokens

    before = _resident_bytes()
    with measured() as usage:
        began = time.perf_counter()
        tokens = Tokens(sequence_length=SAMPLE_TOKENS, dtype="int32", piece_bytes=PIECE_ROWS * SAMPLE_BYTES)
        dataset = StreamingDataset(source, format=tokens, rank=0, world_size=1, address=address)
        loader = DataLoader(dataset, BATCH, report_to=None)
        loader.load_state_dict({**loader.state_dict(), "position": position})
        opened = time.perf_counter() - began
        batch = next(iter(loader))
    after = _resident_bytes()
    assert batch["tokens"].shape == (BATCH, SAMPLE_TOKENS)
    assert loader.position == position + BATCH
    assert len(dataset._open().manifest.piece_rows) == PIECES
    loader.close()
    return {
        "first_batch_seconds": usage.wall_seconds,
        "open_seconds": opened,
        "added_megabytes": (after - before) / 1e6,
        "cpu_seconds": usage.cpu_seconds,
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _start_in_a_fresh_process(source: Path, position: int, _: int) -> Mapping[str, float]:
    with daemon(source.parent, "--read-in-place", "never", "--capacity", str(8 * 2**30)) as node:
        idle = node.cpu_seconds()
        command = [sys.executable, "-m", "benchmarks.bench_resume", "--start", str(source), node.address, str(position)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
        return {**json.loads(done.stdout), **_cost_to(node, idle)}


def _cost_to(node: Daemon, idle_cpu_seconds: float) -> Mapping[str, float]:
    counters = node.status().counters
    assert counters.fills > 0, "the first batch must have been filled, not read in place"
    return {
        "daemon_cpu_seconds": node.cpu_seconds() - idle_cpu_seconds,
        "pieces_filled": counters.fills,
        "megabytes_filled": counters.bytes_downloaded / 1e6,
    }


def plan_once(position: int) -> Mapping[str, float]:
    """A fresh order and one plan of 1000 steps."""
    from forebay.order import Order, OrderOptions, Split

    with measured() as building:
        rows = np.full(PIECES, PIECE_ROWS)
        order = Order(rows, seed=0, options=OrderOptions(lanes=LANES), total_bytes=SAMPLES * SAMPLE_BYTES)
    split = Split(RANKS, PLANNED_BATCH, "even")
    with measured() as planning:
        plan = order.epoch(0).plan(position, PLANNED_STEPS, split=split, rank=RANKS // 2)
    assert plan.steps == PLANNED_STEPS
    assert len(plan.sample_id) == PLANNED_STEPS * PLANNED_BATCH // RANKS
    return {
        "planning_seconds": planning.wall_seconds,
        "planning_cpu_seconds": planning.cpu_seconds,
        "order_seconds": building.wall_seconds,
    }


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as directory:
        source = Path(directory) / "tokens.bin"
        with source.open("wb") as file:
            file.truncate(SAMPLES * SAMPLE_BYTES)
        starts = interleaved(
            {
                f"first batch at {place}": partial(_start_in_a_fresh_process, source, position)
                for place, position in PLACES.items()
            },
            options.repeats,
        )
    plans = interleaved({"plan at 50 %": lambda _: plan_once(SAMPLES // 2)}, options.repeats)
    return _report({**starts, **plans}, [result for results in starts.values() for result in results])


def _report(results: Mapping[str, list[Mapping[str, float]]], starts: list[Mapping[str, float]]) -> Report:
    rows: list[Row] = [summarised(name, repeats) for name, repeats in results.items()]
    worst = max(float(row.values["first_batch_seconds"]) for row in rows if "first_batch_seconds" in row.values)
    return Report(
        QUESTION,
        rows,
        {
            "first_batch_seconds_worst": worst,
            "added_megabytes": max(result["added_megabytes"] for result in starts),
            "planning_seconds": median(result["planning_seconds"] for result in results["plan at 50 %"]),
        },
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", default=None, help="where the sparse file and the caches go")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--start"]:
        print(json.dumps(start(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main("bench_resume", benchmark, repeats=3, add_arguments=_arguments)
