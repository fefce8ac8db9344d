"""Which pieces of a cache make room: the policy, asked with what is known at the moment.

A plan is made in a thread for several evictions and used up while it is fresh. A prefetch that displaces what is needed
later is held to the window of those in transit. On the event loop; nothing is removed here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

import numpy as np

from forebay_core.eviction import (
    BEYOND,
    Departure,
    Departures,
    Policy,
    Residents,
    Transit,
    departures_of,
    plan,
    victims,
)
from forebay_core.needs import Seconds
from forebay_server.cache.pins import Pins
from forebay_server.disk.entry import Entry


class NextUse(Protocol):
    """What the sessions say about the future."""

    @property
    def version(self) -> int:
        """Changes when sessions publish other needs, not when they only move on."""

    async def seconds(self, keys: Sequence[str]) -> Seconds:
        """For each key its next use, as in `forebay_core.eviction.Residents`."""


@dataclass(slots=True)
class Held:
    """A piece that is there."""

    entry: Entry
    last_used: float


class Chooser:
    """Chooses from `held`, which stays its owner's."""

    def __init__(
        self,
        held: Mapping[str, Held],
        pins: Pins,
        needs: NextUse,
        policy: Policy,
        *,
        clock: Callable[[], float],
        capacity_bytes: Callable[[], int],
    ) -> None:
        self.transit: Transit[str] = Transit()
        self._held = held
        self._pins = pins
        self._needs = needs
        self._policy = policy
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._departures: Departures[str] = Departures(clock)
        #: Pieces that were seen mapped, and until when they are not looked at again.
        self._spared: dict[str, float] = {}

    def spare(self, key: str, seconds: float) -> None:
        """The piece was seen mapped: it is not chosen for a while."""
        self._spared[key] = self._clock() + seconds

    def is_free(self, key: str) -> bool:
        """Whether the piece is there and may go, unless somebody has it mapped."""
        return key in self._held and key not in self._pins and self._spared.get(key, 0.0) <= self._clock()

    async def for_demand(self, missing: int) -> list[str] | None:
        """Keys of pieces worth `missing` bytes, for one that is wanted now; None: not so many may go."""
        chosen = await self._planned(missing, None, displaces=True)
        return None if chosen is None else [piece.key for piece in chosen]

    async def for_prefetch(self, key: str, missing: int, *, total: int, before: float, due: bool) -> list[str] | None:
        """The same for the piece `key` of `total` bytes, needed in `before` seconds, which is in transit from now on if
        it displaces others."""
        displaces = self.transit.has_room(key, total, self._capacity_bytes(), due=due)
        chosen = await self._planned(missing, before, displaces=displaces)
        if not chosen and not displaces:
            chosen = await self._in_transit(missing, before)
        if chosen and any(piece.next_use < BEYOND for piece in chosen):
            self.transit.enter(key, total)
        return None if chosen is None else [piece.key for piece in chosen]

    async def _planned(self, missing: int, before: float | None, *, displaces: bool) -> list[Departure[str]] | None:
        chosen = self._taken(missing, before, displaces=displaces)
        if chosen is None:
            version, keys, pieces = self._needs.version, list(self._held), list(self._held.values())
            residents = await self._residents(keys, pieces)
            made = await asyncio.to_thread(plan, self._policy, keys, residents, missing)
            self._departures.keep(made, version=version, made_at=self._clock())
            chosen = self._taken(missing, before, displaces=displaces)
        return chosen

    def _taken(self, missing: int, before: float | None, *, displaces: bool) -> list[Departure[str]] | None:
        return self._departures.take(
            missing, before=before, version=self._needs.version, is_free=self.is_free, displaces=displaces
        )

    async def _in_transit(self, missing: int, before: float) -> list[Departure[str]]:
        """Of what was brought in early, that which is needed later still."""
        keys = [key for key in self.transit if self.is_free(key)]
        residents = await self._residents(keys, [self._held[key] for key in keys])
        chosen = victims(self._policy, residents, missing, before=before)
        found = [] if chosen is None else departures_of(keys, residents, chosen)
        return [piece for piece in found if self.is_free(piece.key)]

    async def _residents(self, keys: Sequence[str], pieces: Sequence[Held]) -> Residents:
        next_use = await self._needs.seconds(keys)
        now = self._clock()
        self._spared = {key: until for key, until in self._spared.items() if until > now}
        kept = frozenset(self._pins).union(self._spared)
        return await asyncio.to_thread(_residents, keys, pieces, next_use, kept, self._capacity_bytes())


def _residents(
    keys: Sequence[str], pieces: Sequence[Held], next_use: Seconds, kept: frozenset[str], capacity_bytes: int
) -> Residents:
    """On any thread. `map` over the fields, since a large cache has 100,000 of them."""
    count = len(keys)
    return Residents(
        bytes=np.fromiter(map(attrgetter("entry.blocks"), pieces), np.int64, count),
        next_use=next_use,
        last_used=np.fromiter(map(attrgetter("last_used"), pieces), np.float64, count),
        held=np.fromiter(map(kept.__contains__, keys), np.bool_, count),
        capacity_bytes=capacity_bytes,
    )
