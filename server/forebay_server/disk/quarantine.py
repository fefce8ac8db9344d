"""Where damaged pieces go: `quarantine/` of a cache directory, for whoever wants to know what became of them.

Nothing in it is ever served, and it takes room from the cache, so it is bounded: in files, and in bytes; the oldest go
first, and a piece larger than all of it is only removed. Blocking; one thread at a time.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from forebay_server.disk.blocks import blocks_of

_SIDECAR = ".json"
#: What has another name was not put here by the daemon, and stays.
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """What a quarantine may hold: enough to see a pattern in the damage, little beside a cache."""

    pieces: int = 16
    bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class _Kept:
    name: str
    bytes: int
    since_ns: int


class Quarantine:
    """The open directory, which it owns."""

    def __init__(self, directory: int, limits: QuarantineLimits | None = None) -> None:
        self._directory = directory
        self._limits = limits or QuarantineLimits()
        self._kept = sorted(self._found(), key=lambda kept: kept.since_ns)
        self._make_room(0)

    def close(self) -> None:
        os.close(self._directory)

    @property
    def bytes(self) -> int:
        """What it takes on the disk."""
        return sum(kept.bytes for kept in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, key: str, *, data: tuple[str, int], sidecar: tuple[str, int]) -> bool:
        """Moves a piece's files, each a name in an open directory, in here. False: it was too large, and is removed.

        Raises `OSError`.
        """
        found = os.stat(data[0], dir_fd=data[1], follow_symlinks=False)
        size = blocks_of(found)
        self._drop(key)
        if size > self._limits.bytes:
            for name, directory in (data, sidecar):
                _unlink(name, directory)
            return False
        self._make_room(size)
        os.rename(data[0], key, src_dir_fd=data[1], dst_dir_fd=self._directory)
        with suppress(FileNotFoundError):
            os.rename(sidecar[0], f"{key}{_SIDECAR}", src_dir_fd=sidecar[1], dst_dir_fd=self._directory)
        self._kept.append(_Kept(key, size, found.st_ctime_ns))
        return True

    def _make_room(self, more: int) -> None:
        while self._kept and (
            len(self._kept) + (more > 0) > self._limits.pieces or self.bytes + more > self._limits.bytes
        ):
            self._drop(self._kept[0].name)

    def _drop(self, name: str) -> None:
        self._kept = [kept for kept in self._kept if kept.name != name]
        for part in (name, f"{name}{_SIDECAR}"):
            _unlink(part, self._directory)

    def _found(self) -> list[_Kept]:
        with os.scandir(self._directory) as entries:
            pieces = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in pieces}
        return [
            _Kept(name, blocks_of(state), state.st_ctime_ns) for name, state in found.items() if _KEY.fullmatch(name)
        ]


def _unlink(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
