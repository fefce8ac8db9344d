"""How many requests one store is sent at once, and when none at all: additive increase, multiplicative decrease. Pure.

The window grows by one for each window of requests that went well, while at least half of it is in use. A throttled
request (503 SlowDown, 429) halves it, once for all requests that were under way together; up to half of what it was
before a run of those it then grows by one for each request that goes well. It also begins a pause in which no request
is sent: as long as the store asks for, else twice as long each time until one succeeds again. So a store that throttles
gets one request a pause, and one that has recovered is back at full speed after a few round trips. Retries take their
turns here like all others.

Times are seconds of any clock that only moves forward. Called by `gate` on the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from forebay_core.errors import ConfigurationError

#: As many requests of 8 MiB as fill 10 Gbit/s at 100 ms, before anything is known.
_FIRST = 16


@dataclass(frozen=True, slots=True)
class PaceRules:
    """Bounds of the window and of the pauses."""

    first: int = _FIRST
    most: int = 64
    first_pause_seconds: float = 0.25
    longest_pause_seconds: float = 10.0
    #: A store that asks for more is asked again after this long all the same.
    longest_obeyed_seconds: float = 60.0

    def __post_init__(self) -> None:
        pauses = (self.first_pause_seconds, self.longest_pause_seconds, self.longest_obeyed_seconds)
        if not 1 <= self.first <= self.most or min(pauses) <= 0:
            raise ConfigurationError(f"a pace needs 1 <= first <= most and positive pauses, not {self}")

    @classmethod
    def up_to(cls, most: int) -> "PaceRules":
        """The usual rules with so many requests at the most."""
        return cls(first=min(_FIRST, most), most=most)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request under way: which decrease it was begun after."""

    era: int


class Pace:
    """The window of one store."""

    def __init__(self, rules: PaceRules, random: Callable[[], float]) -> None:
        """`random` gives numbers in [0, 1): the daemons of many nodes must not come back together."""
        self.in_flight = 0
        self.paused_until = float("-inf")
        self.succeeded_at = float("-inf")
        self._rules = rules
        self._random = random
        self._window = float(rules.first)
        #: Up to here the window grows fast.
        self._known_good = float(rules.first)
        self._era = 0
        self._strikes = 0

    @property
    def limit(self) -> int:
        """Requests that may be under way at once."""
        return int(self._window)

    def may_begin(self, now: float) -> bool:
        return self.in_flight < self.limit and now >= self.paused_until

    def begin(self) -> Ticket:
        """A request goes out; only where `may_begin`."""
        self.in_flight += 1
        return Ticket(self._era)

    def succeeded(self, ticket: Ticket, now: float) -> None:
        """The request was answered."""
        was_in_use = 2 * self.in_flight >= self.limit
        self.in_flight -= 1
        self.succeeded_at = now
        if ticket.era != self._era:
            return
        self._strikes = 0
        if was_in_use:
            grown = self._window + (1.0 if self._window < self._known_good else 1.0 / self._window)
            self._window = min(grown, float(self._rules.most))

    def ended(self) -> None:
        """The request ended in a way that says nothing about the pace."""
        self.in_flight -= 1

    def throttled(self, ticket: Ticket, now: float, retry_after: float | None) -> None:
        """The store asked for less; `retry_after`: for how long, in seconds, where it said so."""
        self.in_flight -= 1
        if ticket.era == self._era:
            self._era += 1
            halved = max(1.0, self._window / 2)
            if not self._strikes:
                self._known_good = halved
            self._window = halved
            self._pause(now, self._next_pause())
        if retry_after is not None:
            self._pause(now, min(retry_after, self._rules.longest_obeyed_seconds))

    def _next_pause(self) -> float:
        rules = self._rules
        whole = min(rules.first_pause_seconds * 2.0 ** min(self._strikes, 32), rules.longest_pause_seconds)
        self._strikes += 1
        return whole * (1 + self._random()) / 2

    def _pause(self, now: float, seconds: float) -> None:
        self.paused_until = max(self.paused_until, now + seconds)
