"""One owner per file: an exclusive `flock` on a lock file that says which process holds it.

The kernel frees a lock when its holder dies, so a lock file that is left over never stands in the way. `release`
unlinks the file before it frees the lock; `hold` therefore checks that the file it locked is still the one at the path.
Called once at start and end, on the main thread.
"""

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import AlreadyRunning, ConfigurationError

#: A client that looks whether a daemon runs holds a shared lock for an instant; that is not a daemon.
_PROBE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that this process holds until `release`."""

    path: Path
    descriptor: int

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def hold(path: Path, what: str) -> HeldLock:
    """Locks the file at `path`, made if need be. Raises `AlreadyRunning`, which names `what` and the holder's pid,
    and `ConfigurationError` where the file cannot be made."""
    patient_until = time.monotonic() + _PROBE_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise ConfigurationError(f"the lock file of {what} cannot be opened: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if time.monotonic() < patient_until:
                time.sleep(_PROBE_SECONDS / 10)
                continue
            raise AlreadyRunning(
                f"another daemon (pid {holder}) holds {what}; stop it, or give this one another place"
            ) from None
        if _is_at(descriptor, path):
            with suppress(OSError):  # on a full disk the holder stays unnamed
                os.pwrite(descriptor, f"{os.getpid():<31}\n".encode(), 0)
            return HeldLock(path, descriptor)
        os.close(descriptor)


def hold_directory(path: Path, what: str, lock_file: Path) -> int:
    """Locks a directory itself, which works on a disk that takes no writes: the descriptor that holds the lock.

    Raises `AlreadyRunning`, with the pid in `lock_file`, and `OSError` where the directory cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning(
            f"another daemon (pid {_holder(lock_file)}) holds {what}; stop it, or give this one another place"
        ) from None
    return descriptor


def _holder(lock_file: Path) -> str:
    try:
        return lock_file.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
