"""The books of one disk: used + reserved ≤ capacity, and a floor of free bytes that stays free for everybody else.

Bytes are bytes on the disk (blocks), not lengths. A reservation is what a fill may still come to take; it grows while a
layout is written whose size nobody knew. All changes happen on the event loop's thread, which is the one lock that they
need; only `Reservation.written` is set from the thread that writes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_core.errors import InternalError

_GIB = 1 << 30


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
    reservations: set[Reservation] = field(default_factory=set)

    def open(self) -> Reservation:
        """A new reservation of nothing yet."""
        reservation = Reservation(self)
        self.reservations.add(reservation)
        return reservation

    def missing(self, more: int) -> int:
        """How many bytes must be freed before `more` can be reserved; 0 or less: none."""
        unwritten = sum(max(0, reservation.bytes - reservation.written) for reservation in self.reservations)
        by_capacity = self.used_bytes + self.reserved_bytes + more - self.capacity_bytes
        by_disk = unwritten + more + self.floor_bytes - self.free_bytes()
        return max(by_capacity, by_disk)

    def most(self) -> int:
        """The largest piece that could ever fit, were everything else gone."""
        return min(self.capacity_bytes, self.used_bytes + self.reserved_bytes + self.free_bytes() - self.floor_bytes)
