"""What is kept (pure). Only committed attempts count: one that nobody can restore never pushes out one that can."""

from collections.abc import Iterable
from dataclasses import dataclass

from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import ConfigurationError

#: Never taken, whatever is configured: the newest may turn out to be damaged when it is needed.
ALWAYS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Retention:
    """keep_last: how many of the newest; 0: all. keep_every_steps: multiples of it are kept besides; 0: none."""

    keep_last: int = 0
    keep_every_steps: int = 0

    def __post_init__(self) -> None:
        if self.keep_last < 0 or self.keep_every_steps < 0:
            raise ConfigurationError(
                f"keep_last={self.keep_last}, keep_every_steps={self.keep_every_steps}: give whole numbers from 0"
            )


def to_retire(committed: Iterable[Attempt], keep_last: int, keep_every_steps: int = 0) -> tuple[Attempt, ...]:
    """Oldest first, by generation and step. As in `Retention`; the newest two always stay."""
    if keep_last == 0:
        return ()
    ordered = sorted(committed)
    old = ordered[: -max(keep_last, ALWAYS_KEPT)]
    return tuple(each for each in old if not (keep_every_steps and each.step % keep_every_steps == 0))
