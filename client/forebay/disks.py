"""Finds the daemon's disks as this process sees them: the daemon may run in another container, with other mounts.

A disk is known by the content of the file `disk-id` in it, which is looked at once for each disk: first where the
daemon says it lies, then in `FOREBAY_CACHE_DIR`. May be used from any thread.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from forebay_core.capacity import split_capacity
from forebay_core.errors import DaemonError
from forebay_core.node_layout import DISK_ID_FILE


class Disks:
    """Paths of this process for (disk id, path relative to the disk)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        directory, _ = split_capacity(environment.get("FOREBAY_CACHE_DIR", ""))
        self._configured = [Path(directory).expanduser()] if directory else []
        self._hints: dict[str, Path] = {}
        self._found: dict[str, Path] = {}

    def learn(self, disks: Iterable[tuple[str, str]]) -> None:
        """Takes (disk id, path as the daemon sees it) of the daemon's disks."""
        self._hints |= {disk_id: Path(path) for disk_id, path in disks}

    def locate(self, disk_id: str, path: str) -> Path:
        """The file as this process sees it; `path` is absolute where the disk id is empty.

        Raises `DaemonError` when no directory here is that disk.
        """
        if not disk_id:
            return Path(path)
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise DaemonError(f"the daemon named {path!r}, which is not below its disk; its log has the details")
        return self._disk(disk_id) / relative

    def _disk(self, disk_id: str) -> Path:
        if disk_id not in self._found:
            self._found[disk_id] = self._search(disk_id)
        return self._found[disk_id]

    def _search(self, disk_id: str) -> Path:
        hint = self._hints.get(disk_id)
        candidates = [*([] if hint is None else [hint]), *self._configured]
        for candidate in candidates:
            if _read_id(candidate) == disk_id:
                return candidate
        looked = ", ".join(map(str, candidates)) or "no directory"
        raise DaemonError(
            f"the daemon's disk {disk_id} is not visible here (looked in {looked}); mount it, "
            "and set FOREBAY_CACHE_DIR to the place where this process sees it"
        )


def _read_id(directory: Path) -> str | None:
    try:
        return (directory / DISK_ID_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
