"""How often a measure fell into which class: what Prometheus calls a histogram, kept where it is measured. Pure.

Changed and read on the event loop.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

#: Upper bounds of durations: from what a local fill of a small piece takes to what is a stall by anybody's measure.
DURATIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Distribution:
    """How many values fell into each class, up to its bound, the last without one; and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with how many values were not above it; the last bound is infinite."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)
