"""Demands that wait for room: first come, first served, and not for ever.

The first to ask is the first to get room. Else those that a trainer wants later could take what it waits for now, and
hold it because it does not move on. A demand gives up when for `wait_seconds` nothing has moved: no room was made, and
no trainer has read on; or after ten times as long in any case. Once one has, those who wait hold what others wait for,
and every piece would cost as much again: for some minutes, demands that can pass the cache by give up far sooner. Pure
but for its clock; used on the event loop.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

_LONGEST_WAITS = 10
#: After a demand that gave up, others that can pass by wait this part of the time, for so many times as long as it did.
_JAMMED_SHARE, _JAM_WAITS = 1 / 30, 10


class Demand(Protocol):
    """Who waits: `turn` counts demands in the order in which they were made; `asked_at` is on the queue's clock."""

    @property
    def turn(self) -> int: ...

    @property
    def asked_at(self) -> float: ...


class RoomQueue:
    """Who may take room next."""

    def __init__(self, clock: Callable[[], float], wait_seconds: float) -> None:
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._waiting: dict[int, Demand] = {}
        #: Set while a demand waits.
        self.has_waiting = asyncio.Event()
        self._moved_at = clock()
        self._jammed_until = -math.inf

    def join(self, demand: Demand) -> None:
        """The demand waits from now on."""
        self._waiting[demand.turn] = demand
        self.has_waiting.set()

    def leave(self, demand: Demand) -> None:
        """It waits no longer, however that ended."""
        self._waiting.pop(demand.turn, None)
        if not self._waiting:
            self.has_waiting.clear()

    def must_wait(self, turn: int) -> bool:
        """True while a demand of an earlier turn waits."""
        return any(waiting < turn for waiting in self._waiting)

    def is_empty(self) -> bool:
        """True while no demand waits."""
        return not self._waiting

    def moved(self) -> None:
        """Room was made, or a trainer has read on."""
        self._moved_at = self._clock()

    def gives_up(self, demand: Demand, *, passes_by: bool = False) -> bool:
        """True where the demand has waited long enough. `passes_by`: it is served without room, too."""
        now = self._clock()
        waited = now - demand.asked_at
        still = now - max(demand.asked_at, self._moved_at)
        if still >= self._wait_seconds or waited >= _LONGEST_WAITS * self._wait_seconds:
            self._jammed_until = now + _JAM_WAITS * self._wait_seconds
            return True
        short = _JAMMED_SHARE * self._wait_seconds
        return passes_by and now < self._jammed_until and (still >= short or waited >= _LONGEST_WAITS * short)
