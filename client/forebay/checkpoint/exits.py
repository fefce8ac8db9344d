"""A process that ends without `close()` says what that costs, and waits until what is being written is local.

Once the interpreter goes down nobody can be told by an exception any more, and the threads that write are stopped
wherever they are. So what is being written gets a last while here, and what failed unseen is said once more. That has
to be before Python's thread pools are closed, which write the files: an `atexit` function comes after.
"""

import concurrent.futures.thread  # noqa: F401  registers what closes the pools: what comes later is called before
import logging
import os
import threading
import weakref
from typing import Protocol

_log = logging.getLogger("forebay.checkpoint")
WAIT_SECONDS = 60.0


class Leaving(Protocol):
    """A checkpointer that was not closed."""

    def leave(self, wait_seconds: float) -> None:
        """The process ends: finish what can be finished within the time, and say what cannot."""


_open: "weakref.WeakKeyDictionary[Leaving, int]" = weakref.WeakKeyDictionary()
"""With the process that made each: one that was forked since has none of the threads."""


def opened(checkpointer: Leaving) -> None:
    """It is asked to leave at the exit, unless it was closed."""
    _open[checkpointer] = os.getpid()


def closed(checkpointer: Leaving) -> None:
    """It has nothing left to say."""
    _open.pop(checkpointer, None)


def _leave_all() -> None:
    for checkpointer in [each for each, process in _open.items() if process == os.getpid()]:
        try:
            checkpointer.leave(WAIT_SECONDS)
        except (Exception, KeyboardInterrupt) as error:
            _log.error("a checkpointer could not end: %s", str(error) or "interrupted")


threading._register_atexit(_leave_all)  # type: ignore[attr-defined]
