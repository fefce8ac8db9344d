"""The global shuffle: a keyed permutation of all samples of an epoch, at random access and without a table.

A Feistel network over pairs (left, right) in Z_a × Z_b, the least nearly square grid of at least N cells: its rounds
add to one half in turn a hash of the other, which permutes the grid whatever the hash is. Fewer than a ≈ √N cells lie
beyond N; a sample that lands on one is permuted again until it does not, which makes it a permutation of [0, N) (cycle
walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). With a even the permutations are as often
odd as even; were a and b both odd, none would be odd. The hash is the mixing of splitmix64 with a key for each round:
integers modulo 2**64 throughout, the same on every machine and under every numpy. Immutable; any thread.
"""

from collections.abc import Callable
from math import isqrt

import numpy as np
import numpy.typing as npt

from forebay.order import philox
from forebay.order.lanes import Int64

_UInt64 = npt.NDArray[np.uint64]

_ROUNDS = 8
_ROUNDS_OF_FEW = 24
_FEW = 1 << 8
"""With 8 rounds some of the 120 orders of 5 samples are visibly rarer than others; from 20 samples on none is."""
_AT_ONCE = 1 << 13
"""Samples that are permuted together, so that all they need stays in a core's cache."""
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


class Permutation:
    """The order of the samples [0, samples) in one epoch. A lane reader of one lane, in which all samples lie."""

    def __init__(self, digest: int, epoch: int, samples: int) -> None:
        self.width = max(1, samples)
        root = isqrt(self.width - 1) + 1
        left = root + root % 2
        self._samples = np.uint64(samples)
        self._left = np.uint64(left)
        self._right = np.uint64(-(-self.width // left))
        rounds = _ROUNDS_OF_FEW if samples < _FEW else _ROUNDS
        keys = list(philox.raw_words(digest, philox.PERMUTATION, rounds, epoch=epoch))
        self._keys = list(zip(keys[0::2], keys[1::2], strict=True))

    def read(self, lane: int, turns: Int64, out: Int64) -> None:
        """Write to `out` the samples read at these turns of lane 0, which are the positions; in any order."""
        self._walk(self._forward, turns, out)

    def positions(self, samples: Int64) -> Int64:
        """The position at which each of these samples is read: the inverse of `read`, at the same cost."""
        position = np.empty(len(samples), dtype=np.int64)
        self._walk(self._backward, samples, position)
        return position

    def _walk(self, permuted: Callable[[_UInt64], _UInt64], number: Int64, out: Int64) -> None:
        """Permute numbers in [0, samples), again where they leave that range."""
        for start in range(0, len(number), _AT_ONCE):
            chunk = slice(start, start + _AT_ONCE)
            cell = permuted(number[chunk].astype(np.uint64))
            outside = np.flatnonzero(cell >= self._samples)
            while len(outside):
                cell[outside] = again = permuted(cell[outside])
                outside = outside[again >= self._samples]
            out[chunk] = cell

    def _forward(self, cell: _UInt64) -> _UInt64:
        left, right = self._halves(cell)
        for left_key, right_key in self._keys:
            _add(left, _hashed(right, left_key, self._left), self._left)
            _add(right, _hashed(left, right_key, self._right), self._right)
        return left * self._right + right

    def _backward(self, cell: _UInt64) -> _UInt64:
        left, right = self._halves(cell)
        for left_key, right_key in reversed(self._keys):
            _add(right, self._right - _hashed(left, right_key, self._right), self._right)
            _add(left, self._left - _hashed(right, left_key, self._left), self._left)
        return left * self._right + right

    def _halves(self, cell: _UInt64) -> tuple[_UInt64, _UInt64]:
        left = cell // self._right
        return left, cell - left * self._right


def _hashed(half: _UInt64, key: np.uint64, modulus: np.uint64) -> _UInt64:
    """A number below `modulus` (which is below 2**32) for each value of a half."""
    mixed = half + key
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _HALF
    mixed *= _FACTORS[1]
    mixed >>= _HALF
    mixed *= modulus
    mixed >>= _HALF
    return mixed


def _add(half: _UInt64, number: _UInt64, modulus: np.uint64) -> None:
    """half = (half + number) mod modulus, in place; what wraps below 0 is larger than any half."""
    half += number
    np.minimum(half, half - modulus, out=half)
