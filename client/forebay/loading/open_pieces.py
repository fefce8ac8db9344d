"""The pieces that one reader has mapped: opened when first wanted, waited for while the daemon fills them.

A piece stays open until the position at which nobody wants it any more: the daemon cannot evict what is mapped, so a
reader must not hold on to it while it waits for the room of another. There is a cap as well, so that the mappings of a
process stay bounded whatever the order and the number of its readers; what a chunk wants is open all at once all the
same. Where rows lie end to end, pieces are mapped into one grid, to be gathered from together. Used by one thread at a
time (each reader has its own).
"""

import errno
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.loading.chunk import Closed, Int64, PieceFile, StillFilling
from forebay_core.errors import DaemonError, ForebayError, ObjectChanged, PieceGone
from forebay_core.formats.base import PieceReader
from forebay_core.grid import Grid
from forebay_core.manifest import Manifest
from forebay_core.mapping import MappedFile
from forebay_core.node_layout import DISK_ID_FILE, read_error

OPEN_LIMIT = 4096
"""Mappings that one reader keeps open at most. The default window holds up to 2,064 pieces."""
PROCESS_OPEN_LIMIT = 32768
"""Those of all readers of a process, in equal parts: the kernel allows it 65,530 mappings, and others need some."""

_FIRST_WAIT_SECONDS = 0.0005
_LONGEST_WAIT_SECONDS = 0.02
#: So long a piece in fill is waited for before its disk is looked at.
_PATIENCE_SECONDS = 0.5
#: `EFAULT` and `EHWPOISON` are what faulting pages in says of them.
_FAULTS = frozenset(
    (
        *(errno.EIO, errno.EFAULT, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG),
        *(errno.EREMOTEIO, errno.ENOTCONN, errno.ESHUTDOWN, getattr(errno, "EHWPOISON", 133)),
    )
)
_NOWHERE = -1
_NEVER = 1 << 62


class OpenPiece(NamedTuple):
    """A mapped piece and the reader of its rows."""

    file: PieceFile
    mapped: MappedFile
    reader: PieceReader
    slot: int | None


