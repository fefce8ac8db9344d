"""The daemon's Unix socket: one owner, and permissions for its group alone.

The lock `<socket>.lock` is held from before the socket is bound until after it is unlinked: a second gRPC server that
binds the same path would silently take it. A socket that is left over after a crash is removed under the lock only.
Called on the main thread at start and end.
"""

import os
import shutil
import socket as sockets
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import socket_lock
from forebay_server.locks import HeldLock, hold


@dataclass(frozen=True, slots=True)
class SocketPlace:
    """A socket path that this process owns."""

    path: Path
    lock: HeldLock
    group: str | None

    @classmethod
    def claim(cls, path: Path, group: str | None = None) -> "SocketPlace":
        """Makes the directory (0750) and takes the lock. Raises `AlreadyRunning`, `ConfigurationError`."""
        _make_directory(path.parent, group)
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
            shutil.chown(self.path, group=self.group)

    def release(self) -> None:
        """Removes the socket, then its lock."""
        self.path.unlink(missing_ok=True)
        self.lock.release()


def _make_directory(directory: Path, group: str | None) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o750)
        except FileExistsError:
            return
        if group is not None:
            shutil.chown(directory, group=group)
    except (OSError, LookupError) as error:
        raise ConfigurationError(
            f"the socket's directory {directory} cannot be made: {error} (--socket, FOREBAY_SOCKET)"
        ) from error


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{path} exists and is not a socket; remove it or give another path (--socket)")
    if _answers(path):
        raise ConfigurationError(f"another program serves on {path}; stop it or give another path (--socket)")
    path.unlink()


def _answers(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
