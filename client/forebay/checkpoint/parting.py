"""What a checkpointer says of checkpoints that are not durable when it ends, or waits for long: never nothing.

The daemon goes on with their uploads when the job is gone, and nobody asks it then. On the trainer's thread, on one
rank of each node.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from forebay.checkpoint.background import Background
from forebay.checkpoint.calling import Calls
from forebay.checkpoint.handle import Point, SaveHandle
from forebay.daemon.status import ENDED, UploadStatus

_log = logging.getLogger("forebay.checkpoint")
#: Shorter waits are not worth a line.
_LONG_SECONDS = 5.0
_HASTE_SECONDS = 5.0


def say_left(calls: Calls, pending: Sequence[SaveHandle]) -> None:
    """A warning for each of these saves that the daemon has still to upload, and what its last try met."""
    if not pending:
        return
    uploads = calls.uploads()
    for handle in pending:
        upload = uploads.get(handle.attempt.name)
        if upload is None or upload.phase not in ENDED:  # what has ended is told by who watches it
            _log.warning("step %d is not durable yet: %s", handle.step, _left(handle, upload, uploads))


def _left(handle: SaveHandle, upload: UploadStatus | None, uploads: Mapping[str, UploadStatus]) -> str:
    if not handle.local.done():
        return "it is not local either, and lost if this process ends before it is"
    if error := _error(upload, uploads):
        return f"{error}; the daemon goes on trying, and forebay status says how it fares"
    if upload is not None and upload.phase == "uploaded":
        return "this node's part is uploaded, and other nodes' is waited for; forebay status says how it fares"
    return "the daemon goes on uploading it, and forebay status says how it fares"


def _error(upload: UploadStatus | None, uploads: Mapping[str, UploadStatus]) -> str:
    """Of its own last try; else of another pending upload to the same root, which meets the same."""
    others = [each for each in uploads.values() if each.phase not in ENDED]
    failing = next((each for each in (upload, *reversed(others)) if each is not None and each.error_message), None)
    return f"{failing.error_class}: {failing.error_message}" if failing is not None else ""


def wait_saying(handle: SaveHandle, point: Point, seconds: float | None, say: Callable[[], None]) -> None:
    """Waits as the handle does; calls `say` where that takes long."""
    if seconds is not None and seconds <= _LONG_SECONDS:
        handle.wait(point, seconds)
        return
    began = time.monotonic()
    try:
        handle.wait(point, _LONG_SECONDS)
    except TimeoutError:
        say()
        handle.wait(point, None if seconds is None else max(0.0, seconds - (time.monotonic() - began)))


def is_written(background: Background, wait_seconds: float) -> bool:
    """At an exit: whether nothing is being written within that time; who is interrupted waits for a last while."""
    try:
        _log.warning("this process ends without close(): waiting until its last checkpoint is local")
        return background.wait_free(wait_seconds)
    except KeyboardInterrupt:
        _log.warning("interrupted: what is being written has %.0f s more to become local", _HASTE_SECONDS)
        return background.wait_free(_HASTE_SECONDS)
