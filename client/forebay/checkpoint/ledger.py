"""The ledger of one start of a job: what happened to it, for people and for audits that trust no checkpoint's own word.

Rank 0 writes it: when it began, from which checkpoint, position and digest; a heartbeat every minute; each save; how it
ended. Events are JSON objects with `event` and `at` (seconds since 1970), sent in numbered parts, each a JSON array. A
part is never changed once it was tried, so that trying again is harmless. What happens between two heartbeats goes into
one part, so the last minute of a process that is killed is missing.

It never slows or fails training: but for `begin`, a thread of its own sends, from a queue that is bounded. A failure is
counted, said once, and tried again with the next heartbeat. `begin`, `saved` and `close` are called on any thread.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from forebay.digest import SampleDigest
from forebay_core.errors import ConfigurationError, one_line

Append = Callable[[int, bytes], None]
"""Adds a part (its number from 0, its content) to the generation's ledger; durable when it returns."""
Event = Mapping[str, Any]
MOST_QUEUED = 1000
_log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job is. position: the loader's state, or what is told of it, as JSON values; None without a loader.

    digest: of what was handed out up to there, as far as it is known.
    """

    step: int | None = None
    position: Mapping[str, Any] | None = None
    digest: SampleDigest | None = None

    def encode(self) -> dict[str, Any]:
        """As JSON values; without what is not known."""
        digest = None if self.digest is None else self.digest.encode()
        position = None if self.position is None else dict(self.position)
        known = {"step": self.step, "position": position, "digest": digest}
        return {name: value for name, value in known.items() if value is not None}


class Ledger:
    """Writes events through `append`. A context manager: the end of the block closes it.

    standing: asked on the ledger's thread, at each heartbeat.
    """

    def __init__(
        self,
        append: Append,
        *,
        standing: Callable[[], Standing] = Standing,
        heartbeat_seconds: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not heartbeat_seconds > 0:
            raise ConfigurationError(f"heartbeat_seconds={heartbeat_seconds!r}: give a number of seconds above 0")
        self._append, self._standing, self._clock = append, standing, clock
        self._heartbeat_seconds = heartbeat_seconds
        self._changed = threading.Condition()
        self._queue: deque[Event] = deque()
        self._lost = 0
        self._closing = False
        self._part = 0
        self._untaken: bytes | None = None
        self._failures = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="forebay-ledger", daemon=True)

    @property
    def failures(self) -> int:
        """How often something could not be written."""
        return self._failures

    def begin(self, standing: Standing, *, parent: str | None, notes: Mapping[str, Any]) -> None:
        """The start itself; durable when it returns, so that no batch is handed out unrecorded.

        parent: the attempt that is gone on from. notes: world size, host, versions and the like, as JSON values.
        Raises what `append` raises: a destination that cannot be written now would take no checkpoint either.
        """
        self._append(0, _encoded([self._event("began", parent=parent, **standing.encode(), **notes)]))
        self._part = 1
        self._thread.start()

    def saved(self, standing: Standing, *, attempt: str, seconds: Mapping[str, float | None], **notes: Any) -> None:
        """A save has ended. seconds: from its begin until it was `staged`, `local` and `durable`; None: it was not.

        notes: `error`, `blocked_seconds`, …, as JSON values.
        """
        timed = {f"{point}_seconds": value for point, value in seconds.items()}
        self.record("saved", attempt=attempt, **standing.encode(), **timed, **notes)

    def record(self, event: str, **values: Any) -> None:
        """Anything else worth knowing: JSON values."""
        with self._changed:
            if len(self._queue) >= MOST_QUEUED:
                self._queue.popleft()
                self._lost += 1
            self._queue.append(self._event(event, **values))

    def close(self, reason: str = "closed", *, timeout_seconds: float = 10.0) -> None:
        """Records the end, and waits until it is written, or so long. Idempotent."""
        with self._changed:
            if self._closing or not self._thread.is_alive():
                return
            self._queue.append(self._event("ended", reason=reason))
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or self._untaken is not None:
            _log.warning("the end of this run's ledger is not written: %s", reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("closed" if kind is None else kind.__name__)

    def _event(self, event: str, **values: Any) -> Event:
        return {"event": event, "at": self._clock(), **values}

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._heartbeat_seconds)
                closing = self._closing
            if not closing:
                self._beat()
            self._send()
            if closing:
                return

    def _beat(self) -> None:
        try:
            standing = self._standing().encode()
        except Exception as error:
            self._failed(error)
            return
        self.record("heartbeat", **standing)

    def _send(self) -> None:
        """The part that was refused before, then what has come since."""
        try:
            while (content := self._next_part()) is not None:
                self._append(self._part, content)
                self._untaken = None
                self._part += 1
        except Exception as error:
            self._failed(error)
            return
        if self._is_failing:
            _log.info("the ledger of this run is written again")
        self._is_failing = False

    def _next_part(self) -> bytes | None:
        if self._untaken is None:
            with self._changed:
                events = list(self._queue)
                self._queue.clear()
                lost, self._lost = self._lost, 0
            if lost:
                events.insert(0, self._event("lost", events=lost))
            self._untaken = _encoded(events) if events else None
        return self._untaken

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if not self._is_failing:
            _log.warning(
                "the ledger of this run cannot be written (%s): training goes on, and it is tried again every %g s",
                one_line(error),
                self._heartbeat_seconds,
            )
        self._is_failing = True


def events_of(parts: Iterable[bytes]) -> list[dict[str, Any]]:
    """The events of a ledger's parts, in their order. A part that cannot be read is an event `unreadable`."""
    events = []
    for part in parts:
        try:
            found = json.loads(part)
            if not isinstance(found, list) or not all(isinstance(event, dict) and "event" in event for event in found):
                raise ValueError("no array of events")
        except ValueError as error:
            found = [{"event": "unreadable", "error": one_line(error)}]
        events += found
    return events


def _encoded(events: list[Event]) -> bytes:
    return json.dumps(events, separators=(",", ":"), default=str).encode()
