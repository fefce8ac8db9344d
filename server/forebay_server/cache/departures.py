"""Which pieces go next, chosen for many evictions at once.

The rule (`forebay_core.eviction`) looks at every piece, which takes a large cache tens of milliseconds. So it is asked
for more than is needed at the moment, off the event loop, and its answer is used up from the front while it is fresh:
for a second, unless the sessions publish other needs. Pure but for its clock; whoever takes a key checks that it is
still free.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forebay_core.eviction import Resident, may_go, victims

FRESH_SECONDS = 1.0
#: A plan is for so many times what is missing, but not for more than this part of the cache.
_AHEAD = 32
_AHEAD_PART = 16


@dataclass(frozen=True, slots=True)
class Departure:
    """A piece that may go: its bytes on the disk, and when it is needed next, as in `Resident`."""

    key: str
    bytes: int
    next_use: float | None


@dataclass(slots=True)
class Departures:
    """The plan at hand."""

    clock: Callable[[], float]
    _queue: deque[Departure] = field(default_factory=deque)
    _made_at: float = float("-inf")
    _version: int = -1

    def take(
        self, missing: int, *, before: float | None, version: int, is_free: Callable[[str], bool]
    ) -> list[str] | None:
        """Keys worth `missing` bytes from the plan; None where it has not so many, or is not fresh."""
        if version != self._version or self.clock() - self._made_at >= FRESH_SECONDS:
            return None
        chosen: list[str] = []
        while self._queue and missing > 0:
            if not may_go(self._queue[0].next_use, before):
                break
            departure = self._queue.popleft()
            if is_free(departure.key):
                chosen.append(departure.key)
                missing -= departure.bytes
        return chosen if missing <= 0 else None

    def keep(self, plan: list[Departure], *, version: int, made_at: float) -> None:
        """Replaces the plan."""
        self._queue, self._version, self._made_at = deque(plan), version, made_at


def plan(residents: list[Resident], missing: int, *, before: float | None, capacity: int) -> list[Departure] | None:
    """In the order of the rule, what goes for `missing` bytes and, where there is as much, for the next fills; or
    None."""
    ahead = max(missing, min(_AHEAD * missing, capacity // _AHEAD_PART))
    chosen = victims(residents, ahead, before=before) or victims(residents, missing, before=before)
    if chosen is None:
        return None
    known: Mapping[str, Resident] = {resident.key: resident for resident in residents}
    return [Departure(key, known[key].bytes, known[key].next_use) for key in chosen]
