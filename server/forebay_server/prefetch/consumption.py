"""How fast a session reads while it reads, from the positions that it reports. Pure.

A trainer stops for validation, for a checkpoint, or because it waits for us; afterwards it reads as fast as before. So
reports without progress end an interval and are not part of one, and the rate is the median of the latest intervals:
neither the one in which a pause began nor a jump to another position moves it. Erring on the fast side means to fetch a
little early, on the slow side that a trainer waits: the larger of this rate and the client's own counts.
"""

from collections import deque
from statistics import median

#: Intervals of a heartbeat each that count: under a minute of reading.
_INTERVALS = 9
#: Fewer say too little.
_ENOUGH = 3


class Consumption:
    """What one session's reports say."""

    def __init__(self, position: int, now: float) -> None:
        self._position, self._since = position, now
        self._rates: deque[float] = deque(maxlen=_INTERVALS)

    def report(self, position: int, now: float) -> None:
        """Takes in a position, at a time in seconds of any clock."""
        elapsed, read = now - self._since, position - self._position
        if read > 0 and elapsed <= 0:
            return
        if read > 0:
            self._rates.append(read / elapsed)
        self._position, self._since = position, now

    def rate(self, stated: float) -> float:
        """Positions per second; `stated` is what the client says (0: nothing). 0 where nobody knows."""
        measured = median(self._rates) if len(self._rates) >= _ENOUGH else 0.0
        return max(measured, stated)
