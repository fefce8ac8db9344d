"""How near to the best possible hit ratio does the daemon's eviction come? No timing but for the planning.

The real order engine's needs, the real policies, plans and window of prefetches (`forebay.simulation`), on a simulated
clock. A hit is a piece that a job begins to read and that nobody had to fetch for it, at that time or ahead. Counted is
what lies between the first epoch and the last, so that the cache is full and the future is known. The scenarios:

- `one_job_half`: one job over 1000 pieces that reshuffles them in every epoch; the cache holds half of them.
- `four_jobs_35_percent`: four such jobs on one node over one dataset, each in an order of its own, a quarter of an
  epoch behind one another; the cache holds 35 % of the pieces.
- `mixture_10_percent`: one job over a mixture of three sources of 1800, 180 and 20 pieces with weights 0.63, 0.30 and
  0.07; the cache holds 10 % of the pieces.

Beside `next-use` as the daemon runs it stand the same without prefetching, `lru`, `never`, and the offline optimum,
which knows the whole future and does not care that pieces being read cannot go. `planning_milliseconds` is one choice
among 100,000 pieces, the needs of four sessions merged anew.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from benchmarks.shape import Report, Row, Target, main
from forebay.order import MixedSequence, MixtureOrder, Order, OrderOptions, SharedLocated, SharedOrder, Split
from forebay.simulation import Job, Scenario, optimum, simulate
from forebay_core.eviction import POLICIES, Residents, plan
from forebay_core.needs import Needs, Progress, next_use

QUESTION = "How near to the best possible hit ratio does the daemon's eviction come?"
PIECE_BYTES = 1 << 26
EPOCHS = 5
PLANNED_PIECES = 100_000
Measured = tuple[float, float]


def one_job_half(pieces: int = 1000) -> tuple[Scenario, Measured]:
    job = _reader(pieces, seed=1)
    return _scenario((job,), pieces, share=0.5), _between(job)


def four_jobs_35_percent(pieces: int = 1000) -> tuple[Scenario, Measured]:
    epoch = _reader(pieces, seed=0).ends_at / EPOCHS
    jobs = tuple(replace(_reader(pieces, seed=seed), starts_at=seed * epoch / 4) for seed in range(4))
    return _scenario(jobs, pieces, share=0.35), (_between(jobs[3])[0], _between(jobs[0])[1])


def mixture_10_percent(pieces: int = 2000) -> tuple[Scenario, Measured]:
    rows = 32
    sizes = [pieces * 90 // 100, pieces * 9 // 100, pieces // 100]
    orders = tuple(
        Order(np.full(size, rows), seed=seed, options=OrderOptions(lanes=1, window=rows // 2, sticky=False))
        for seed, size in enumerate(sizes)
    )
    mixture = MixtureOrder([order.samples for order in orders], [0.63, 0.30, 0.07], seed=1, block=100)
    order = SharedLocated(MixedSequence(mixture, orders), Split(1, 4), 0)
    job = Job(order, np.arange(sum(sizes)), EPOCHS, positions_per_second=float(rows))
    return _scenario((job,), sum(sizes), share=0.1), _between(job)


SCENARIOS = {made.__name__: made for made in (one_job_half, four_jobs_35_percent, mixture_10_percent)}
VARIANTS: Mapping[str, Callable[[Scenario], Scenario]] = {
    "next-use": lambda scenario: scenario,
    "next-use, no prefetch": lambda scenario: replace(scenario, prefetch=False),
    "lru": lambda scenario: replace(scenario, eviction="lru", prefetch=False),
    "never": lambda scenario: replace(scenario, eviction="never", prefetch=False),
}
TARGETS = {
    "one_job_half": Target(at_least=0.48),
    "four_jobs_35_percent": Target(at_least=0.62),
    "mixture_10_percent": Target(at_least=0.35),
    "planning_milliseconds": Target(at_most=50),
}


def benchmark(options: argparse.Namespace) -> Report:
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for name, made in SCENARIOS.items():
        scenario, measured = made()
        results = {variant: _measured(given(scenario), measured) for variant, given in VARIANTS.items()}
        best = optimum(scenario, measured)
        rows += [Row(f"{name}: {variant}", values) for variant, values in results.items()]
        rows.append(Row(f"{name}: offline optimum", {"hit_ratio": best}))
        ratios[name] = float(results["next-use"]["hit_ratio"])
        ratios[f"{name}_of_optimum"] = ratios[name] / best
    took = [planning_seconds(repeat) for repeat in range(options.repeats)]
    rows.append(Row("planning", {"pieces": PLANNED_PIECES, "seconds": median(took), "seconds_highest": max(took)}))
    ratios["planning_milliseconds"] = 1000 * median(took)
    return Report(QUESTION, rows, ratios, TARGETS)


def planning_seconds(seed: int) -> float:
    """One plan over many pieces: merging what four sessions need, and choosing."""
    random = np.random.default_rng(seed)
    positions = random.integers(0, 10**6, (4, PLANNED_PIECES))
    pieces = np.arange(PLANNED_PIECES)
    sessions = [
        Progress(Needs.build(pieces, first, first + 100, piece_count=PLANNED_PIECES), 0, 1000.0) for first in positions
    ]
    keys = [f"{piece:064x}" for piece in pieces]
    began = time.perf_counter()
    residents = Residents(
        bytes=np.full(PLANNED_PIECES, PIECE_BYTES),
        next_use=next_use(PLANNED_PIECES, sessions, 0.0),
        last_used=random.random(PLANNED_PIECES),
        held=random.random(PLANNED_PIECES) < 0.01,
        capacity_bytes=PLANNED_PIECES * PIECE_BYTES,
    )
    chosen = plan(POLICIES["next-use"], keys, residents, PIECE_BYTES)
    took = time.perf_counter() - began
    assert chosen
    return took


def _reader(pieces: int, seed: int) -> Job:
    rows = 8
    options = OrderOptions(lanes=4, window=rows // 2, sticky=False)
    order = SharedOrder(Order(np.full(pieces, rows), seed=seed, options=options), Split(1, 4), 0)
    return Job(order, np.arange(pieces), EPOCHS, positions_per_second=float(rows))


def _scenario(jobs: tuple[Job, ...], pieces: int, share: float) -> Scenario:
    return Scenario(jobs, np.full(pieces, PIECE_BYTES), int(share * pieces) * PIECE_BYTES)


def _between(job: Job) -> Measured:
    """From the end of its first epoch to the beginning of its last."""
    return job.time_of(job.order.samples), job.time_of((job.epochs - 1) * job.order.samples)


def _measured(scenario: Scenario, measured: Measured) -> dict[str, float | int | str]:
    found = simulate(scenario, measured)
    return {
        "hit_ratio": found.hit_ratio,
        "leases": found.leases,
        "gigabytes_fetched": found.fetched_bytes / 1e9,
        "waited": found.waited,
        "evictions": found.evictions,
        "bypassed": found.bypassed,
    }


if __name__ == "__main__":
    main("bench_eviction", benchmark)
