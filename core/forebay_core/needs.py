"""When each piece is needed next: what sessions publish, as arrays, and how it is merged. Pure.

A need is a piece and the bounds [first, last) of the positions at which it is wanted. One piece may have several: its
parts in several lanes, this epoch and the next. At position p a need with last ≤ p is passed, the others are max(0,
first − p) positions away. Sessions move at different speeds, so their needs are compared in seconds. Everything is
vectorised: 100,000 needs are taken in, and evaluated, in milliseconds.

A session that does nothing for a while (the loader of a validation set, a trainer that was killed) is *idle*. When it
goes on is not known; what has lasted so long is taken to last as long again, so all its needs are that much further
away. It keeps its data against what others need later than that, and does not compete for what they need sooner.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from forebay_core.errors import ConfigurationError

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

#: Positions per second of a session that has not said yet. Only its ratio to others matters, and only until they say.
NOMINAL_RATE = 1000.0
#: Three heartbeats. What is shorter is a slow step, an evaluation, a checkpoint.
IDLE_AFTER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of one session, grouped by piece. Made by `build`."""

    first: Numbers
    last: Numbers
    #: The pieces, ascending, and where in `first` and `last` each one's needs begin.
    pieces: Numbers
    starts: Numbers

    @classmethod
    def build(cls, pieces: Numbers, first: Numbers, last: Numbers, *, piece_count: int) -> "Needs":
        """Checks and groups parallel arrays. Raises `ConfigurationError`."""
        if not len(pieces) == len(first) == len(last):
            raise ConfigurationError(
                f"needs are three lists of one length; got {len(pieces)} pieces, {len(first)} first, {len(last)} last"
            )
        if len(pieces) and (pieces.min() < 0 or pieces.max() >= piece_count):
            bad = int(pieces.max() if pieces.max() >= piece_count else pieces.min())
            raise ConfigurationError(f"needs name piece {bad}; the dataset has pieces 0 to {piece_count - 1}")
        if len(first) and (first.min() < 0 or (last < first).any()):
            raise ConfigurationError("needs have bounds 0 <= first <= last")
        order = np.argsort(pieces)
        ordered = pieces[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        return cls(first[order], last[order], ordered[starts], starts)

    @classmethod
    def none(cls) -> "Needs":
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty)

    def __len__(self) -> int:
        return len(self.first)

    def distances(self, position: int) -> Seconds:
        """For each of `pieces` the positions until its next use; infinite where all its needs are passed."""
        if not len(self.first):
            return np.empty(0)
        each = np.maximum(self.first - position, 0).astype(np.float64)
        each[self.last <= position] = np.inf
        return np.minimum.reduceat(each, self.starts)


@dataclass(frozen=True, slots=True)
class Progress:
    """A session's needs and where it stands."""

    needs: Needs
    position: int
    #: While it moves; 0: it has not said yet.
    positions_per_second: float
    #: When it moved, published needs or asked for pieces last, on the clock of `next_use`; infinite: it is never idle.
    active_at: float = math.inf

    def reported(self, position: int, positions_per_second: float, now: float) -> Self:
        """As it is after a report. A rate counts while the session moves: one that stands still is not slow."""
        if position != self.position:
            rate = positions_per_second or self.positions_per_second
            return replace(self, position=position, positions_per_second=rate, active_at=now)
        return replace(self, positions_per_second=self.positions_per_second or positions_per_second)

    def idle_seconds(self, now: float) -> float:
        """For how long it has been idle; 0: it is not."""
        return max(0.0, now - self.active_at - IDLE_AFTER_SECONDS)


def next_use(piece_count: int, sessions: Iterable[Progress], now: float) -> Seconds:
    """Seconds until each piece's next use by any of the sessions; infinite where nobody needs it."""
    merged = np.full(piece_count, np.inf)
    for session in sessions:
        seconds = session.needs.distances(session.position) / (session.positions_per_second or NOMINAL_RATE)
        seconds += session.idle_seconds(now)
        pieces = session.needs.pieces
        merged[pieces] = np.minimum(merged[pieces], seconds)
    return merged
