"""Plans: what one rank reads in the next steps, many steps at once.

Called by the loader's planning thread; the cost is that of the samples in the lanes that the rank's runs touch. All
steps are sorted in one pass, by (step, coordinate).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.order.lanes import Int64, counted
from forebay.order.sequence import Sequence
from forebay.order.share import Share, share
from forebay.order.steps import Schedule, Split


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The samples of one rank in consecutive steps, in the order in which they are handed out. int64 unless said."""

    offsets: Int64
    """[steps + 1]: step s has the samples [offsets[s], offsets[s + 1])."""
    sample_id: Int64
    piece: Int64
    row: Int64
    position: Int64
    """A pad keeps the position at which it was consumed."""
    is_pad: npt.NDArray[np.bool_]
    after: Int64
    """[steps]: the position of the epoch after each step; N after its last."""
    source: Int64 | None = None
    """Which source of a mixture each sample is of; None where there is but one."""
    source_epoch: Int64 | None = None
    """The epoch of that source, by which the sample's random numbers are drawn; None: the plan's own."""

    @property
    def steps(self) -> int:
        return len(self.after)


@dataclass(frozen=True, slots=True)
class _Chosen:
    position: Int64
    place: Int64
    part: Int64

    def followed_by(self, other: "_Chosen") -> "_Chosen":
        pairs = ((self.position, other.position), (self.place, other.place), (self.part, other.part))
        return _Chosen(*(np.concatenate(pair) for pair in pairs))


def plan(sequence: Sequence, position: int, steps: int, *, split: Split, rank: int) -> RankPlan:
    """Up to `steps` steps from `position`, fewer where the epoch ends."""
    limit = min(steps, np.iinfo(np.int64).max // max(1, sequence.samples))
    schedule = split.schedule(sequence.samples, position, limit)
    mine = share(sequence.lanes, schedule, split, rank)
    chosen = _real(sequence, mine)
    real = len(chosen.place)
    if len(schedule) and schedule.pads[-1]:
        chosen = chosen.followed_by(_pads(sequence, schedule, mine))
    piece, row = sequence.rows(chosen.place, chosen.part)
    size = mine.stop - mine.start + mine.pad_stop - mine.pad_start
    return RankPlan(
        offsets=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(size))),
        sample_id=sequence.sample_ids(piece, row),
        piece=piece,
        row=row,
        position=chosen.position,
        is_pad=np.arange(len(piece)) >= real,
        after=schedule.after,
    )


def _real(sequence: Sequence, mine: Share) -> _Chosen:
    """The rank's runs of the steps' real samples, step after step."""
    lanes = sequence.lanes
    lane, step = np.nonzero(mine.touched.T)
    number = mine.number[step, lane]
    evaluated = np.where(mine.touched, mine.number, 0)
    turn = counted(mine.turn[step, lane], number)
    place = sequence.places_by_lane(turn, evaluated.sum(axis=0))
    part = sequence.track.find(place)
    order = np.argsort(np.repeat(step * sequence.samples, number) + sequence.coordinates(place, part))

    in_step = evaluated.sum(axis=1)
    begin = np.cumsum(in_step) - in_step + mine.start - mine.skipped
    chosen = order[counted(begin, mine.stop - mine.start)]
    slot = np.repeat(lanes.slot[lane], number)
    return _Chosen(turn[chosen] * lanes.count + slot[chosen], place[chosen], part[chosen])


def _pads(sequence: Sequence, schedule: Schedule, mine: Share) -> _Chosen:
    """The rank's run of the last step's pads: its samples are those just before the step, cyclically."""
    number = int(schedule.pads[-1])
    begin = int(schedule.position[-1]) - number
    position = np.sort(np.arange(begin, begin + number) % sequence.samples)
    place = sequence.places(position)
    part = sequence.track.find(place)
    run = slice(int(mine.pad_start[-1]), int(mine.pad_stop[-1]))
    chosen = np.argsort(sequence.coordinates(place, part), kind="stable")[run]
    return _Chosen(position[chosen], place[chosen], part[chosen])
