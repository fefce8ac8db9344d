"""Where an embedded daemon keeps its cache, and how much: decided here unless `FOREBAY_*` says it.

The place is the first free of `$XDG_CACHE_HOME/forebay/0`, `1`, …: one that another embedded daemon (of other
credentials) is using is passed over, and one that a former daemon left is taken over with all it holds, so that
credentials that rotate do not leave a cache behind each. Never on a network file system, in a directory that cannot be
written or is somebody else's, nor in memory while there is a disk: then it is below `$TMPDIR`, `/var/tmp` or `/tmp`.
The capacity is half of what is free there, counting what the cache holds already, at most 100 GiB; with several
directories (`FOREBAY_CACHE_DIR` is a comma-separated list) each gets a part of that, so that those on one file system
cannot want more than half of it.
"""

import itertools
import os
import pwd
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay.daemon.address import SHARED_DIRECTORIES
from forebay_core.capacity import listed_directories, split_capacity
from forebay_core.errors import ConfigurationError
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.node_layout import LOCK_FILE, PIECES_DIRECTORY

MAXIMUM_CAPACITY_BYTES = 100 << 30
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class Place:
    """The cache directories, each with its capacity unless the environment states one for all."""

    directories: tuple[tuple[Path, str | None], ...]
    """Capacities as the daemon's option takes them; None where `FOREBAY_CAPACITY` says it."""
    passed_over: tuple[str, ...] = ()
    """Which other places there would have been, and why they are not taken."""

    def options(self) -> list[str]:
        """The daemon's options that say so."""
        return [option for directory in self._listed() for option in ("--cache-dir", directory)]

    def describe(self) -> str:
        """The same for people, with the settings that change it."""
        caches = ", ".join(
            f"cache {path}, capacity {f'{capacity} bytes' if capacity else 'as FOREBAY_CAPACITY says'}"
            for path, capacity in self.directories
        )
        return f"{caches} (FOREBAY_CACHE_DIR and FOREBAY_CAPACITY change it)"

    def _listed(self) -> list[str]:
        return [str(path) if capacity is None else f"{path}:{capacity}" for path, capacity in self.directories]


def choose_place(environment: Mapping[str, str], is_locked: Callable[[Path], bool]) -> Place:
    """The place for a daemon with this environment; makes the directory where it chose one.

    `is_locked` says whether a living process holds the lock of a file. Raises `ConfigurationError` where there is none.
    """
    listed = [split_capacity(text) for text in listed_directories(environment.get("FOREBAY_CACHE_DIR", ""))]
    chosen = [(Path(path).expanduser().absolute(), capacity) for path, capacity in listed]
    passed_over: tuple[str, ...] = ()
    if not chosen:
        base, passed_over = cache_base(cache_bases(environment))
        free = next(base / str(n) for n in itertools.count() if not is_locked(base / str(n) / LOCK_FILE))
        free.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = [(free, None)]
    if environment.get("FOREBAY_CAPACITY"):
        return Place(tuple(chosen), passed_over)
    default = [str(max(1, default_capacity(path) // len(chosen))) for path, _ in chosen]
    sized = zip(chosen, default, strict=True)
    return Place(tuple((path, capacity or usual) for (path, capacity), usual in sized), passed_over)


def default_capacity(directory: Path) -> int:
    """Half of what is free where the directory lies or will lie, plus what it holds, at most 100 GiB; bytes."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    held = sum(_allocated(path) for path in (directory / PIECES_DIRECTORY).glob("*/*"))
    return min(MAXIMUM_CAPACITY_BYTES, (shutil.disk_usage(existing).free + held) // 2)


def cache_bases(environment: Mapping[str, str]) -> list[Path]:
    """Where the caches of a user's daemons may lie, best first."""
    home = environment.get("HOME") or _home_of_the_user()
    cache_home = environment.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    temporary = [Path(environment["TMPDIR"])] if environment.get("TMPDIR") else []
    shared = [*temporary, *reversed(SHARED_DIRECTORIES)]
    own = [Path(cache_home) / "forebay"] if cache_home else []
    return [*own, *(directory / f"forebay-cache-{os.getuid()}" for directory in shared)]


def cache_base(bases: Sequence[Path], kind_of: Callable[[Path], str] = filesystem_type) -> tuple[Path, tuple[str, ...]]:
    """The first of these that will do, and what is wrong with those before it. Raises `ConfigurationError`.

    `kind_of` gives a path's type of file system.
    """
    problems: list[str] = []
    in_memory: list[Path] = []
    for base in map(Path.absolute, bases):
        problem = _problem_of(base, kind_of(base))
        if problem is not None:
            problems.append(problem)
        elif kind_of(base) in _IN_MEMORY:
            in_memory.append(base)
        else:
            return base, tuple(problems)
    if in_memory:
        return in_memory[0], tuple(problems)
    raise ConfigurationError(
        f"there is no place for the cache of a daemon of this user: {'; '.join(problems)}; set FOREBAY_CACHE_DIR to a "
        "directory on a local disk"
    )


def _problem_of(base: Path, kind: str) -> str | None:
    if is_network(kind):
        return f"{base} is on a network file system ({kind})"
    existing = next(path for path in (base, *base.parents) if os.path.lexists(path))
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        return f"{base} cannot be written"
    if existing == base and (base.is_symlink() or base.stat().st_uid != os.getuid()):
        return f"{base} is another user's"
    return None


def _home_of_the_user() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
