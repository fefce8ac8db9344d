"""What a rank reads of a sequence that only says what lies at its positions: of a mixture, of batches of like lengths.

Nothing can be said of a rank's run before all of its step is located and sorted, so every rank locates whole steps;
what that costs grows with the global batch, and a plan ends early rather than take long. Otherwise all is as in `plan`.
Called by the loader's planning thread. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from forebay.order.lanes import Int64, counted
from forebay.order.mixture import in_step_order
from forebay.order.needs import Needs, by_first, needs_of_pads
from forebay.order.plan import RankPlan
from forebay.order.share import runs
from forebay.order.steps import Split

POSITIONS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True)
class Readings:
    """What is read at some positions; int64 unless said, one element a position."""

    sample_id: Int64
    piece: Int64
    row: Int64
    key: npt.NDArray[Any]
    """Numbers by which a step is sorted before it is cut into ranks, ties by position."""
    source: Int64 | None = None
    source_epoch: Int64 | None = None

    def at(self, index: Int64) -> Self:
        """Those at these indices."""
        return self._with({name: column[index] for name, column in self._columns().items()})

    def followed_by(self, other: Self) -> Self:
        """These, then the others."""
        theirs = other._columns()
        return self._with({name: np.concatenate((mine, theirs[name])) for name, mine in self._columns().items()})

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    def _with(self, columns: Mapping[str, npt.NDArray[Any]]) -> Self:
        return replace(self, **columns)


class LocatedSequence(Protocol):
    """What says what lies at its positions, with random access."""

    @property
    def samples(self) -> int:
        """The positions of an epoch."""

    @property
    def has_pieces(self) -> bool:
        """False where rows are had without any piece."""

    def read(self, epoch: int, start: int, stop: int) -> Readings:
        """What the positions [start, stop) of an epoch read."""

    def needs(self, epoch: int, position: int, *, split: Split, rank: int) -> Needs:
        """Every piece that the rank may still want, but for the pads of the last step."""


@dataclass(frozen=True)
class SharedLocated:
    """Such a sequence, shared out over ranks. A `RankOrder`."""

    sequence: LocatedSequence
    split: Split
    rank: int

    @property
    def samples(self) -> int:
        return self.sequence.samples

    @property
    def has_pieces(self) -> bool:
        return self.sequence.has_pieces

    def steps(self, position: int = 0) -> int:
        return self.split.steps(self.samples, position)

    def position_of(self, step: int) -> int | None:
        return self.split.position_of(self.samples, step)

    def plan(self, epoch: int, position: int, steps: int) -> RankPlan:
        read = partial(self.sequence.read, epoch)
        return plan_located(read, self.samples, position, steps, split=self.split, rank=self.rank)

    def needs(self, epoch: int, position: int) -> Needs:
        if not self.has_pieces:
            return Needs.nothing()
        wanted = self.sequence.needs(epoch, position, split=self.split, rank=self.rank)
        pads = needs_of_pads(self.samples, position, self.split, lambda begin: self.plan(epoch, begin, 1))
        return by_first([wanted, pads])


Read = Callable[[int, int], Readings]
"""What the positions [start, stop) of an epoch read."""


def plan_located(read: Read, samples: int, position: int, steps: int, *, split: Split, rank: int) -> RankPlan:
    """What `rank` reads in up to `steps` steps from `position` of an epoch of so many samples.

    Fewer where the epoch ends or so many would take long to locate; at least one unless the epoch has no more.
    """
    schedule = split.schedule(samples, position, min(steps, max(1, POSITIONS_AT_ONCE // split.global_batch)))
    mine = runs(schedule, split, rank)
    found = read(position, position + int(schedule.take.sum()))
    begin = np.cumsum(schedule.take) - schedule.take
    chosen = in_step_order(found.key, schedule.take)[counted(begin + mine.start, mine.stop - mine.start)]
    found, positions = found.at(chosen), position + chosen
    real = len(chosen)
    if len(schedule) and schedule.pads[-1]:
        padding = _pad_positions(samples, int(schedule.position[-1]), int(schedule.pads[-1]))
        pads = _read_at(read, padding)
        run = in_step_order(pads.key, schedule.pads[-1:])[int(mine.pad_start[-1]) : int(mine.pad_stop[-1])]
        found, positions = found.followed_by(pads.at(run)), np.append(positions, padding[run])
    size = mine.stop - mine.start + mine.pad_stop - mine.pad_start
    return RankPlan(
        offsets=np.append(0, np.cumsum(size)),
        sample_id=found.sample_id,
        piece=found.piece,
        row=found.row,
        position=positions,
        is_pad=np.arange(len(positions)) >= real,
        after=schedule.after,
        source=found.source,
        source_epoch=found.source_epoch,
    )


def _pad_positions(samples: int, before: int, number: int) -> Int64:
    """The positions just before one, cyclically, ascending."""
    return np.sort(np.arange(before - number, before) % samples)


def _read_at(read: Read, position: Int64) -> Readings:
    """What is read at these ascending positions, which may repeat."""
    distinct, index = np.unique(position, return_inverse=True)
    cuts = np.flatnonzero(np.diff(distinct) > 1) + 1
    stretches = [read(int(run[0]), int(run[-1]) + 1) for run in np.split(distinct, cuts)]
    found = stretches[0]
    for stretch in stretches[1:]:
        found = found.followed_by(stretch)
    return found.at(index)
