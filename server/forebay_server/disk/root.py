"""Whether a directory may be a cache: made where it is not there, refused where it is anybody else's.

Nothing in it is touched before that is known. Called once at start, on the main thread, before the cache's lock is
taken; what a group shall share is given to it (`give_to`) by who holds the lock.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.node_layout import DISK_ID_FILE, LOCK_FILE, PIECES_DIRECTORY
from forebay_server.process.places import barrier, check_place

_log = logging.getLogger(__name__)
#: Of a directory that is made here, and of those in it.
DIRECTORY_MODE = 0o750
#: Of a file that is being written: the daemon's token and a number.
TEMP_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+")
INDEX_DIRECTORY = "index"
#: Setgid: what is made in it belongs to its group.
_SHARED_MODE = 0o2750
_DATABASE = r"\.db(-wal|-shm|-journal)?"
#: What is made in the root itself, and below it: directories of pieces, pieces and what is beside them, manifests, and
#: parts of the index.
_OUR_TOP = re.compile(rf"lock|disk-id|draining|pieces|tmp|index|manifests|quarantine|digests{_DATABASE}")
_OUR_NAME = re.compile(rf"[0-9a-f]{{2}}|[0-9a-f]{{64}}(\.json|\.error|\.arrow)?|cache{_DATABASE}")
_SETTING = "--cache-dir, FOREBAY_CACHE_DIR"
_LOCK_TEXT = re.compile(rb"[0-9]* *\n?")


def prepared_root(root: Path, *, mounts: str | None = None) -> Path:
    """The directory, made or found to be a cache, resolved. Raises `ConfigurationError`.

    `mounts`: the text of /proc/self/mountinfo, read where it is not given.
    """
    try:
        if not root.exists():
            _make(root)
        if not root.is_dir():
            raise ConfigurationError(f"the cache directory {root} is not a directory ({_SETTING})")
        check_place(root, "the cache directory", _SETTING)
        root = root.resolve(strict=True)
        if (other := _strange_name(root)) is not None:
            raise ConfigurationError(
                f"the directory {root} holds {other!r} and is not a forebay cache:"
                f" give an empty or a new one ({_SETTING})"
            )
        _check_mode(root)
    except OSError as error:
        raise ConfigurationError(f"the cache directory {root} cannot be used: {error} ({_SETTING})") from error
    for place in (root, root / INDEX_DIRECTORY):
        if is_network(kind := filesystem_type(place, mounts)):
            raise ConfigurationError(f"{place} is on a network file system ({kind}); give a local one ({_SETTING})")
    return root


def give_to(root: Path, group: int) -> None:
    """Gives the cache to a group: its members may read it, and whatever is made in it is theirs too.

    Done once, when the group is another than before, by the owner of the cache's lock; the root comes last, so that
    what was cut short is done again. Other things that lie in the directory stay as they are. Raises
    `ConfigurationError`.
    """
    try:
        found = root.stat()
        if (found.st_gid, stat.S_IMODE(found.st_mode)) != (group, _SHARED_MODE):
            _give(root, group)
        if closed := barrier(root, group):
            _log.warning("the group %d cannot reach %s: chgrp %s to it, or chmod o+x it", group, root, closed)
    except OSError as error:
        raise ConfigurationError(
            f"the cache directory {root} cannot be given to the group {group}: {error}; run the daemon as a member of"
            " it, or as root (--group, FOREBAY_GROUP)"
        ) from error


def _give(root: Path, group: int) -> None:
    for path in (*_ours(root), root):
        os.chown(path, -1, group, follow_symlinks=False)
        if path.is_dir():
            path.chmod(_SHARED_MODE)


def _make(root: Path) -> None:
    """Others may pass through what is made above the root; into it may nobody but who shall."""
    missing = [path for path in root.parents if not path.exists()]
    for path in reversed(missing):
        path.mkdir()
        path.chmod(0o755)
    root.mkdir(mode=DIRECTORY_MODE)


def _check_mode(root: Path) -> None:
    found = root.stat()
    if found.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"others can write to the cache directory {root}; chmod o-w it, or give another one")
    if found.st_mode & stat.S_IWGRP:
        if found.st_uid != os.geteuid():
            raise ConfigurationError(f"a group can write to the cache directory {root}; chmod g-w it ({_SETTING})")
        root.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWGRP)


def _ours(root: Path) -> Iterator[Path]:
    """What the cache has made below its root, by its names; no links."""
    for top in root.iterdir():
        if _OUR_TOP.fullmatch(top.name) and not top.is_symlink():
            yield top
            yield from _ours_in(top)


def _ours_in(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir() if directory.is_dir() else ():
        if _OUR_NAME.fullmatch(path.name) and not path.is_symlink():
            yield path
            yield from _ours_in(path)


def _strange_name(root: Path) -> str | None:
    """A name in a directory that is no cache; None where it is one, is empty, or is left by a first start cut short."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG((root / DISK_ID_FILE).lstat().st_mode):
            return None
    return next((path.name for path in sorted(root.iterdir()) if not _is_of_a_first_start(path)), None)


def _is_of_a_first_start(path: Path) -> bool:
    mode = path.lstat().st_mode
    if path.name == LOCK_FILE and stat.S_ISREG(mode):
        with path.open("rb") as file:
            return _LOCK_TEXT.fullmatch(file.read(64)) is not None
    if path.name == PIECES_DIRECTORY and stat.S_ISDIR(mode):
        return not any(path.iterdir())
    if path.name == "tmp" and stat.S_ISDIR(mode):
        return all(TEMP_NAME.fullmatch(temp.name) for temp in path.iterdir())
    return path.name == "lost+found" and stat.S_ISDIR(mode)
