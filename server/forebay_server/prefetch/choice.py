"""Which pieces may be fetched ahead now. Pure.

Demands come first: they are fills already. Then what is *due*, needed within the time that its fetch will take and a
margin; the rest is *speculative*. Candidates come soonest first, so that a due one is always looked at before a
speculative one; the classes differ in what they may take. A speculative piece waits while a demand cannot send its
requests, and leaves some fills free for what comes to be due meanwhile. All are bounded by the number of fills and by
the bytes that they fetch together; one that is larger than all bytes goes alone.
"""

from dataclasses import dataclass

#: Positions are as old as a heartbeat of a client at the most, and predictions are wrong by a part of themselves.
MARGIN_SECONDS = 6.0
_MARGIN_TIMES = 2.0
#: One in so many fills is kept for what is due.
_DUE_PART = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What prefetches may take together."""

    fills: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """What is under way: prefetches and their bytes, and whether a demand waits to send its requests."""

    fills: int
    bytes: int
    demand_waits: bool

    def plus(self, size: int) -> "Load":
        return Load(self.fills + 1, self.bytes + size, self.demand_waits)


def is_due(seconds: float, predicted_seconds: float) -> bool:
    """Whether a piece that is needed in so many seconds must be begun now."""
    return seconds <= _MARGIN_TIMES * predicted_seconds + MARGIN_SECONDS


def may_begin(size: int, load: Load, bounds: Bounds, *, due: bool) -> bool:
    """Whether another piece of so many bytes may be begun."""
    fills = bounds.fills if due else bounds.fills - bounds.fills // _DUE_PART
    if load.fills >= fills or (load.demand_waits and not due):
        return False
    return load.fills == 0 or load.bytes + size <= bounds.bytes
