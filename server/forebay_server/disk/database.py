"""The files of a SQLite database in the cache directory: SQLite opens them by their paths, and would follow links.

So they are looked at first: only plain files are opened, and only these names are ever removed. Blocking; at start.
"""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SUFFIXES = ("", "-wal", "-shm", "-journal")


def is_there(database: Path) -> bool:
    """Whether there is such a database. Raises `ValueError` where a part of it is a link, or anything but a file."""
    parts = [part for part in _parts(database) if part.is_symlink() or part.exists()]
    for part in parts:
        if not stat.S_ISREG(part.lstat().st_mode):
            raise ValueError(f"{part.name} is no plain file")
    return database in parts


def remove(database: Path) -> None:
    """Unlinks its files, and links that stand in their place. Raises `OSError`."""
    for part in _parts(database):
        with suppress(FileNotFoundError):
            part.unlink()


def _parts(database: Path) -> Iterator[Path]:
    for suffix in _SUFFIXES:
        yield database.with_name(f"{database.name}{suffix}")
