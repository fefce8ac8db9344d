"""A cache of piece numbers, without files, that decides as the daemon's does: the same policy, plans and window."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from forebay_core.eviction import Departure, Departures, Policy, Residents, Transit, departures_of, plan, victims
from forebay_core.eviction.contract import BEYOND, Numbers, Seconds


class SimulatedCache:
    """Pieces by number.

    next_use: for all pieces, as in `Residents`, at the moment.
    clock: seconds.
    """

    def __init__(
        self,
        piece_bytes: Numbers,
        capacity_bytes: int,
        policy: Policy,
        *,
        next_use: Callable[[], Seconds],
        clock: Callable[[], float],
    ) -> None:
        self.evictions = 0
        #: Demands that everything else had to be in use for.
        self.bypassed = 0
        self._piece_bytes = piece_bytes
        self._capacity_bytes = capacity_bytes
        self._policy = policy
        self._next_use = next_use
        self._clock = clock
        self._used_bytes = 0
        self._last_used: dict[int, float] = {}
        self._pins: Counter[int] = Counter()
        self._departures: Departures[int] = Departures(clock)
        self._transit: Transit[int] = Transit()

    def __contains__(self, piece: int) -> bool:
        return piece in self._last_used

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def is_there(self) -> Numbers:
        """The numbers of the pieces that are there, in the order in which they came."""
        return np.fromiter(self._last_used, np.int64, len(self._last_used))

    def lease(self, piece: int, version: int) -> bool:
        """Reads a piece and holds it until `release`. True where it was there."""
        self._pins[piece] += 1
        hit = piece in self._last_used
        if not hit and not self.bring(piece, None, version):
            self.bypassed += 1
        self._transit.leave(piece)
        if piece in self._last_used:
            self._last_used[piece] = self._clock()
        return hit

    def release(self, piece: int) -> None:
        self._pins[piece] -= 1
        if not self._pins[piece]:
            del self._pins[piece]

    def bring(self, piece: int, before: float | None, version: int) -> bool:
        """Makes room for a piece that is not there and takes it in. False: there is no room for it."""
        size = int(self._piece_bytes[piece])
        while (missing := self._used_bytes + size - self._capacity_bytes) > 0:
            chosen = self._chosen(piece, missing, before, version)
            if not chosen:
                return False
            if before is not None and any(departure.next_use < BEYOND for departure in chosen):
                self._transit.enter(piece, size)
            for departure in chosen:
                self._remove(departure.key)
        self._last_used[piece] = self._clock()
        self._used_bytes += size
        return True

    def _chosen(self, piece: int, missing: int, before: float | None, version: int) -> list[Departure[int]] | None:
        displaces = before is None or self._transit.has_room(piece, int(self._piece_bytes[piece]), self._capacity_bytes)
        chosen = self._take(missing, before, version, displaces=displaces)
        if chosen is None:
            keys = self.is_there()
            plans = plan(self._policy, keys.tolist(), self._residents(keys), missing)
            self._departures.keep(plans, version=version, made_at=self._clock())
            chosen = self._take(missing, before, version, displaces=displaces)
        return chosen if chosen or displaces else self._in_transit(missing, before)

    def _take(
        self, missing: int, before: float | None, version: int, *, displaces: bool
    ) -> list[Departure[int]] | None:
        return self._departures.take(
            missing, before=before, version=version, is_free=self._is_free, displaces=displaces
        )

    def _in_transit(self, missing: int, before: float | None) -> list[Departure[int]] | None:
        keys = np.array([piece for piece in self._transit if self._is_free(piece)], np.int64)
        residents = self._residents(keys)
        chosen = victims(self._policy, residents, missing, before=before)
        return None if chosen is None else departures_of(keys.tolist(), residents, chosen)

    def _is_free(self, piece: int) -> bool:
        return piece in self._last_used and piece not in self._pins

    def _residents(self, keys: Numbers) -> Residents:
        pieces = keys.tolist()
        return Residents(
            bytes=self._piece_bytes[keys],
            next_use=self._next_use()[keys],
            last_used=np.array([self._last_used[piece] for piece in pieces], np.float64),
            held=np.array([piece in self._pins for piece in pieces], np.bool_),
            capacity_bytes=self._capacity_bytes,
        )

    def _remove(self, piece: int) -> None:
        del self._last_used[piece]
        self._used_bytes -= int(self._piece_bytes[piece])
        self._transit.leave(piece)
        self.evictions += 1
