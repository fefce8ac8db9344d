"""Ranges of an object in memory."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.formats.base import ByteRange
from forebay_core.formats.ranges import RangeFile, coalesce

SIZE = 60
DATA = bytes(range(SIZE))

_ranges = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda ends: ByteRange(min(ends), max(ends))), max_size=8
)


@given(_ranges, st.integers(1, 10))
def test_merged_ranges_cover_all_that_was_wanted_and_lie_apart(wanted: list[ByteRange], gap: int) -> None:
    merged = coalesce(wanted, gap_bytes=gap)
    assert all(any(m.start <= w.start and w.stop <= m.stop for m in merged) for w in wanted)
    assert all(b.start - a.stop >= gap for a, b in pairwise(merged))
    fetched = sum(m.length for m in merged)
    needed = len({at for w in wanted for at in range(w.start, w.stop)})
    assert needed <= fetched <= needed + max(0, len(wanted) - 1) * (gap - 1)


@given(_ranges, st.integers(0, SIZE), st.integers(0, 20))
def test_what_was_fetched_reads_as_the_object_and_the_rest_is_an_error(
    wanted: list[ByteRange], start: int, length: int
) -> None:
    ranges = coalesce(wanted, gap_bytes=1)
    file = RangeFile(SIZE, ranges, b"".join(DATA[r.start : r.stop] for r in ranges))
    assert file.seek(0, 2) == SIZE
    file.seek(start)
    expected = DATA[start : start + length]
    if not expected or any(r.start <= start and start + len(expected) <= r.stop for r in ranges):
        assert file.read(length) == expected
        assert file.tell() == start + len(expected)
    else:
        with pytest.raises(OSError, match="were not fetched"):
            file.read(length)
