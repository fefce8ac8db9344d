"""What an eviction policy is: a rank of the cached pieces by which they leave, and nothing else.

What no policy may do is done here, for all of them: a piece that is held (leased, mapped, pinned, not uploaded yet)
never goes, no more goes than is needed, and a prefetch pushes out nothing that is needed as soon as what it brings, or
of which nobody can say yet: the cache would turn over without an end. Everything is vectorised, for a cache of 100,000
pieces, and pure; called by the daemon in a thread, and by the simulator.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NOBODY = math.inf
"""The next use of a piece that no session reads."""
BEYOND = 2.0**1000
"""Of a piece of a dataset that a session reads, but not in what it has said that it needs: not before that horizon."""
UNKNOWN = 2.0**999
"""It is not known yet whose piece it is."""
_SORTED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Residents:
    """The cached pieces as a policy sees them: arrays of one length, in the order in which the pieces arrived."""

    #: What the removal of each gives back, in bytes on the disk.
    bytes: Numbers
    #: Seconds until its next use, or `NOBODY`, `BEYOND`, `UNKNOWN`.
    next_use: Seconds
    #: When it was used last, by any clock that only moves forward.
    last_used: Seconds
    #: True while it must not be removed.
    held: Flags
    #: What the cache may hold, in bytes.
    capacity_bytes: int

    def __len__(self) -> int:
        return len(self.bytes)


class Policy(Protocol):
    """In which order pieces leave. A function of its argument: no clock, no state."""

    @property
    def name(self) -> str: ...

    def rank(self, residents: Residents) -> tuple[Seconds, Seconds]:
        """Two numbers for each piece. The smallest first number leaves first, of equals the smallest second, of these
        the first to come. A first number that is NaN never leaves. Of held pieces they do not count."""


def victims(
    policy: Policy,
    residents: Residents,
    bytes_needed: int,
    *,
    before: float | None = None,
) -> Numbers | None:
    """Indices of the pieces to remove, in this order, so that at least `bytes_needed` come free; None where that cannot
    be done.

    before: in how many seconds the newcomer is needed; None: it is wanted now; `BEYOND`: nobody has said that he needs
        it, as of what is fetched on an operator's word.
    """
    if bytes_needed <= 0:
        return np.empty(0, np.int64)
    order = leaving(policy, residents, before, bytes_needed)
    freed = np.cumsum(residents.bytes[order])
    count = int(np.searchsorted(freed, bytes_needed)) + 1
    return None if count > len(order) else order[:count]


def leaving(policy: Policy, residents: Residents, before: float | None, bytes_needed: int) -> Numbers:
    """Indices of what may go for such a newcomer, the first to leave first: worth `bytes_needed` or more if there is as
    much, else all."""
    first, second = policy.rank(residents)
    free = np.flatnonzero(~residents.held & may_go_all(residents.next_use, before) & ~np.isnan(first))
    free = free[_first_worth(first[free], residents.bytes[free], bytes_needed)]
    return free[np.lexsort((second[free], first[free]))]


def _first_worth(rank: Seconds, sizes: Numbers, bytes_needed: int) -> Flags:
    """A few of the lowest ranks that are worth so much, or all: sorting those of a large cache would take long."""
    count = _SORTED_AT_ONCE
    while count < len(rank):
        chosen: Flags = rank <= np.partition(rank, count)[count]
        if sizes[chosen].sum() >= bytes_needed:
            return chosen
        count *= 8
    return np.ones(len(rank), np.bool_)


def may_go(next_use: float, before: float | None) -> bool:
    """Whether a piece with that next use may go for one that is needed in `before` seconds."""
    return before is None or (next_use > before and next_use != UNKNOWN)


def may_go_all(next_use: Seconds, before: float | None) -> Flags:
    """`may_go` for each of these."""
    if before is None:
        return np.ones(len(next_use), np.bool_)
    free: Flags = (next_use > before) & (next_use != UNKNOWN)
    return free
