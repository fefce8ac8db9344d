"""Hooks on the optimizers: a step waits until what it changes has been copied, and says afterwards that it was made.

They fire inside `optimizer.step()`, under schedulers, scalers (not for a step that is skipped) and compiled steps, on
the trainer's thread. Several optimizers each wait and each say so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class StepHooks:
    """Registered when made. before: called before each step; after: after it."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        def waits(*_: Any) -> None:
            before()

        def says(*_: Any) -> None:
            after()

        self._hooks = [
            hook
            for optimizer in optimizers
            for hook in (optimizer.register_step_pre_hook(waits), optimizer.register_step_post_hook(says))
        ]

    def remove(self) -> None:
        """Takes the hooks off. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
