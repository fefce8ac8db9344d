"""Lanes: equal contiguous cuts of a line of samples, read in turns.

Position q of an epoch is turn q // L of the lane in slot q mod L. Slots hold the lanes in bit-reversed order, so that
any few consecutive positions come from lanes spread evenly over the line, and whatever the world size, neighbouring
ranks share few pieces. Pure arithmetic; everything is int64.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lanes:
    """The cut of `samples` samples into lanes. Arrays are indexed by lane unless said otherwise."""

    samples: int
    lane_of_slot: Int64
    """Indexed by slot."""
    slot: Int64
    length: Int64
    """Samples of each lane; they differ by at most one, and the lanes of the first slots are the longer ones."""
    start: Int64
    """Where each lane begins on the line; lanes follow each other in the order of their index."""

    @property
    def count(self) -> int:
        return len(self.slot)

    def turns_before(self, position: Int64) -> Int64:
        """How many turns each lane has had before each position: int64[..., lanes] for int64[...]."""
        return (position[..., np.newaxis] + (self.count - 1 - self.slot)) // self.count


def bit_reversed(count: int) -> Int64:
    """The numbers below `count` in the order of their reversed bits, at the width of the next power of two."""
    width = max(0, (count - 1).bit_length())
    numbers = np.arange(1 << width, dtype=np.int64)
    reversed_numbers = np.zeros_like(numbers)
    for bit in range(width):
        reversed_numbers |= ((numbers >> bit) & 1) << (width - 1 - bit)
    return reversed_numbers[reversed_numbers < count]


def cut_lanes(samples: int, count: int) -> Lanes:
    """Cut `samples` samples into `count` lanes; with fewer samples than lanes some are empty."""
    lane_of_slot = bit_reversed(count)
    slot = np.empty(count, dtype=np.int64)
    slot[lane_of_slot] = np.arange(count)
    base, longer = divmod(samples, count)
    length = base + (slot < longer).astype(np.int64)
    return Lanes(samples, lane_of_slot, slot, length, np.cumsum(length) - length)


def counted(first: Int64, number: Int64) -> Int64:
    """first[i], first[i] + 1, … number[i] of them, for each i, one run after another."""
    stop = np.cumsum(number)
    return np.repeat(first - stop + number, number) + np.arange(stop[-1] if len(stop) else 0)
