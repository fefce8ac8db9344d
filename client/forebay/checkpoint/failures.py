"""What becomes of failures in the background: never nothing.

The threads that write and watch say `failed` and `succeeded`; the trainer's thread asks with `poll`, at every save and
every step of the loader, and gets the failure raised, at once or after several in a row, as the user chose. What nobody
was told by an exception is in the log, and said once more at the exit.
"""

import logging
import threading
from typing import Literal, TypeAlias

from forebay_core.errors import CheckpointFenced, ConfigurationError, one_line

OnFailure: TypeAlias = Literal["raise", "warn"] | int
_log = logging.getLogger("forebay.checkpoint")


class Failures:
    """The failures of one checkpointer. Any thread.

    on_failure: `"raise"` raises each; a number, so many in a row with no success between; `"warn"` none. That another
    start of the job has taken over (`CheckpointFenced`) is raised always.
    """

    def __init__(self, on_failure: OnFailure) -> None:
        if on_failure not in ("raise", "warn") and (type(on_failure) is not int or on_failure < 1):
            raise ConfigurationError(
                f"on_failure={on_failure!r}: give 'raise', 'warn', or after how many failures in a row to raise"
            )
        self._limit = {"raise": 1, "warn": None}[on_failure] if isinstance(on_failure, str) else on_failure
        self._lock = threading.Lock()
        self._pending: BaseException | None = None
        self._in_a_row = 0
        self.total = 0
        self.unseen: list[str] = []
        """What no exception has told anyone yet."""

    def failed(self, step: int, error: BaseException) -> None:
        """The checkpoint of a step will not be durable."""
        is_fenced = isinstance(error, CheckpointFenced)
        with self._lock:
            self.total += 1
            self._in_a_row += 1
            self.unseen.append(f"step {step}: {one_line(error)}")
            if is_fenced or (self._limit is not None and self._in_a_row >= self._limit):
                self._pending = self._pending or error
        _log.error("the checkpoint of step %d failed: %s", step, one_line(error))

    def succeeded(self) -> None:
        """A checkpoint is durable."""
        with self._lock:
            self._in_a_row = 0

    def poll(self) -> None:
        """Raises the failure that is to be raised, once."""
        if self._pending is None:
            return
        with self._lock:
            error, self._pending = self._pending, None
            self.unseen.clear()
        if error is not None:
            raise error
