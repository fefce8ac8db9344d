"""The pieces that one reader has mapped: opened when first wanted, waited for while the daemon fills them.

A piece stays open until the position at which nobody wants it any more: the daemon cannot evict what is mapped, so a
reader must not hold on to it while it waits for the room of another. There is a cap as well, so that mappings stay
bounded whatever the order. Used by one thread at a time (each reader thread or process has its own).
"""

import json
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from forebay.loading.chunk import PieceFile
from forebay_core.errors import PieceGone, by_name
from forebay_core.formats.base import PieceReader
from forebay_core.manifest import Manifest
from forebay_core.mapping import MappedFile

OPEN_LIMIT = 1024
"""Mappings kept open at once. Their number is what the window holds, some dozens; the kernel allows 65,530."""

_FIRST_WAIT_SECONDS = 0.0005
_LONGEST_WAIT_SECONDS = 0.02


class StillFilling(PieceGone):
    """A piece that is being filled has not come for long: is the daemon still at it?"""


class OpenPiece(NamedTuple):
    """A mapped piece and the reader of its rows."""

    file: PieceFile
    mapped: MappedFile
    reader: PieceReader


class OpenPieces:
    """Open pieces of one manifest, by number."""

    def __init__(self, manifest: Manifest, columns: Iterable[str], *, wait_seconds: float) -> None:
        self._manifest = manifest
        self._columns = manifest.columns(list(columns))
        self._wait_seconds = wait_seconds
        self._open: OrderedDict[int, OpenPiece] = OrderedDict()

    def get(self, file: PieceFile) -> OpenPiece | None:
        """The piece if it is open already; it then stays open for as long as `file` says."""
        opened = self._open.get(file.piece)
        if opened is not None and opened.file.until < file.until:
            opened = self._open[file.piece] = opened._replace(file=file)
        return opened

    def open(self, file: PieceFile) -> OpenPiece:
        """Maps a piece, waiting while the daemon fills it.

        Raises the fill's own error, or `PieceGone` where the file is not the one leased or does not come in time.
        """
        mapped = self._map(file)
        piece = self._manifest.piece(file.piece)
        opened = OpenPiece(file, mapped, self._manifest.format.open(mapped.view, piece, self._columns))
        self._open[file.piece] = opened
        while len(self._open) > OPEN_LIMIT:
            self._open.popitem(last=False)[1].mapped.close()
        return opened

    def pass_by(self, position: int) -> None:
        """Closes what nobody wants from this position on."""
        self.discard([piece for piece, opened in self._open.items() if opened.file.until <= position])

    def discard(self, pieces: Iterable[int]) -> None:
        """Closes pieces; those not open are ignored."""
        for piece in pieces:
            opened = self._open.pop(piece, None)
            if opened is not None:
                opened.mapped.close()

    def close(self) -> None:
        """Closes all."""
        self.discard(list(self._open))

    def _map(self, file: PieceFile) -> MappedFile:
        deadline = time.monotonic() + self._wait_seconds
        pause = _FIRST_WAIT_SECONDS
        while True:
            try:
                return MappedFile.open(
                    file.path,
                    inode=file.inode or None,
                    size=file.size or None,
                    offset=file.offset,
                    length=file.length or None,
                    in_place=file.in_place,
                )
            except PieceGone:
                if file.inode:
                    raise
                if time.monotonic() > deadline:
                    raise StillFilling(f"{file.path} has been in fill for {self._wait_seconds:g} s") from None
            raise_fill_error(file.path)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT_SECONDS)


def raise_fill_error(path: str) -> None:
    """Raises what the daemon wrote down of a fill that failed; returns where it did not."""
    try:
        found = json.loads(Path(path + ".error").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return
    raise by_name(found["error"])(found["message"])
