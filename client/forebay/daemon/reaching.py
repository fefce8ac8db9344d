"""Why nobody answers on a socket, in words that say what to do. One look at the socket; any thread."""

import errno
import os
import socket
from pathlib import Path

from forebay_core.errors import DaemonUnavailable

NOBODY_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)


def unreachable_reason(path: Path) -> int:
    """The error number of connecting to the socket; 0 where somebody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        return connection.connect_ex(str(path))


def unreachable(path: Path, reason: int, waited: str = "") -> DaemonUnavailable | None:
    """The error that the reason stands for, with what was waited; None where somebody may listen."""
    if reason == errno.EACCES:
        return DaemonUnavailable(f"the daemon's socket {path} refuses this user; join the group that owns it")
    if reason not in NOBODY_THERE:
        return None
    what = "no socket is there" if reason == errno.ENOENT else os.strerror(reason).lower()
    return DaemonUnavailable(
        f"no daemon answers at {path} ({what}{waited}); start one with: forebay serve --socket {path}"
    )
