"""Where training stands: the position, its digest and the random states that belong to the last optimizer step.

Batches that were handed out since (gradient accumulation, a step that a scaler skipped) are not in the weights yet, so
they are handed out again after a restore, with the random numbers that they had. What belongs to an optimizer step is
what holds when the next batch is asked for, or at the save if none was: a user may use random numbers in between. A
loader that does not say when it is asked (`watch`) is looked at right after the step instead. Without optimizers
nothing says what is in the weights: all that was handed out counts as applied. On the trainer's thread.
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
    """Keeps the place of the last optimizer step. `stepped` and `asked` are hooks, `now` is for the save.

    has_optimizers: whether anything calls `stepped`. Without, the place is where the loader is.
    is_behind: batches were handed out between the last two saves, and no optimizer stepped since before both.
    """

    def __init__(
        self, loader: Any, random: Callable[[], RandomStates] = capture, *, has_optimizers: bool = True
    ) -> None:
        self._loader, self._random, self._has_optimizers = loader, random, has_optimizers
        self._is_told = hasattr(loader, "watch")
        self._kept: Place | None = None
        self._ahead: Mapping[str, Any] | None = None
        self.is_behind = False

    def stepped(self) -> None:
        """An optimizer has stepped: all batches so far are in the weights."""
        self.moved()
        if not self._is_told and self._loader is not None:
            self._kept = self._take()

    def asked(self) -> None:
        """The next batch is being asked for."""
        if self._kept is None and self._has_optimizers:
            self._kept = self._take()

    def moved(self) -> None:
        """Training goes on from somewhere else."""
        self._kept = self._ahead = None
        self.is_behind = False

    def now(self) -> Place:
        """The place of the last optimizer step; without optimizers, where the loader is."""
        here = self._take()
        kept = self._kept
        if kept is None or (not self._is_told and kept.loader == here.loader):
            return here
        self.is_behind = self._ahead is not None and self._ahead != here.loader
        self._ahead = here.loader
        return kept

    def _take(self) -> Place:
        loader = self._loader
        state = None if loader is None else loader.state_dict()
        return Place(state, getattr(loader, "sample_digest", None), self._random())
