"""What this process sees by itself: the way to the socket, its own mounts of the daemon's disks, and its limits.

Nothing is changed, started or judged here, and no network is touched. May be called on any thread.
"""

import fcntl
import os
import shutil
import socket as sockets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay.daemon.address import Address
from forebay.daemon.disks import Disks
from forebay_core.capacity import split_capacity
from forebay_core.diagnosis import DiskFacts
from forebay_core.errors import DaemonError
from forebay_core.filesystems import filesystem_type
from forebay_core.node_layout import DISK_ID_FILE, PIECES_DIRECTORY


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """The socket and the directory around it, as this user finds them."""

    path: str
    #: Whether a trainer would start a daemon of its own there.
    is_embedded: bool
    exists: bool
    is_socket: bool
    #: Permission bits; 0 where there is none.
    mode: int
    group_id: int
    directory_mode: int
    #: Of an attempt to connect; 0: something listens.
    connect_error: int


@dataclass(frozen=True, slots=True)
class MountFacts:
    """A disk of the daemon as this process sees it. `message`: why it does not; the rest is empty then."""

    disk_id: str
    path: str = ""
    id_inode: int = 0
    file_system: str = ""
    is_readable: bool = False
    can_lock: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """Where a daemon that does not run yet would keep its cache."""

    path: str
    file_system: str
    free_bytes: int
    size_bytes: int


def look_at_socket(address: Address) -> SocketFacts:
    """The socket of an address, which is connected to once."""
    path = address.socket
    try:
        found = path.lstat()
    except OSError:
        found = None
    try:
        directory_mode = stat.S_IMODE(path.parent.stat().st_mode)
    except OSError:
        directory_mode = 0
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        error = connection.connect_ex(str(path))
    return SocketFacts(
        path=str(path),
        is_embedded=address.embedded,
        exists=found is not None,
        is_socket=found is not None and stat.S_ISSOCK(found.st_mode),
        mode=stat.S_IMODE(found.st_mode) if found else 0,
        group_id=found.st_gid if found else 0,
        directory_mode=directory_mode,
        connect_error=error,
    )


def look_at_mount(disk: DiskFacts, environment: Mapping[str, str]) -> MountFacts:
    """This process's mount of a disk, found as a trainer finds it."""
    disks = Disks(environment)
    disks.learn([(disk.disk_id, disk.path)])
    try:
        identity = disks.locate(disk.disk_id, DISK_ID_FILE)
        if identity is None:
            return MountFacts(disk.disk_id, message="; ".join(disks.why_not(disk.disk_id)))
        inode = identity.stat().st_ino
    except (DaemonError, OSError) as error:
        return MountFacts(disk.disk_id, message=str(error))
    root = identity.parent
    return MountFacts(
        disk.disk_id,
        path=str(root),
        id_inode=inode,
        file_system=filesystem_type(root),
        is_readable=os.access(root / PIECES_DIRECTORY, os.R_OK | os.X_OK),
        can_lock=_can_lock(identity),
    )


def look_at_place(environment: Mapping[str, str]) -> PlaceFacts:
    """Where a daemon started with this environment would keep its cache."""
    given, _ = split_capacity(environment.get("FOREBAY_CACHE_DIR", ""))
    path = Path(given or environment.get("XDG_CACHE_HOME") or Path("~/.cache")).expanduser().absolute()
    path = path if given else path / "forebay"
    existing = next(place for place in (path, *path.parents) if place.exists())
    usage = shutil.disk_usage(existing)
    return PlaceFacts(str(path), filesystem_type(existing), usage.free, usage.total)


def _can_lock(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
