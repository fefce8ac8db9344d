"""How long before its first use a piece arrived.

In time: it was there when the first reader asked. Late: the reader found it on its way, and its lead is what he then
waited, negative. Never begun: the reader's demand was the first that was heard of it. Pure but for its clock; the event
loop's fills and sessions tell it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_server.distribution import Distribution

#: Upper bounds of the classes of leads, in seconds.
LEAD_BOUNDS = (-30.0, -10.0, -3.0, -1.0, -0.3, 0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


@dataclass(slots=True)
class LeadCounters:
    """Since the daemon's start."""

    in_time: int = 0
    late: int = 0
    never_begun: int = 0
    #: Fetched ahead and removed before anybody read them.
    unread: int = 0
    #: Of those in time and late.
    lead_seconds: Distribution = field(default_factory=lambda: Distribution(LEAD_BOUNDS))


class Leads:
    """The pieces that were fetched ahead and not read yet, and what became of all others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counters = LeadCounters()
        self._clock = clock
        self._arrived_at: dict[str, float] = {}

    def arrived(self, key: str) -> None:
        """A piece that was fetched ahead is there, and nobody has asked for it."""
        self._arrived_at[key] = self._clock()

    def overtaken(self, asked_at: float) -> None:
        """A piece that was being fetched ahead is there, after somebody had asked for it."""
        self.counters.late += 1
        self.counters.lead_seconds.add(asked_at - self._clock())

    def never_begun(self) -> None:
        """A piece is there that was not being fetched when somebody asked for it."""
        self.counters.never_begun += 1

    def used(self, key: str) -> bool:
        """Somebody reads a piece that is there. Only the first one counts: whether it is he."""
        arrived_at = self._arrived_at.pop(key, None)
        if arrived_at is None:
            return False
        self.counters.in_time += 1
        self.counters.lead_seconds.add(self._clock() - arrived_at)
        return True

    def gone(self, key: str) -> None:
        """A piece was removed."""
        if self._arrived_at.pop(key, None) is not None:
            self.counters.unread += 1
