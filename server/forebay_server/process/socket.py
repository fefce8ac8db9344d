"""The daemon's Unix socket: one owner, and permissions for its group alone.

The lock `<socket>.lock` is held from before the socket is bound until after it is unlinked: a second gRPC server that
binds the same path would silently take it. A socket that is left over after a crash is removed under the lock only.
Called on the main thread at start and end.
"""

import logging
import os
import socket as sockets
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import socket_lock
from forebay_server.process.locks import HeldLock, hold
from forebay_server.process.places import barrier, check_place

_log = logging.getLogger(__name__)
_SETTING = "--socket, FOREBAY_SOCKET"


@dataclass(frozen=True, slots=True)
class SocketPlace:
    """A socket path that this process owns."""

    path: Path
    lock: HeldLock
    group: int | None

    @classmethod
    def claim(cls, path: Path, group: int | None = None) -> "SocketPlace":
        """Makes the directory (0750) and takes the lock. Raises `AlreadyRunning`, `ConfigurationError`.

        `group` may pass through a directory that is made; one that is there is left as it is.
        """
        _make_directory(path.parent, group)
        check_place(path.parent, "the socket's directory", _SETTING)
        if group is not None and (closed := barrier(path.parent, group)):
            _log.warning("the group %d cannot reach the socket: chgrp %s to it, or chmod o+x it", group, closed)
        lock = hold(socket_lock(path), f"the socket {path}")
        try:
            _remove_stale(path)
        except BaseException:
            lock.release()
            raise
        return cls(path, lock, group)

    def bind(self, server: grpc.aio.Server) -> None:
        """Binds the server, so that the socket is never open to others, not even for a moment."""
        before = os.umask(0o117)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        finally:
            os.umask(before)
        if self.group is not None:
            os.chown(self.path, -1, self.group)

    def release(self) -> None:
        """Removes the socket, then its lock."""
        self.path.unlink(missing_ok=True)
        self.lock.release()


def _make_directory(directory: Path, group: int | None) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o750)
        except FileExistsError:
            return
        if group is not None:
            os.chown(directory, -1, group)
    except OSError as error:
        raise ConfigurationError(f"the socket's directory {directory} cannot be made: {error} ({_SETTING})") from error


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigurationError(f"{path} exists and is not a socket; remove it or give another path (--socket)")
    if _answers(path):
        raise ConfigurationError(f"another program serves on {path}; stop it or give another path (--socket)")
    try:
        path.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"the socket {path} of a daemon that is gone cannot be removed: {error.strerror}; remove it as its owner"
            f" (uid {found.st_uid}), or give another path ({_SETTING})"
        ) from error


def _answers(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
