"""Copies of what this process cannot see of the daemon's files: streamed over its socket into files without a name.

Readers in any process of this one's open them by path like the daemon's own (`forebay_core.anonymous`), so that what is
read, and in which order, is the same. They lie in the directory for temporary files, else in memory, and go when the
piece's lease is given back. That costs a copy and room, so there is a bound, which a session's planner is told as what
it may hold; it keeps to that but for what the next step needs. Any thread.
"""

import errno
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_core.anonymous import AnonymousFile
from forebay_core.capacity import Capacity
from forebay_core.errors import CapacityError, DaemonError, DaemonUnavailable

if TYPE_CHECKING:
    from forebay_protos.v1 import daemon_pb2 as pb

MOST_BYTES = 1 << 30
"""Of one session, and never more than half of what is free; `FOREBAY_COPIES_CAPACITY` changes it."""
MOST_FILES = 256
"""Descriptors: a process often has 1024 of them."""
_logger = logging.getLogger("forebay")


class Copies:
    """The copies of one session's pieces, by number."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._directory = _temporary_directory()
        self._most_bytes = _most_bytes(environment, self._directory)
        self._files: dict[int, AnonymousFile] = {}

    def __contains__(self, piece: int) -> bool:
        return piece in self._files

    def get(self, piece: int, read: Callable[[AnonymousFile], None]) -> AnonymousFile:
        """The copy of a piece; where there is none yet, `read` fills it. Raises what that raises, `CapacityError`."""
        found = self._files.get(piece)
        if found is None or not found.is_open:
            found = self._files[piece] = copied(read, self._directory)
        return found

    def drop(self, pieces: Iterable[int]) -> None:
        """Lets go of copies; what readers have mapped stays until they are done with it."""
        for piece in pieces:
            file = self._files.pop(piece, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        """Lets go of all."""
        self.drop(list(self._files))

    def budget_bytes(self, granted: int, *, holds_others: bool) -> int:
        """What the session should hold at once, where the daemon has granted it so much of its cache.

        Copies take nothing of that. With `holds_others` the session has leases of the cache too: then it is one number
        for both, and gets small when the copies have become too many.
        """
        sizes = [file.size for file in list(self._files.values())]
        if not sizes:
            return granted
        most = min(self._most_bytes, MOST_FILES * sum(sizes) // len(sizes))
        if not holds_others:
            return most
        return max(granted, most) if sum(sizes) <= most else min(granted, most)


def copied(read: Callable[[AnonymousFile], None], directory: Path | None = None) -> AnonymousFile:
    """A file that `read` has filled."""
    file = AnonymousFile(directory or _temporary_directory())
    try:
        read(file)
    except OSError as error:
        file.close()
        if isinstance(error, DaemonUnavailable) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise CapacityError(
            f"there is no room in {directory or _temporary_directory()} for a copy of what the daemon has: mount its "
            "cache directory here (FOREBAY_CACHE_DIR says where), or set TMPDIR to a larger place"
        ) from error
    except BaseException:
        file.close()
        raise
    return file


def write(chunks: "Iterator[pb.ReadResponse | pb.ReadManifestResponse]", file: AnonymousFile) -> None:
    """Writes a stream from its begin. Raises `DaemonError` where not all of it came."""
    file.empty()
    size = 0
    for chunk in chunks:
        size = chunk.size_bytes or size
        file.write(chunk.data)
    if file.size != size:
        raise DaemonError(f"the daemon sent {file.size} bytes of {size}; its log has the details")


def warn_once(what: str, remedy: str) -> None:
    """Says, once for each thing in a process, that something is copied, and what would make that needless."""
    if what not in _said:
        _said.add(what)
        _logger.warning("%s: copied through the daemon's socket, which is slow and takes room here; %s", what, remedy)


_said: set[str] = set()


def _temporary_directory() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return None


def _most_bytes(environment: Mapping[str, str], directory: Path | None) -> int:
    usage = shutil.disk_usage(directory) if directory is not None else None
    if given := environment.get("FOREBAY_COPIES_CAPACITY"):
        return Capacity.parse(given).of(usage.total if usage is not None else 0)
    return MOST_BYTES if usage is None else min(MOST_BYTES, usage.free // 2)
