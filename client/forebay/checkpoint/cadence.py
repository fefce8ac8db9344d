"""When a checkpoint is due (pure): every so many steps, or seconds, the same on all ranks.

Steps are counted alike everywhere. Clocks are not: rank 0's decides, and all ranks hear of it at `Look`s, steps that
they have agreed on; between them nobody asks. The next look lies half-way to where the time will be over at the present
rate, so that there are a few between two saves, and none is late by more than a step or so.
"""

import math
from dataclasses import dataclass

from forebay_core.errors import ConfigurationError

_MOST_STEPS_AHEAD = 1_000


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to save: at each step that is a multiple of `every_steps`, and once `every_seconds` have passed since
    the save before. None: not by that."""

    every_steps: int | None = None
    every_seconds: float | None = None

    def __post_init__(self) -> None:
        steps, seconds = self.every_steps, self.every_seconds
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ConfigurationError(f"save_every_steps={steps!r}: give a whole number of steps, 1 or more, or None")
        if seconds is not None and (
            not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf
        ):
            raise ConfigurationError(f"save_every_seconds={seconds!r}: give a number of seconds above 0, or None")

    def is_due(self, step: int) -> bool:
        """By its number alone. The step from which training begins is no progress yet."""
        return self.every_steps is not None and step > 0 and step % self.every_steps == 0

    def look(self, step: int, *, seconds: float, seconds_per_step: float | None) -> "Look":
        """What rank 0 says at `step`, `seconds` after the last save; seconds_per_step: None where not known yet."""
        if self.every_seconds is None:
            return Look(is_due=False, next_step=None)
        is_due = seconds >= self.every_seconds
        left = self.every_seconds if is_due else self.every_seconds - seconds
        if not seconds_per_step:
            return Look(is_due, step + 1)
        return Look(is_due, step + min(_MOST_STEPS_AHEAD, max(1, int(left / seconds_per_step / 2))))


@dataclass(frozen=True, slots=True)
class Look:
    """is_due: time is over. next_step: at the first step from there on the ranks ask again; None: never."""

    is_due: bool
    next_step: int | None
