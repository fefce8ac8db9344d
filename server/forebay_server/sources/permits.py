"""What the daemon reads for its clients: it has credentials and rights that they may not have themselves.

Two rules. With an allow-list, nothing is read but what lies at or below one of its prefixes, compared by whole parts of
the key: `s3://b/train` holds `train/x` and not `training/x`. And where a group shares the daemon, a local file that no
prefix names is read only if every member of the group may read it: nobody learns through the daemon what the file
system keeps from them.

Local paths are judged where they really lead, by the file that was opened, so that no symbolic link leads out. Called
when a dataset is opened, and again for each object before it is asked for. Any thread.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import AccessDenied, ConfigurationError
from forebay_core.locations import SCHEMES, Location, Source, parse
from forebay_server.sources.failures import shown

_SETTING = "(--allow-read, FOREBAY_ALLOW_READ)"


@dataclass(frozen=True, slots=True)
class Prefix:
    """A place that may be read, with all below it; a bucket of "" is all buckets. Made by `parse`."""

    scheme: str
    bucket: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "Prefix":
        """Reads `s3://bucket/prefix`, `s3://bucket`, `s3://` (all of it), or a path.

        Raises `ConfigurationError`, `UnknownScheme`.
        """
        if "*" in text:
            raise ConfigurationError(f"{text!r} is a pattern: give the prefix before its first '*'")
        for scheme in SCHEMES:
            if text.lower() == f"{scheme}://":
                return cls(scheme, "", "")
        place = parse(text)
        path = os.path.realpath(place.path) if place.scheme == "file" else place.path
        return cls(place.scheme, place.bucket, path.rstrip("/"))

    def holds(self, place: Location) -> bool:
        """Whether the place is this one or lies below it."""
        if place.scheme != self.scheme or (self.bucket and place.bucket != self.bucket):
            return False
        return not self.path or place.path == self.path or place.path.startswith(f"{self.path}/")


class Permits:
    """The rules of one daemon."""

    def __init__(self, prefixes: Sequence[Prefix] = (), group_id: int | None = None) -> None:
        """`prefixes`: none allow everything. `group_id`: of the group that shares the daemon."""
        self._prefixes = tuple(prefixes)
        self._group_id = group_id

    def check_source(self, source: Source) -> None:
        """Raises `AccessDenied` where a URL may name what is not allowed."""
        for bound in source.bounds:
            self.check(_really(bound))

    def check(self, place: Location) -> None:
        """Raises `AccessDenied` for a place that is on no list. A local path must be a real one."""
        if self._prefixes and not self._is_listed(place):
            raise AccessDenied(f"{shown(place.url)} is not among what this daemon may read {_SETTING}")

    def check_opened(self, descriptor: int, asked: str) -> None:
        """Raises `AccessDenied` where the local file or directory that was opened may not be read for clients.

        `asked` is the path as it was named.
        """
        if not self._prefixes and self._group_id is None:
            return
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if self._is_listed(Location("file", "", real)):
            return
        if self._prefixes:
            leads = "" if real == asked else f" leads to {shown(real)}, which"
            raise AccessDenied(f"file://{shown(asked)}{leads} is not among what this daemon may read {_SETTING}")
        if self._group_id is not None and not _is_readable_by(self._group_id, Path(real), os.fstat(descriptor)):
            raise AccessDenied(
                f"file://{shown(asked)}: not every member of the group {self._group_id} that shares this daemon may"
                f" read {shown(real)}; change its mode or group, or allow it {_SETTING}"
            )

    def _is_listed(self, place: Location) -> bool:
        return any(prefix.holds(place) for prefix in self._prefixes)


def _really(place: Location) -> Location:
    return Location("file", "", os.path.realpath(place.path)) if place.scheme == "file" else place


def _is_readable_by(group_id: int, path: Path, found: os.stat_result) -> bool:
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
    try:
        return lets(group_id, found, needed) and all(lets(group_id, p.stat(), stat.S_IXOTH) for p in path.parents)
    except OSError:
        return False


def lets(group_id: int, found: os.stat_result, wanted: int) -> bool:
    """Whether the mode gives a member of the group what `wanted` says in the bits of others."""
    given = found.st_mode >> 3 if found.st_gid == group_id else found.st_mode
    return given & wanted == wanted
