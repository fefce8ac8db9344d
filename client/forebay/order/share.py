"""One rank's share of steps: which run of each step's sorted samples, and which lanes that run comes from.

A step sorts its samples by their coordinate on the line, so by lane first, and appends its pads; each rank gets a
contiguous run of that. How many samples each lane gives to a step is arithmetic, so the lanes that a rank does not need
are never evaluated. Arrays are [steps] or [steps, lanes], int64. Pure; any thread.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.order.lanes import Int64, Lanes
from forebay.order.steps import Schedule, Split
from forebay_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one rank in each step of a schedule; int64[steps] each."""

    start: Int64
    """Where the rank's run begins among the step's real samples, sorted."""
    stop: Int64
    pad_start: Int64
    """Where its pads begin among the step's pads, sorted."""
    pad_stop: Int64


@dataclass(frozen=True, slots=True)
class Share(Runs):
    """The share of one rank in each step of a schedule, lane by lane."""

    turn: Int64
    """[steps, lanes]: the first turn of each lane in each step."""
    number: Int64
    """[steps, lanes]: how many turns each lane has in each step."""
    touched: npt.NDArray[np.bool_]
    """[steps, lanes]: whether the rank's run takes any of them; then all are evaluated, to be sorted."""
    skipped: Int64
    """[steps]: the real samples of the lanes that lie before the rank's run."""


def runs(schedule: Schedule, split: Split, rank: int) -> Runs:
    """The runs of `rank`, 0 <= rank < world size."""
    if not 0 <= rank < split.world_size:
        raise ConfigurationError(f"rank {rank} is not one of {split.world_size} ranks: ranks count from 0")
    base, larger = np.divmod(schedule.take + schedule.pads, split.world_size)
    run_start = rank * base + np.minimum(rank, larger)
    run_stop = run_start + base + (rank < larger)
    start, stop = np.minimum(run_start, schedule.take), np.minimum(run_stop, schedule.take)
    return Runs(start, stop, run_start - start, run_stop - stop)


def share(lanes: Lanes, schedule: Schedule, split: Split, rank: int) -> Share:
    """The share of `rank`, 0 <= rank < world size."""
    mine = runs(schedule, split, rank)
    start, stop = mine.start, mine.stop
    turn = lanes.turns_before(schedule.position)
    number = lanes.turns_before(schedule.position + schedule.take) - turn
    upper = np.cumsum(number, axis=1)
    lower = upper - number
    reaches_in = np.maximum(lower, start[:, np.newaxis]) < np.minimum(upper, stop[:, np.newaxis])
    skipped = np.where(upper <= start[:, np.newaxis], number, 0).sum(axis=1)
    return Share(start, stop, mine.pad_start, mine.pad_stop, turn, number, reaches_in, skipped)
