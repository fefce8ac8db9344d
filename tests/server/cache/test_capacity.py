"""The books of one disk: what may still be reserved, and what that costs."""

from dataclasses import dataclass

from forebay_server.cache.capacity import Ledger, Reservation


@dataclass(slots=True, eq=False)
class Counted(Reservation):
    """A reservation that counts how often it is asked what is written of it."""

    asked: int = 0

    def __getattribute__(self, name: str) -> object:
        if name == "written":
            self.asked += 1
        return object.__getattribute__(self, name)


def ledger(free_bytes: int) -> tuple[Ledger, list[Counted]]:
    """Books with four reservations of 100 bytes, of each of which 60 are on the disk."""
    made = Ledger(10_000, 50, lambda: free_bytes)
    reservations = [Counted(made, 100, 60) for _ in range(4)]
    made.reservations |= set(reservations)
    made.reserved_bytes = 400
    return made, reservations


def test_many_reservations_are_only_added_up_where_the_disk_is_nearly_full() -> None:
    made, reservations = ledger(free_bytes=5000)
    assert made.missing(1000) <= 0
    assert all(reservation.asked == 0 for reservation in reservations)


def test_what_is_written_already_is_not_counted_twice_where_the_disk_is_nearly_full() -> None:
    made, _ = ledger(free_bytes=300)
    assert made.missing(90) == 0, "160 of 400 bytes are still to be written, 50 stay free, 90 are left"
    assert made.missing(91) == 1
