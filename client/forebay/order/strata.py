"""Random parts of a shard's rows, spread evenly, with random access in both directions and without a table.

A shard's rows are cut into *units* of 32768, whatever pieces hold them. A unit gives each part its share of its rows,
a fraction of a row rounded up or down by one draw of the unit: so the bounds between parts, as numbers of rows, ascend.
Down a binary tree every node gives its halves half of each bound, and one random bit of the node says which half gets
the odd row (a bound B becomes (B + bit) // 2 and (B + 1 - bit) // 2). So bounds keep ascending, every row ends in
exactly one part, with a probability that is the part's fraction, and any aligned stretch of 2**k rows, k <= 15, has its
share of each part to within one row. (It is a nested uniform scrambling of the rows' bit-reversed numbers: Owen,
"Randomly permuted (t,m,s)-nets and (t,s)-sequences", 1995.) How many rows of a part lie before a row, and which row is
the part's n-th, are one descent of 15 levels each.

What decides on a row is the shard's key (64 bits, `philox.shard_keys`), the row's number in the shard, and the bounds;
never the pieces, or how many rows or shards there are. The bits are splitmix64's, addressed by node: integers modulo
2**64, the same on every machine and under every numpy. Immutable; any thread.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.order.lanes import Int64, counted

UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

FRACTION_BITS = 40
"""Bounds are whole numbers of 2**-40 of the rows."""

_WORD_LEVELS = 5
"""A word of 32 bits has one for each of the 31 inner nodes of a tree of 5 levels."""
_WORDS = 3
_UNIT_BITS = _WORDS * _WORD_LEVELS
_UNIT = 1 << _UNIT_BITS
_ONE = np.uint32(1)
_AT_ONCE = 1 << 13
"""Rows that are looked up together, so that all they need stays in a core's cache."""


class Strata:
    """The rows of one part in runs of rows of shards.

    key: uint64[runs], the key of the shard that each run belongs to.
    start, length: int64[runs], the first row of each run in its shard, and its rows; they may be none.
    low, high: the part's bounds, 0 <= low < high <= 2**40.
    """

    def __init__(self, key: UInt64, start: Int64, length: Int64, *, low: int, high: int) -> None:
        units = np.where(length > 0, ((start + length - 1) >> _UNIT_BITS) - (start >> _UNIT_BITS) + 1, 0)
        run = np.repeat(np.arange(len(units)), units)
        unit = counted(start >> _UNIT_BITS, units)
        row = (unit << _UNIT_BITS) - start[run]
        self._bounds = low, high
        self._key = _stream(key[run], unit + 1)
        self._row = row
        before = self._before(np.maximum(-row, 0))
        end = np.cumsum(self._before(np.minimum(length[run] - row, _UNIT)) - before)
        last = np.cumsum(units)
        total = np.append(0, end)
        self._first = total[:-1]
        self._skipped = before - self._first
        self._last_unit = last - 1
        self._first_unit = last - units
        self._most_units = int(units.max(initial=0))
        self.counts: Int64 = total[last] - total[last - units]
        """How many rows of each run are the part's: int64[runs]."""

    def rows(self, run: Int64, index: Int64) -> Int64:
        """The row, counted from the run's first, that is the part's index-th (from 0) of the run; int64[n] each."""
        row = np.empty(len(run), dtype=np.int64)
        for begin in range(0, len(run), _AT_ONCE):
            chunk = slice(begin, begin + _AT_ONCE)
            unit, within = self._find(run[chunk], index[chunk])
            np.add(_Descent(self._key[unit], self._bounds).select(within), self._row[unit], out=row[chunk])
        return row

    def _find(self, run: Int64, index: Int64) -> tuple[Int64, Int64]:
        """The units that hold the part's index-th rows of the runs, and which of the units' rows of the part they are.

        A unit without any is followed by one that begins at the same row, or is never asked for.
        """
        unit, last = self._first_unit[run], self._last_unit[run]
        at = self._first[unit] + index
        step = 1 << max(0, self._most_units - 1).bit_length()
        while step := step >> 1:
            later = np.minimum(unit + step, last)
            unit = np.where(self._first[later] <= at, later, unit)
        return unit, at + self._skipped[unit]

    def _before(self, stop: Int64) -> Int64:
        """How many of the part's rows lie among the first `stop` of each unit."""
        number = np.empty(len(stop), dtype=np.int64)
        for begin in range(0, len(stop), _AT_ONCE):
            chunk = slice(begin, begin + _AT_ONCE)
            number[chunk] = _Descent(self._key[chunk], self._bounds).count(stop[chunk])
        return number


class _Descent:
    """Many ways down the trees of units, side by side."""

    def __init__(self, key: UInt64, bounds: tuple[int, int]) -> None:
        drawn = _stream(key, np.zeros(1, dtype=np.int64)) >> np.uint64(64 - FRACTION_BITS)
        low, high = (
            ((drawn + np.uint64(bound << _UNIT_BITS)) >> np.uint64(FRACTION_BITS)).astype(np.uint32) for bound in bounds
        )
        self._key = key
        self._low, self._high = low, high
        """The part's bounds in the present nodes."""
        self._row = np.zeros(len(key), dtype=np.uint32)

    def select(self, index: Int64) -> Int64:
        """The rows of the units that are the part's index-th."""
        rest = index.astype(np.uint32)
        for _ in self._levels():
            left = self._left()
            right = (rest >= left).astype(np.uint32)
            left *= right
            rest -= left
            self._enter(right)
        return self._row.astype(np.int64)

    def count(self, stop: Int64) -> Int64:
        """How many of the part's rows lie among the units' first `stop`, at most all."""
        number: UInt32 = np.where(stop == _UNIT, self._high - self._low, np.uint32(0))
        path = stop.astype(np.uint32)
        for level in self._levels():
            left = self._left()
            right = (path >> np.uint32(level)) & _ONE
            left *= right
            number += left
            self._enter(right)
        return number.astype(np.int64)

    def _levels(self) -> Iterator[int]:
        """The levels from the top, numbered by the power of two of a half's rows."""
        for number in range(_WORDS):
            address = (self._row + np.uint32(1 << number * _WORD_LEVELS)).astype(np.int64)
            self._word = (_stream(self._key, address) >> np.uint64(32)).astype(np.uint32)
            self._node = np.ones_like(self._row)
            for level in range(_WORD_LEVELS):
                yield _UNIT_BITS - 1 - number * _WORD_LEVELS - level
            self._row <<= np.uint32(_WORD_LEVELS)
            self._row += self._node - np.uint32(1 << _WORD_LEVELS)

    def _left(self) -> UInt32:
        """How many of the part's rows lie in the left halves of the present nodes."""
        self._bit = (self._word >> self._node) & _ONE
        left: UInt32 = (self._high + self._bit) >> _ONE
        left -= (self._low + self._bit) >> _ONE
        return left

    def _enter(self, right: UInt32) -> None:
        """Goes into these halves."""
        self._bit ^= right
        self._low += self._bit
        self._low >>= _ONE
        self._high += self._bit
        self._high >>= _ONE
        self._node += self._node
        self._node += right


def _stream(key: UInt64, number: Int64) -> UInt64:
    """The number-th word of the splitmix64 generator that begins at each key."""
    word: UInt64 = key + number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word
