"""A mixture as one rank reads it: the draws of its steps located in their sources' own epochs, and what it will need.

The sources' pieces are numbered one source after another. A rank's run of a step is the same stretch, about, of every
source's line, so a node needs its part of each source and no more. About: which lanes of a source the run can reach is
bounded from how evenly any run of its positions goes round the lanes, never planned draw by draw. Where a source has
lanes of its own number, and above all where it has one alone, the bounds are wide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from forebay.order.engine import Order
from forebay.order.lanes import Int64, bit_reversed
from forebay.order.located_plan import Readings
from forebay.order.mixture import MixtureOrder
from forebay.order.needs import Needs, by_first
from forebay.order.share import runs
from forebay.order.steps import Schedule, Split

Float64 = npt.NDArray[np.float64]

_MOST_PARTS = 100_000
"""Parts of one source that are listed for one epoch of the mixture."""
_MOST_SOURCE_EPOCHS = 64
"""What is read more often in one epoch of the mixture is wanted throughout the rest of it."""
_SLACK = 1e-6
"""What rounding can do to a count of samples."""


@dataclass(frozen=True)
class MixedSequence:
    """A mixture of `sources`, located: what `SharedLocated` shares out. Positions are the mixture's own."""

    mixture: MixtureOrder
    sources: tuple[Order, ...]
    has_pieces = True

    @property
    def samples(self) -> int:
        return self.mixture.samples

    def needs(self, epoch: int, position: int, *, split: Split, rank: int) -> Needs:
        """Every piece of every plan of the rank from there is in it, but for pads.

        A piece is listed once for each of its parts and each epoch of its source. Costs the parts listed.
        """
        touched_from = Reach(self.sources).touched_from(self.samples, position, split, rank)
        listed = [
            each
            for source, first_piece in enumerate(first_pieces(self.sources))
            for each in self._needs_of(source, first_piece, touched_from[source], epoch, position)
        ]
        return by_first([Needs.nothing(), *listed])

    def read(self, epoch: int, start: int, stop: int) -> Readings:
        draws = self.mixture.epoch(epoch).draws(start, stop)
        sample_id, piece, row = (np.empty(stop - start, dtype=np.int64) for _ in range(3))
        fraction = np.empty(stop - start, dtype=np.float64)
        for source, (order, first_piece) in enumerate(zip(self.sources, first_pieces(self.sources), strict=True)):
            drawn = np.flatnonzero(draws.source == source)
            borders = np.flatnonzero(np.diff(draws.source_epoch[drawn])) + 1
            for at in np.split(drawn, borders) if len(drawn) else ():
                begin = int(draws.source_position[at[0]])
                found = order.epoch(int(draws.source_epoch[at[0]])).locate(begin, begin + len(at))
                sample_id[at], piece[at], row[at] = found.sample_id, found.piece + first_piece, found.row
                fraction[at] = found.fraction
        return Readings(sample_id, piece, row, fraction, draws.source, draws.source_epoch)

    def _needs_of(
        self, source: int, first_piece: int, touched_from: Int64, epoch: int, position: int
    ) -> Iterator[Needs]:
        order, ours = self.sources[source], self.mixture.epoch(epoch)
        drawn, end = int(ours.drawn(position)[source]), int(ours.drawn(self.samples)[source])
        begun, stop = drawn // order.samples, -(-end // order.samples)
        for number in range(begun, stop if drawn < end else begun):
            bounds, before = order.epoch(number).part_bounds(), number * order.samples
            first, last, lane_from = bounds.first + before, bounds.last + before, touched_from[bounds.lane]
            is_last = number - begun + 1 >= min(_MOST_SOURCE_EPOCHS, -(-_MOST_PARTS // len(bounds.pieces)))
            if is_last:
                first, last = np.full_like(first, before), np.full_like(last, end)
                lane_from = lane_from if order.sticky else np.full_like(lane_from, touched_from.min())
            wanted_from, wanted_to = self.mixture.span(source, np.maximum(first, drawn), np.minimum(last, end))
            wanted_from = np.maximum(wanted_from - epoch * self.samples, lane_from)
            wanted_to = np.minimum(wanted_to - epoch * self.samples, self.samples)
            wanted = (wanted_from < wanted_to) & (first < end) & (last > drawn)
            yield Needs(bounds.pieces[wanted] + first_piece, wanted_from[wanted], wanted_to[wanted])
            if is_last:
                return


def first_pieces(sources: Sequence[Order]) -> list[int]:
    """The number of each source's first piece among those of all."""
    return list(accumulate((order.pieces for order in sources[:-1]), initial=0))


def sources_of(first_pieces: npt.ArrayLike, pieces: npt.ArrayLike) -> Int64:
    """The number of the source that each of these pieces is of."""
    return np.searchsorted(first_pieces, pieces, side="right") - 1


class Reach:
    """Which lanes of its sources the runs of a rank can reach."""

    def __init__(self, sources: Sequence[Order]) -> None:
        self._samples = [order.samples for order in sources]
        starts = [order.lane_starts for order in sources]
        self._least = [start[:-1] / samples for start, samples in zip(starts, self._samples, strict=True)]
        self._most = [(start[1:] - 1) / samples for start, samples in zip(starts, self._samples, strict=True)]

    def touched_from(self, samples: int, position: int, split: Split, rank: int) -> list[Int64]:
        """For each source, for each lane, the position of the first step that can reach it; `samples` for none."""
        full = split.full_steps(samples, position)
        tail = split.schedule(samples, position + full * split.global_batch, 2)
        touched_from = [np.full(len(lanes), samples, dtype=np.int64) for lanes in self._least]
        for schedule in (split.schedule(samples, position, min(full, 1)), tail):
            mine = runs(schedule, split, rank)
            for step in range(len(schedule)):
                run = int(mine.start[step]), int(mine.stop[step])
                for known, reached in zip(touched_from, self._reached(schedule, step, run), strict=True):
                    known[reached] = np.minimum(known[reached], schedule.position[step])
        return touched_from

    def _reached(self, schedule: Schedule, step: int, run: tuple[int, int]) -> Iterator[npt.NDArray[np.bool_]]:
        """For each source the lanes of which a sample can be in this run of a step's sorted samples."""
        take = int(schedule.take[step])
        for least, most in zip(self._least, self._most, strict=True):
            yield (self._fewest_below(least, take) < run[1]) & (self._most_up_to(most, take) > run[0])

    def _fewest_below(self, fraction: Float64, take: int) -> Float64:
        """At least so many of a step's samples lie at fractions below each of these."""
        lanes = [np.searchsorted(most, fraction, side="left") for most in self._most]
        share: Float64 = np.min([below / len(most) for below, most in zip(lanes, self._most, strict=True)], axis=0)
        return take * share - self._unevenness(lanes, take) - _SLACK

    def _most_up_to(self, fraction: Float64, take: int) -> Float64:
        """At most so many of a step's samples lie at fractions up to each of these."""
        lanes = [np.searchsorted(least, fraction, side="right") for least in self._least]
        share: Float64 = np.max([below / len(least) for below, least in zip(lanes, self._least, strict=True)], axis=0)
        return take * share + self._unevenness(lanes, take) + _SLACK

    def _unevenness(self, lanes: Sequence[Int64], take: int) -> Float64:
        """How far a step's samples in the first lanes can be from their share, over all sources."""
        total = np.zeros(len(lanes[0]))
        for below, least, samples in zip(lanes, self._least, self._samples, strict=True):
            epochs = 2 + (take - 1) // samples
            total += epochs * _discrepancy(len(least))[below]
        return total


@cache
def _discrepancy(lanes: int) -> Float64:
    """How far the number of positions in the first l lanes, among any consecutive positions of an epoch, can be from
    its share l / L of them: float64[lanes + 1]."""
    lane_of_slot = bit_reversed(lanes)
    turns = np.arange(lanes + 1)
    furthest = np.zeros(lanes + 1)
    for below in range(1, lanes):
        deviation = np.append(0, np.cumsum(lane_of_slot < below)) - turns * (below / lanes)
        furthest[below] = deviation.max() - deviation.min()
    return furthest
