"""Files of an attempt's directory, opened by names that lead nowhere else.

Trainers can write to the directory. So no link is followed at any part of a name, nothing but a plain file is taken,
and one that has a further name elsewhere is not either: it may be a file of somebody else. Blocking; any thread.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay_core.errors import CheckpointError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: Of an attempt.
SUBDIRECTORIES = ("ranks", "data")


@contextmanager
def opened(directory: Path, name: str) -> Iterator[int]:
    """A descriptor of the file `name`. Raises `CheckpointError` for what is no plain file, `OSError`."""
    descriptor = _open(directory, name)
    try:
        _check_plain(descriptor, name)
        yield descriptor
    finally:
        os.close(descriptor)


def size_of(directory: Path, name: str) -> int:
    """Of the file, in bytes. Raises as `opened`."""
    with opened(directory, name) as descriptor:
        return os.fstat(descriptor).st_size


def content_of(directory: Path, name: str, most_bytes: int) -> bytes:
    """The whole file. Raises as `opened`, and `CheckpointError` where it is longer."""
    with opened(directory, name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise CheckpointError(f"{name} has more than {most_bytes} bytes, which no such file has")
    return content


def names_below(directory: Path) -> Iterator[str]:
    """All names in the directory and in its two subdirectories, `ranks/00000.json`; other directories as one name."""
    for part in ("", *SUBDIRECTORIES):
        with suppress(FileNotFoundError):
            descriptor = os.open(directory / part, _DIRECTORY)
            try:
                found = sorted(os.listdir(descriptor))  # noqa: PTH208 - by descriptor
            finally:
                os.close(descriptor)
            prefix = f"{part}/" if part else ""
            yield from (f"{prefix}{name}" for name in found if part or name not in SUBDIRECTORIES)


def directories_of(directory: Path) -> list[Path]:
    """The directory and its two subdirectories, deepest first."""
    return [*(directory / name for name in SUBDIRECTORIES), directory]


def written_bytes(directory: Path) -> int:
    """What lies in it by now, as long as its files are; 0 where it is not there."""
    total = 0
    for name in names_below(directory) if directory.is_dir() else ():
        with suppress(OSError):
            total += (directory / name).lstat().st_size
    return total


def _open(directory: Path, name: str) -> int:
    top, _, rest = name.rpartition("/")
    try:
        parent = os.open(directory / top, _DIRECTORY)
        try:
            return os.open(rest, _READ, dir_fd=parent)
        finally:
            os.close(parent)
    except PermissionError as error:
        raise CheckpointError(
            f"the daemon may not read {name}: give its group the right to, umask 027 or less strict"
        ) from error


def _check_plain(descriptor: int, name: str) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{name} is no plain file")
    if found.st_nlink != 1:
        raise CheckpointError(f"{name} has {found.st_nlink} names: write it, do not link it")
