"""What a node did lately, for charts: the differences of its counters over short intervals, the latest ten minutes.

Kept by the daemon, so that a page that is opened or loaded anew shows what was before. Pure; used on the event loop.
"""

from collections import deque
from dataclasses import dataclass

#: Short enough to show a stall, and three hundred points in a document of some ten kilobytes.
INTERVAL_SECONDS = 2.0
POINTS = 300


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the daemon's start."""

    #: Received from remote stores.
    remote_bytes: int
    #: That trainers have taken.
    samples: int
    #: Pieces leased, and of these, those that were there when they were asked for.
    requests: int
    hits: int
    #: For which trainers were blocked.
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Point:
    """An interval that ended when the daemon was `at_seconds` old, in whole milliseconds: who has this point asks for
    those after it by the same number."""

    at_seconds: float
    seconds: float
    remote_bytes_per_second: float
    samples_per_second: float
    requests: int
    hits: int
    wait_seconds: float


class History:
    """The latest points, oldest first."""

    def __init__(self, at_seconds: float, totals: Totals, *, points: int = POINTS) -> None:
        self._points: deque[Point] = deque(maxlen=points)
        self._at_seconds, self._totals = at_seconds, totals

    def add(self, at_seconds: float, totals: Totals) -> None:
        """The counts at a later instant."""
        seconds, before = at_seconds - self._at_seconds, self._totals
        if seconds <= 0:
            return
        self._at_seconds, self._totals = at_seconds, totals
        self._points.append(
            Point(
                round(at_seconds, 3),
                seconds,
                (totals.remote_bytes - before.remote_bytes) / seconds,
                (totals.samples - before.samples) / seconds,
                totals.requests - before.requests,
                totals.hits - before.hits,
                totals.wait_seconds - before.wait_seconds,
            )
        )

    def after(self, at_seconds: float) -> list[Point]:
        """The points that are later than that."""
        return [point for point in self._points if point.at_seconds > at_seconds]
