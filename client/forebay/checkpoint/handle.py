"""What `save()` returns: the three points of a checkpoint as futures, and what it has cost.

Made on the trainer's thread; the futures are settled by the threads that write and watch. Who waits may be any thread.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Literal

from forebay.digest import SampleDigest
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import ConfigurationError

Point = Literal["staged", "local", "durable"]
POINTS: tuple[Point, ...] = ("staged", "local", "durable")


class SaveHandle:
    """One checkpoint on its way.

    staged: the copy is taken; training may change the weights.
    local: every rank's bytes are written and sealed with its node's daemon; they survive the process.
    durable: committed at the destination; survives the node.

    Each is a future of None; where a point cannot be reached, its future and those after it raise why.
    """

    def __init__(
        self,
        attempt: Attempt,
        clock: Callable[[], float] = time.monotonic,
        *,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        self.attempt = attempt
        self.position = position
        """The loader's state at the last optimizer step, at the save without optimizers; None without a loader."""
        self.digest: SampleDigest | None = None
        """Of all samples handed out up to there, by all ranks; None before it is staged, and where it is not known."""
        self._clock = clock
        self._began = clock()
        self._blocked = 0.0
        self._lock = threading.Lock()
        self._seconds: dict[Point, float] = {}
        self._futures: dict[Point, Future[None]] = {point: Future() for point in POINTS}
        for future in self._futures.values():
            future.set_running_or_notify_cancel()

    @property
    def step(self) -> int:
        return self.attempt.step

    @property
    def staged(self) -> "Future[None]":
        return self._futures["staged"]

    @property
    def local(self) -> "Future[None]":
        return self._futures["local"]

    @property
    def durable(self) -> "Future[None]":
        return self._futures["durable"]

    @property
    def blocked_seconds(self) -> float:
        """For how long training was held up: in `save()`, and where a step waited for the copy."""
        with self._lock:
            return self._blocked

    @property
    def staged_seconds(self) -> float | None:
        """From the call of `save()`; None before it is staged. Likewise the other two."""
        return self._seconds.get("staged")

    @property
    def local_seconds(self) -> float | None:
        return self._seconds.get("local")

    @property
    def durable_seconds(self) -> float | None:
        return self._seconds.get("durable")

    def wait(self, point: Point = "durable", timeout: float | None = None) -> None:
        """Returns once the point is reached, raises why it is not; `TimeoutError` after `timeout` seconds."""
        if point not in POINTS:
            raise ConfigurationError(f"a checkpoint has no point {point!r}: wait for {', '.join(POINTS)}")
        try:
            self._futures[point].result(timeout)
        except TimeoutError:
            if self._futures[point].done():
                raise
            raise TimeoutError(f"the checkpoint of step {self.step} is not {point} after {timeout:g} s") from None

    def blocked(self, seconds: float) -> None:
        """Counts time for which training was held up."""
        with self._lock:
            self._blocked += seconds

    def reach(self, point: Point) -> None:
        """The point is reached; nothing where it was given up before."""
        self._seconds[point] = self._clock() - self._began
        try:
            self._futures[point].set_result(None)
        except InvalidStateError:
            del self._seconds[point]

    def fail(self, error: BaseException) -> None:
        """No further point will be reached."""
        for future in self._futures.values():
            with suppress(InvalidStateError):
                future.set_exception(error)

    def __repr__(self) -> str:
        return f"<SaveHandle of step {self.step}: {self._reached()}>"

    def _reached(self) -> str:
        failed = next((f.exception() for f in self._futures.values() if f.done() and f.exception()), None)
        reached = [point for point in POINTS if point in self._seconds]
        return f"failed ({failed})" if failed else (reached[-1] if reached else "begun")
