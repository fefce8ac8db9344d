"""Who owns a cache directory: the process that holds a lock on the directory itself, and on a lock file in it.

Both, because the directory can be locked on a disk that takes no writes, and the file says which process it is, also to
clients that look whether a daemon runs. Called on the main thread at start and end, and by a probe's thread when a disk
takes writes again.
"""

import errno
import os
import time
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import LOCK_FILE
from forebay_server.process.locks import HeldLock, hold, hold_directory

_NO_WRITES = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT})


class Ownership:
    """Of one directory, until `release`. Made by `take`."""

    def __init__(self, root: Path, descriptor: int, lock: HeldLock | None, refusal: OSError | None) -> None:
        self._root = root
        self._descriptor = descriptor
        self._lock = lock
        #: Why the disk took no lock file; None where it did.
        self.refusal = refusal

    @classmethod
    def take(cls, root: Path) -> "Ownership":
        """Raises `AlreadyRunning`, and `ConfigurationError` where the directory cannot be used."""
        what = f"the cache directory {root}"
        try:
            descriptor = hold_directory(root, what, root / LOCK_FILE)
        except OSError as error:
            raise ConfigurationError(f"{what} cannot be used: {error} (--cache-dir)") from error
        try:
            return cls(root, descriptor, hold(root / LOCK_FILE, what), None)
        except ConfigurationError as error:
            refusal = error.__cause__
            if isinstance(refusal, OSError) and refusal.errno in _NO_WRITES:
                return cls(root, descriptor, None, refusal)
            os.close(descriptor)
            raise
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def since_ns(self) -> int:
        """When it was taken, by the disk's clock where that can be told."""
        return time.time_ns() if self._lock is None else self._lock.path.lstat().st_mtime_ns

    def complete(self) -> None:
        """Writes the lock file, now that the disk takes writes. Raises `AlreadyRunning`, `ConfigurationError`."""
        if self._lock is None:
            self._lock = hold(self._root / LOCK_FILE, f"the cache directory {self._root}")
            self.refusal = None

    def release(self) -> None:
        """Gives both locks back."""
        if self._lock is not None:
            self._lock.release()
        os.close(self._descriptor)
