"""The books of one disk: used + reserved + lingering + withheld ≤ capacity, and a floor of free bytes and inodes that
stays free for everybody else.

Bytes are bytes on the disk (blocks), not lengths. A reservation is what a fill may still come to take; it grows while a
layout is written whose size nobody knew. Lingering is what was removed while readers had it mapped: its blocks are
given back when the last of them ends. What others remove, or an earlier daemon has, is not known here; the floor sees
it, since it asks the file system. All changes happen on the event loop's thread, which is the one lock that they
need; only `Reservation.written` is set from the thread that writes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_core.errors import InternalError

_GIB = 1 << 30
#: A piece and its sidecar, and what its directory may come to need.
_FILES_OF_A_PIECE = 3
_MOST_FLOOR_INODES = 10_000


def floor_inodes(filesystem_inodes: int) -> int:
    """How many inodes stay free on a disk: 1 % of them, at most 10,000. 0 where the file system does not count any."""
    return min(_MOST_FLOOR_INODES, filesystem_inodes // 100)


def floor_bytes(filesystem_bytes: int) -> int:
    """What stays free on a disk: 1 % of it, at most 1 GiB: enough for logs and the index, little on a small disk."""
    return min(_GIB, filesystem_bytes // 100)


@dataclass(slots=True, eq=False)
class Reservation:
    """Room that one fill holds."""

    ledger: "Ledger"
    bytes: int = 0
    #: Of these, how many are on the disk already.
    written: int = 0

    def grow_to(self, total: int) -> None:
        """Takes more room. The caller has made sure that it is there."""
        more = total - self.bytes
        if more > 0:
            if self.ledger.missing(more) > 0:
                raise InternalError(f"a reservation of {total} bytes exceeds the cache's capacity")
            self.ledger.reserved_bytes += more
            self.bytes = total

    def release(self) -> None:
        """Gives the room back. Does nothing a second time."""
        if self in self.ledger.reservations:
            self.ledger.reservations.remove(self)
            self.ledger.reserved_bytes -= self.bytes


@dataclass(slots=True)
class Ledger:
    """The books of one disk."""

    capacity_bytes: int
    floor_bytes: int
    free_bytes: Callable[[], int]
    used_bytes: int = 0
    reserved_bytes: int = 0
    #: Removed, and still mapped by readers.
    lingering_bytes: int = 0
    #: On the disk, and neither served nor to be evicted: in quarantine, or set aside while it is verified.
    withheld_bytes: int = 0
    reservations: set[Reservation] = field(default_factory=set)
    #: What the file system would still give; None where it does not count them.
    free_inodes: Callable[[], int | None] = lambda: None
    floor_inodes: int = 0

    def open(self) -> Reservation:
        """A new reservation of nothing yet."""
        reservation = Reservation(self)
        self.reservations.add(reservation)
        return reservation

    def missing(self, more: int) -> int:
        """How many bytes must be freed before `more` can be reserved; 0 or less: none. At least 1 where inodes are
        short, so that pieces go until they are not."""
        taken = self.used_bytes + self.reserved_bytes + self.lingering_bytes + self.withheld_bytes
        by_capacity = taken + more - self.capacity_bytes
        by_disk = self.reserved_bytes + more + self.floor_bytes - self.free_bytes()
        if by_disk > 0:  # of what is reserved, some is on the disk already: counted only where that matters
            by_disk -= sum(min(reservation.bytes, reservation.written) for reservation in self.reservations)
        return max(by_capacity, by_disk, 1 if more > 0 and self.lacks_inodes() else by_capacity)

    def most(self) -> int:
        """The largest piece that could ever fit, were everything else gone."""
        ours = self.used_bytes + self.reserved_bytes + self.lingering_bytes
        return min(self.capacity_bytes - self.withheld_bytes, ours + self.free_bytes() - self.floor_bytes)

    def lacks_inodes(self) -> bool:
        """Whether the file system has no inodes left for another piece."""
        free = self.free_inodes()
        return free is not None and free < self.floor_inodes + _FILES_OF_A_PIECE * len(self.reservations)
