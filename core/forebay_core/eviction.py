"""Which cached pieces make room: the rule alone, without a cache.

What nobody needs goes first, the least recently used before the others; then that of which nobody can say yet; then
what is needed furthest away. A piece that is held (leased, mapped, pinned, not uploaded yet) never goes. A prefetch may
only push out what is known to be needed later than what it brings, or by nobody, or the cache would turn over without
an end. Pure; called by the daemon under its capacity lock.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A cached piece as the rule sees it."""

    key: str
    #: What its removal gives back, in bytes on disk.
    bytes: int
    #: How far away its next use is (in positions or seconds, the same unit for all); None: nobody needs it; infinite:
    #: it is not known yet whether somebody does.
    next_use: float | None
    #: Any clock that only moves forward.
    last_used: float
    #: True while it must not be removed.
    held: bool


def victims(residents: Iterable[Resident], bytes_needed: int, *, before: float | None = None) -> list[str] | None:
    """The keys to remove, in this order, so that at least `bytes_needed` come free; None where that cannot be done.

    `before` is the distance at which the newcomer is needed; None: it is wanted now.
    """
    heap = [
        (_rank(resident), resident.key, resident.bytes)
        for resident in residents
        if not resident.held and may_go(resident.next_use, before)
    ]
    heapq.heapify(heap)
    chosen: list[str] = []
    while bytes_needed > 0 and heap:
        _, key, freed = heapq.heappop(heap)
        chosen.append(key)
        bytes_needed -= freed
    return chosen if bytes_needed <= 0 else None


def may_go(next_use: float | None, before: float | None) -> bool:
    """Whether a piece that is needed so far away may go for one that is needed at the distance `before`."""
    return before is None or next_use is None or before < next_use < math.inf


def _rank(resident: Resident) -> tuple[int, float, float]:
    if resident.next_use is None:
        return (0, 0.0, resident.last_used)
    return (1, -resident.next_use, resident.last_used)
