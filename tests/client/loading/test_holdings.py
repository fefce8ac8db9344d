"""What a planner counts of the cache as held."""

from pathlib import Path

import numpy as np

from forebay.loading.chunk import PieceFile
from forebay.loading.holdings import Holdings


def test_a_piece_counts_as_stated_until_it_has_arrived_and_then_as_large_as_its_file(tmp_path: Path) -> None:
    stated, ends = np.array([10, 20, 40]), [1, 2, 3]
    holdings, arriving = Holdings(stated), tmp_path / "1"
    assert holdings.missing([0, 1, 2], ends) == [0, 1, 2]
    there = PieceFile(0, "/pieces/0", inode=1, size=700, offset=0, length=0)
    in_fill = PieceFile(1, str(arriving), inode=0, size=0, offset=0, length=0)
    in_place = PieceFile(2, "/data/2", inode=1, size=9000, offset=0, length=0, in_place=True)
    holdings.take([there, in_fill, in_place])
    assert holdings.bytes_with([0, 1, 2]) == 700 + 20
    assert holdings.any_pending([1])
    arriving.write_bytes(bytes(500))
    assert not holdings.any_pending([1])
    assert holdings.bytes_with([]) == 700 + 500
    holdings.take([there])
    assert holdings.bytes_with([]) == 700 + 500
    assert holdings.passed(1) == [0]
    assert holdings.bytes_with([0]) == 500 + 10
    assert holdings.passed(3) == [1, 2]
    assert holdings.bytes_with([]) == 0
