"""The threads beside the trainer: one that writes, a save at a time, and one for each save that watches its upload.

`begin` is called on the trainer's thread when nothing is being written. What goes wrong on a thread is settled in the
handle and told to `Failures`; nothing is lost in silence. All threads are daemons: an exit waits for none of them but
as `close` says.
"""

import logging
import threading
import time
from collections.abc import Callable

from forebay.checkpoint.attempt import Passed, Work, Writer, lost, watch
from forebay.checkpoint.calling import Calls
from forebay.checkpoint.failures import Failures
from forebay.checkpoint.handle import Point, SaveHandle
from forebay_core.errors import CheckpointError, ForebayError

_log = logging.getLogger("forebay.checkpoint")
#: Shorter waits are not worth a line.
_ANNOUNCE_SECONDS = 5.0
_END_SECONDS = 5.0

#: Told on one of the threads when a save has reached a point, or (None) has failed.
Told = Callable[[SaveHandle, Point | None], None]


class Background:
    """Of one checkpointer. speaks: says what all ranks learn alike, which one of them does."""

    def __init__(self, writer: Writer, calls: Calls, failures: Failures, told: Told, *, speaks: bool = True) -> None:
        self._writer, self._calls, self._failures, self._told = writer, calls, failures, told
        self._speaks = speaks
        self._is_free = threading.Event()
        self._is_free.set()
        self._is_ended = threading.Event()
        self._lock = threading.Lock()
        self._watches: dict[SaveHandle, threading.Thread] = {}
        self._latest: SaveHandle | None = None

    @property
    def pending(self) -> list[SaveHandle]:
        """Saves that are neither durable nor failed, oldest first."""
        with self._lock:
            latest = [] if self._latest is None or self._latest in self._watches else [self._latest]
            return [handle for handle in [*self._watches, *latest] if not handle.durable.done()]

    def wait_free(self, timeout_seconds: float | None = None) -> bool:
        """Until nothing is being written; whether that is so."""
        if self._is_free.wait(0):
            return True
        began, limit = time.monotonic(), timeout_seconds
        if not self._is_free.wait(_ANNOUNCE_SECONDS if limit is None else min(limit, _ANNOUNCE_SECONDS)):
            step = self._latest.step if self._latest else 0
            self._warn("waiting until the checkpoint of step %d is local: it takes longer than from save to save", step)
            if not self._is_free.wait(None if limit is None else max(0.0, limit - _ANNOUNCE_SECONDS)):
                return False
            self._warn("the checkpoint of step %d is written, after %.0f s", step, time.monotonic() - began)
        return True

    def begin(self, work: Work) -> None:
        """Writes it, and watches it then. What interrupts this call fails that save, and no later one."""
        thread = threading.Thread(target=self._write, args=(work,), name="forebay-save", daemon=True)
        try:
            self._is_free.clear()
            with self._lock:
                self._latest = work.handle
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                work.handle.fail(lost(work.handle.step, error))
                self._is_free.set()
            raise

    def close(self) -> None:
        """Nobody wants to know any more: who waits until a save is durable is told that. Idempotent."""
        self._is_ended.set()
        deadline = time.monotonic() + _END_SECONDS
        self._is_free.wait(_END_SECONDS)  # what is local is not watched yet
        with self._lock:
            watches = dict(self._watches)
        for handle, thread in watches.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            self._unknown(handle)

    def _write(self, work: Work) -> None:
        handle = work.handle
        try:
            self._writer.write(work)
        except Exception as error:
            self._failed(handle, error)
        else:
            self._told(handle, "local")
            thread = threading.Thread(target=self._watch, args=(handle,), name="forebay-upload-watch", daemon=True)
            with self._lock:
                self._watches[handle] = thread
                thread.start()
        finally:
            self._is_free.set()

    def _watch(self, handle: SaveHandle) -> None:
        try:
            if watch(self._calls, handle.attempt, self._is_ended):
                handle.reach("durable")
                self._failures.succeeded()
                self._told(handle, "durable")
            else:
                self._unknown(handle)
        except Exception as error:
            self._failed(handle, error)
        finally:
            with self._lock:
                self._watches.pop(handle, None)

    def _unknown(self, handle: SaveHandle) -> None:
        """It is local, and no failure of anybody's; nothing where it has ended."""
        handle.fail(
            CheckpointError(
                f"the checkpointer was closed before it was known whether step {handle.step} is durable: the node's "
                "daemon goes on uploading it, and forebay status and "
                f"forebay checkpoints ls {self._calls.root} say how it fares"
            )
        )

    def _failed(self, handle: SaveHandle, error: Exception) -> None:
        if isinstance(error, Passed):
            handle.fail(CheckpointError(str(error)))
            self._warn("step %d: %s", handle.step, error)
            return
        mine = error if isinstance(error, ForebayError) else lost(handle.step, error)
        if mine is not error:
            mine.__cause__ = error
        handle.fail(mine)
        self._failures.failed(handle.step, mine)
        self._told(handle, None)

    def _warn(self, message: str, *values: object) -> None:
        _log.log(logging.WARNING if self._speaks else logging.DEBUG, message, *values)
