"""Which roots the daemon writes for its clients: it has credentials and rights that they may not have themselves.

With a list, only roots at or below one of its prefixes, compared by whole parts. Without one, any bucket, and any
directory, but for these: `/`, and what the daemon keeps itself. Where a group shares the daemon,
a directory that no prefix names must be one in which every member of the group may make files, and so must, while it is
not there yet, the nearest one above it that is. Local paths are judged where they really lead.

Called when a root is first named. Any thread; looks at the file system for local roots alone.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from forebay_core.errors import AccessDenied, ConfigurationError
from forebay_core.locations import Location
from forebay_server.sources.failures import shown
from forebay_server.sources.permits import Prefix, lets

_SETTING = "(--allow-write, FOREBAY_ALLOW_WRITE)"


class WritePermits:
    """The rules of one daemon."""

    def __init__(
        self, prefixes: Sequence[Prefix] = (), *, own: Sequence[Path] = (), group_id: int | None = None
    ) -> None:
        """`own`: directories of the daemon itself. `group_id`: of the group that shares it."""
        self._prefixes = tuple(prefixes)
        self._own = tuple(Path(os.path.realpath(path)) for path in own)
        self._group_id = group_id

    def check(self, root: Location) -> None:
        """Raises `AccessDenied`, or `ConfigurationError` for what can be no root. A local path must be a real one."""
        if root.scheme == "file":
            self._check_place(Path(root.path))
        if any(prefix.holds(root) for prefix in self._prefixes):
            return
        if self._prefixes:
            raise AccessDenied(f"{shown(root.url)} is not among what this daemon may write {_SETTING}")
        if root.scheme == "file" and self._group_id is not None:
            self._check_group(Path(root.path), self._group_id)

    def _check_place(self, path: Path) -> None:
        if len(path.parts) < 2:
            raise ConfigurationError(f"file://{path} can be no root of checkpoints; name a directory below it")
        for own in self._own:
            if path == own or own in path.parents:
                raise ConfigurationError(
                    f"file://{shown(str(path))} lies in {own}, which the daemon keeps itself; name another directory"
                )

    def _check_group(self, path: Path, group_id: int) -> None:
        there = next(place for place in (path, *path.parents) if place.exists())
        needed = stat.S_IWOTH | stat.S_IXOTH
        try:
            may_write = lets(group_id, there.stat(), needed) and all(
                lets(group_id, parent.stat(), stat.S_IXOTH) for parent in there.parents
            )
        except OSError:
            may_write = False
        if not may_write:
            raise AccessDenied(
                f"file://{shown(str(path))}: not every member of the group {group_id} that shares this daemon may write"
                f" {shown(str(there))}; change its mode or group, or allow it {_SETTING}"
            )
