"""Finds the daemon's disks as this process sees them: the daemon may run in another container, with other mounts.

A disk, or a staging directory, is known by the content of the file `disk-id` in it, which is looked for first where the
daemon says it lies, then in each directory of `FOREBAY_CACHE_DIR`, a comma-separated list as the daemon takes it, in
`staging` below each, and in `FOREBAY_STAGING_DIR`. One that was found is not looked for again. May be used from any
thread.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from forebay_core.capacity import listed_directories, split_capacity
from forebay_core.errors import DaemonError
from forebay_core.node_layout import ATTEMPTS_DIRECTORY, DISK_ID_FILE, PIECES_DIRECTORY, STAGING_DIRECTORY


class Disks:
    """Paths of this process for (disk id, path relative to the disk)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        listed = listed_directories(environment.get("FOREBAY_CACHE_DIR", ""))
        caches = [_directory(text) for text in listed]
        staging = environment.get("FOREBAY_STAGING_DIR", "")
        self._configured = [*caches, *(each / STAGING_DIRECTORY for each in caches)]
        self._configured += [_directory(staging)] if staging else []
        self._hints: dict[str, Path] = {}
        self._found: dict[str, Path] = {}

    def learn(self, disks: Iterable[tuple[str, str]]) -> None:
        """Takes (disk id, path as the daemon sees it) of the daemon's disks."""
        self._hints |= {disk_id: Path(path) for disk_id, path in disks}

    def locate(self, disk_id: str, path: str) -> Path | None:
        """The file as this process sees it; None where no directory here is that disk.

        Raises `DaemonError` for a path that leads out of the disk.
        """
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise DaemonError(f"the daemon named {path!r}, which is not below its disk; its log has the details")
        if disk_id not in self._found:
            found = next((place for place in self._places(disk_id) if _is_disk(place, disk_id)), None)
            if found is None:
                return None
            self._found[disk_id] = found
        return self._found[disk_id] / relative

    def why_not(self, disk_id: str) -> tuple[str, str]:
        """What to say of a disk that is not found, and what to do."""
        looked = ", ".join(map(str, self._places(disk_id))) or "no directory"
        return (
            f"the daemon's disk {disk_id} is not visible here, or not readable (looked in {looked})",
            "mount it, and set FOREBAY_CACHE_DIR to the place, or the comma-separated places, where this process sees "
            "the disks (FOREBAY_STAGING_DIR for checkpoints); this user must be of the daemon's group",
        )

    def _places(self, disk_id: str) -> list[Path]:
        hint = self._hints.get(disk_id)
        return [*([] if hint is None else [hint]), *self._configured]


def is_visible_in_place(path: Path, *, inode: int, size: int) -> bool:
    """Whether this process sees a user's own file that the daemon reads in place, the same one, and may read it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_ino, found.st_size) == (inode, size) and os.access(path, os.R_OK)


def _directory(text: str) -> Path:
    return Path(split_capacity(text)[0]).expanduser()


def _is_disk(place: Path, disk_id: str) -> bool:
    held = (place / PIECES_DIRECTORY, place / ATTEMPTS_DIRECTORY)
    return _read_id(place) == disk_id and any(os.access(each, os.R_OK | os.X_OK) for each in held)


def _read_id(directory: Path) -> str | None:
    try:
        return (directory / DISK_ID_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
