"""What is done to the files of whole pieces after they were filled: synced, read again, set aside, quarantined.

The invariant: nothing that was found damaged, or whose state nobody knows, is at a piece's path when somebody may look
for it there. Methods block; for one key from one thread at a time.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from forebay_core.mapping import unmapped
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.direct import DirectFile
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.quarantine import Quarantine

_DIRECTORY = "quarantine"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Aside:
    """A piece that was set aside: its data is a file of `tmp`, its sidecar only here."""

    entry: Entry
    origin: Origin
    name: str


class Custody:
    """Over the disk of a cache, which stays its owner's."""

    def __init__(self, disk: CacheDisk) -> None:
        self._disk = disk
        #: Made when it is needed first: a start needs no room for it.
        self._quarantine: Quarantine | None = None
        if (disk.root / _DIRECTORY).is_dir():
            with suppress(OSError):
                self._opened_quarantine()

    @property
    def root(self) -> Path:
        """The cache directory."""
        return self._disk.root

    def close(self) -> None:
        if self._quarantine is not None:
            self._quarantine.close()

    @property
    def quarantined_bytes(self) -> int:
        """What the quarantine takes on the disk."""
        return self._quarantine.bytes if self._quarantine is not None else 0

    @property
    def quarantined(self) -> int:
        """How many pieces are in quarantine."""
        return len(self._quarantine) if self._quarantine is not None else 0

    def open(self, key: str) -> DirectFile:
        """The data file, to be read as the disk has it. Raises `OSError`."""
        with self._disk.tree.of(key) as directory:
            return DirectFile(key, directory)

    def difference(self, entry: Entry) -> str | None:
        """Reads a piece in full, and says how it differs from what it should be; None: not at all."""
        return _difference(lambda: self.open(entry.key), entry)

    def sync(self, key: str) -> None:
        """Writes the data through to the disk. Raises `OSError`."""
        with self._disk.tree.of(key) as directory:
            descriptor = os.open(key, _READ, dir_fd=directory)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def mark_synced(self, entry: Entry) -> Entry:
        """Notes that a piece has been synced. A note that is lost costs a verification, so it is not synced itself.

        Raises `OSError`.
        """
        return self._revised(replace(entry, synced=True))

    def confirm(self, entry: Entry) -> Entry:
        """Notes that a piece was read in full and is right. Raises `OSError`."""
        return self._revised(replace(entry, boot=self._disk.boot))

    def set_aside(self, entry: Entry) -> Aside:
        """Takes the data of a piece from its path, so that nobody reads it. Raises `OSError`."""
        origin = self._disk.origin(entry.key)
        if origin is None:
            raise FileNotFoundError(f"the sidecar of {entry.key} is gone")
        name = self._disk.tree.temp_name()
        with self._disk.tree.of(entry.key) as directory:
            os.rename(entry.key, name, src_dir_fd=directory, dst_dir_fd=self._disk.tree.tmp)
        return Aside(entry, origin, name)

    def put_back(self, aside: Aside) -> Entry | str:
        """Reads what was set aside in full. Puts it back where it is right, else in quarantine, and says what is
        wrong. Raises `OSError`."""
        wrong = _difference(lambda: DirectFile(aside.name, self._disk.tree.tmp), aside.entry)
        if wrong is None:
            proven = replace(aside.entry, boot=self._disk.boot)
            self._disk.put_in_place(aside.name, proven, aside.origin)
            return proven
        key = aside.entry.key
        with self._disk.tree.of(key) as directory:
            self._disk.write_sidecar(aside.entry, aside.origin, directory)
            self._isolate(key, (aside.name, self._disk.tree.tmp), directory)
        return wrong

    def drop_aside(self, aside: Aside) -> None:
        """Removes what was set aside, where it is still there."""
        with suppress(FileNotFoundError):
            os.unlink(aside.name, dir_fd=self._disk.tree.tmp)

    def quarantine(self, key: str) -> bool:
        """Takes a damaged piece from its path into the quarantine. False: it stays where it is, because readers have it
        mapped, or it cannot be moved."""
        try:
            with unmapped(self._disk.path(key)) as is_free, self._disk.tree.of(key) as directory:
                if is_free:
                    self._isolate(key, (key, directory), directory)
                return is_free
        except OSError:
            return False

    def _revised(self, entry: Entry) -> Entry:
        origin = self._disk.origin(entry.key)
        if origin is None:
            raise FileNotFoundError(f"the sidecar of {entry.key} is gone")
        with self._disk.tree.of(entry.key) as directory:
            self._disk.write_sidecar(entry, origin, directory)
        return entry

    def _isolate(self, key: str, data: tuple[str, int], directory: int) -> None:
        self._opened_quarantine().take(key, data=data, sidecar=(f"{key}.json", directory))

    def _opened_quarantine(self) -> Quarantine:
        if self._quarantine is None:
            self._quarantine = Quarantine(self._disk.tree.subdirectory(_DIRECTORY))
        return self._quarantine


def _difference(opened: Callable[[], DirectFile], entry: Entry) -> str | None:
    try:
        file = opened()
        try:
            while file.step():
                continue
        finally:
            file.close()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return file.difference(entry)
