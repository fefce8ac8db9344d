"""What the trainer has taken, and how long it was blocked for that: noted by its thread, read by the planner's.

A few attributes that one thread writes, so that it costs the trainer nothing; what another reads may be a moment old.
"""

import time
from collections.abc import Callable

from forebay.daemon.session import Taken


class TrainerLog:
    """Since reading began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits_since: float | None = None
        self._waited_seconds = 0.0
        self._samples = 0

    def waits(self, now: float) -> None:
        """The trainer is blocked from now on."""
        self._waits_since = now

    def took(self, now: float, samples: int) -> None:
        """It goes on with a batch of so many samples, or with none."""
        if self._waits_since is not None:
            self._waited_seconds += now - self._waits_since
            self._waits_since = None
        self._samples += samples

    def taken(self) -> Taken:
        """Until now. Any thread."""
        since, waited = self._waits_since, self._waited_seconds
        waiting = 0.0 if since is None else max(0.0, self._clock() - since)
        return Taken(self._samples, waited + waiting, waiting)
