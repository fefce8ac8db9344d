"""Where an embedded daemon keeps its cache, and how much: decided here unless `FOREBAY_*` says it.

The place is the first free of `$XDG_CACHE_HOME/forebay/0`, `1`, …: one that another embedded daemon (of other
credentials) is using is passed over, and one that a former daemon left is taken over with all it holds, so that
credentials that rotate do not leave a cache behind each. Never on a network file system: there it is the temporary
directory. The capacity is half of what is free there, counting what the cache holds already, at most 100 GiB.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_core.capacity import split_capacity
from forebay_core.filesystems import filesystem_type, is_network
from forebay_core.node_layout import LOCK_FILE, PIECES_DIRECTORY

MAXIMUM_CAPACITY_BYTES = 100 << 30


@dataclass(frozen=True)
class Place:
    """A cache directory, and its capacity unless the environment states one."""

    cache_dir: Path
    capacity: str | None
    """As the daemon's option takes it; None where `FOREBAY_CAPACITY` says it."""

    def options(self) -> list[str]:
        """The daemon's options that say so."""
        options = ["--cache-dir", str(self.cache_dir)]
        return options if self.capacity is None else [*options, "--capacity", self.capacity]

    def describe(self) -> str:
        """The same for people, with the settings that change it."""
        capacity = "as FOREBAY_CAPACITY says" if self.capacity is None else f"{self.capacity} bytes"
        return (
            f"cache {self.cache_dir} (FOREBAY_CACHE_DIR changes it), capacity {capacity} (FOREBAY_CAPACITY changes it)"
        )


def choose_place(environment: Mapping[str, str], is_locked: Callable[[Path], bool]) -> Place:
    """The place for a daemon with this environment; makes the directory where it chose one.

    `is_locked` says whether a living process holds the lock of a file.
    """
    directory, capacity = split_capacity(environment.get("FOREBAY_CACHE_DIR", ""))
    if directory:
        chosen = Path(directory).expanduser().absolute()
    else:
        base = _cache_base(environment)
        chosen = next(base / str(n) for n in itertools.count() if not is_locked(base / str(n) / LOCK_FILE))
        chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    if capacity is None and not environment.get("FOREBAY_CAPACITY"):
        capacity = str(default_capacity(chosen))
    return Place(chosen, capacity)


def default_capacity(directory: Path) -> int:
    """Half of what is free where the directory lies or will lie, plus what it holds, at most 100 GiB; bytes."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    held = sum(_allocated(path) for path in (directory / PIECES_DIRECTORY).glob("*/*"))
    return min(MAXIMUM_CAPACITY_BYTES, (shutil.disk_usage(existing).free + held) // 2)


def _cache_base(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    base = Path(home).absolute() / "forebay"
    if is_network(filesystem_type(base)):
        temporary = environment.get("TMPDIR") or tempfile.gettempdir()
        return Path(temporary).absolute() / f"forebay-cache-{os.getuid()}"
    return base


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
