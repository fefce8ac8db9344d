"""When a save by time is due, as all ranks agree: the clock beside `cadence`. Trainer's thread, over `control`."""

import time
from collections.abc import Callable

from forebay.checkpoint.cadence import Cadence, Look
from forebay.checkpoint.group import Group


class Looking:
    """Of one run. clock: rank 0's counts."""

    def __init__(self, group: Group, clock: Callable[[], float] = time.monotonic) -> None:
        self._group, self._clock = group, clock
        self._saved_at = clock()
        self._began: tuple[int, float] | None = None
        self._next_step: int | None = None

    def is_due(self, cadence: Cadence, step: int) -> bool:
        """The same on all ranks, which all ask for the same steps."""
        if cadence.every_seconds is None:
            return False
        if self._began is None:
            self._began, self._next_step = (step, self._clock()), step + 1
        if self._next_step is None or step < self._next_step:
            return False
        look: Look = self._group.from_first(self._look(cadence, step, *self._began))
        self._next_step = look.next_step
        return look.is_due

    def saved(self) -> None:
        """A save begins, whatever it was for."""
        self._saved_at = self._clock()

    def _look(self, cadence: Cadence, step: int, first_step: int, since: float) -> Look:
        now = self._clock()
        rate = (now - since) / (step - first_step) if step > first_step else None
        return cadence.look(step, seconds=now - self._saved_at, seconds_per_step=rate)
