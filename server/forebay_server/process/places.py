"""Whether a directory is ours to rely on: nobody else can exchange what lies at its path.

Who can write to a directory can rename what is in it, unless the directory is sticky; so each one on the way is looked
at, and each symbolic link, whose owner decides where it leads. Links of ours and of root are followed: an operator may
put a cache elsewhere. Called at start, on the main thread; it looks and changes nothing.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from forebay_core.errors import ConfigurationError

_MOST_LINKS = 40


def check_place(directory: Path, what: str, setting: str) -> None:
    """Raises `ConfigurationError` where another user could put something else at this path, or owns the directory.

    The directory is there, its path absolute. `what` it is and the `setting` to change are for the message.
    """
    try:
        _check(directory, what, setting)
    except OSError as error:
        raise ConfigurationError(f"{what} {directory} cannot be used: {error} ({setting})") from error


def barrier(directory: Path, group: int) -> Path | None:
    """The first directory on the way, the last included, through which members of the group cannot pass; None: none."""
    real = directory.resolve()
    for place in (*reversed(real.parents), real):
        found = place.stat()
        if not found.st_mode & (stat.S_IXGRP if found.st_gid == group else stat.S_IXOTH):
            return place
    return None


def _check(directory: Path, what: str, setting: str) -> None:
    trusted = {0, os.geteuid()}
    for place, found in _way(directory):
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in trusted:
            raise ConfigurationError(
                f"{what} {directory} leads through {place}, a symbolic link of another user (uid {found.st_uid});"
                f" name the directory itself ({setting})"
            )
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise ConfigurationError(
                f"others can write to {place}, and so replace {what} {directory}:"
                f" chmod o-w or +t it, or give another place ({setting})"
            )
    owner = directory.stat().st_uid
    if owner not in trusted:
        raise ConfigurationError(f"{what} {directory} belongs to another user (uid {owner}); give another ({setting})")


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The directories and links that decide where a path leads, from the top on; each as it is itself."""
    place, names, links = Path("/"), list(path.parts[1:]), 0
    yield place, place.lstat()
    while names:
        name = names.pop(0)
        if name == "..":
            place = place.parent
            continue
        step = place / name
        found = step.lstat()
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ConfigurationError(f"{path} has too many symbolic links in it")
        target = step.readlink()
        names = list(target.parts[target.is_absolute() :]) + names
        place = Path("/") if target.is_absolute() else place
