"""The sequence of one epoch: which sample lies at each position. The one truth that plans, needs and audits share.

position → lane and turn → (lane reader) place on the track → part → piece, row and coordinate. Every arrow has random
access, so any range of any epoch costs the same. Immutable but for what the sliding window keeps; any thread.
"""

from typing import Protocol

import numpy as np

from forebay.order.lanes import Int64, Lanes
from forebay.order.line import Parts
from forebay.order.selection import SelectedRows


class LaneReader(Protocol):
    """The order in which lanes are read: a `Window`, or a `Permutation` of a single lane."""

    width: int
    """A sample at offset i of its lane is read at a turn less than this away from i."""

    def read(self, lane: int, turns: Int64, out: Int64) -> None:
        """Write to `out` the places that a lane reads at these turns, which are ascending."""


class Sequence:
    """The positions [0, samples) of one epoch. A *place* is an index into the track, a *part* one into its parts.

    The track counts only the rows that are `selected`; pieces and rows that come out are the data's.
    """

    def __init__(
        self,
        lanes: Lanes,
        track: Parts,
        reader: LaneReader,
        first_sample: Int64,
        selected: SelectedRows | None = None,
    ) -> None:
        self.lanes = lanes
        self.track = track
        self.reader = reader
        self._first_sample = first_sample
        self._selected = selected

    @property
    def samples(self) -> int:
        return self.lanes.samples

    def places(self, position: Int64) -> Int64:
        """The place read at each position; those of one lane must be ascending."""
        turn, slot = np.divmod(position, self.lanes.count)
        lane = self.lanes.lane_of_slot[slot].astype(np.int16)
        by_lane = np.argsort(lane, kind="stable")
        place = np.empty_like(turn)
        place[by_lane] = self.places_by_lane(turn[by_lane], np.bincount(lane, minlength=self.lanes.count))
        return place

    def places_by_lane(self, turn: Int64, number: Int64) -> Int64:
        """The place read at each turn, `number[lane]` turns (ascending) of each lane, lane after lane."""
        place = np.empty_like(turn)
        stop = 0
        for lane in np.flatnonzero(number).tolist():
            start, stop = stop, stop + int(number[lane])
            self.reader.read(lane, turn[start:stop], place[start:stop])
        return place

    def coordinates(self, place: Int64, part: Int64) -> Int64:
        """Where on the line these places lie."""
        return self.track.coordinate[part] + (place - self.track.start[part])

    def rows(self, place: Int64, part: Int64) -> tuple[Int64, Int64]:
        """Piece, and row in the piece, of these places."""
        piece, row = self.track.piece[part], self.track.row[part] + (place - self.track.start[part])
        return piece, row if self._selected is None else self._selected.rows(piece, row)

    def sample_ids(self, piece: Int64, row: Int64) -> Int64:
        return self._first_sample[piece] + row
