"""Single samples by their number: which pieces are leased and how long they stay mapped."""

import fcntl
from collections.abc import Sequence
from pathlib import Path

import pytest

from forebay.loading.assembly import Assembly
from forebay.loading.chunk import PieceFile
from forebay.loading.leases import NoLeases
from forebay.loading.stream_reader import StreamReaderSpec
from forebay.lookup import KEPT_LOOKUPS, Lookup
from forebay_core.errors import CapacityError
from forebay_core.formats import Parquet
from tests.client.loading.test_stream_reader import Local
from tests.support.data import write_parquet


class FilledLeases(NoLeases):
    """Leases of a dataset whose pieces lie there as soon as they are asked for."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.leased: list[int] = []
        self.released: list[int] = []
        self.closed = 0
        self.is_full = False

    def lease(self, pieces: Sequence[int]) -> list[PieceFile]:
        if self.is_full:
            raise CapacityError("full")
        self.leased += pieces
        return [self._local.fill(piece) for piece in pieces]

    def release(self, pieces: Sequence[int]) -> None:
        self.released += pieces

    def unreadable(self, piece: int, disk_id: str) -> None:
        """Every disk can be read."""

    def interrupt(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed += 1


class Owner:
    """Whoever looks samples up."""


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """6 pieces of 10 samples."""
    paths = write_parquet(tmp_path / "data", shards=2, rows=30, row_group_rows=10)
    return Local(tmp_path, paths, Parquet(piece_bytes=1), ("id",))


def lookup_of(local: Local, leases: FilledLeases, owner: object) -> Lookup:
    return Lookup(
        StreamReaderSpec(local.manifest_path, local.columns, 7, assembly=Assembly(batched=False)), leases, owner
    )


def sample(lookup: Lookup, number: int) -> int:
    return int(lookup.sample(number, number // 10, number % 10)["id"])


def is_mapped(local: Local, piece: int) -> bool:
    with local.path(piece).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_neighbouring_samples_take_one_lease_which_is_given_back_at_once(local: Local) -> None:
    leases, owner = FilledLeases(local), Owner()
    lookup = lookup_of(local, leases, owner)
    assert [sample(lookup, number) for number in (3, 4, 0, 9, 3)] == [3, 4, 0, 9, 3]
    assert leases.leased == leases.released == [0]


def test_a_piece_stays_mapped_for_a_bounded_number_of_lookups(local: Local) -> None:
    leases, owner = FilledLeases(local), Owner()
    lookup = lookup_of(local, leases, owner)
    sample(lookup, 5)
    for _ in range(KEPT_LOOKUPS - 1):
        sample(lookup, 15)
        assert is_mapped(local, 0)
    sample(lookup, 16)
    assert not is_mapped(local, 0)
    assert sample(lookup, 6) == 6
    assert leases.leased == [0, 1, 0]


def test_after_a_failure_the_next_lookup_leases_anew(local: Local) -> None:
    leases, owner = FilledLeases(local), Owner()
    lookup = lookup_of(local, leases, owner)
    leases.is_full = True
    with pytest.raises(CapacityError):
        sample(lookup, 5)
    leases.is_full = False
    assert sample(lookup, 5) == 5


def test_nothing_stays_mapped_when_the_owner_is_gone(local: Local) -> None:
    leases, owner = FilledLeases(local), Owner()
    lookup = lookup_of(local, leases, owner)
    sample(lookup, 5)
    assert is_mapped(local, 0)
    del owner
    assert not is_mapped(local, 0)
    lookup.close()
    assert leases.closed == 1
