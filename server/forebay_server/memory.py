"""A bound on memory over all fills together: for pieces that are decoded before they are written, and for bytes that
are on their way.

It is granted to demands in the order in which they were made, then to prefetches, which may be kept from a part of it
so that a demand finds some at once. One that is larger than the whole bound goes alone. Nobody waits here for one who
waits for room on the disk behind him: `is_awaited_before` tells those, and they give back what they hold. Used on the
event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Taker(Protocol):
    """Who takes memory, as it stands now: a prefetch may become a demand while it waits."""

    @property
    def is_demand(self) -> bool: ...

    @property
    def turn(self) -> int:
        """Counts takers in the order in which they asked."""


class Memory:
    """`capacity_bytes` to share, of these `for_demands_bytes` among demands alone."""

    def __init__(self, capacity_bytes: int, *, for_demands_bytes: int = 0) -> None:
        self._capacity = capacity_bytes
        self._for_demands = for_demands_bytes
        self.used_bytes = 0
        self._waiting: dict[asyncio.Future[None], tuple[Taker, int]] = {}

    @asynccontextmanager
    async def taken(self, taker: Taker, amount: int) -> AsyncIterator[None]:
        """Holds so many bytes for as long as the context lasts. Waits until there are so many; never for none."""
        if amount:
            await self.take(taker, amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def give_back(self, amount: int) -> None:
        self.used_bytes -= amount
        self._grant()

    def is_awaited_before(self, turn: int) -> bool:
        """Whether a demand of an earlier turn waits."""
        return any(taker.is_demand and taker.turn < turn for taker, _ in self._waiting.values())

    async def take(self, taker: Taker, amount: int) -> None:
        """As `taken`, until as many are given back. Takers of one turn are served in the order in which they ask."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting[granted] = (taker, amount)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if self._waiting.pop(granted, None) is None:
                self.used_bytes -= amount
            self._grant()
            raise

    def _grant(self) -> None:
        def urgency(waiting: tuple[asyncio.Future[None], tuple[Taker, int]]) -> tuple[bool, int]:
            _, (taker, _) = waiting
            return not taker.is_demand, taker.turn

        for granted, (taker, amount) in sorted(self._waiting.items(), key=urgency):
            if granted.done():
                continue  # its task was cancelled and has not run yet
            capacity = self._capacity if taker.is_demand else self._capacity - self._for_demands
            if self.used_bytes and self.used_bytes + amount > capacity:
                return
            del self._waiting[granted]
            self.used_bytes += amount
            granted.set_result(None)
