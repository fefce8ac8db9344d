"""Which pieces go next, chosen for many evictions at once.

A policy looks at every piece, which takes a large cache tens of milliseconds. So it is asked for more than is needed at
the moment, off the event loop, and its answer is used up from the front while it is fresh: for a second, unless the
sessions publish other needs. A plan is made for whoever may take anything; those who may not are held to the rules of
`contract` when they take from it. Pure but for its clock; whoever takes a key checks that it is still free.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from forebay_core.eviction.contract import BEYOND, UNKNOWN, Numbers, Policy, Residents, leaving, may_go

K = TypeVar("K")
"""What names a piece."""

FRESH_SECONDS = 1.0
#: A plan is for so many times what is missing, but not for more than this part of the cache.
_AHEAD = 32
_AHEAD_PART = 16


@dataclass(frozen=True, slots=True)
class Departure(Generic[K]):
    """A piece that may go: its bytes on the disk, and its next use as in `Residents`."""

    key: K
    bytes: int
    next_use: float


@dataclass(slots=True)
class Departures(Generic[K]):
    """The plan at hand."""

    clock: Callable[[], float]
    _queue: deque[Departure[K]] = field(default_factory=deque)
    _made_at: float = float("-inf")
    _version: int = -1

    def take(
        self,
        missing: int,
        *,
        before: float | None,
        version: int,
        is_free: Callable[[K], bool],
        displaces: bool = True,
    ) -> list[Departure[K]] | None:
        """Pieces worth `missing` bytes from the plan. An empty list: nothing that may go for this is worth so much.
        None: make a plan first, this one has not so many or is not fresh.

        displaces: False where only what nobody needs by its horizon may go.
        """
        if version != self._version or self.clock() - self._made_at >= FRESH_SECONDS:
            return None
        chosen: list[Departure[K]] = []
        passed: list[Departure[K]] = []
        while self._queue and missing > 0:
            departure = self._queue[0]
            if departure.next_use == UNKNOWN and before is not None:
                passed.append(self._queue.popleft())
                continue
            if not may_go(departure.next_use, before) or not (displaces or departure.next_use >= BEYOND):
                self._queue.extendleft(reversed([*chosen, *passed]))
                return []
            self._queue.popleft()
            if is_free(departure.key):
                chosen.append(departure)
                missing -= departure.bytes
        self._queue.extendleft(reversed(passed))
        return chosen if missing <= 0 else None

    def keep(self, plan: list[Departure[K]], *, version: int, made_at: float) -> None:
        """Replaces the plan."""
        self._queue, self._version, self._made_at = deque(plan), version, made_at


def plan(policy: Policy, keys: Sequence[K], residents: Residents, missing: int) -> list[Departure[K]]:
    """In the order of the policy, what goes for `missing` bytes and, where there is as much, for the next fills; empty
    where there is not enough. `keys[i]` is of the i-th resident."""
    ahead = max(missing, min(_AHEAD * missing, residents.capacity_bytes // _AHEAD_PART))
    order = leaving(policy, residents, None, ahead)
    freed = np.cumsum(residents.bytes[order])
    if not len(order) or freed[-1] < missing:
        return []
    return departures_of(keys, residents, order[: int(np.searchsorted(freed, ahead)) + 1])


def departures_of(keys: Sequence[K], residents: Residents, chosen: Numbers) -> list[Departure[K]]:
    """The residents with these indices."""
    columns = (chosen.tolist(), residents.bytes[chosen].tolist(), residents.next_use[chosen].tolist())
    return [Departure(keys[index], freed, next_use) for index, freed, next_use in zip(*columns, strict=True)]
