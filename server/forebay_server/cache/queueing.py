"""Demands that wait for room: first come, first served, and not for ever.

The first to ask is the first to get room. Else those that a trainer wants later could take what it waits for now, and
hold it because it does not move on. A demand gives up when for `wait_seconds` nothing has moved: no room was made, and
no trainer has read on; or after ten times as long in any case. Pure but for its clock; used on the event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

_LONGEST_WAITS = 10


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

    def gives_up(self, demand: Demand) -> bool:
        """True where the demand has waited long enough."""
        now = self._clock()
        waited = now - demand.asked_at
        still = now - max(demand.asked_at, self._moved_at)
        return still >= self._wait_seconds or waited >= _LONGEST_WAITS * self._wait_seconds
