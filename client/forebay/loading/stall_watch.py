"""Says when the trainer is blocked for long, what it waits for, and when it goes on.

The trainer's thread notes since when it is blocked (one attribute, before and after each batch); a thread of the
watch's own looks at that about once a second, so that watching costs the trainer nothing. The first warning comes after
`after_seconds`, each further one when the wait has doubled; a wait that was warned of is closed by one line more.
"""

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("forebay")
_LONGEST_PERIOD_SECONDS = 1.0


class StallWatch:
    """Watches one engine. `why` says in words what the next batch waits for; it is called on the watch's thread.

    `blocked_from` is None, or the instant on `clock` since which the trainer waits; `after_seconds=None` never warns.
    """

    def __init__(
        self, after_seconds: float | None, why: Callable[[], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.blocked_from: float | None = None
        #: A warning of the present wait was given, so that its end is worth a line too.
        self.has_warned = False
        self._after_seconds, self._why, self._clock = after_seconds, why, clock
        self._wait: float | None = None
        self._due_seconds = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look. Idempotent."""
        if self._after_seconds is not None and self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._run, name="forebay-stall-watch", daemon=True)
            self._thread.start()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Ends the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._closing.set()
            thread.join(timeout_seconds)

    def look(self) -> None:
        """Warns if it is time to."""
        began = self.blocked_from
        if began is None or self._after_seconds is None:
            return
        if began != self._wait:
            self._wait, self._due_seconds = began, self._after_seconds
        waited = self._clock() - began
        if waited < self._due_seconds:
            return
        why = self._reason()
        with self._lock:
            # The trainer clears `blocked_from` before it looks at `has_warned`: one of the two sees the other.
            self.has_warned = True
            if self.blocked_from != began:
                self.has_warned = False
                return
            _log.warning("no batch for %.0f s: %s", waited, why)
        self._due_seconds = 2 * waited

    def went_on(self, after_seconds: float) -> None:
        """The trainer has its batch; called by it where `has_warned`."""
        with self._lock:
            if self.has_warned:
                self.has_warned = False
                _log.warning("went on after %.0f s", after_seconds)

    def _reason(self) -> str:
        try:
            return self._why()
        except Exception as error:  # what is looked at changes meanwhile
            return f"why cannot be told ({type(error).__name__}: {error})"

    def _run(self) -> None:
        assert self._after_seconds is not None
        period_seconds = min(_LONGEST_PERIOD_SECONDS, self._after_seconds / 4)
        while not self._closing.wait(period_seconds):
            self.look()
