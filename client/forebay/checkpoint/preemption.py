"""SIGTERM: the ranks stop at one step, save it, and leave before they are killed.

The handler only makes a note. `due`, which the checkpointer asks at every `save`, then says after which step all ranks
stop (see `stopping`); the checkpointer saves it, waits as long as the grace allows, and `leave` ends the process:
`Preempted` is a SystemExit with status 143, as of a process that SIGTERM has killed, so nothing of the script that
follows its loop runs and a scheduler sees that the job was not done. A rank that cannot go on with the others any more
leaves at once.

A handler that was there before is called last, just before leaving, and is there again after `close`. A second SIGTERM
changes nothing: launcher and scheduler both send one. A forked child is not concerned: SIGTERM ends it as ever.

The handler runs on the main thread, between two of Python's instructions: one that is in a long collective runs it when
that returns, and the grace is counted from then. All other methods are called on the trainer's thread.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from forebay.checkpoint.stopping import StoppingStep
from forebay_core.errors import CheckpointError, ConfigurationError, one_line

GRACE_SECONDS = 25.0
"""torchrun kills its ranks 30 s after it has passed a SIGTERM on; Kubernetes and Slurm do by default."""
EXIT_STATUS = 128 + signal.SIGTERM
_log = logging.getLogger("forebay")


class Preempted(SystemExit):
    """This process was told to stop by SIGTERM, and leaves. Exit status 143."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Preemption:
    """What this rank does about SIGTERM, from `install` to `close`.

    grace_seconds: from SIGTERM until whoever sent it kills the process, less a margin.
    """

    def __init__(
        self,
        stopping: StoppingStep,
        *,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not grace_seconds > 0:
            raise ConfigurationError(f"grace_seconds={grace_seconds!r}: give a number of seconds above 0")
        self._stopping, self._grace_seconds, self._clock = stopping, grace_seconds, clock
        self._process = os.getpid()
        self._told_at: float | None = None
        self._is_installed = self._has_warned = False
        self._previous: Any = signal.SIG_DFL

    def install(self) -> None:
        """Takes SIGTERM over. Raises `ConfigurationError` on another thread than the main one."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("on_sigterm() has to be called on the main thread: signals are handled there")
        if not self._is_installed:
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._is_installed = True

    @property
    def is_wanted(self) -> bool:
        """Whether this rank, or another as far as is known here, was told to stop."""
        return self._told_at is not None or self._stopping.is_wanted

    @property
    def remaining_seconds(self) -> float:
        """What is left of the grace, 0 at least; all of it where nobody was told to stop."""
        if self._told_at is None:
            return self._grace_seconds
        return max(0.0, self._told_at + self._grace_seconds - self._clock())

    def due(self, step: int) -> bool:
        """Whether this is the step after which all ranks save and leave. Called by all ranks, with the same steps.

        Raises `Preempted` where this rank was told to stop and cannot agree with the others.
        """
        try:
            with self.leaving_on_failure():
                is_last = self._stopping.is_last(step, asked=self._told_at is not None)
        except CheckpointError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("%s: a SIGTERM that another rank gets is not noticed here", one_line(error))
            return False
        if self._stopping.is_wanted and self._told_at is None:
            self._told_at = self._clock()
        return is_last

    def leave(self, done: str) -> NoReturn:
        """Ends this rank: `done` says what was reached, as in "step 120 is saved, durable"."""
        message = f"told to stop (SIGTERM): {done}; leaving with exit status {EXIT_STATUS}"
        _log.warning(message)
        self.close()
        if callable(self._previous):
            self._previous(signal.SIGTERM, None)
        raise Preempted(message)

    @contextmanager
    def leaving_on_failure(self) -> Iterator[None]:
        """For what needs all ranks: once one was told to stop, a failure means that others have gone: `Preempted`."""
        try:
            yield
        except Exception as error:
            if not self.is_wanted:
                raise
            self.leave_at_once(error)

    def leave_at_once(self, error: Exception) -> NoReturn:
        """Ends this rank, once one was told to stop: training has failed with this error before the step was saved."""
        said = f"{type(error).__name__}: {one_line(error)}"
        try:
            self.leave(f"nothing more is saved, as other ranks have gone or training has failed ({said})")
        except Preempted as preempted:
            raise preempted from error

    def close(self) -> None:
        """Gives SIGTERM back, unless somebody else has taken it since. Idempotent."""
        if self._is_installed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
        self._is_installed = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._told_at is None:
            self._told_at = self._clock()
