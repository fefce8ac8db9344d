"""What a planner holds: its leases, until which position each is wanted, and which pieces have not arrived yet.

Changed by the planner's thread alone. `next_end` is a number that other threads may read.
"""

import heapq
import os
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from forebay.loading.chunk import Int64, PieceFile
from forebay.order import Needs

NEVER = 1 << 62


class Bounds:
    """Until which position, over all epochs, each piece is wanted by the needs of one epoch that have begun.

    A piece may be wanted again long after: it is not held in between.
    """

    def __init__(self, needs: Needs, epoch_begin: int) -> None:
        self._needs, self._begin = needs, epoch_begin
        self._begun = 0
        self._last = np.zeros(int(needs.pieces.max(initial=-1)) + 1, dtype=np.int64)

    def up_to(self, position: int) -> Int64:
        """int64[pieces] for what begins before a position of the epoch, which only ever grows."""
        begun = int(np.searchsorted(self._needs.first, position))
        if begun > self._begun:
            new = slice(self._begun, begun)
            np.maximum.at(self._last, self._needs.pieces[new], self._needs.last[new] + self._begin)
            self._begun = begun
        return self._last


class Holdings:
    """The leases of one planner: which pieces, where they lie, until which position."""

    def __init__(self, piece_bytes: Int64) -> None:
        self._piece_bytes = piece_bytes
        #: Of each piece that is held: what is expected of it until it has arrived, then what it takes.
        self._sizes: dict[int, int] = {}
        #: What the pieces that have arrived so far were stated to take, and took: decoded they may be much larger.
        self._stated = self._taken = 0
        self._bytes = 0
        #: Whether something that is held takes room in the cache. Nothing does where all is read in place.
        self._takes_room = False
        #: The position at which the next piece is passed.
        self.next_end = NEVER
        self._files: dict[int, PieceFile] = {}
        self._until: dict[int, int] = {}
        self._by_end: list[tuple[int, int]] = []
        self._pending: set[int] = set()

    def missing(self, pieces: Sequence[int], ends: Sequence[int]) -> list[int]:
        """Holds the pieces until these positions; those among them that have to be leased first."""
        for piece, end in zip(pieces, ends, strict=True):
            if self._until.get(piece, -1) < end:
                self._until[piece] = end
                heapq.heappush(self._by_end, (end, piece))
        self.next_end = self._by_end[0][0] if self._by_end else NEVER
        return [piece for piece in pieces if piece not in self._files]

    def shorten(self, end: int) -> None:
        """Holds nothing beyond this position."""
        for piece, until in self._until.items():
            if until > end:
                self._until[piece] = end
                heapq.heappush(self._by_end, (end, piece))
        self.next_end = self._by_end[0][0] if self._by_end else NEVER

    def bytes_with(self, pieces: Sequence[int]) -> int:
        """Bytes of the cache that are held, and of these pieces where they are not. 0 before the first lease, and where
        what was leased is read in place."""
        if not self._takes_room:
            return 0
        missing = [piece for piece in pieces if piece not in self._files]
        return self._bytes + self._expected(missing)

    def replace(self, files: deque[PieceFile]) -> None:
        """Takes in, and empties, what readers had to lease again; pieces that are not held any more are left out."""
        while files:
            file = files.popleft()
            if file.piece in self._until:
                self.take([file])

    def take(self, files: Iterable[PieceFile]) -> None:
        """Leases came in, new ones or for pieces that are held."""
        for file in files:
            self._takes_room = self._takes_room or not file.in_place
            self._files[file.piece] = file
            if file.in_place:
                self._count(file.piece, 0)
            elif file.inode:
                self._arrive(file.piece, file.size)
            else:
                self._count(file.piece, self._expected([file.piece]))
            if file.inode:
                self._pending.discard(file.piece)
            else:
                self._pending.add(file.piece)

    def files(self, pieces: Iterable[int]) -> tuple[PieceFile, ...]:
        """Where the pieces lie, and how long they are wanted."""
        return tuple(self._files[piece]._replace(until=self._until[piece]) for piece in pieces)

    @property
    def growth(self) -> float:
        """How much larger than stated what has arrived was; 1 where it was not, or nothing has."""
        return max(1.0, self._taken / self._stated) if self._stated else 1.0

    @property
    def has_pending(self) -> bool:
        """True where any piece may not have arrived yet."""
        return bool(self._pending)

    def any_pending(self, pieces: Iterable[int]) -> bool:
        """True where one of the pieces has not arrived yet."""
        return any(self._is_pending(piece) for piece in pieces)

    def still_pending(self) -> list[int]:
        """The pieces that have not arrived yet."""
        return [piece for piece in list(self._pending) if self._is_pending(piece)]

    def passed(self, position: int) -> list[int]:
        """Takes out the pieces that are not wanted at `position` or later."""
        passed = []
        while self._by_end and self._by_end[0][0] <= position:
            end, piece = heapq.heappop(self._by_end)
            if self._until.get(piece) == end:
                del self._until[piece]
                self._files.pop(piece, None)
                self._count(piece, 0)
                self._sizes.pop(piece, None)
                self._pending.discard(piece)
                passed.append(piece)
        self.next_end = self._by_end[0][0] if self._by_end else NEVER
        return passed

    def _expected(self, pieces: Sequence[int]) -> int:
        """What pieces will take, by what is stated of them and by how that was with those that have arrived."""
        return int(int(self._piece_bytes[pieces].sum()) * self.growth)

    def _arrive(self, piece: int, size: int) -> None:
        self._stated += int(self._piece_bytes[piece])
        self._taken += size
        self._count(piece, size)

    def _count(self, piece: int, size: int) -> None:
        self._bytes += size - self._sizes.get(piece, 0)
        self._sizes[piece] = size

    def _is_pending(self, piece: int) -> bool:
        if piece not in self._pending:
            return False
        try:
            size = os.lstat(self._files[piece].path).st_size
        except OSError:
            return True
        self._pending.discard(piece)
        self._arrive(piece, size)
        return False
