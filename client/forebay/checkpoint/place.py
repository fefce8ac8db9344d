"""Where training stands: the position, its digest and the random states that belong to the last optimizer step.

Batches that were handed out since (gradient accumulation, a step that a scaler skipped) are not in the weights yet, so
they are handed out again after a restore, with the random numbers that they had. What belongs to an optimizer step is
what holds when the next batch is asked for, or at the save if none was: a user may use random numbers in between. A
loader that does not say when it is asked (`watch`) is looked at right after the step instead. On the trainer's thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.checkpoint.randomness import RandomStates, capture


@dataclass(frozen=True, slots=True)
class Place:
    """loader: its state, None without one. digest: of the samples this rank was handed, None where none is known."""

    loader: Mapping[str, Any] | None
    digest: Any
    random: RandomStates


class Places:
    """Keeps the place of the last optimizer step. `stepped` and `asked` are hooks, `now` is for the save."""

    def __init__(self, loader: Any, random: Callable[[], RandomStates] = capture) -> None:
        self._loader, self._random = loader, random
        self._is_told = hasattr(loader, "watch")
        self._kept: Place | None = None

    def stepped(self) -> None:
        """An optimizer has stepped: all batches so far are in the weights."""
        self._kept = None if self._is_told or self._loader is None else self._take()

    def asked(self) -> None:
        """The next batch is being asked for."""
        if self._kept is None:
            self._kept = self._take()

    def moved(self) -> None:
        """Training goes on from somewhere else."""
        self._kept = None

    def now(self) -> Place:
        """The place of the last optimizer step."""
        here = self._take()
        kept = self._kept
        if kept is None or (not self._is_told and kept.loader == here.loader):
            return here
        return kept

    def _take(self) -> Place:
        loader = self._loader
        state = None if loader is None else loader.state_dict()
        return Place(state, getattr(loader, "sample_digest", None), self._random())
