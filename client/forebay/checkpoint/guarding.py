"""Keeps training from changing what is being copied. On the trainer's thread; costs nothing when nothing is."""

import time
from contextlib import suppress

from forebay.checkpoint.handle import SaveHandle
from forebay.checkpoint.staging import Staging


class Guard:
    """Of the one copy that may be in work."""

    def __init__(self) -> None:
        self._copy: tuple[Staging, SaveHandle] | None = None

    def take(self, staging: Staging, handle: SaveHandle) -> None:
        """Steps wait for this copy from now on; the time counts as blocked in its handle."""
        self._copy = staging, handle

    def wait(self) -> None:
        """Until the copy is taken. What went wrong with it is for who writes it to tell."""
        if self._copy is None:
            return
        (staging, handle), self._copy = self._copy, None
        began = time.monotonic()
        with suppress(Exception):
            staging.guard()
        handle.blocked(time.monotonic() - began)
