"""Ends a daemon: SIGTERM to the process that listens on its socket, and a wait for its end.

The kernel says which process that is, in this process's own numbers, so a daemon of another container, whose number
here may be somebody else's, is never taken for one of ours. What holds no lock beside its socket is no daemon, and is
left alone. Blocks; for the command line.
"""

import os
import select
import signal
import socket
import struct
from pathlib import Path

from forebay.daemon.embedded import is_locked
from forebay_core.errors import DaemonError, DaemonUnavailable
from forebay_core.node_layout import socket_lock

_CREDENTIALS = struct.Struct("3i")


def stop(path: Path, *, wait_seconds: float) -> int:
    """Ends the daemon that listens there, and gives its process id once it is gone.

    Raises `DaemonUnavailable` where nobody listens, and `DaemonError` where that is no daemon, is not ours to end, or
    does not end.
    """
    pid = _listener(path)
    if pid == 0:
        raise DaemonError(f"the daemon at {path} runs in another container: stop it there")
    if not is_locked(socket_lock(path)):
        raise DaemonError(
            f"process {pid}, which listens on {path}, is no daemon of forebay: it does not hold {socket_lock(path)}"
        )
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _has_ended(process, wait_seconds):
            raise DaemonError(
                f"the daemon at {path} (process {pid}) has not ended after {wait_seconds:g} s: it lets fills in flight "
                "finish; its log says which"
            )
    except PermissionError:
        raise DaemonError(f"the daemon at {path} (process {pid}) is another user's: stop it as that user") from None
    except ProcessLookupError:
        return pid
    finally:
        os.close(process)
    return pid


def _listener(path: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except PermissionError:
            raise DaemonError(f"the daemon's socket {path} refuses this user") from None
        except OSError as error:
            raise DaemonUnavailable(f"no daemon answers at {path} ({(error.strerror or '').lower()})") from None
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(said)[0]
    return pid


def _has_ended(process: int, wait_seconds: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * wait_seconds))
