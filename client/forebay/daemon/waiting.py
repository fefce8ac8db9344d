"""How long a call waits for a daemon, how often it tries, and when people are told: decided here, by a clock passed in.

One object for one call, on the thread that makes it. Nothing here sleeps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

ANNOUNCE_SECONDS = 5.0
"""Shorter waits, such as a daemon's restart, are not worth a line in the log of every rank."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


class Waiting:
    """A wait of at most `limit_seconds`, from now on."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float]) -> None:
        self._limit, self._clock = limit_seconds, clock
        self._begin = clock()
        self._apart = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._announced = False

    def seconds(self) -> float:
        """How long it has been, without what was `apart`."""
        return self._clock() - self._begin - self._apart

    def is_over(self) -> bool:
        """Whether another pause would go beyond the limit."""
        return self.seconds() + self._pause > self._limit

    def is_news(self) -> bool:
        """Whether people are to be told that this waits: once, and not before it has got long."""
        if self._announced or self.seconds() <= ANNOUNCE_SECONDS:
            return False
        self._announced = True
        return True

    def next_pause(self) -> float:
        """The seconds to sleep before the next try; each is twice the one before, up to half a second."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return pause

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Time that is not waiting for somebody else and has a limit of its own: starting a daemon of ours."""
        began = self._clock()
        try:
            yield
        finally:
            self._apart += self._clock() - began
