"""The cache directories that this process has claimed, until it ends.

A start with some that cannot be used goes on with the others: a disk that is gone must not take the node with it. One
that another daemon holds is a mistake of whoever started this one. `first` is called on the main thread, `claim` later
from a probe's thread, for one directory at a time.
"""

import errno
import logging
from collections.abc import Iterable, Sequence

from forebay_core.capacity import CacheDirectory
from forebay_core.errors import AlreadyRunning, DaemonError, ForebayError, one_line
from forebay_server.disk.cache_disk import CacheDisk

_log = logging.getLogger(__name__)
#: What a disk says that has failed, and not that it was wrongly named.
_FAILURES = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.ESHUTDOWN})


class Claims:
    """Of one daemon, for its group."""

    def __init__(self, group: int | None) -> None:
        self._group = group
        self._disks: list[CacheDisk] = []

    def first(self, directories: Sequence[CacheDirectory]) -> list[CacheDisk | ForebayError]:
        """For each directory its disk, or why there is none.

        Raises `AlreadyRunning` where another daemon holds one; where none can be used `DaemonError` if a disk has
        failed, which may pass, else the first reason.
        """
        found = [self._attempt(directory) for directory in directories]
        if not self._disks:
            raise _why_none(reason for reason in found if isinstance(reason, ForebayError))
        for directory, reason in zip(directories, found, strict=True):
            if isinstance(reason, ForebayError):
                _log.error("%s is left out for now: %s", directory.path, one_line(reason))
        return found

    def claim(self, directory: CacheDirectory) -> CacheDisk:
        """One more. Raises as `CacheDisk.claim`."""
        disk = CacheDisk.claim(directory.path, self._group)
        self._disks.append(disk)
        return disk

    def close(self) -> None:
        """Lets go of all."""
        for disk in self._disks:
            disk.close()

    def _attempt(self, directory: CacheDirectory) -> CacheDisk | ForebayError:
        try:
            return self.claim(directory)
        except AlreadyRunning:
            raise
        except ForebayError as error:
            return error


def _why_none(reasons: Iterable[ForebayError]) -> ForebayError:
    first = None
    for reason in reasons:
        first = first or reason
        if isinstance(reason.__cause__, OSError) and reason.__cause__.errno in _FAILURES:
            return DaemonError(f"no cache directory can be used; {one_line(reason)}")
    assert first is not None
    return first
