"""What a planner counts of the cache as held."""

from pathlib import Path

import numpy as np

from forebay.loading.chunk import PieceFile
from forebay.loading.holdings import Holdings


def test_a_piece_counts_as_expected_until_it_has_arrived_and_then_as_large_as_its_file(tmp_path: Path) -> None:
    stated, ends = np.array([10, 20, 40, 60]), [1, 2, 3, 4]
    holdings, arriving = Holdings(stated), tmp_path / "1"
    assert holdings.missing([0, 1, 2], ends[:3]) == [0, 1, 2]
    in_fill = PieceFile(1, str(arriving), inode=0, size=0, offset=0, length=0)
    in_place = PieceFile(2, "/data/2", inode=1, size=9000, offset=0, length=0, in_place=True)
    holdings.take([in_fill, in_place])
    assert holdings.bytes_with([0, 1, 2]) == 20 + 10, "nothing has arrived yet: what is stated is expected"
    there = PieceFile(0, "/pieces/0", inode=1, size=70, offset=0, length=0)
    holdings.take([there])
    assert holdings.bytes_with([3]) == 20 + 70 + 7 * 60, "the others are expected to be as much larger than stated"
    assert holdings.any_pending([1])
    arriving.write_bytes(bytes(50))
    assert not holdings.any_pending([1])
    assert holdings.bytes_with([]) == 70 + 50
    assert holdings.bytes_with([3]) == 70 + 50 + 4 * 60
    assert holdings.passed(1) == [0]
    assert holdings.passed(3) == [1, 2]
    assert holdings.bytes_with([]) == 0


def test_pieces_that_are_smaller_than_stated_are_expected_as_stated() -> None:
    holdings = Holdings(np.array([100, 200]))
    holdings.missing([0], [1])
    holdings.take([PieceFile(0, "/pieces/0", inode=1, size=10, offset=0, length=0)])
    assert holdings.bytes_with([1]) == 10 + 200