class OpenPieces:
    """Open pieces of one manifest, by number. `is_closed` ends a wait."""

    def __init__(
        self,
        manifest: Manifest,
        columns: Iterable[str],
        *,
        wait_seconds: float,
        is_closed: Callable[[], bool] = lambda: False,
        most_open: int = OPEN_LIMIT,
    ) -> None:
        self._manifest = manifest
        self._columns = manifest.columns(list(columns))
        self._wait_seconds = wait_seconds
        self._is_closed = is_closed
        self._most_open = most_open
        self._open: OrderedDict[int, OpenPiece] = OrderedDict()
        #: No open piece is passed before this position.
        self._next_end = _NEVER
        self._grid = self._reserve()
        #: When each file that is read in place was last written, as first seen.
        self._written: dict[str, os.stat_result] = {}
        #: Disks that could not be read when a piece was to come there.
        self._lost: set[Path] = set()
        #: For each piece the row of the grid at which it begins.
        self._first_row = np.full(manifest.pieces if self._grid else 0, _NOWHERE, dtype=np.int64)
        _of_this_process.add(self)

    def get(self, file: PieceFile) -> OpenPiece | None:
        """The piece if it is open already; it then stays open for as long as `file` says."""
        opened = self._open.get(file.piece)
        if opened is not None and opened.file.until < file.until:
            opened = self._open[file.piece] = opened._replace(file=file)
        return opened

    def make_room(self, files: Sequence[PieceFile]) -> None:
        """Closes the pieces that were opened first, but none of these, so that with these there are not too many."""
        if len(self._open) + len(files) <= self._limit:
            return
        wanted = {file.piece for file in files}
        too_many = max(0, len(self._open.keys() | wanted) - self._limit)
        self.discard([piece for piece in self._open if piece not in wanted][:too_many])

    def open(self, file: PieceFile) -> OpenPiece:
        """Maps a piece, waiting while the daemon fills it.

        Raises the fill's own error, `PieceGone` where the file is not the one leased, `StillFilling` where it does not
        come in time, `DaemonError` where this user may not read it, and `Closed`.
        """
        piece = self._manifest.piece(file.piece)
        slot = self._grid.slot(piece.cut.rows) if self._grid is not None and Grid.takes(file.offset) else None
        try:
            with self._on_a_disk_that_may_fail(file):
                mapped = self._map(file, slot)
                if slot is None:
                    mapped.populate()
            reader = self._manifest.format.open(mapped.view, piece, self._columns)
        except BaseException:
            self._vacate(slot)
            raise
        opened = self._open[file.piece] = OpenPiece(file, mapped, reader, slot)
        self._next_end = min(self._next_end, file.until)
        if slot is not None and self._grid is not None:
            self._first_row[file.piece] = self._grid.first_row(slot)
        return opened

    def on_grid(self, piece: Int64, row: Int64) -> tuple[npt.NDArray[Any], Int64] | None:
        """The grid's rows, and which of them these are, faulted in; None where not all of the pieces lie on it.

        Raises `PieceGone`, or `OSError` of a file that is read in place, where the disk fails; both name the file.
        """
        if self._grid is None:
            return None
        first = self._first_row[piece]
        if len(first) == 0 or first.min() == _NOWHERE:
            return None
        rows = first + row
        failed = self._grid.populate(rows)
        if failed is not None:
            slot, code = failed
            file = next(opened.file for opened in self._open.values() if opened.slot == slot)
            with self._on_a_disk_that_may_fail(file):
                raise OSError(code, f"cannot read from the disk ({os.strerror(code)})", file.path)
        return self._grid.rows, rows

    def check_in_place(self, pieces: Iterable[OpenPiece]) -> None:
        """Raises `ObjectChanged` where a file that is read in place was written since it was opened."""
        for path in {opened.file.path for opened in pieces if opened.file.in_place}:
            try:
                found = os.stat(path)  # noqa: PTH116 - once a batch
            except FileNotFoundError:
                continue  # what is mapped stays as it was
            before = self._written.setdefault(path, found)
            if before.st_ino != found.st_ino:
                continue
            if (before.st_size, before.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
                raise ObjectChanged(
                    f"{path} was written while it was read in place (it was version {_version(before)}, it is "
                    f"{_version(found)} now): start anew, and replace files whole (write another, then rename) or run "
                    f"the daemon with --read-in-place never"
                )

    def pass_by(self, position: int) -> None:
        """Closes what nobody wants from this position on."""
        if position < self._next_end:
            return
        self.discard([piece for piece, opened in self._open.items() if opened.file.until <= position])
        self._next_end = min((opened.file.until for opened in self._open.values()), default=_NEVER)

    def keep(self, pieces: Iterable[int]) -> None:
        """Closes all but these."""
        self.discard(self._open.keys() - set(pieces))

    def discard(self, pieces: Iterable[int]) -> None:
        """Closes pieces; those not open are ignored."""
        for piece in pieces:
            opened = self._open.pop(piece, None)
            if opened is not None:
                opened.mapped.close()
                self._vacate(opened.slot)
                if opened.slot is not None:
                    self._first_row[piece] = _NOWHERE

    def close(self) -> None:
        """Closes all."""
        self.discard(list(self._open))
        _of_this_process.discard(self)
        if self._grid is not None:
            self._grid.close()
            self._grid = None

    @contextmanager
    def _on_a_disk_that_may_fail(self, file: PieceFile) -> Iterator[None]:
        """What cannot be read in the cache can be fetched again."""
        try:
            yield
        except OSError as error:
            if file.in_place or not _is_of_the_disk(error):
                raise
            gone = PieceGone(f"{file.path} cannot be read: {error.strerror}; lease the piece again")
            gone.unreadable = file.path
            raise gone from error

    @property
    def _limit(self) -> int:
        return min(self._most_open, PROCESS_OPEN_LIMIT // len(_of_this_process))

    def _reserve(self) -> Grid | None:
        if not self._manifest.format.rows_lie_end_to_end() or len(self._columns) != 1:
            return None
        (column,) = self._columns.values()
        if column.dtype is None:
            return None
        return Grid.reserve(self._most_open, int(self._manifest.piece_rows.max()), column.dtype, column.shape)

    def _vacate(self, slot: int | None) -> None:
        if slot is not None and self._grid is not None:
            self._grid.vacate(slot)

    def _map(self, file: PieceFile, slot: int | None) -> MappedFile:
        begun, pause = time.monotonic(), _FIRST_WAIT_SECONDS
        while True:
            try:
                return MappedFile.open(
                    file.path,
                    inode=file.inode or None,
                    size=file.size or None,
                    offset=file.offset,
                    length=file.length or None,
                    in_place=file.in_place,
                    address=None if slot is None or self._grid is None else self._grid.address(slot),
                )
            except PermissionError as error:
                raise DaemonError(
                    f"{file.path} is not for this user to read ({error.strerror}): join the daemon's group (--group)"
                ) from error
            except PieceGone:
                if file.inode:
                    raise
                if time.monotonic() > begun + self._wait_seconds:
                    raise StillFilling(f"{file.path} has been in fill for {self._wait_seconds:g} s") from None
            except OSError as error:
                if file.inode or file.in_place or not _is_of_the_disk(error):
                    raise
            if (failure := _said_of(file.path)) is not None:
                raise failure
            if self._is_closed():
                raise Closed
            self._check_disk(file, time.monotonic() - begun)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT_SECONDS)

    def _check_disk(self, file: PieceFile, waited_seconds: float) -> None:
        """Raises `StillFilling` where a piece in fill cannot come, since its disk is lost: the daemon may know better.

        Nothing can be written beside its path that says so.
        """
        root = Path(file.path).parents[2]
        if not file.disk_id or (root not in self._lost and waited_seconds < _PATIENCE_SECONDS):
            return
        self._lost.discard(root)
        try:
            (root / DISK_ID_FILE).read_bytes()
        except OSError as error:
            if _is_of_the_disk(error):
                self._lost.add(root)
                time.sleep(_LONGEST_WAIT_SECONDS)  # the daemon may need a moment to find out
                raise StillFilling(f"the disk of {file.path} cannot be read: {error.strerror}") from error


def _is_of_the_disk(error: OSError) -> bool:
    """Whether it is the disk that fails, or the way to it, and not what was asked of it."""
    return error.errno in _FAULTS and not isinstance(error, ForebayError)


def _said_of(path: str) -> ForebayError | None:
    """The error of the piece's fill. A disk that cannot be read says nothing."""
    try:
        return read_error(path)
    except OSError as error:
        if not _is_of_the_disk(error):
            raise
        return None


_of_this_process: "weakref.WeakSet[OpenPieces]" = weakref.WeakSet()


def _version(found: os.stat_result) -> str:
    """Of a local file, spelled as the manifest does: inode, time of writing and size."""
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
